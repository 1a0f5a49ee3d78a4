//! Check of a write against the admission policies.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Engine, Target, Warnings, namespace_key, run_blocking, scale_of};
use crate::admission::Admitted;
use crate::registry::Snapshot;
use crate::registry::resource::{Resource, ScalePaths, Subresource};
use crate::status::ApiError;
use rooflet_admission_policies::{Denial, Operation, Outcome, ParamKind, ParamQuery, Place, Request, Source};
use rooflet_apimachinery::verb::Verb;
use rooflet_store::ListOptions;

impl Engine {
    /// Checks a write of a user against the admission policies.
    pub(crate) fn admit(
        &self,
        target: &Target,
        write: Admitted<'_>,
        warnings: &mut Warnings,
    ) -> Result<(), ApiError> {
        let policies = self.admission.read();
        let Some(by) = target.by.as_ref().filter(|_| !policies.is_empty()) else {
            return Ok(());
        };
        let resource = &target.resource;
        let objects = Objects {
            engine: self,
            snapshot: self.registry.snapshot(),
            target,
            write,
        };
        let places = objects.places();
        let is_namespace = resource.group.is_empty() && resource.plural == "namespaces";
        let namespace = match is_namespace {
            true => &target.name,
            false => target.namespace.as_deref().unwrap_or_default(),
        };
        let name = if by.verb == Verb::DeleteCollection {
            ""
        } else {
            &target.name
        };
        let request = Request {
            operation: match (write.new, write.old) {
                (None, _) => Operation::Delete,
                (Some(_), None) => Operation::Create,
                (Some(_), Some(_)) => Operation::Update,
            },
            places: &places,
            subresource: target.subresource.map_or("", Subresource::as_str),
            is_namespaced: resource.namespaced,
            namespace,
            name,
            is_dry_run: write.is_dry_run,
        };
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
        let shown = if name.is_empty() { "Unknown" } else { name };
        let resource = resource.group_resource();
        Err(ApiError::denied(&resource, shown, &reason, &message))
    }
}

/// Source of the objects of a write.
struct Objects<'a> {
    engine: &'a Engine,
    snapshot: Arc<Snapshot>,
    target: &'a Target,
    write: Admitted<'a>,
}

impl Objects<'_> {
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
        let found = self
            .snapshot
            .resource(&place.group, &place.version, &place.resource);
        let resource = found.unwrap_or(&self.target.resource);
        resource.external(object.clone())
    }
}

impl Source for Objects<'_> {
    fn object(&self, place: &Place) -> Value {
        self.external(self.write.new, place)
    }

    fn old_object(&self, place: &Place) -> Value {
        self.external(self.write.old, place)
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
