//! Structural schemas: pruning, defaults and validation.

use rooflet_schema::StructuralSchema;
use serde_json::{Value, json};

use super::{require, require_equal};
use crate::source::Source;

const WORDS: [&str; 9] = [
    "a",
    "b",
    "c",
    "metadata",
    "kind",
    "apiVersion",
    "name",
    "labels",
    "spec",
];

/// Returns a schema that is mostly valid.
fn schema(source: &mut Source, depth: usize) -> Value {
    let kind = source.pick(&[
        "object", "object", "object", "array", "string", "integer", "boolean", "number",
    ]);
    let mut found = json!({"type": kind});
    match kind {
        "object" if depth > 0 => {
            for _ in 0..source.below(4) {
                let name = source.word(&WORDS);
                found["properties"][name] = schema(source, depth - 1);
            }
            if source.one_in(4) && found.get("properties").is_none() {
                found["additionalProperties"] = schema(source, depth - 1);
            }
        }
        "array" => {
            found["items"] = schema(source, depth.saturating_sub(1));
            if source.one_in(3) {
                found["x-kubernetes-list-type"] = json!(source.pick(&["set", "map", "atomic"]));
            }
        }
        _ => {}
    }
    for (keyword, value) in [
        ("nullable", json!(true)),
        ("x-kubernetes-preserve-unknown-fields", json!(true)),
        ("x-kubernetes-embedded-resource", json!(true)),
        ("maxLength", json!(1)),
        ("minimum", json!(2)),
        ("pattern", json!("^[ab]+$")),
        ("required", json!(["a"])),
        ("enum", json!(["a", 1, null])),
    ] {
        if source.one_in(12) {
            found[keyword] = value;
        }
    }
    if source.one_in(4) {
        // A definition rejects a null in a default, unless the value is nullable.
        found["default"] = source.json_without_nulls(&WORDS, 2);
    }
    found
}

pub(super) fn check(source: &mut Source) -> Result<(), String> {
    let mut root = schema(source, 4);
    root["type"] = json!("object");
    let mut object = source.object(&WORDS, 5);
    source.show("schema", &root);
    source.show("object", &object);
    let schema = StructuralSchema::trusted(&root);
    schema.prune(&mut object);
    let pruned = object.clone();
    let unknown = schema.prune(&mut object);
    require(unknown.is_empty(), "a pruned object has no unknown fields")?;
    require_equal(&object, &pruned, "a second pruning changes nothing")?;
    schema.apply_defaults(&mut object);
    let defaulted = object.clone();
    schema.apply_defaults(&mut object);
    require_equal(&object, &defaulted, "defaults apply once")?;
    let old = source.object(&WORDS, 4);
    let _ = schema.validate(&object, None);
    let _ = schema.validate(&object, Some(&old));
    Ok(())
}
