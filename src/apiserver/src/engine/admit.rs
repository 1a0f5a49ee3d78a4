//! Admission policies of a write: changes by mutating policies, then the check by validating policies.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};

use super::apply::scale_schema;
use super::create::{Ownership, resolve_namespace, warn_duplicate_owners};
use super::permissions::Permissions;
use super::{
    Engine, Target, Warnings, decode_object, namespace_key, ownership, run_blocking, scale, scale_of,
};
use crate::admission::Admitted;
use crate::endpoints::options::FieldValidation;
use crate::object::{self, managed_fields};
use crate::registry::Snapshot;
use crate::registry::resource::{Resource, ScalePaths, Subresource};
use crate::status::ApiError;
use rooflet_admission_policies::{
    Denial, MutateError, Operation, Outcome, ParamKind, ParamQuery, Place, Request, Source, Subject,
};
use rooflet_apimachinery::verb::Verb;
use rooflet_schema::cel::authorizer::Authorizer;
use rooflet_store::ListOptions;

impl Engine {
    /// Returns true if mutating policies may change a write.
    pub(super) fn mutates(&self, target: &Target) -> bool {
        target.by.is_some() && !self.admission.read().is_never_mutating()
    }

    /// Applies the mutating policies to a new object in working form. As in kube-apiserver, no manager
    /// owns the changes of the policies.
    pub(super) fn mutate_new(
        &self,
        target: &Target,
        working: &mut Value,
        ownership: Ownership,
        is_dry_run: bool,
        warnings: &mut Warnings,
    ) -> Result<(), ApiError> {
        if ownership == Ownership::Tracked {
            let managers = ownership::of_created(target, working, self.clock.now());
            managed_fields::set(working, managers);
        }
        self.mutate(target, working, None, is_dry_run, warnings)
    }

    /// Applies the mutating policies to the new object of a write, in working form with its managed
    /// fields.
    pub(super) fn mutate(
        &self,
        target: &Target,
        new: &mut Value,
        old: Option<&Value>,
        is_dry_run: bool,
        warnings: &mut Warnings,
    ) -> Result<(), ApiError> {
        let policies = self.admission.read();
        let write = Admitted {
            new: Some(new),
            old,
            is_dry_run,
        };
        let mut objects = Objects::of(self, target, write);
        let places = objects.places();
        let request = request(target, write, &places);
        let outcome = run_blocking(|| policies.mutate(&request, &mut objects));
        let is_changed = outcome.map_err(|err| match err {
            MutateError::Denied { messages, is_invalid } => {
                let base = object::text(new, &["metadata", "generateName"]);
                let names = [request.name, base, "Unknown"];
                let shown = names.into_iter().find(|name| !name.is_empty());
                let resource = target.resource.group_resource();
                ApiError::not_mutated(&resource, shown.unwrap_or_default(), messages, is_invalid)
            }
            MutateError::Internal(fault) => ApiError::internal(fault),
        })?;
        if !is_changed {
            return Ok(());
        }
        let mutated = objects.new.map(Cow::into_owned).unwrap_or_default();
        let managers = managed_fields::take(new);
        *new = mutated;
        managed_fields::set(new, managers);
        resolve_namespace(target, new)?;
        warn_duplicate_owners(new, warnings);
        Ok(())
    }

    /// Checks a write of a user against the validating policies.
    pub(crate) fn admit(
        &self,
        target: &Target,
        write: Admitted<'_>,
        warnings: &mut Warnings,
    ) -> Result<(), ApiError> {
        let policies = self.admission.read();
        if target.by.is_none() || policies.is_never_validating() {
            return Ok(());
        }
        let objects = Objects::of(self, target, write);
        let places = objects.places();
        let request = request(target, write, &places);
        let Outcome {
            denial,
            warnings: texts,
            annotations,
        } = run_blocking(|| policies.decide(&request, &objects));
        warnings.extend(texts);
        warnings.annotate(annotations);
        let Some(Denial { message, reason }) = denial else {
            return Ok(());
        };
        let shown = if request.name.is_empty() {
            "Unknown"
        } else {
            request.name
        };
        let resource = target.resource.group_resource();
        Err(ApiError::denied(&resource, shown, &reason, &message))
    }
}

fn request<'a>(target: &'a Target, write: Admitted<'_>, places: &'a [Place]) -> Request<'a> {
    let resource = &target.resource;
    let is_namespace = resource.group.is_empty() && resource.plural == "namespaces";
    let namespace = match is_namespace {
        true => &target.name,
        false => target.namespace.as_deref().unwrap_or_default(),
    };
    let of_collection = target
        .by
        .as_ref()
        .is_some_and(|by| by.verb == Verb::DeleteCollection);
    Request {
        operation: match (write.new, write.old) {
            (None, _) => Operation::Delete,
            (Some(_), None) => Operation::Create,
            (Some(_), Some(_)) => Operation::Update,
        },
        places,
        subresource: target.subresource.map_or("", Subresource::as_str),
        is_namespaced: resource.namespaced,
        namespace,
        name: if of_collection { "" } else { &target.name },
        is_dry_run: write.is_dry_run,
    }
}

/// Source of the objects of a write.
struct Objects<'a> {
    engine: &'a Engine,
    snapshot: Arc<Snapshot>,
    target: &'a Target,
    new: Option<Cow<'a, Value>>,
    old: Option<&'a Value>,
}

