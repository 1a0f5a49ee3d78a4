//! Server-side apply: sequences of applies and updates by several managers.

use rooflet_apimachinery::fields::{
    Configuration, FieldSet, Manager, Managers, Operation, Tracked, TypeSchema,
};
use serde_json::{Value, json};

use super::{require, require_equal};
use crate::source::Source;

const WORDS: [&str; 12] = [
    "number", "text", "labels", "atom", "list", "set", "env", "nested", "free", "name", "a", "value",
];
const NOW: &str = "2026-01-01T00:00:00Z";

/// Schema with each kind of merge.
fn schema() -> TypeSchema {
    let text = json!({"type": "string"});
    let env = json!({"type": "object", "required": ["name"], "properties": {"name": text, "value": text}});
    let spec = json!({"type": "object", "properties": {
        "number": {"type": "integer"},
        "text": text,
        "labels": {"type": "object", "additionalProperties": text},
        "atom": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text}},
        "list": {"type": "array", "items": text},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
        "env": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": env},
        "nested": {"type": "object", "properties": {"a": text, "nested": {"type": "object", "properties": {"a": text}}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    TypeSchema::of_custom_resource(&json!({"type": "object", "properties": {"spec": spec}}))
}

/// Returns a spec that mostly has the types of the schema.
fn spec(source: &mut Source) -> Value {
    let mut spec = json!({});
    for _ in 0..source.below(6) {
        let field = source.pick(&WORDS[..9]);
        // As in Kubernetes, no manager owns an empty list with items by key, or a null. A second apply may
        // change them.
        let texts = |source: &mut Source| -> Vec<Value> {
            (0..=source.below(3))
                .map(|_| Value::from(source.pick(&["a", "b", "c"])))
                .collect()
        };
        spec[field] = match field {
            "number" => json!(source.below(3)),
            "text" => json!(source.pick(&["x", "y", ""])),
            "labels" | "atom" => {
                let members = texts(source)
                    .into_iter()
                    .filter_map(|key| Some((key.as_str()?.to_owned(), key.clone())));
                Value::Object(
                    members
                        .filter(|(key, _)| field == "labels" || key == "a")
                        .collect(),
                )
            }
            "list" | "set" => Value::from(texts(source)),
            "env" => texts(source)
                .into_iter()
                .map(|name| json!({"name": name, "value": source.pick(&["1", "2"])}))
                .collect(),
            "nested" => json!({"a": "x", "nested": {"a": source.pick(&["1", "2"])}}),
            _ => source.json_without_nulls(&WORDS, 3),
        };
        if source.one_in(25) {
            let any = source.json_without_nulls(&WORDS, 2);
            if !any.as_array().is_some_and(Vec::is_empty) {
                spec[field] = any;
            }
        }
    }
    spec
}

/// As in Kubernetes, an apply that removes the last member of a map removes the map, and the next one
/// restores it if the configuration contains it.
fn without_empty_spec(mut object: Value) -> Value {
    let fields = object.as_object_mut();
    if let Some(fields) = fields.filter(|fields| fields.get("spec") == Some(&json!({}))) {
        fields.remove("spec");
    }
    object
}

pub(super) fn check(source: &mut Source) -> Result<(), String> {
    let (schema, ignored) = (schema(), FieldSet::default());
    let mut managers = Managers::default();
    let mut live = json!({});
    for _ in 0..=source.below(6) {
        let by = |operation| Manager {
            name: String::new(),
            operation,
            api_version: "example.com/v1".to_owned(),
            subresource: String::new(),
        };
        let name = source.pick(&["one", "two", "three"]).to_owned();
        let spec = spec(source);
        if source.one_in(3) && live != json!({}) {
            let manager = Manager {
                name,
                ..by(Operation::Update)
            };
            let mut new = live.clone();
            new["spec"] = spec;
            source.show("update", format!("{}: {}", manager.name, new["spec"]));
            managers.track(Tracked {
                schema: &schema,
                old: &live,
                new: &new,
                manager: &manager,
                ignored: &ignored,
                now: NOW,
            });
            live = new;
        } else {
            let manager = Manager {
                name,
                ..by(Operation::Apply)
            };
            let forces = source.one_in(2);
            source.show("apply", format!("{}, forces: {forces}: {spec}", manager.name));
            let applied = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec});
            let before = managers.encode();
            let apply = |managers: &mut Managers, live: &Value| {
                managers.apply(Configuration {
                    schema: &schema,
                    live,
                    applied: &applied,
                    manager: &manager,
                    forces,
                    ignored: &ignored,
                    now: NOW,
                })
            };
            match apply(&mut managers, &live) {
                Err(_) => require(managers.encode() == before, "a failed apply changes no owners")?,
                Ok(object) => {
                    live = object.unwrap_or(live);
                    let owners = managers.encode();
                    let again = apply(&mut managers, &live)
                        .map_err(|err| format!("the second apply fails: {err}"))?;
                    if let Some(again) = again {
                        let property = "a second apply changes nothing";
                        require_equal(
                            &without_empty_spec(again),
                            &without_empty_spec(live.clone()),
                            property,
                        )?;
                    }
                    require(managers.encode() == owners, "a second apply changes no owners")?;
                }
            }
        }
        let Some(text) = managers.encode() else { continue };
        let decoded = Managers::decode(&text).map_err(|err| format!("{text} is not decoded: {err}"))?;
        require(
            decoded.encode().as_deref() == Some(text.as_str()),
            "owners are equal after a round trip",
        )?;
    }
    // Any text is decoded or rejected.
    let text = source.json(
        &[
            "f:a",
            "k:{\"a\":1}",
            "v:1",
            "i:0",
            ".",
            "fieldsV1",
            "manager",
            "operation",
        ],
        4,
    );
    let _ = Managers::decode(&text.to_string());
    Ok(())
}
