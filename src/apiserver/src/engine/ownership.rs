//! Managed fields of written objects: which manager owns which fields.

use serde_json::{Map, Value, json};

use super::Target;
use crate::object::{self, managed_fields};
use crate::registry::resource::{Origin, Resource, Subresource};
use jiff::Timestamp;
use rooflet_apimachinery::fields::{Manager, Managers, Operation, Tracked};
use rooflet_apimachinery::time::format_time;

/// Manager of requests whose client has no name.
const UNKNOWN: &str = "unknown";

impl Target {
    /// Returns the manager of the request.
    pub(super) fn field_manager(&self, operation: Operation) -> Manager {
        let name = if self.manager.is_empty() {
            UNKNOWN
        } else {
            &self.manager
        };
        Manager {
            name: name.to_owned(),
            operation,
            api_version: self.resource.api_version(),
            subresource: self
                .subresource
                .map(Subresource::as_str)
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

/// Returns the managed fields of a new object in working form, before it is prepared for storage.
/// The object may contain managed fields of the client.
pub(super) fn of_created(target: &Target, new: &Value, now: Timestamp) -> Option<String> {
    let given = managed_fields::text(new);
    let managers = given.and_then(|text| Managers::decode(&text).ok());
    let old = empty_object(&target.resource, new);
    track(target, managers.unwrap_or_default(), &old, new, now)
}

/// Returns the managed fields of an updated object in working form, before it is prepared for
/// storage.
pub(super) fn of_updated(target: &Target, new: &Value, old: &Value, now: Timestamp) -> Option<String> {
    let stored = managed_fields::text(old);
    // A subresource cannot change the list.
    let given = managed_fields::text(new).filter(|_| target.subresource.is_none());
    if (given.is_none() || given == stored) && object::same_content(new, old) {
        return stored;
    }
    let managers = match given {
        Some(text) if managed_fields::is_reset(&text) => return None,
        Some(text) => Managers::decode(&text).ok().filter(|given| !given.is_empty()),
        None => None,
    };
    let decode = |text: String| Managers::decode(&text).ok();
    let managers = managers.or_else(|| stored.and_then(decode)).unwrap_or_default();
    // An object without managers is tracked from its first apply on.
    if managers.is_empty() {
        return None;
    }
    track(target, managers, old, new, now)
}

/// Compares the managed fields of two objects without their times. A time alone is no change.
pub(super) fn is_same(new: &Value, old: &Value) -> bool {
    match (managed_fields::text(new), managed_fields::text(old)) {
        (None, None) => true,
        (Some(new), Some(old)) => new == old || Managers::differ_only_in_time(&new, &old),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn track(
    target: &Target,
    mut managers: Managers,
    old: &Value,
    new: &Value,
    now: Timestamp,
) -> Option<String> {
    let resource = &target.resource;
    managers.retain_versions(|version| resource.has_version(version));
    let (mut old, new) = (resource.versioned(old), resource.versioned(new));
    if matches!(&resource.origin, Origin::BuiltIn(_)) {
        add_structures(resource, old.to_mut(), &new);
    }
    managers.track(Tracked {
        schema: resource.type_schema(),
        old: &old,
        new: &new,
        manager: &target.field_manager(Operation::Update),
        ignored: &resource.ignored_fields(target.subresource),
        now: &format_time(now),
    });
    managers.encode()
}

/// Fields of built-in kinds that always exist in kube-apiserver, because their Go types are structs.
/// Managers own the fields below, but not these fields.
const STRUCTURES: [&str; 5] = ["involvedObject", "metadata", "source", "spec", "status"];

fn add_structures(resource: &Resource, object: &mut Value, new: &Value) {
    if let (Origin::BuiltIn(_), Some(fields)) = (&resource.origin, object.as_object_mut()) {
        for name in STRUCTURES {
            if new.get(name).is_some_and(Value::is_object) {
                fields.entry(name).or_insert_with(|| json!({}));
            }
        }
        for (outer, inner) in [("spec", "names"), ("status", "acceptedNames")] {
            if new[outer].get(inner).is_some()
                && fields.get(outer).is_some_and(|outer| outer.get(inner).is_none())
            {
                fields[outer][inner] = json!({});
            }
        }
        // An empty value of a field that Go always serializes has no owner.
        for (name, value) in new.as_object().into_iter().flatten() {
            if value.is_null() || value == "" {
                fields.entry(name).or_insert_with(|| value.clone());
            }
        }
    }
}

/// Returns an object without fields, to which a new object is compared or applied.
pub(super) fn empty_object(resource: &Resource, new: &Value) -> Value {
    let mut empty = Value::Object(Map::new());
    add_structures(resource, &mut empty, new);
    empty
}
