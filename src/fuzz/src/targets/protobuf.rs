//! Protobuf bodies: any bytes, and messages of the known kinds with any fields.

use rooflet_apimachinery::protobuf;
use serde_json::Value;

use crate::source::Source;

const KINDS: [(&str, &str); 9] = [
    ("v1", "Namespace"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("v1", "Event"),
    ("v1", "ServiceAccount"),
    ("coordination.k8s.io/v1", "Lease"),
    ("events.k8s.io/v1", "Event"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"),
];

fn varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push((number as u8) | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

fn bytes(message: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(message, field << 3 | 2);
    varint(message, content.len() as u64);
    message.extend_from_slice(content);
}

/// Returns a message with fields of low numbers.
fn message(source: &mut Source, depth: usize) -> Vec<u8> {
    let mut content = Vec::new();
    for _ in 0..source.below(6) {
        let field = source.below(17) as u64;
        match source.below(8) {
            0 | 1 => {
                varint(&mut content, field << 3);
                let number = source.number().as_u64().unwrap_or(u64::MAX);
                varint(&mut content, number);
            }
            2 | 3 if depth > 0 => {
                let nested = message(source, depth - 1);
                bytes(&mut content, field, &nested);
            }
            4 => {
                let any = source.bytes(10);
                bytes(&mut content, field, &any);
            }
            5 => {
                varint(&mut content, field << 3 | 1);
                content.extend(source.bytes(8));
            }
            _ => {
                let text = source.text();
                bytes(&mut content, field, text.as_bytes());
            }
        }
    }
    content
}

pub(super) fn check(source: &mut Source) -> Result<(), String> {
    let index = source.below(KINDS.len());
    let (version, kind) = KINDS[index];
    let mut type_meta = Vec::new();
    bytes(&mut type_meta, 1, version.as_bytes());
    bytes(&mut type_meta, 2, kind.as_bytes());
    let mut body = b"k8s\0".to_vec();
    bytes(&mut body, 1, &type_meta);
    let raw = message(source, 5);
    bytes(&mut body, 2, &raw);
    for _ in 0..source.below(4) {
        let at = source.below(body.len());
        match source.below(3) {
            0 => body[at] = source.byte(),
            1 => body.truncate(at.max(1)),
            _ => {}
        }
    }
    if source.one_in(10) {
        body = source.bytes(40);
    }
    let shown: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    source.show("body", shown);
    let Ok(json) = protobuf::to_json(&body) else {
        return Ok(());
    };
    let read: Result<Value, _> = serde_json::from_slice(&json);
    read.map(drop)
        .map_err(|err| format!("the result is not JSON: {err}"))
}
