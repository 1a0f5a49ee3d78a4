//! `metadata.managedFields` of objects.
//!
//! Requests, responses and the store contain the field as a JSON list. Objects in working form
//! contain the text of the list instead: most requests do not read the field, and its parsed form
//! would need more memory than the rest of an object.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::object;

pub(crate) const MANAGED_FIELDS: &str = "managedFields";
const METADATA: &str = "metadata";

/// Returns the text of the field.
pub(crate) fn text(object: &Value) -> Option<String> {
    text_of(object.get(METADATA)?.get(MANAGED_FIELDS)?.clone())
}

/// Removes the field and returns its text.
pub(crate) fn take(object: &mut Value) -> Option<String> {
    text_of(
        object
            .get_mut(METADATA)?
            .as_object_mut()?
            .remove(MANAGED_FIELDS)?,
    )
}

fn text_of(field: Value) -> Option<String> {
    match field {
        Value::Null => None,
        Value::String(text) => Some(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Some(field.to_string()),
    }
}

/// Sets the text of the field, or removes the field.
pub(crate) fn set(object: &mut Value, text: Option<String>) {
    object::set_or_remove(
        object::metadata_mut(object),
        MANAGED_FIELDS,
        text.map(Value::String),
    );
}

/// Replaces the text by the list, for a response.
pub(crate) fn expand(object: &mut Value) {
    if let Some(metadata) = object.get_mut(METADATA) {
        expand_metadata(metadata);
    }
}

/// Like [`expand`], for the value of `metadata`.
pub(crate) fn expand_metadata(metadata: &mut Value) {
    if let Some(field) = metadata.get_mut(MANAGED_FIELDS)
        && let Value::String(text) = field
    {
        *field = serde_json::from_str(text).unwrap_or_default();
    }
}

/// Returns true if a client sent a list that removes all entries: `[]` or `[{}]`.
pub(crate) fn is_reset(text: &str) -> bool {
    matches!(text, "[]" | "[{}]")
}

/// Parses a stored object to working form.
pub(crate) fn parse_object(bytes: &[u8]) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = Fields { of_metadata: false }
        .deserialize(&mut deserializer)
        .and_then(|object| deserializer.end().map(|()| Value::Object(object)));
    // The store may contain other JSON, which has no managed fields.
    parsed.or_else(|_| serde_json::from_slice(bytes))
}

/// Visitor of the fields of an object, or of its `metadata`.
struct Fields {
    of_metadata: bool,
}

impl<'de> DeserializeSeed<'de> for Fields {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = match (self.of_metadata, key.as_str()) {
                (false, METADATA) => Value::Object(map.next_value_seed(Self { of_metadata: true })?),
                (true, MANAGED_FIELDS) => Value::from(map.next_value::<&RawValue>()?.get()),
                _ => map.next_value()?,
            };
            fields.insert(key, value);
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stored_managed_fields_stay_text_until_they_are_shown() {
        let stored = json!({"kind": "A", "metadata": {"name": "a", "managedFields": [{"manager": "m"}]},
            "spec": {"metadata": {"managedFields": [1]}, "managedFields": [2]}});
        let mut object = parse_object(stored.to_string().as_bytes()).expect("JSON");
        assert_eq!(object["metadata"]["managedFields"], json!(r#"[{"manager":"m"}]"#));
        assert_eq!(object["spec"], stored["spec"]);
        expand(&mut object);
        assert_eq!(object, stored);
    }

    #[test]
    fn other_json_is_parsed_and_malformed_text_rejected() {
        for text in ["[1]", r#"{"metadata":1}"#, "null", r#"{"a":{"metadata":{}}}"#] {
            let expect: Value = serde_json::from_str(text).expect(text);
            assert_eq!(parse_object(text.as_bytes()).expect(text), expect);
        }
        for text in ["{", r#"{"a":1} x"#, r#"{"metadata":{"managedFields":[}}"#] {
            assert!(parse_object(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn text_does_not_depend_on_the_form() {
        let mut object = json!({"metadata": {"managedFields": [{"manager": "m"}]}});
        let list = text(&object);
        assert_eq!(list.as_deref(), Some(r#"[{"manager":"m"}]"#));
        set(&mut object, list.clone());
        assert_eq!(text(&object), list);
        assert_eq!(take(&mut object), list);
        assert_eq!((take(&mut object), object), (None, json!({"metadata": {}})));
    }
}
