//! `scale` subresource: maps an `autoscaling/v1` Scale to fields of a custom resource.

use serde_json::{Map, Value, json};

use super::apply::{decode_managers, scale_schema};
use super::update::check_name;
use super::{AppliedConfiguration, Edit, Engine, Target, Warnings, WriteResult};
use crate::endpoints::options::WriteOptions;
use crate::object::{self, managed_fields};
use crate::registry::resource::ScalePaths;
use crate::status::ApiError;
use rooflet_apimachinery::fields::{FieldSet, Managers, Operation, Tracked};
use rooflet_apimachinery::time::format_time;

/// Placeholder for unset replicas while a Scale is edited.
const UNSET_REPLICAS: i64 = i32::MIN as i64;

/// Sets the value at a path of keys.
pub(super) fn set(object: &mut Value, path: &[String], value: Value) -> Result<(), ApiError> {
    let Some((last, parents)) = path.split_last() else {
        return Ok(());
    };
    let mut place = object;
    for key in parents {
        let Some(map) = place.as_object_mut() else {
            return Err(ApiError::internal(format!("value at {key} is not an object")));
        };
        place = map
            .entry(key.as_str())
            .or_insert_with(|| Value::Object(Map::new()));
    }
    match place.as_object_mut() {
        Some(map) => drop(map.insert(last.clone(), value)),
        None => {
            return Err(ApiError::internal(format!(
                "the parent of {last} is not an object"
            )));
        }
    }
    Ok(())
}

/// Returns the Scale of an object, and true if its replicas are set.
fn build(working: &Value, paths: &ScalePaths) -> (Value, bool) {
    let count = |path: &[String]| object::lookup(working, path).and_then(Value::as_i64);
    let replicas = count(&paths.spec_replicas);
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = working["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    let mut spec = json!({});
    if let Some(replicas) = replicas.filter(|replicas| *replicas != 0) {
        spec["replicas"] = json!(replicas);
    }
    let mut status = json!({"replicas": count(&paths.status_replicas).unwrap_or_default()});
    let selector = paths
        .selector
        .as_ref()
        .and_then(|path| object::lookup(working, path))
        .and_then(Value::as_str);
    if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
        status["selector"] = json!(selector);
    }
    let scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status
    });
    (scale, replicas.is_some())
}

/// Returns the Scale of an object for a response.
pub(crate) fn scale_of(working: &Value, paths: &ScalePaths) -> Result<Value, ApiError> {
    match build(working, paths) {
        (scale, true) => Ok(scale),
        (_, false) => {
            let path = paths.spec_replicas.join(".");
            Err(ApiError::internal(format!(
                "the spec replicas field \".{path}\" does not exist"
            )))
        }
    }
}

/// Source of the new Scale.
pub(crate) enum ScaleEdit<'a> {
    /// Function from the current to the new Scale.
    Change(&'a (dyn Fn(&Value, &mut Warnings) -> Result<Value, ApiError> + Send + Sync)),
    Apply(&'a AppliedConfiguration),
}

impl Engine {
    /// Updates an object through its Scale.
    pub(crate) async fn update_scale(
        &self,
        target: &Target,
        paths: &ScalePaths,
        edit: &ScaleEdit<'_>,
        options: WriteOptions,
        warnings: &mut Warnings,
    ) -> Result<WriteResult, ApiError> {
        let change = |old: Option<&Value>, warnings: &mut Warnings| -> Result<Value, ApiError> {
            let old = old.ok_or_else(|| target.not_found())?;
            let (mut present, is_set) = build(old, paths);
            if !is_set {
                present["spec"]["replicas"] = json!(UNSET_REPLICAS);
            }
            let (expected, owners) = match edit {
                ScaleEdit::Change(change) => {
                    let expected = change(&present, warnings)?;
                    let owners = self.track_scale(target, paths, old, (&present, &expected))?;
                    (expected, owners)
                }
                ScaleEdit::Apply(configuration) => {
                    self.applied_scale(target, configuration, paths, old, &present, warnings)?
                }
            };
            check_name(target, &expected)?;
            let new_replicas = &expected["spec"]["replicas"];
            let replicas = if new_replicas.is_null() {
                0
            } else {
                let count = new_replicas
                    .as_i64()
                    .filter(|count| i32::try_from(*count).is_ok());
                count.ok_or_else(|| ApiError::bad_request(wrong_type(new_replicas)))?
            };
            if replicas == UNSET_REPLICAS {
                let path = paths.spec_replicas.join(".");
                return Err(ApiError::bad_request(format!(
                    "the spec replicas field \".{path}\" cannot be empty"
                )));
            }
            let mut new = old.clone();
            set(&mut new, &paths.spec_replicas, json!(replicas))?;
            let mut managers = decode_managers(managed_fields::take(&mut new))?;
            managers.set_owners_of_scale(&owners, &paths.spec_replicas, &target.resource.api_version());
            managed_fields::set(&mut new, managers.encode());
            let version = object::resource_version(&expected);
            if !version.is_empty() {
                object::metadata_mut(&mut new).insert("resourceVersion".to_owned(), json!(version));
            }
            Ok(new)
        };
        self.update(target, Edit::Own(&change), options, warnings).await
    }

    /// Returns the managers of a Scale after a change from the first to the second one.
    fn track_scale(
        &self,
        target: &Target,
        paths: &ScalePaths,
        object: &Value,
        (old, new): (&Value, &Value),
    ) -> Result<Managers, ApiError> {
        let managers = decode_managers(managed_fields::text(object))?;
        let mut owners = managers.of_scale(&paths.spec_replicas);
        // kube-apiserver does not track a scale of replicas that nobody owns.
        if !owners.is_empty() {
            let mut manager = target.field_manager(Operation::Update);
            manager.api_version = "autoscaling/v1".to_owned();
            owners.track(Tracked {
                schema: scale_schema(),
                old,
                new,
                manager: &manager,
                ignored: &FieldSet::default(),
                now: &format_time(self.clock.now()),
            });
        }
        Ok(owners)
    }
}

fn wrong_type(value: &Value) -> String {
    let found = match value {
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::Number(_) | Value::Null => "number",
    };
    format!(
        "Scale in version \"v1\" cannot be handled as a Scale: json: cannot unmarshal {found} into Go struct field \
         ScaleSpec.spec.replicas of type int32"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> ScalePaths {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        ScalePaths {
            spec_replicas: path("spec.replicas"),
            status_replicas: path("status.replicas"),
            selector: Some(path("status.selector")),
        }
    }

    #[test]
    fn scale_contains_counts_and_selector() {
        let object = json!({"metadata": {"name": "x", "labels": {"a": "b"}, "uid": "u"}, "spec": {"replicas": 3},
            "status": {"replicas": 2, "selector": "a=b"}});
        let scale = scale_of(&object, &paths()).expect("replicas are set");
        assert_eq!(
            scale,
            json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "x", "uid": "u"},
                "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "a=b"}})
        );
    }

    #[test]
    fn scale_of_unset_replicas_fails() {
        let err = scale_of(&json!({"spec": {}}), &paths()).expect_err("not set");
        assert!(
            err.message().contains("\".spec.replicas\" does not exist"),
            "{err}"
        );
    }
}
