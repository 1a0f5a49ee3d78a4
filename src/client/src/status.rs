//! Status writes: the smallest merge patch, or none if the status is unchanged.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::ApiError;

/// Field manager in `metadata.managedFields`.
pub const FIELD_MANAGER: &str = "rooflet";

/// Sets the status of `object` to `status`. Returns `None` if nothing had to be written.
pub async fn patch_status<K>(api: &Api<K>, object: &K, status: &K::Status) -> Result<Option<K>, ApiError>
where
    K: Resource + HasStatus + Clone + DeserializeOwned + Debug,
    K::Status: Serialize + PartialEq + Default,
{
    if object.status() == Some(status) {
        return Ok(None);
    }
    let Some(change) = status_change(object.status(), status) else {
        return Ok(None);
    };
    let patch = json!({
        "metadata": { "resourceVersion": object.meta().resource_version },
        "status": change,
    });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let written = api
        .patch_status(&object.name_any(), &params, &Patch::Merge(&patch))
        .await?;
    Ok(Some(written))
}

/// Returns the merge patch from the status `before` to `after`.
///
/// A status that is empty besides the generation comes from the definition of its kind. It is treated as
/// absent, because the stored object lacks the fields that the type requires, such as a phase.
fn status_change<S: Serialize + Default>(before: Option<&S>, after: &S) -> Option<Value> {
    let value = |status: &S| serde_json::to_value(status).expect("a status has only string keys");
    let is_reported = |before: &Value| {
        let mut default = value(&S::default());
        if let Some(generation) = before.get("observedGeneration") {
            default["observedGeneration"] = generation.clone();
        }
        *before != default
    };
    let before = before.map(value).filter(is_reported);
    merge_diff(&before.unwrap_or(Value::Null), &value(after))
}

/// Returns the JSON merge patch (RFC 7386) from `before` to `after`, or `None` if they are equal.
///
/// `after` must not contain nulls: a merge patch cannot set them.
pub fn merge_diff(before: &Value, after: &Value) -> Option<Value> {
    if before == after {
        return None;
    }
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return Some(after.clone());
    };
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, after) in after {
        match before.get(key) {
            None => drop(patch.insert(key.clone(), after.clone())),
            Some(before) => {
                if let Some(change) = merge_diff(before, after) {
                    patch.insert(key.clone(), change);
                }
            }
        }
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i8>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn applying_the_patch_yields_the_new_value(before in json_value(), after in json_value()) {
            match merge_diff(&before, &after) {
                None => prop_assert_eq!(&before, &after),
                Some(patch) => {
                    let mut patched = before.clone();
                    json_patch::merge(&mut patched, &patch);
                    prop_assert_eq!(&patched, &after);
                    prop_assert_ne!(&before, &after, "the patch has no effect");
                }
            }
        }
    }

    #[derive(Default, Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        #[serde(skip_serializing_if = "Option::is_none")]
        observed_generation: Option<i64>,
        phase: &'static str,
    }

    fn status(observed_generation: Option<i64>, phase: &'static str) -> Status {
        Status {
            observed_generation,
            phase,
        }
    }

    #[test]
    fn first_status_has_all_fields() {
        // The stored object is {"observedGeneration": -1}, without a phase.
        let unreported = status(Some(-1), "");
        let change = status_change(Some(&unreported), &status(Some(1), ""));
        assert_eq!(change, Some(json!({"observedGeneration": 1, "phase": ""})));
        let reported = status(Some(-1), "Ready");
        let change = status_change(Some(&reported), &status(None, "Ready"));
        assert_eq!(change, Some(json!({"observedGeneration": null})));
    }

    #[test]
    fn patch_contains_only_changed_fields() {
        let before = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1]});
        let after = json!({"a": 1, "b": {"c": 2}, "e": [2]});
        assert_eq!(
            merge_diff(&before, &after),
            Some(json!({"b": {"d": null}, "e": [2]}))
        );
    }
}
