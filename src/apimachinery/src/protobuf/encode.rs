//! Conversion of objects, lists and watch events from JSON to protobuf.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::Value;

use super::MAGIC;
use super::definition::JSON_SCHEMA;
use super::kinds::fields_of;
use super::messages::{Field, LIST_META, Shape, one};

/// Error of an object that has no protobuf form.
#[derive(Debug, thiserror::Error)]
pub enum EncodeProtobufError {
    #[error("no kind {kind:?} is registered for version {version:?} in protobuf; request JSON")]
    Kind { kind: String, version: String },
    #[error("unexpected type of the JSON value")]
    Type,
    #[error("a watch event is longer than 4 GiB")]
    Length,
    #[error(transparent)]
    Base64(#[from] base64::DecodeError),
    #[error(transparent)]
    Time(#[from] jiff::Error),
    #[error("{name}: {reason}")]
    Field { name: String, reason: Box<Self> },
}

type Result<T> = std::result::Result<T, EncodeProtobufError>;

/// Wire types.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;

/// Version of `PartialObjectMetadataList` whose fields have swapped numbers.
const META_V1_BETA_1: &str = "meta.k8s.io/v1beta1";

/// Converts an object or a list, with its kind and version, to a body.
pub fn from_json(object: &Value) -> Result<Vec<u8>> {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let raw = match (fields_of(version, kind), kind.strip_suffix("List")) {
        (Some(fields), _) => message(object, fields)?,
        (None, Some(item)) => {
            let fields = fields_of(version, item).ok_or_else(|| unknown(version, kind))?;
            list(object, version, fields)?
        }
        (None, None) => return Err(unknown(version, kind)),
    };
    let mut types = Vec::new();
    put_bytes(&mut types, 1, version.as_bytes());
    put_bytes(&mut types, 2, kind.as_bytes());
    let mut body = Vec::with_capacity(MAGIC.len() + types.len() + raw.len() + 24);
    body.extend_from_slice(MAGIC);
    put_bytes(&mut body, 1, &types);
    put_bytes(&mut body, 2, &raw);
    put_bytes(&mut body, 3, b"");
    put_bytes(&mut body, 4, b"");
    Ok(body)
}

/// Returns a frame of a watch: the length in four bytes, then the event.
pub fn watch_frame(event: &str, object: &Value) -> Result<Vec<u8>> {
    let mut raw = Vec::new();
    put_bytes(&mut raw, 1, &from_json(object)?);
    let mut message = Vec::with_capacity(raw.len() + 24);
    put_bytes(&mut message, 1, event.as_bytes());
    put_bytes(&mut message, 2, &raw);
    let length = u32::try_from(message.len()).map_err(|_| EncodeProtobufError::Length)?;
    Ok([&length.to_be_bytes(), message.as_slice()].concat())
}

fn unknown(version: &str, kind: &str) -> EncodeProtobufError {
    EncodeProtobufError::Kind {
        kind: kind.to_owned(),
        version: version.to_owned(),
    }
}

fn list(object: &Value, version: &str, fields: &'static [Field]) -> Result<Vec<u8>> {
    let (metadata, items) = match version {
        META_V1_BETA_1 => (2, 1),
        _ => (1, 2),
    };
    let members = [
        one(metadata, "metadata", Shape::Message(LIST_META)),
        super::messages::list(items, "items", Shape::Message(fields)),
    ];
    message(object, &members)
}

fn message(object: &Value, fields: &[Field]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if !object.is_object() {
        return Err(EncodeProtobufError::Type);
    }
    for field in fields {
        if let Shape::Inline(members) = field.shape {
            put_bytes(&mut out, field.number, &message(object, members)?);
            continue;
        }
        let Some(value) = object.get(field.name).filter(|value| !value.is_null()) else {
            continue;
        };
        member(&mut out, field, value).map_err(|err| EncodeProtobufError::Field {
            name: field.name.to_owned(),
            reason: Box::new(err),
        })?;
    }
    Ok(out)
}

fn member(out: &mut Vec<u8>, field: &Field, value: &Value) -> Result<()> {
    if let Shape::Map(shape) = field.shape {
        for (key, value) in value.as_object().ok_or(EncodeProtobufError::Type)? {
            let mut entry = Vec::new();
            put_bytes(&mut entry, 1, key.as_bytes());
            put_value(&mut entry, 2, value, *shape)?;
            put_bytes(out, field.number, &entry);
        }
        return Ok(());
    }
    if field.is_list {
        let items = value.as_array().ok_or(EncodeProtobufError::Type)?;
        return items
            .iter()
            .try_for_each(|item| put_value(out, field.number, item, field.shape));
    }
    put_value(out, field.number, value, field.shape)
}

fn put_value(out: &mut Vec<u8>, number: u64, value: &Value, shape: Shape) -> Result<()> {
    let text = || value.as_str().ok_or(EncodeProtobufError::Type);
    match shape {
        Shape::Text => put_bytes(out, number, text()?.as_bytes()),
        Shape::Bytes => put_bytes(out, number, &BASE64.decode(text()?)?),
        Shape::Integer | Shape::Count => {
            let integer = value.as_i64().ok_or(EncodeProtobufError::Type)?;
            put_varint(out, number << 3 | VARINT);
            put_varint(out, integer.cast_unsigned());
        }
        Shape::Bool | Shape::Flag => {
            let flag = value.as_bool().ok_or(EncodeProtobufError::Type)?;
            put_varint(out, number << 3 | VARINT);
            put_varint(out, u64::from(flag));
        }
        Shape::Double => {
            let double = value.as_f64().ok_or(EncodeProtobufError::Type)?;
            put_varint(out, number << 3 | FIXED_64);
            out.extend_from_slice(&double.to_le_bytes());
        }
        Shape::Time | Shape::MicroTime => {
            let time: Timestamp = text()?.parse()?;
            let mut parts = Vec::new();
            put_varint(&mut parts, 1 << 3 | VARINT);
            put_varint(&mut parts, time.as_second().cast_unsigned());
            put_varint(&mut parts, 2 << 3 | VARINT);
            put_varint(&mut parts, i64::from(time.subsec_nanosecond()).cast_unsigned());
            put_bytes(out, number, &parts);
        }
        Shape::Message(fields) | Shape::Inline(fields) => put_bytes(out, number, &message(value, fields)?),
        Shape::Map(_) => return Err(EncodeProtobufError::Type),
        Shape::Texts => {
            let mut items = Vec::new();
            put_texts(&mut items, 1, value)?;
            put_bytes(out, number, &items);
        }
        Shape::Json => {
            let mut raw = Vec::new();
            put_bytes(&mut raw, 1, value.to_string().as_bytes());
            put_bytes(out, number, &raw);
        }
        Shape::Schema => put_bytes(out, number, &message(value, JSON_SCHEMA)?),
        Shape::SchemaOrArray => {
            let mut either = Vec::new();
            match value.as_array() {
                Some(schemas) => schemas
                    .iter()
                    .try_for_each(|schema| put_value(&mut either, 2, schema, Shape::Schema))?,
                None => put_value(&mut either, 1, value, Shape::Schema)?,
            }
            put_bytes(out, number, &either);
        }
        Shape::SchemaOrBool => {
            let mut either = Vec::new();
            let allows = value.as_bool();
            put_varint(&mut either, 1 << 3 | VARINT);
            put_varint(&mut either, u64::from(allows.unwrap_or(true)));
            if allows.is_none() {
                put_value(&mut either, 2, value, Shape::Schema)?;
            }
            put_bytes(out, number, &either);
        }
        Shape::SchemaOrTexts => {
            let mut either = Vec::new();
            match value.is_array() {
                true => put_texts(&mut either, 2, value)?,
                false => put_value(&mut either, 1, value, Shape::Schema)?,
            }
            put_bytes(out, number, &either);
        }
    }
    Ok(())
}

fn put_texts(out: &mut Vec<u8>, number: u64, value: &Value) -> Result<()> {
    let texts = value.as_array().ok_or(EncodeProtobufError::Type)?;
    texts
        .iter()
        .try_for_each(|text| put_value(out, number, text, Shape::Text))
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(out, number << 3 | LENGTH_DELIMITED);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::super::to_json;
    use super::*;
    use serde_json::json;

    /// Checks that a decoded body equals the encoded object.
    fn check(object: Value) {
        let body = from_json(&object).expect("encodable");
        let decoded: Value = serde_json::from_slice(&to_json(&body).expect("decodable")).expect("JSON");
        assert_eq!(decoded, object);
    }

    #[test]
    fn object_is_unchanged_after_encoding_and_decoding() {
        let managed = json!([{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:data": {".": {}, "f:a": {}}}}]);
        check(
            json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"a": "/wA=", "b": ""},
            "immutable": false, "metadata": {"name": "s", "uid": "u", "labels": {"a": ""}, "generation": -1,
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
                "finalizers": ["one", "two"], "managedFields": managed}}),
        );
        check(
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
            "spec": {"holderIdentity": "h", "renewTime": "2026-01-01T00:00:00.000001Z", "leaseTransitions": 0}}),
        );
        check(
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": {
            "authenticated": true, "user": {"username": "u", "extra": {"a": ["b", "c"], "d": []}}}}),
        );
    }

    #[test]
    fn definition_is_unchanged_after_encoding_and_decoding() {
        let schema = json!({"type": "object", "required": ["a"], "properties": {
                "a": {"type": "integer", "minimum": 0.5, "maximum": 3, "default": 1, "enum": [1, "x", null]},
                "b": {"items": {"type": "string", "nullable": true}},
                "c": {"items": [{"type": "string"}, {"not": {"$ref": "r"}}]},
                "d": {"additionalProperties": false, "dependencies": {"a": ["b"], "b": {"type": "string"}}},
                "e": {"additionalProperties": true, "x-kubernetes-preserve-unknown-fields": false},
                "f": {"additionalProperties": {"type": "string"}, "x-kubernetes-map-type": "atomic"}},
            "x-kubernetes-validations": [{"rule": "true", "optionalOldSelf": false}]});
        let version = json!({"name": "v1", "served": true, "storage": false, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".a", "statusReplicasPath": ".b"}}});
        check(
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "n"}, "spec": {"group": "g", "names": {"plural": "p", "kind": "k"},
                "scope": "Cluster", "versions": [version], "conversion": {"strategy": "None"}}}),
        );
    }

    #[test]
    fn list_has_metadata_and_items_without_kinds() {
        let list = |version: &str, kind: &str| {
            let list = json!({"apiVersion": version, "kind": kind, "metadata": {"resourceVersion": "7"},
                "items": [{"metadata": {"name": "a"}}]});
            let body = from_json(&list).expect("encodable");
            let types = [
                &[0x0a, version.len() as u8],
                version.as_bytes(),
                &[0x12, kind.len() as u8],
                kind.as_bytes(),
            ];
            let prefix = [MAGIC, &[0x0a, types.concat().len() as u8], &types.concat()].concat();
            body.strip_prefix(prefix.as_slice())
                .expect("an envelope")
                .to_vec()
        };
        let metadata: &[u8] = &[3, 0x12, 1, b'7'];
        let item: &[u8] = &[5, 0x0a, 3, 0x0a, 1, b'a'];
        let end: &[u8] = &[0x1a, 0, 0x22, 0];
        let expected = [&[0x12, 12, 0x0a], metadata, &[0x12], item, end].concat();
        assert_eq!(list("v1", "ConfigMapList"), expected);
        assert_eq!(list("meta.k8s.io/v1", "PartialObjectMetadataList"), expected);
        let swapped = [&[0x12, 12, 0x12], metadata, &[0x0a], item, end].concat();
        assert_eq!(list("meta.k8s.io/v1beta1", "PartialObjectMetadataList"), swapped);
    }

    #[test]
    fn watch_frame_has_length_event_and_object() {
        let object = json!({"apiVersion": "v1", "kind": "Status", "code": 410});
        let body = from_json(&object).expect("encodable");
        let frame = watch_frame("ERROR", &object).expect("encodable");
        let (length, event) = frame.split_at(4);
        assert_eq!(length, (event.len() as u32).to_be_bytes());
        let raw = [&[0x0a, body.len() as u8], body.as_slice()].concat();
        let expected = [&[0x0a, 5], b"ERROR".as_slice(), &[0x12, raw.len() as u8], &raw].concat();
        assert_eq!(event, expected);
    }

    #[test]
    fn rejects_objects_without_protobuf_form() {
        let check = |object: Value, expect: &str| {
            let err = from_json(&object).expect_err("not encodable").to_string();
            assert!(err.contains(expect), "{err}");
        };
        check(
            json!({"apiVersion": "example.com/v1", "kind": "GizmoList"}),
            "no kind \"GizmoList\" is registered for version \"example.com/v1\"",
        );
        check(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": 1}}),
            "metadata: name: unexpected type",
        );
    }
}
