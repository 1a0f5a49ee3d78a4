//! Protobuf bodies for kinds that clients send only in this encoding: kubectl's `certificate
//! approve` and `deny`.
//!
//! The envelope consists of four bytes and a message with kind and object. The object is converted
//! to the JSON form of the same request. Field numbers are those of the upstream `generated.proto`
//! files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::builtin::BuiltIn;
use crate::object::typed::format_time;
use crate::registry::resource::Resource;

pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const MAGIC: &[u8] = b"k8s\0";

/// Conversion of a field to JSON.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    /// Bytes; base64 in JSON.
    Bytes,
    Integer,
    Bool,
    Time,
    Message(&'static [Field]),
    /// Map from text to this shape.
    Map(&'static Shape),
}

struct Field {
    number: u64,
    name: &'static str,
    shape: Shape,
    is_list: bool,
}

const fn one(number: u64, name: &'static str, shape: Shape) -> Field {
    Field {
        number,
        name,
        shape,
        is_list: false,
    }
}

const fn list(number: u64, name: &'static str, shape: Shape) -> Field {
    Field {
        is_list: true,
        ..one(number, name, shape)
    }
}

/// Omits `managedFields`, which the server does not store.
const OBJECT_META: &[Field] = &[
    one(1, "name", Shape::Text),
    one(2, "generateName", Shape::Text),
    one(3, "namespace", Shape::Text),
    one(5, "uid", Shape::Text),
    one(6, "resourceVersion", Shape::Text),
    one(7, "generation", Shape::Integer),
    one(8, "creationTimestamp", Shape::Time),
    one(9, "deletionTimestamp", Shape::Time),
    one(10, "deletionGracePeriodSeconds", Shape::Integer),
    one(11, "labels", Shape::Map(&Shape::Text)),
    one(12, "annotations", Shape::Map(&Shape::Text)),
    list(13, "ownerReferences", Shape::Message(OWNER_REFERENCE)),
    list(14, "finalizers", Shape::Text),
];

const OWNER_REFERENCE: &[Field] = &[
    one(1, "kind", Shape::Text),
    one(3, "name", Shape::Text),
    one(4, "uid", Shape::Text),
    one(5, "apiVersion", Shape::Text),
    one(6, "controller", Shape::Bool),
    one(7, "blockOwnerDeletion", Shape::Bool),
];

const CERTIFICATE_SIGNING_REQUEST: &[Field] = &[
    one(1, "metadata", Shape::Message(OBJECT_META)),
    one(
        2,
        "spec",
        Shape::Message(&[
            one(1, "request", Shape::Bytes),
            one(2, "username", Shape::Text),
            one(3, "uid", Shape::Text),
            list(4, "groups", Shape::Text),
            list(5, "usages", Shape::Text),
            one(7, "signerName", Shape::Text),
            one(8, "expirationSeconds", Shape::Integer),
        ]),
    ),
    one(
        3,
        "status",
        Shape::Message(&[
            list(
                1,
                "conditions",
                Shape::Message(&[
                    one(1, "type", Shape::Text),
                    one(2, "reason", Shape::Text),
                    one(3, "message", Shape::Text),
                    one(4, "lastUpdateTime", Shape::Time),
                    one(5, "lastTransitionTime", Shape::Time),
                    one(6, "status", Shape::Text),
                ]),
            ),
            one(2, "certificate", Shape::Bytes),
        ]),
    ),
];

const TYPE_META: &[Field] = &[one(1, "apiVersion", Shape::Text), one(2, "kind", Shape::Text)];
const UNKNOWN: &[Field] = &[
    one(1, "typeMeta", Shape::Message(TYPE_META)),
    one(2, "raw", Shape::Bytes),
    one(3, "contentEncoding", Shape::Text),
];

/// Returns true if bodies of this kind are accepted in protobuf.
pub(crate) fn is_read(resource: &Resource) -> bool {
    resource.is(BuiltIn::CertificateSigningRequest)
}

/// Error of a body that is not a Kubernetes protobuf object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeProtobufError {
    #[error("the body does not start with the Kubernetes protobuf prefix")]
    Magic,
    #[error("content encodings are not supported")]
    ContentEncoding,
    #[error("unexpected end of the message")]
    CutOff,
    #[error("a varint is too long")]
    Number,
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
pub(crate) fn to_json(body: &[u8]) -> Result<Vec<u8>> {
    let envelope = body.strip_prefix(MAGIC).ok_or(DecodeProtobufError::Magic)?;
    let envelope = message(envelope, UNKNOWN)?;
    if envelope["contentEncoding"]
        .as_str()
        .is_some_and(|encoding| !encoding.is_empty())
    {
        return Err(DecodeProtobufError::ContentEncoding);
    }
    let raw = envelope["raw"].as_str().unwrap_or_default();
    let raw = BASE64.decode(raw)?;
    let mut object = message(&raw, CERTIFICATE_SIGNING_REQUEST)?;
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

fn message(bytes: &[u8], fields: &[Field]) -> Result<Value> {
    let mut reader = Reader(bytes);
    let mut object = Map::new();
    while let Some((number, wire)) = reader.field()? {
        // Unknown fields, for example of later versions, are dropped.
        let Some(field) = fields.iter().find(|field| field.number == number) else {
            continue;
        };
        if let Shape::Map(values) = field.shape {
            let (key, value) = entry(&wire, values)?;
            let map = object.entry(field.name).or_insert_with(|| json!({}));
            map[key] = value;
            continue;
        }
        let value = value(&wire, field.shape).map_err(|err| DecodeProtobufError::Field {
            name: field.name,
            reason: Box::new(err),
        })?;
        match object.get_mut(field.name).and_then(Value::as_array_mut) {
            Some(items) if field.is_list => items.push(value),
            None if field.is_list => drop(object.insert(field.name.to_owned(), json!([value]))),
            // Go encodes unset texts as empty texts.
            Some(_) | None if value == "" => {}
            Some(_) | None => drop(object.insert(field.name.to_owned(), value)),
        }
    }
    Ok(Value::Object(object))
}

fn value(wire: &Wire<'_>, shape: Shape) -> Result<Value> {
    match (wire, shape) {
        (Wire::Bytes(bytes), Shape::Text) => {
            let text = std::str::from_utf8(bytes)?;
            Ok(json!(text))
        }
        (Wire::Bytes(bytes), Shape::Bytes) => Ok(json!(BASE64.encode(bytes))),
        (Wire::Bytes(bytes), Shape::Message(fields)) => message(bytes, fields),
        (Wire::Bytes(bytes), Shape::Time) => time(bytes),
        (Wire::Number(number), Shape::Integer) => Ok(json!(number.cast_signed())),
        (Wire::Number(number), Shape::Bool) => Ok(json!(*number != 0)),
        (Wire::Bytes(_) | Wire::Number(_), _) => Err(DecodeProtobufError::Type),
    }
}

/// Decodes a map entry: field 1 is the key, field 2 the value.
fn entry(wire: &Wire<'_>, shape: &Shape) -> Result<(String, Value)> {
    let Wire::Bytes(bytes) = wire else {
        return Err(DecodeProtobufError::MapEntry);
    };
    let fields = [one(1, "key", Shape::Text), one(2, "value", *shape)];
    let mut entry = message(bytes, &fields)?;
    let key = entry["key"].as_str().unwrap_or_default().to_owned();
    let value = entry["value"].take();
    Ok((key, if value.is_null() { json!("") } else { value }))
}

/// Decodes seconds and nanoseconds. An unset time is empty.
fn time(bytes: &[u8]) -> Result<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let fields = [one(1, "seconds", Shape::Integer)];
    let seconds = message(bytes, &fields)?["seconds"].as_i64().unwrap_or_default();
    let time = Timestamp::from_second(seconds)?;
    Ok(json!(format_time(time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).expect("short");
        [&[number << 3 | 2, length], bytes].concat()
    }

    /// Returns a body with the fields in the order of Go's encoder.
    fn body(object: &[u8]) -> Vec<u8> {
        let kind = [
            tagged(1, b"certificates.k8s.io/v1"),
            tagged(2, b"CertificateSigningRequest"),
        ];
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
        check(&body(&[1 << 3, 0]), "metadata: unexpected wire type");
        check(
            &body(&tagged(1, &tagged(1, &[0xff]))),
            "metadata: name: invalid utf-8",
        );
    }
}
