//! Object after a change, validated as by the API server.

use kube::{CustomResourceExt, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::PreviewError;
use rooflet_schema::metadata::validate_update;
use rooflet_schema::{FieldError, StructuralSchema, aggregate};

/// Returns the object after a merge patch of a user. Its status is kept. An unknown field is an error, because
/// the API server drops the field.
pub(super) fn patched<K>(object: &K, patch: &Value, kind: &'static str, name: &str) -> Result<K, PreviewError>
where
    K: Resource + CustomResourceExt + Serialize + DeserializeOwned,
{
    if !patch.is_object() {
        return Err(PreviewError::PatchIsNoObject);
    }
    let invalid_patch = |source| PreviewError::InvalidPatch {
        kind,
        name: name.to_owned(),
        source,
    };
    let invalid = |errors: String| PreviewError::Invalid {
        kind,
        name: name.to_owned(),
        errors,
    };
    let schema = StructuralSchema::of_kind::<K>();
    let mut old = serde_json::to_value(object).map_err(invalid_patch)?;
    let mut new = old.clone();
    json_patch::merge(&mut new, patch);
    match old.get("status") {
        Some(status) => new["status"] = status.clone(),
        None => {
            new.as_object_mut().map(|new| new.remove("status"));
        }
    }
    let known = schema.prune(&mut old);
    let mut unknown = schema.prune(&mut new);
    unknown.retain(|field| !known.contains(field));
    if !unknown.is_empty() {
        let unknown = unknown.iter().map(|field| format!("unknown field {field:?}"));
        return Err(invalid(unknown.collect::<Vec<_>>().join(", ")));
    }
    schema.apply_defaults(&mut old);
    schema.apply_defaults(&mut new);
    let mut errors: Vec<FieldError> = Vec::new();
    for field in ["apiVersion", "kind"] {
        if new[field] != old[field] {
            errors.push(FieldError::invalid(field, &new[field], "field is immutable"));
        }
    }
    errors.extend(validate_update(&new["metadata"], &old["metadata"], true));
    let errors = schema.validate_after(errors, &new, Some(&old));
    if !errors.is_empty() {
        return Err(invalid(aggregate(&errors)));
    }
    serde_json::from_value(new).map_err(invalid_patch)
}
