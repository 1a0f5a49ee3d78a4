//! Rules for `metadata` of all kinds: fields that the server owns, finalizers, owner references.

use jiff::Timestamp;
use rand::Rng as _;
use serde_json::{Map, Value};

use crate::object;
use rooflet_apimachinery::time::format_time;
use rooflet_schema::{FieldError, metadata as rules};

/// Fields that the server sets. Values from clients are dropped.
const SYSTEM_FIELDS: [&str; 5] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "selfLink",
    "uid",
];
/// Finalizers of the server's own controllers. They need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

/// Rule for finalizers without a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinalizerRule {
    /// Rejected unless standard (core kinds).
    Qualified,
    /// Accepted with a warning (custom resources).
    Warn,
    Any,
}

/// Drops fields that clients must not set, and sets the fields of a new object.
pub(crate) fn initialise(object: &mut Value, now: Timestamp) {
    let metadata = object::metadata_mut(object);
    for field in SYSTEM_FIELDS {
        metadata.remove(field);
    }
    metadata.insert("uid".to_owned(), Value::from(uuid::Uuid::new_v4().to_string()));
    metadata.insert("creationTimestamp".to_owned(), Value::from(format_time(now)));
}

/// Generates a name from `metadata.generateName`.
pub(crate) fn generate_name(base: &str) -> String {
    let mut rng = rand::rng();
    rules::generate_name(base, |bound| rng.random_range(0..bound))
}

/// Restores fields of `old` that an update cannot change. Unset fields are inherited. Different
/// values stay, so that validation rejects them.
pub(crate) fn inherit(object: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let metadata = object::metadata_mut(object);
    metadata.remove("selfLink");
    for field in ["generation", "creationTimestamp"] {
        object::set_or_remove(metadata, field, old.get(field).cloned());
    }
    for field in ["uid", "deletionGracePeriodSeconds"] {
        if metadata
            .get(field)
            .is_none_or(|value| value.is_null() || value == "")
        {
            object::set_or_remove(metadata, field, old.get(field).cloned());
        }
    }
    if let Some(time) = old.get("deletionTimestamp") {
        metadata.insert("deletionTimestamp".to_owned(), time.clone());
    }
}

/// Applies a kind's rule to finalizers that `old` does not have. Returns errors and warnings.
pub(crate) fn check_new_finalizers(
    object: &Value,
    old: Option<&Value>,
    rule: FinalizerRule,
) -> (Vec<FieldError>, Vec<String>) {
    match rule {
        FinalizerRule::Any => (Vec::new(), Vec::new()),
        FinalizerRule::Warn => {
            let warnings = rules::finalizer_warnings(&object["metadata"], old.map(|old| &old["metadata"]));
            (Vec::new(), warnings)
        }
        FinalizerRule::Qualified => {
            let before: Vec<&str> = old
                .map(|old| object::finalizers(old).collect())
                .unwrap_or_default();
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            let errors = object::finalizers(object)
                .enumerate()
                .filter(|(_, name)| {
                    !name.contains('/') && !STANDARD_FINALIZERS.contains(name) && !before.contains(name)
                })
                .map(|(index, name)| {
                    FieldError::invalid_text(format!("metadata.finalizers[{index}]"), name, detail)
                })
                .collect();
            (errors, Vec::new())
        }
    }
}

/// Removes duplicate owner references. Returns their uids.
pub(crate) fn dedup_owner_references(object: &mut Value) -> Vec<String> {
    let Some(references) = object
        .get_mut("metadata")
        .and_then(|metadata| metadata.get_mut("ownerReferences"))
    else {
        return Vec::new();
    };
    let Some(references) = references
        .as_array_mut()
        .filter(|references| references.len() > 1)
    else {
        return Vec::new();
    };
    let mut kept: Vec<Value> = Vec::with_capacity(references.len());
    let mut removed = Vec::new();
    for reference in references.drain(..) {
        if kept.contains(&reference) {
            removed.push(reference["uid"].as_str().unwrap_or_default().to_owned());
        } else {
            kept.push(reference);
        }
    }
    *references = kept;
    removed
}

/// Sets the deletion fields of an object. Increments its generation, if it has one.
pub(crate) fn mark_deleting(object: &mut Value, now: Timestamp) {
    let metadata: &mut Map<String, Value> = object::metadata_mut(object);
    if !metadata.contains_key("deletionTimestamp") {
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
            metadata.insert("generation".to_owned(), Value::from(generation + 1));
        }
        metadata.insert("deletionTimestamp".to_owned(), Value::from(format_time(now)));
    }
    metadata.insert("deletionGracePeriodSeconds".to_owned(), Value::from(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unqualified_finalizer_warns_or_fails_only_when_added() {
        let object = json!({"metadata": {"finalizers": ["mine", "orphan", "a.b", "x/y"]}});
        let (errors, warnings) = check_new_finalizers(&object, None, FinalizerRule::Warn);
        assert_eq!((errors.len(), warnings.len()), (0, 2));
        assert_eq!(
            check_new_finalizers(&object, Some(&object), FinalizerRule::Warn).1,
            Vec::<String>::new()
        );
        assert_eq!(
            check_new_finalizers(&object, None, FinalizerRule::Qualified)
                .0
                .len(),
            2
        );
        assert!(
            check_new_finalizers(&object, Some(&object), FinalizerRule::Qualified)
                .0
                .is_empty()
        );
    }

    #[test]
    fn update_inherits_fields_that_the_server_owns() {
        let old = json!({"metadata": {"name": "a", "uid": "u", "generation": 3, "creationTimestamp": "t"}});
        let mut new = json!({"metadata": {"name": "a", "generation": 9, "selfLink": "/x"}});
        inherit(&mut new, &old);
        assert_eq!(new, old);
        let mut other = json!({"metadata": {"name": "a", "uid": "x"}});
        inherit(&mut other, &old);
        assert_eq!(
            other["metadata"]["uid"], "x",
            "a different value stays for validation"
        );
    }

    #[test]
    fn second_deletion_keeps_the_first_timestamp() {
        let mut object = json!({"metadata": {"generation": 3}});
        mark_deleting(&mut object, Timestamp::UNIX_EPOCH);
        let once = object.clone();
        mark_deleting(&mut object, Timestamp::MAX);
        assert_eq!(object, once);
        assert_eq!(once["metadata"]["generation"], 4);
    }
}
