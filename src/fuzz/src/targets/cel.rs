//! CEL rules: acceptance and evaluation of expressions.

use rooflet_schema::{FieldError, StructuralSchema, crd};
use serde_json::{Value, json};

use super::require;
use crate::source::Source;

const FIELDS: [&str; 8] = ["n", "d", "s", "b", "list", "map", "set", "nested"];
const ATOMS: [&str; 22] = [
    "self.n",
    "self.d",
    "self.s",
    "self.b",
    "self.list",
    "self.map",
    "self.set",
    "self.nested.n",
    "oldSelf.n",
    "has(self.s)",
    "1",
    "-9223372036854775808",
    "2.5",
    "1u",
    "'a'",
    "''",
    "true",
    "null",
    "[1, 2]",
    "{'a': 1}",
    "b'\\xff'",
    "duration('1h')",
];
const CALLS: [&str; 30] = [
    "size(@)",
    "string(@)",
    "int(@)",
    "double(@)",
    "uint(@)",
    "!(@)",
    "@.all(x, x == @)",
    "@.exists(x, x > @)",
    "@.map(x, [x, @])",
    "@.filter(x, @)",
    "@.exists_one(x, x == @)",
    "@.contains(@)",
    "@.startsWith(@)",
    "@.matches(@)",
    "@.split(',')",
    "@.replace(@, @)",
    "@.substring(@, @)",
    "@.lowerAscii()",
    "@.isSorted()",
    "@.indexOf(@)",
    "timestamp(@)",
    "quantity(@)",
    "@.sum()",
    "url(@).getHost()",
    "@.all(i, x, i != @)",
    "@.transformList(i, x, [i, @])",
    "@.transformMap(i, x, @)",
    "@.transformMapEntry(i, x, {x: @})",
    "optional.of(@).optMap(x, [x, @]).value()",
    "format.named(@).hasValue()",
];
const OPERATORS: [&str; 13] = [
    "+", "-", "*", "/", "%", "==", "!=", "<", ">=", "&&", "||", "in", ".",
];

/// Returns an expression, which may be invalid.
fn expression(source: &mut Source, depth: usize) -> String {
    if depth == 0 || source.one_in(5) {
        return source.word(&ATOMS);
    }
    match source.below(6) {
        0 | 1 => {
            let template = source.pick(&CALLS);
            let mut call = String::new();
            for (index, part) in template.split('@').enumerate() {
                if index > 0 {
                    call.push_str(&expression(source, depth - 1));
                }
                call.push_str(part);
            }
            call
        }
        2 => {
            let parts = [(); 3].map(|()| expression(source, depth - 1));
            format!("({}) ? ({}) : ({})", parts[0], parts[1], parts[2])
        }
        3 => format!(
            "({})[{}]",
            expression(source, depth - 1),
            expression(source, depth - 1)
        ),
        _ => {
            let (left, right) = (expression(source, depth - 1), expression(source, depth - 1));
            format!("({left}) {} ({right})", source.pick(&OPERATORS))
        }
    }
}

/// Returns a definition whose schema has the rule.
fn definition(rule: &Value) -> Value {
    let text = json!({"type": "string", "maxLength": 20});
    let integer = json!({"type": "integer"});
    let list =
        |kind: &str| json!({"type": "array", "maxItems": 5, "items": text, "x-kubernetes-list-type": kind});
    let spec = json!({"type": "object", "x-kubernetes-validations": [rule], "properties": {
        "n": integer, "d": {"type": "number"}, "s": text, "b": {"type": "boolean"},
        "list": list("atomic"), "set": list("set"),
        "map": {"type": "object", "maxProperties": 5, "additionalProperties": integer},
        "nested": {"type": "object", "properties": {"n": integer}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}]}})
}

fn object(source: &mut Source) -> Value {
    let mut spec = json!({});
    for field in FIELDS {
        if source.one_in(4) {
            continue;
        }
        spec[field] = match field {
            "n" => json!(source.number().as_i64().unwrap_or(i64::MIN)),
            "d" => Value::Number(source.number()),
            "b" => Value::Bool(source.one_in(2)),
            "list" => json!(["a", "b", "a"]),
            "set" => json!(["b", "a"]),
            "map" => json!({"a": 1, "b": source.below(9)}),
            "nested" => json!({"n": source.below(3)}),
            _ => Value::from(source.pick(&["", "a", "é,b", "2026-01-01T00:00:00Z", "10Gi"])),
        };
        if source.one_in(40) {
            spec[field] = source.json(&FIELDS, 2);
        }
    }
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec})
}

pub(super) fn check(source: &mut Source) -> Result<(), String> {
    let depth = 1 + source.below(4);
    let text = match source.one_in(15) {
        true => String::from_utf8_lossy(&source.bytes(30)).into_owned(),
        false => expression(source, depth),
    };
    let mut rule = json!({"rule": text});
    if source.one_in(6) {
        rule["messageExpression"] = Value::from(expression(source, 2));
    }
    if source.one_in(6) {
        rule["optionalOldSelf"] = Value::Bool(true);
    }
    source.show("rule", &rule);
    let definition = definition(&rule);
    let is_accepted = crd::validate(&definition, None).is_empty();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    // Stored definitions of earlier versions may contain rules that this version rejects.
    let schema = StructuralSchema::trusted(schema);
    let (new, old) = (object(source), object(source));
    source.show("object", &new);
    source.show("old object", &old);
    source.show("accepted", is_accepted);
    let old = (!source.one_in(3)).then_some(&old);
    let causes = || -> Vec<String> {
        let errors = schema.validate(&new, old);
        errors.iter().map(FieldError::summary).collect()
    };
    let first = causes();
    // Messages may show the members of a map in any order.
    require(
        causes().len() == first.len(),
        "the same object has as many causes",
    )
}
