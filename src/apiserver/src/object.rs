//! Access to the fields that all Kubernetes objects have, on JSON values.

pub(crate) mod managed_fields;
pub(crate) mod metadata;

use bytes::Bytes;
use serde_json::{Map, Value};

use rooflet_store::Revision;

/// Returns the value at a path of keys.
pub(crate) fn lookup<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, key| value.get(key))
}

/// Returns the text at a path of keys, or an empty text if there is none.
pub(crate) fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    path.iter()
        .try_fold(object, |value, key| value.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

pub(crate) fn namespace(object: &Value) -> &str {
    text(object, &["metadata", "namespace"])
}

pub(crate) fn uid(object: &Value) -> &str {
    text(object, &["metadata", "uid"])
}

pub(crate) fn resource_version(object: &Value) -> &str {
    text(object, &["metadata", "resourceVersion"])
}

pub(crate) fn is_being_deleted(object: &Value) -> bool {
    object["metadata"]
        .get("deletionTimestamp")
        .is_some_and(|time| !time.is_null())
}

/// Returns the finalizers.
pub(crate) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// Returns `metadata`, created if missing.
pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let map = object.as_object_mut().expect("set to an object above");
    let metadata = map.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("set to an object above")
}

/// Sets a member, or removes it if the value is `None`.
pub(crate) fn set_or_remove(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(map.insert(key.to_owned(), value)),
        None => drop(map.remove(key)),
    }
}

pub(crate) fn set_finalizers(object: &mut Value, finalizers: Vec<String>) {
    let value = (!finalizers.is_empty()).then(|| Value::from(finalizers));
    set_or_remove(metadata_mut(object), "finalizers", value);
}

pub(crate) fn set_resource_version(object: &mut Value, version: Revision) {
    metadata_mut(object).insert("resourceVersion".to_owned(), Value::from(version.to_string()));
}

/// Serialized object with a gap for its resourceVersion, so that the store's writer thread only
/// inserts the version.
#[derive(Debug)]
pub(crate) struct PreEncoded {
    json: Vec<u8>,
    gap: usize,
}

impl PreEncoded {
    pub(crate) fn new(mut object: Value) -> Self {
        metadata_mut(&mut object).insert("resourceVersion".to_owned(), Value::from(""));
        let mut json = Vec::with_capacity(1024);
        let mut gap = 0;
        let map = object.as_object().expect("metadata_mut ensures an object");
        write_map(&mut json, map, |json, key, value| {
            if key != "metadata" {
                return write_value(json, value);
            }
            let metadata = value.as_object().expect("metadata_mut ensures an object");
            write_map(json, metadata, |json, key, value| {
                // The text of managed fields is a JSON list.
                let list = value.as_str().filter(|_| key == managed_fields::MANAGED_FIELDS);
                match list {
                    Some(list) => json.extend_from_slice(list.as_bytes()),
                    None => write_value(json, value),
                }
                if key == "resourceVersion" {
                    gap = json.len() - 1;
                }
            });
        });
        Self { json, gap }
    }

    pub(crate) fn with_resource_version(self, version: Revision) -> Bytes {
        let text = version.to_string();
        let mut json = Vec::with_capacity(self.json.len() + text.len());
        json.extend_from_slice(&self.json[..self.gap]);
        json.extend_from_slice(text.as_bytes());
        json.extend_from_slice(&self.json[self.gap..]);
        Bytes::from(json)
    }
}

fn write_map(
    json: &mut Vec<u8>,
    map: &Map<String, Value>,
    mut write: impl FnMut(&mut Vec<u8>, &str, &Value),
) {
    json.push(b'{');
    for (index, (key, value)) in map.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        write_value(json, &Value::from(key.as_str()));
        json.push(b':');
        write(json, key, value);
    }
    json.push(b'}');
}

fn write_value(json: &mut Vec<u8>, value: &Value) {
    serde_json::to_writer(json, value).expect("serialising a JSON value cannot fail");
}

/// Compares two objects without their resourceVersions and managed fields.
pub(crate) fn same_content(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
        return a == b;
    };
    a.len() == b.len()
        && a.iter().zip(b).all(|((key_a, a), (key_b, b))| {
            key_a == key_b
                && if key_a == "metadata" {
                    same_metadata(a, b)
                } else {
                    a == b
                }
        })
}

fn same_metadata(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
        return a == b;
    };
    let is_compared = |key: &String| key != "resourceVersion" && key != managed_fields::MANAGED_FIELDS;
    let compared = |map: &Map<String, Value>| map.keys().filter(|key| is_compared(key)).count();
    compared(a) == compared(b)
        && a.iter()
            .filter(|(key, _)| is_compared(key))
            .all(|(key, value)| b.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resource_version_is_inserted_only_into_metadata() {
        let object = json!({"a": {"resourceVersion": "7"}, "metadata": {"managedFields": "[1]", "name": "x", "z": 1},
            "z": "\"é"});
        let got: Value = serde_json::from_slice(&PreEncoded::new(object).with_resource_version(Revision(42)))
            .expect("JSON");
        assert_eq!(
            got,
            json!({"a": {"resourceVersion": "7"},
                "metadata": {"managedFields": [1], "name": "x", "resourceVersion": "42", "z": 1}, "z": "\"é"})
        );
    }

    #[test]
    fn content_comparison_ignores_resource_version() {
        let a = json!({"metadata": {"managedFields": "[]", "name": "x", "resourceVersion": "1"}, "spec": 1});
        let b = json!({"metadata": {"name": "x"}, "spec": 1});
        assert!(same_content(&a, &b));
        assert!(!same_content(&a, &json!({"metadata": {"name": "y"}, "spec": 1})));
        assert!(!same_content(
            &a,
            &json!({"metadata": {"name": "x", "labels": {}}, "spec": 1})
        ));
        assert!(!same_content(&a, &json!({"metadata": {"name": "x"}, "spec": 2})));
        assert!(!same_content(
            &a,
            &json!({"metadata": {"name": "x"}, "spec": 1, "status": {}})
        ));
    }
}
