//! Admission request: a write and its objects.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::parameters::ParamQuery;
use rooflet_schema::cel::authorizer::{Authorizer, ResourceAccess};

/// Operation of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }

    fn options(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Delete => "DeleteOptions",
        }
    }
}

/// Resource in a group version, and the kind of the objects of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub group: String,
    pub version: String,
    pub resource: String,
    /// Group, version and kind. Differs from the resource's for a scale.
    pub kind: [String; 3],
}

/// Facts of a write.
#[derive(Debug)]
pub struct Request<'a> {
    pub operation: Operation,
    /// Place of the request, then equivalent places.
    pub places: &'a [Place],
    /// Name of the subresource, or empty.
    pub subresource: &'a str,
    pub is_namespaced: bool,
    /// Namespace of the object, or the name of a Namespace. Empty for other objects without a namespace.
    pub namespace: &'a str,
    /// Name of the object. Empty for a deletion of a collection.
    pub name: &'a str,
    pub is_dry_run: bool,
}

/// Objects of a request. Read only if a policy selects the request.
pub trait Source {
    /// Returns the new object in the form of a place, or null for a deletion.
    fn object(&self, place: &Place) -> Value;
    /// Returns the stored object in the form of a place, or null for a creation.
    fn old_object(&self, place: &Place) -> Value;
    /// Returns the user in the form of a review.
    fn user(&self) -> Value;
    /// Returns the permissions of the user.
    fn authorizer(&self) -> Arc<dyn Authorizer>;
    /// Returns a Namespace.
    fn namespace(&self, name: &str) -> Option<Arc<Value>>;
    /// Returns the parameters of a binding, or the fault of its configuration.
    fn parameters(&self, query: &ParamQuery<'_>) -> Result<Vec<Value>, String>;
    /// Returns true if the server has a kind.
    fn has_kind(&self, api_version: &str, kind: &str) -> bool;
}

/// Object that mutating policies change.
pub trait Subject: Source {
    /// Merges a configuration into an object in the form of a place.
    fn merged(&self, place: &Place, object: &Value, configuration: &Value) -> Result<Value, String>;
    /// Replaces the new object. Fails if it is no object of the kind.
    fn replace(&mut self, place: &Place, object: Value) -> Result<(), String>;
}

/// Values of the variables of expressions.
pub(crate) struct Inputs<'a> {
    pub(crate) request: &'a Request<'a>,
    pub(crate) place: &'a Place,
    pub(crate) parameter: &'a Value,
    pub(crate) source: &'a dyn Source,
}

impl Inputs<'_> {
    /// Returns the value of a variable.
    pub(crate) fn value(&self, variable: &str) -> Value {
        match variable {
            "object" => self.source.object(self.place),
            "oldObject" => self.source.old_object(self.place),
            "request" => self.request.variable(self.place, self.source),
            "namespaceObject" => self.request.namespace_variable(self.source),
            "params" => self.parameter.clone(),
            _ => Value::Null,
        }
    }
}

impl Request<'_> {
    /// Returns the place of the request itself.
    pub(crate) fn own(&self) -> &Place {
        &self.places[0]
    }

    pub(crate) fn is_namespace(&self) -> bool {
        let own = self.own();
        own.group.is_empty() && own.resource == "namespaces"
    }

    /// Returns the access to the resource of the request.
    pub(crate) fn access(&self) -> ResourceAccess {
        let own = self.own();
        ResourceAccess {
            group: own.group.clone(),
            resource: own.resource.clone(),
            subresource: self.subresource.to_owned(),
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            field_selector: String::new(),
        }
    }

    /// Returns the variable `request` of a policy that selects a place.
    fn variable(&self, place: &Place, source: &dyn Source) -> Value {
        let kind =
            |place: &Place| json!({"group": place.kind[0], "version": place.kind[1], "kind": place.kind[2]});
        let resource = |place: &Place| json!({"group": place.group, "version": place.version, "resource": place.resource});
        let own = self.own();
        let mut options = json!({"kind": self.operation.options(), "apiVersion": "meta.k8s.io/v1"});
        if self.is_dry_run {
            options["dryRun"] = json!(["All"]);
        }
        let mut request = json!({
            "kind": kind(place), "resource": resource(place),
            "requestKind": kind(own), "requestResource": resource(own),
            "operation": self.operation.as_str(), "userInfo": source.user(),
            "dryRun": self.is_dry_run, "options": options,
        });
        for (member, text) in [
            ("subResource", self.subresource),
            ("requestSubResource", self.subresource),
            ("name", self.name),
            ("namespace", self.namespace),
        ] {
            if !text.is_empty() {
                request[member] = json!(text);
            }
        }
        request
    }

    /// Returns the variable `namespaceObject`.
    fn namespace_variable(&self, source: &dyn Source) -> Value {
        let namespace = (!self.is_namespace() && !self.namespace.is_empty())
            .then(|| source.namespace(self.namespace))
            .flatten();
        let Some(namespace) = namespace else {
            return Value::Null;
        };
        const METADATA: [&str; 10] = [
            "name",
            "generateName",
            "labels",
            "annotations",
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "generation",
            "resourceVersion",
            "finalizers",
        ];
        let metadata: Map<String, Value> = METADATA
            .into_iter()
            .filter_map(|member| Some((member.to_owned(), namespace["metadata"].get(member)?.clone())))
            .collect();
        json!({"metadata": metadata, "spec": namespace["spec"], "status": namespace["status"]})
    }
}
