//! CustomResourceDefinition: validation, served resources, and lifecycle.

mod lifecycle;
mod resource;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::object;
use rooflet_apimachinery::time::format_time;
use rooflet_schema::FieldError;
use rooflet_schema::crd as rules;

pub(crate) use lifecycle::{
    CLEANUP_FINALIZER, ESTABLISHED, is_condition_true, mark_terminating, names_in_use, next_status,
    set_condition,
};
pub(crate) use resource::resources;

/// Applies the defaults of kube-apiserver.
pub(crate) fn default(crd: &mut Value) {
    rules::apply_defaults(crd);
    // Always false in v1, and then omitted from responses.
    if let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut)
        && spec.get("preserveUnknownFields") == Some(&Value::Bool(false))
    {
        spec.remove("preserveUnknownFields");
    }
}

/// Validates a definition. On create, metadata other than the name is validated elsewhere.
pub(crate) fn validate(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = rules::validate(crd, old);
    // If a definition already lacks a stored version, its other fields can still be updated, and
    // the definition can be deleted.
    let stored = |crd: &Value| crd["status"]["storedVersions"].clone();
    let names =
        |crd: &Value| -> Vec<Value> { versions(crd).map(|version| version["name"].clone()).collect() };
    if let Some(old) = old
        && (stored(crd) != stored(old) || names(crd) != names(old))
    {
        check_stored_versions(crd, &mut errors);
    }
    // Conversion webhooks are not supported, so they must not be accepted silently.
    if object::text(crd, &["spec", "conversion", "strategy"]) == "Webhook" {
        let detail = "this server does not call conversion webhooks; serve one version, or use strategy None";
        errors.push(FieldError::forbidden("spec.conversion.strategy", detail));
    }
    errors
}

/// Checks that all versions that ever were the storage version remain, because objects may be
/// stored in any of them.
fn check_stored_versions(crd: &Value, errors: &mut Vec<FieldError>) {
    let at = "status.storedVersions";
    let stored = crd["status"]["storedVersions"].as_array();
    let names: Vec<&str> = stored.into_iter().flatten().filter_map(Value::as_str).collect();
    for (index, name) in names.iter().enumerate() {
        if !versions(crd).any(|version| version["name"] == *name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {name} and removes {name} from {at}"
            );
            errors.push(FieldError::invalid_text(format!("{at}[{index}]"), name, &detail));
        }
    }
    if let Some(storage) = storage_version(crd).filter(|storage| !names.contains(storage)) {
        let detail = format!("must have the storage version {storage}");
        errors.push(FieldError::invalid(at, &json!(names), &detail));
    }
}

/// Returns warnings about unknown formats in schemas, unless `old` has them, too.
pub(crate) fn warnings(crd: &Value, old: Option<&Value>) -> Vec<String> {
    let known = old.map(rules::format_warnings).unwrap_or_default();
    let mut new = rules::format_warnings(crd);
    new.retain(|warning| !known.contains(warning));
    new
}

/// Returns `spec.versions` of a definition.
pub(crate) fn versions(crd: &Value) -> impl Iterator<Item = &Value> {
    crd["spec"]["versions"].as_array().into_iter().flatten()
}

fn storage_version(crd: &Value) -> Option<&str> {
    versions(crd)
        .find(|version| version["storage"] == Value::Bool(true))
        .and_then(|version| version["name"].as_str())
}

fn record_storage_version(crd: &mut Value) {
    let Some(storage) = storage_version(crd).map(str::to_owned) else {
        return;
    };
    let stored = &mut crd["status"]["storedVersions"];
    match stored.as_array_mut() {
        Some(versions) if versions.iter().any(|version| *version == storage.as_str()) => {}
        Some(versions) => versions.push(Value::from(storage)),
        None => *stored = json!([storage]),
    }
}

pub(crate) fn prepare_create(crd: &mut Value) {
    crd["status"] = json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": null});
    record_storage_version(crd);
    object::metadata_mut(crd).insert("generation".to_owned(), json!(1));
}

pub(crate) fn prepare_update(crd: &mut Value, old: &Value, subresource: &str) {
    let Some(map) = crd.as_object_mut() else { return };
    if subresource == "status" {
        object::set_or_remove(map, "spec", old.get("spec").cloned());
        let metadata_fields = ["labels", "annotations", "finalizers", "ownerReferences"];
        for field in metadata_fields {
            let value = old["metadata"].get(field).cloned();
            object::set_or_remove(object::metadata_mut(crd), field, value);
        }
        return;
    }
    object::set_or_remove(map, "status", old.get("status").cloned());
    if crd["spec"] != old["spec"] {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
        object::metadata_mut(crd).insert("generation".to_owned(), json!(generation));
    }
    record_storage_version(crd);
}

/// Condition of a definition.
pub(crate) struct Condition {
    pub kind: &'static str,
    pub status: bool,
    pub reason: String,
    pub message: String,
}

impl Condition {
    fn to_json(&self, now: Timestamp) -> Value {
        json!({
            "lastTransitionTime": format_time(now),
            "message": self.message,
            "reason": self.reason,
            "status": if self.status { "True" } else { "False" },
            "type": self.kind,
        })
    }
}
