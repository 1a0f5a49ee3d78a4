//! Checks that defaults are valid and pruned values of their node.

use serde_json::{Map, Value};

use crate::compile::compile;
use crate::node::members;
use crate::path::Path;
use crate::{FieldError, cel, embedded, pruning, validate};

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
    let schema = Value::Object(schema.clone());
    let node = compile(&schema);
    // Unknown fields in the metadata of embedded resources are dropped when the definition is stored.
    let mut known = default.clone();
    pruning::prune_embedded_metadata(&mut known, &schema);
    let mut pruned = known.clone();
    pruning::prune_value(&mut pruned, &node);
    if pruned != known {
        errors.push(FieldError::invalid(at, default, "must not have unknown fields"));
    }
    let place = Path::Root;
    let place = place.child(at);
    let mut faults = embedded::validate_default(&node, default, &place);
    if faults.is_empty() {
        faults = validate::validate(at, &node, default, None);
    }
    if faults.is_empty() {
        cel::validate(&node, default, None, cel::Ratchet::default(), &place, errors);
    }
    errors.extend(faults);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Texts of kube-apiserver 1.36.2.
    #[test]
    fn default_of_an_embedded_resource_has_type_and_valid_metadata() {
        let check = |default: Value, expect: &[&str]| {
            let schema = json!({"type": "object", "properties": {"t": {"type": "object", "default": default,
                "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}});
            let found: Vec<String> = super::check("at", &schema)
                .iter()
                .map(FieldError::summary)
                .collect();
            assert_eq!(found, expect);
        };
        check(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}, "unknown": "x"}}),
            &[],
        );
        check(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "A_"}}),
            &[],
        );
        check(
            json!({"kind": "Pod"}),
            &["at.properties[t].default.apiVersion: Required value"],
        );
        check(
            json!({"apiVersion": 1, "kind": "Pod"}),
            &["at.properties[t].default.apiVersion: Invalid value: 1: must be a string"],
        );
        check(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 1}}),
            &[
                "at.properties[t].default.metadata: Invalid value: {\"name\":1}: json: cannot unmarshal number into Go \
                 struct field ObjectMeta.name of type string",
            ],
        );
        check(
            json!({"kind": "Pod", "metadata": []}),
            &[
                "at.properties[t].default.metadata: Invalid value: []: json: cannot unmarshal array into Go value of \
                 type v1.ObjectMeta",
            ],
        );
    }
}