impl<'a> Objects<'a> {
    fn of(engine: &'a Engine, target: &'a Target, write: Admitted<'a>) -> Self {
        Self {
            engine,
            snapshot: engine.registry.snapshot(),
            target,
            new: write.new.map(Cow::Borrowed),
            old: write.old,
        }
    }

    fn scale(&self) -> Option<&ScalePaths> {
        let custom = self.target.resource.custom()?;
        let is_scale = self.target.subresource == Some(Subresource::Scale);
        custom.scale.as_ref().filter(|_| is_scale)
    }

    /// Returns the place of the request, then the other versions of the same objects.
    fn places(&self) -> Vec<Place> {
        let own = &self.target.resource;
        let others = self.snapshot.equivalents(own);
        let place = |resource: &Resource| Place {
            group: resource.group.clone(),
            version: resource.version.clone(),
            resource: resource.plural.clone(),
            kind: match self.scale() {
                Some(_) => ["autoscaling", "v1", "Scale"].map(str::to_owned),
                None => [&resource.group, &resource.version, &resource.kind].map(Clone::clone),
            },
        };
        std::iter::once(own).chain(others).map(|one| place(one)).collect()
    }

    fn external(&self, object: Option<&Value>, place: &Place) -> Value {
        let Some(object) = object else {
            return Value::Null;
        };
        if let Some(paths) = self.scale() {
            return scale_of(object, paths).unwrap_or_default();
        }
        self.resource(place).external(object.clone())
    }

    fn resource(&self, place: &Place) -> &Resource {
        let found = self
            .snapshot
            .resource(&place.group, &place.version, &place.resource);
        found.unwrap_or(&self.target.resource)
    }
}

impl Source for Objects<'_> {
    fn object(&self, place: &Place) -> Value {
        self.external(self.new.as_deref(), place)
    }

    fn old_object(&self, place: &Place) -> Value {
        self.external(self.old, place)
    }

    fn user(&self) -> Value {
        let Some(by) = &self.target.by else {
            return Value::Null;
        };
        let mut user = json!({"username": by.user.name, "groups": by.user.groups});
        if !by.user.uid.is_empty() {
            user["uid"] = json!(by.user.uid);
        }
        if !by.user.extra.is_empty() {
            user["extra"] = json!(by.user.extra);
        }
        user
    }

    fn authorizer(&self) -> Arc<dyn Authorizer> {
        Arc::new(Permissions::of(self.target.by.as_ref()))
    }

    fn namespace(&self, name: &str) -> Option<Arc<Value>> {
        Some(self.engine.store.get(&namespace_key(name))?.json())
    }

    fn parameters(&self, query: &ParamQuery<'_>) -> Result<Vec<Value>, String> {
        let ParamKind { api_version, kind } = query.kind;
        let Some(resource) = self.snapshot.of_kind(api_version, kind) else {
            return Ok(Vec::new());
        };
        let own = self.target.namespace.as_deref().unwrap_or_default();
        let namespace = match (resource.namespaced, query.namespace, own) {
            (true, "", "") => {
                return Err(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                        .to_owned(),
                );
            }
            (true, "", own) => Some(own),
            (true, given, _) => Some(given),
            (false, "", _) => None,
            (false, _, _) => {
                return Err(
                    "paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned(),
                );
            }
        };
        let store = &self.engine.store;
        let records = if query.name.is_empty() {
            let listed = store.list(&resource.prefix_in(namespace), &ListOptions::default());
            listed.map(|listing| listing.records).unwrap_or_default()
        } else {
            let found = store.get(&resource.key(namespace, query.name));
            found.into_iter().collect()
        };
        let objects = records
            .iter()
            .map(|record| resource.external(Value::clone(&resource.view(record))));
        Ok(objects
            .filter(|object| !query.name.is_empty() || query.selector.matches(object))
            .collect())
    }

    fn has_kind(&self, api_version: &str, kind: &str) -> bool {
        self.snapshot.of_kind(api_version, kind).is_some()
    }
}

impl Subject for Objects<'_> {
    fn merged(&self, place: &Place, object: &Value, configuration: &Value) -> Result<Value, String> {
        let schema = match self.scale() {
            Some(_) => scale_schema(),
            None => self.resource(place).type_schema(),
        };
        schema
            .mutate(object, configuration)
            .map_err(|err| err.to_string())
    }

    fn replace(&mut self, place: &Place, object: Value) -> Result<(), String> {
        if !object.is_object() {
            return Err("the patched value is not an object".to_owned());
        }
        let mut replaced = match self.scale() {
            Some(paths) => {
                let mut replaced = self.new.as_deref().cloned().unwrap_or_default();
                let replicas = object["spec"]["replicas"].as_i64().unwrap_or_default();
                scale::set(&mut replaced, &paths.spec_replicas, json!(replicas))
                    .map_err(|err| err.to_string())?;
                replaced
            }
            None => {
                let resource = self.resource(place);
                let validation = match resource.custom() {
                    Some(_) => FieldValidation::Ignore,
                    None => FieldValidation::Strict,
                };
                decode_object(resource, object, Vec::new(), validation, &mut Warnings::default())
                    .map_err(|fault| fault.text())?
            }
        };
        if self.target.resource.custom().is_some() {
            replaced["apiVersion"] = Value::from(self.target.resource.api_version());
        }
        self.new = Some(Cow::Owned(replaced));
        Ok(())
    }
}
