//! Checks that defaults are valid and pruned values of their node.

use serde_json::{Map, Value};

use crate::schema::compile::compile;
use crate::schema::node::members;
use crate::schema::path::Path;
use crate::schema::{FieldError, cel, pruning, validate};

pub(super) fn check(at: &str, schema: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(schema) = schema.as_object() {
        walk(at, schema, true, &mut errors);
    }
    errors
}

fn walk(at: &str, schema: &Map<String, Value>, is_root: bool, errors: &mut Vec<FieldError>) {
    if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
        check_default(&format!("{at}.default"), schema, default, errors);
    }
    for (name, property) in members(schema, "properties") {
        // The `keywords` module rejects defaults in the object's own metadata.
        let own_metadata = is_root && name == "metadata";
        if let Some(property) = property.as_object().filter(|_| !own_metadata) {
            walk(&format!("{at}.properties[{name}]"), property, false, errors);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = schema.get(key).and_then(Value::as_object) {
            walk(&format!("{at}.{key}"), child, false, errors);
        }
    }
}

fn check_default(at: &str, schema: &Map<String, Value>, default: &Value, errors: &mut Vec<FieldError>) {
    let node = compile(&Value::Object(schema.clone()));
    let mut pruned = default.clone();
    pruning::prune_value(&mut pruned, &node);
    if pruned != *default {
        errors.push(FieldError::invalid(at, default, "must not have unknown fields"));
    }
    let faults = validate::validate(at, &node, default, None);
    if faults.is_empty() {
        let place = Path::Root;
        let place = place.child(at);
        cel::validate(&node, default, None, cel::Ratchet::default(), &place, errors);
    }
    errors.extend(faults);
}
