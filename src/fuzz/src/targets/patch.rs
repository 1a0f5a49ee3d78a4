//! Patches: RFC 6902, RFC 7386, and strategic merge patch.

use rooflet_apimachinery::patch::json::JsonPatch;
use rooflet_apimachinery::patch::strategic;
use serde_json::{Value, json};

use super::require_equal;
use crate::source::Source;

const WORDS: [&str; 10] = [
    "metadata",
    "finalizers",
    "ownerReferences",
    "uid",
    "spec",
    "data",
    "a",
    "b",
    "0",
    "status",
];
const OPERATIONS: [&str; 7] = ["add", "remove", "replace", "move", "copy", "test", "merge"];

/// Returns a pointer, mostly to a value of the document.
fn pointer(source: &mut Source, document: &Value) -> String {
    let mut path = String::new();
    let mut at = document;
    for _ in 0..source.below(5) {
        let is_known = !source.one_in(6);
        let token = if let Some(fields) = at.as_object().filter(|fields| is_known && !fields.is_empty()) {
            let index = source.below(fields.len());
            fields.keys().nth(index).cloned().unwrap_or_default()
        } else if let Some(items) = at.as_array().filter(|_| is_known) {
            source.below(items.len() + 1).to_string()
        } else {
            source.word(&["-", "a", "b", "00", "4294967296"])
        };
        path = format!("{path}/{}", token.replace('~', "~0").replace('/', "~1"));
        at = document.pointer(&path).unwrap_or(&Value::Null);
    }
    path
}

pub(super) fn json(source: &mut Source) -> Result<(), String> {
    let document = source.object(&WORDS, 4);
    let operations: Vec<Value> = (0..source.below(8))
        .map(|_| {
            let mut operation = json!({"op": source.word(&OPERATIONS), "path": pointer(source, &document)});
            if !source.one_in(3) {
                operation["value"] = source.json(&WORDS, 3);
            }
            if source.one_in(2) {
                operation["from"] = Value::from(pointer(source, &document));
            }
            operation
        })
        .collect();
    let patch = match source.one_in(30) {
        true => source.json(&WORDS, 3),
        false => Value::from(operations),
    };
    source.show("document", &document);
    source.show("patch", &patch);
    let Ok(parsed) = JsonPatch::parse(&patch) else {
        return Ok(());
    };
    let _ = parsed.changes("/metadata");
    let Ok(patched) = parsed.apply(&document) else {
        return Ok(());
    };
    let again = parsed.apply(&document).map_err(|err| err.to_string())?;
    require_equal(&again, &patched, "the same patch of the same document")?;
    let text = patched.to_string();
    let read: Value = serde_json::from_str(&text).map_err(|err| err.to_string())?;
    require_equal(&read, &patched, "the result is readable")
}

pub(super) fn merge(source: &mut Source) -> Result<(), String> {
    let mut document = source.json(&WORDS, 4);
    let patch = source.json(&WORDS, 4);
    source.show("document", &document);
    source.show("patch", &patch);
    json_patch::merge(&mut document, &patch);
    let once = document.clone();
    json_patch::merge(&mut document, &patch);
    require_equal(&document, &once, "a second merge changes nothing")
}

pub(super) fn strategic(source: &mut Source) -> Result<(), String> {
    const DIRECTIVES: [&str; 16] = [
        "metadata",
        "finalizers",
        "ownerReferences",
        "uid",
        "data",
        "a",
        "$patch",
        "replace",
        "delete",
        "merge",
        "$retainKeys",
        "$setElementOrder/finalizers",
        "$setElementOrder/ownerReferences",
        "$deleteFromPrimitiveList/finalizers",
        "secrets",
        "name",
    ];
    let mut document = source.object(&WORDS, 4);
    document["metadata"] = json!({"name": "x", "finalizers": ["a", "b"],
        "ownerReferences": [{"uid": "a", "name": "a"}, {"uid": "b", "name": "b"}]});
    let mut patch = source.object(&DIRECTIVES, 4);
    if source.one_in(2) {
        patch["metadata"] = source.object(&DIRECTIVES, 3);
    }
    source.show("document", &document);
    source.show("patch", &patch);
    let mut once = document;
    if strategic::apply(&mut once, &patch).is_err() {
        return Ok(());
    }
    let mut twice = once.clone();
    strategic::apply(&mut twice, &patch).map_err(|err| format!("the second merge fails: {err}"))?;
    require_equal(&twice, &once, "a second merge changes nothing")
}
