//! Protobuf bodies of built-in kinds. The typed clients of client-go, and with them Helm and
//! `kubectl create namespace`, send built-in kinds in this encoding only.
//!
//! The envelope consists of four bytes and a message with kind and object. The object is converted
//! to and from the JSON form of the same object.

mod admission;
mod definition;
mod discovery;
mod encode;
mod kinds;
mod messages;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::time::{format_micro_time, format_time};
use definition::JSON_SCHEMA;
use messages::{Field, Shape, UNKNOWN, list, one};

pub use encode::{EncodeProtobufError, from_json, watch_frame};

/// Media type of the bodies.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const MAGIC: &[u8] = b"k8s\0";
/// Maximum depth of nested messages, which limits the recursion of the decoder.
const DEPTH_MAX: usize = 128;

/// Error of a body that is not a Kubernetes protobuf object.
#[derive(Debug, thiserror::Error)]
pub enum DecodeProtobufError {
    #[error("the body does not start with the Kubernetes protobuf prefix")]
    Magic,
    #[error("no kind {kind:?} is registered for version {version:?} in protobuf; send JSON")]
    Kind { kind: String, version: String },
    #[error("content encodings are not supported")]
    ContentEncoding,
    #[error("unexpected end of the message")]
    CutOff,
    #[error("a varint is too long")]
    Number,
    #[error("more than {DEPTH_MAX} nested messages")]
    Depth,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Length(#[from] std::num::TryFromIntError),
    #[error("wire type {0} is not supported")]
    WireType(u64),
    #[error("unexpected wire type")]
    Type,
    #[error("map entry with an unexpected wire type")]
    MapEntry,
    #[error(transparent)]
    Base64(#[from] base64::DecodeError),
    #[error(transparent)]
    Utf8(#[from] std::str::Utf8Error),
    #[error(transparent)]
    Time(#[from] jiff::Error),
    #[error("{name}: {reason}")]
    Field { name: &'static str, reason: Box<Self> },
}

type Result<T> = std::result::Result<T, DecodeProtobufError>;

/// Converts the object of a body to JSON.
pub fn to_json(body: &[u8]) -> Result<Vec<u8>> {
    let envelope = body.strip_prefix(MAGIC).ok_or(DecodeProtobufError::Magic)?;
    let envelope = message(envelope, UNKNOWN, 0)?;
    if envelope["contentEncoding"]
        .as_str()
        .is_some_and(|encoding| !encoding.is_empty())
    {
        return Err(DecodeProtobufError::ContentEncoding);
    }
    let raw = envelope["raw"].as_str().unwrap_or_default();
    let raw = BASE64.decode(raw)?;
    let text = |name: &str| envelope["typeMeta"][name].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let Some(fields) = kinds::fields_of(&version, &kind) else {
        return Err(DecodeProtobufError::Kind { kind, version });
    };
    let mut object = message(&raw, fields, 0)?;
    if let (Some(object), Some(kind)) = (object.as_object_mut(), envelope["typeMeta"].as_object()) {
        let type_members = kind.iter().filter(|(_, text)| *text != "");
        object.extend(type_members.map(|(key, text)| (key.clone(), text.clone())));
    }
    Ok(object.to_string().into_bytes())
}

/// Value of a field on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(DecodeProtobufError::CutOff)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DecodeProtobufError::Number)
    }

    /// Reads the number and value of the next field.
    fn field(&mut self) -> Result<Option<(u64, Wire<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Wire::Number(self.number()?),
            1 => Wire::Bytes(self.take(8)?),
            2 => {
                let length = usize::try_from(self.number()?)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Bytes(self.take(4)?),
            other => return Err(DecodeProtobufError::WireType(other)),
        };
        Ok(Some((tag >> 3, value)))
    }
}

fn message(bytes: &[u8], fields: &[Field], depth: usize) -> Result<Value> {
    if depth > DEPTH_MAX {
        return Err(DecodeProtobufError::Depth);
    }
    let depth = depth + 1;
    let mut reader = Reader(bytes);
    let mut object = Map::new();
    while let Some((number, wire)) = reader.field()? {
        // Unknown fields, for example of later versions, are dropped.
        let Some(field) = fields.iter().find(|field| field.number == number) else {
            continue;
        };
        if let Shape::Map(values) = field.shape {
            let (key, value) = entry(&wire, values, depth)?;
            let map = object.entry(field.name).or_insert_with(|| json!({}));
            map[key] = value;
            continue;
        }
        let value = value(&wire, field.shape, depth).map_err(|err| DecodeProtobufError::Field {
            name: field.name,
            reason: Box::new(err),
        })?;
        if let (Shape::Inline(_), Value::Object(members)) = (field.shape, &value) {
            object.extend(members.clone());
            continue;
        }
        match object.get_mut(field.name).and_then(Value::as_array_mut) {
            Some(items) if field.is_list => items.push(value),
            None if field.is_list => drop(object.insert(field.name.to_owned(), json!([value]))),
            // Go encodes unset texts as empty texts, and unset counts as zero.
            Some(_) | None if value == "" && !matches!(field.shape, Shape::Json) => {}
            Some(_) | None if value == 0 && matches!(field.shape, Shape::Count) => {}
            Some(_) | None if value == false && matches!(field.shape, Shape::Flag) => {}
            Some(_) | None => drop(object.insert(field.name.to_owned(), value)),
        }
    }
    Ok(Value::Object(object))
}

fn value(wire: &Wire<'_>, shape: Shape, depth: usize) -> Result<Value> {
    match (wire, shape) {
        (Wire::Bytes(bytes), Shape::Text) => {
            let text = std::str::from_utf8(bytes)?;
            Ok(json!(text))
        }
        (Wire::Bytes(bytes), Shape::Bytes) => Ok(json!(BASE64.encode(bytes))),
        (Wire::Bytes(bytes), Shape::Message(fields) | Shape::Inline(fields)) => message(bytes, fields, depth),
        (Wire::Bytes(bytes), Shape::Schema) => message(bytes, JSON_SCHEMA, depth),
        (Wire::Bytes(bytes), Shape::SchemaOrArray) => schema_or_list(bytes, Shape::Schema, depth),
        (Wire::Bytes(bytes), Shape::SchemaOrTexts) => schema_or_list(bytes, Shape::Text, depth),
        (Wire::Bytes(bytes), Shape::SchemaOrBool) => schema_or_bool(bytes, depth),
        (Wire::Bytes(bytes), Shape::Json) => raw_json(bytes, depth),
        (Wire::Bytes(bytes), Shape::Double) => double(bytes),
        (Wire::Bytes(bytes), Shape::Texts) => {
            let mut texts = message(bytes, &[list(1, "items", Shape::Text)], depth)?;
            let texts = texts["items"].take();
            Ok(if texts.is_null() { json!([]) } else { texts })
        }
        (Wire::Bytes(bytes), Shape::Time) => time(bytes, format_time, depth),
        (Wire::Bytes(bytes), Shape::MicroTime) => time(bytes, format_micro_time, depth),
        (Wire::Number(number), Shape::Integer | Shape::Count) => Ok(json!(number.cast_signed())),
        (Wire::Number(number), Shape::Bool | Shape::Flag) => Ok(json!(*number != 0)),
        (Wire::Bytes(_) | Wire::Number(_), _) => Err(DecodeProtobufError::Type),
    }
}

/// Decodes a schema in field 1, or a list in field 2.
fn schema_or_list(bytes: &[u8], items: Shape, depth: usize) -> Result<Value> {
    let fields = [one(1, "schema", Shape::Schema), list(2, "list", items)];
    let mut members = message(bytes, &fields, depth)?;
    let listed = members["list"].take();
    Ok(if listed.is_null() {
        members["schema"].take()
    } else {
        listed
    })
}

/// Decodes a truth value in field 1, or a schema in field 2.
fn schema_or_bool(bytes: &[u8], depth: usize) -> Result<Value> {
    let fields = [one(1, "allows", Shape::Bool), one(2, "schema", Shape::Schema)];
    let mut members = message(bytes, &fields, depth)?;
    let schema = members["schema"].take();
    Ok(if schema.is_null() {
        json!(members["allows"] == true)
    } else {
        schema
    })
}

/// Decodes JSON in field 1.
fn raw_json(bytes: &[u8], depth: usize) -> Result<Value> {
    let members = message(bytes, &[one(1, "raw", Shape::Text)], depth)?;
    match members["raw"].as_str() {
        Some(text) => Ok(serde_json::from_str(text)?),
        None => Ok(Value::Null),
    }
}

/// Decodes eight bytes. Whole numbers have no decimals in JSON.
fn double(bytes: &[u8]) -> Result<Value> {
    let bytes = bytes.try_into().map_err(|_| DecodeProtobufError::Type)?;
    let double = f64::from_le_bytes(bytes);
    let is_whole = double.fract() == 0.0 && double.abs() < 2f64.powi(53);
    Ok(if is_whole {
        json!(double as i64)
    } else {
        json!(double)
    })
}

/// Decodes a map entry: field 1 is the key, field 2 the value.
fn entry(wire: &Wire<'_>, shape: &Shape, depth: usize) -> Result<(String, Value)> {
    let Wire::Bytes(bytes) = wire else {
        return Err(DecodeProtobufError::MapEntry);
    };
    let fields = [one(1, "key", Shape::Text), one(2, "value", *shape)];
    let mut entry = message(bytes, &fields, depth)?;
    let key = entry["key"].as_str().unwrap_or_default().to_owned();
    let value = entry["value"].take();
    // Go encodes an empty message or text like an absent one.
    if !value.is_null() {
        return Ok((key, value));
    }
    let is_list = matches!(shape, Shape::Texts);
    let is_message = matches!(shape, Shape::Schema);
    let empty = match (is_list, is_message) {
        (true, _) => json!([]),
        (false, true) => json!({}),
        (false, false) => json!(""),
    };
    Ok((key, empty))
}

/// Decodes seconds and nanoseconds. An unset time is empty.
fn time(bytes: &[u8], format: fn(Timestamp) -> String, depth: usize) -> Result<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let fields = [one(1, "seconds", Shape::Integer), one(2, "nanos", Shape::Integer)];
    let parts = message(bytes, &fields, depth)?;
    let part = |name: &str| parts[name].as_i64().unwrap_or_default();
    let nanos = i32::try_from(part("nanos"))?;
    let time = Timestamp::new(part("seconds"), nanos)?;
    Ok(json!(format(time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).expect("short");
        [&[number << 3 | 2, length], bytes].concat()
    }

    fn body(object: &[u8]) -> Vec<u8> {
        body_of("certificates.k8s.io/v1", "CertificateSigningRequest", object)
    }

    /// Returns a body with the fields in the order of Go's encoder.
    fn body_of(version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
        let kind = [tagged(1, version.as_bytes()), tagged(2, kind.as_bytes())];
        [
            MAGIC,
            &tagged(1, &kind.concat()),
            &tagged(2, object),
            &tagged(3, b""),
            &tagged(4, b""),
        ]
        .concat()
    }

    fn read(object: &[u8]) -> Value {
        let json = to_json(&body(object)).expect("a valid body");
        serde_json::from_slice(&json).expect("JSON")
    }

    #[test]
    fn decodes_an_approval() {
        let condition = [
            tagged(1, b"Approved"),
            tagged(2, b"KubectlApprove"),
            tagged(3, b""),
            // 2026-01-01T00:00:00Z
            tagged(4, &[0x08, 0x80, 0xf2, 0xd6, 0xca, 0x06, 0x10, 0x00]),
            tagged(5, b""),
            tagged(6, b"True"),
        ]
        .concat();
        let labels = [tagged(1, b"a"), tagged(2, b"b")].concat();
        let metadata = [
            tagged(1, b"x"),
            tagged(6, b"42"),
            vec![7 << 3, 1],
            tagged(11, &labels),
            tagged(14, b"one"),
            tagged(14, b"two"),
        ]
        .concat();
        let spec = [
            tagged(1, b"PEM"),
            tagged(5, b"client auth"),
            vec![8 << 3, 0xd8, 0x04],
        ]
        .concat();
        let object = [
            tagged(1, &metadata),
            tagged(2, &spec),
            tagged(3, &tagged(1, &condition)),
        ]
        .concat();
        let conditions = json!([{"type": "Approved", "reason": "KubectlApprove", "status": "True",
            "lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": null}]);
        assert_eq!(
            read(&object),
            json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                "metadata": {"name": "x", "resourceVersion": "42", "generation": 1, "labels": {"a": "b"},
                    "finalizers": ["one", "two"]},
                "spec": {"request": "UEVN", "usages": ["client auth"], "expirationSeconds": 600},
                "status": {"conditions": conditions}})
        );
    }

    fn read_as(version: &str, kind: &str, fields: &[Vec<u8>]) -> Value {
        let json = to_json(&body_of(version, kind, &fields.concat())).expect("a valid body");
        let mut object: Value = serde_json::from_slice(&json).expect("JSON");
        let members = object.as_object_mut().expect("an object");
        assert_eq!(members.remove("kind"), Some(json!(kind)));
        members.remove("apiVersion");
        object
    }

    #[test]
    fn decodes_built_in_kinds() {
        let metadata = || tagged(1, &[tagged(1, b"x"), tagged(2, b""), vec![7 << 3, 0]].concat());
        let entry = |value: &[u8]| tagged(2, &[tagged(1, b"key"), tagged(2, value)].concat());
        let named = json!({"name": "x"});
        assert_eq!(
            read_as(
                "v1",
                "Namespace",
                &[metadata(), tagged(2, b""), tagged(3, &tagged(1, b""))]
            ),
            json!({"metadata": named, "spec": {}, "status": {}})
        );
        assert_eq!(
            read_as("v1", "ConfigMap", &[metadata(), entry(b"text"), vec![4 << 3, 1]]),
            json!({"metadata": named, "data": {"key": "text"}, "immutable": true})
        );
        assert_eq!(
            read_as(
                "v1",
                "Secret",
                &[metadata(), entry(b"\xff\x00"), tagged(3, b"Opaque")]
            ),
            json!({"metadata": named, "data": {"key": "/wA="}, "type": "Opaque"})
        );
        // 2026-01-01T00:00:00.5Z
        let time: &[u8] = &[
            0x08, 0x80, 0xf2, 0xd6, 0xca, 0x06, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01,
        ];
        let spec = [
            tagged(1, b"me"),
            vec![2 << 3, 15],
            tagged(4, time),
            vec![5 << 3, 0],
        ]
        .concat();
        assert_eq!(
            read_as("coordination.k8s.io/v1", "Lease", &[metadata(), tagged(2, &spec)]),
            json!({"metadata": named, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T00:00:00.500000Z", "leaseTransitions": 0}})
        );
        let event = [
            metadata(),
            tagged(2, &tagged(1, b"Pod")),
            tagged(6, time),
            vec![8 << 3, 0],
            tagged(10, b""),
        ];
        assert_eq!(
            read_as("v1", "Event", &event),
            json!({"metadata": named, "involvedObject": {"kind": "Pod"},
                "firstTimestamp": "2026-01-01T00:00:00Z", "eventTime": null})
        );
        assert_eq!(
            read_as(
                "events.k8s.io/v1",
                "Event",
                &[tagged(8, &tagged(3, b"a")), tagged(10, b"note")]
            ),
            json!({"regarding": {"name": "a"}, "note": "note"})
        );
        assert_eq!(
            read_as(
                "v1",
                "DeleteOptions",
                &[vec![1 << 3, 0], tagged(2, &tagged(1, b"u")), tagged(4, b"Orphan")]
            ),
            json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "propagationPolicy": "Orphan"})
        );
    }

    #[test]
    fn rejects_invalid_bytes() {
        let check = |body: &[u8], expect: &str| {
            let err = to_json(body).expect_err("invalid bytes").to_string();
            assert!(err.contains(expect), "{err}");
        };
        check(b"{}", "does not start with the Kubernetes protobuf prefix");
        check(b"k8s\0\x0a", "unexpected end");
        check(b"k8s\0\x0a\x05a", "unexpected end");
        check(b"k8s\0\x0b", "wire type 3 is not supported");
        check(&[MAGIC, &[0x80; 11]].concat(), "varint is too long");
        check(
            &body_of("v1", "Pod", b""),
            "no kind \"Pod\" is registered for version \"v1\"",
        );
        check(&body(&[1 << 3, 0]), "metadata: unexpected wire type");
        check(
            &body(&tagged(1, &tagged(1, &[0xff]))),
            "metadata: name: invalid utf-8",
        );
    }
}
