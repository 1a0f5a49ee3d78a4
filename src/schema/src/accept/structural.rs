//! Structural rules: every node has a type, and logical junctors only constrain values.

use serde_json::{Map, Value, json};

use crate::node::members;
use crate::{FieldError, pattern};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

pub(super) fn check(at: &str, schema: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(schema) = schema.as_object() {
        invariants(at, schema, Level::Root, &mut errors);
        completeness(at, at, schema, Some(schema), &mut errors);
    }
    errors.sort_by_cached_key(FieldError::summary);
    errors
}

fn text<'a>(schema: &'a Map<String, Value>, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn flag(schema: &Map<String, Value>, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or_default()
}

fn branches<'a>(
    schema: &'a Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = (usize, &'a Map<String, Value>)> {
    let list = schema.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .enumerate()
        .filter_map(|(index, branch)| Some((index, branch.as_object()?)))
}

fn invariants(at: &str, schema: &Map<String, Value>, level: Level, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    let items = schema.get("items").and_then(Value::as_object);
    if kind == "array" && items.is_none() {
        errors.push(FieldError::required(format!("{at}.items"), "must be specified"));
    }
    if let Some(items) = items {
        invariants(&format!("{at}.items"), items, Level::Item, errors);
    }
    for (name, property) in members(schema, "properties") {
        if let Some(property) = property.as_object() {
            invariants(
                &format!("{at}.properties[{name}]"),
                property,
                Level::Field,
                errors,
            );
        }
    }
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    if let Some(additional) = schema.get("additionalProperties") {
        let field = format!("{at}.additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(&field, "must not be used at the root"));
        }
        if let Some(additional) = additional.as_object() {
            invariants(&field, additional, Level::Field, errors);
        }
        if embedded {
            let detail = "must not be used if x-kubernetes-embedded-resource is set";
            errors.push(FieldError::forbidden(field, detail));
        }
    }
    let int_or_string = flag(schema, "x-kubernetes-int-or-string");
    let preserve = flag(schema, "x-kubernetes-preserve-unknown-fields");
    if int_or_string {
        for (set, key) in [
            (preserve, "x-kubernetes-preserve-unknown-fields"),
            (embedded, "x-kubernetes-embedded-resource"),
        ] {
            if set {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                errors.push(FieldError::invalid(
                    format!("{at}.{key}"),
                    &Value::Bool(true),
                    detail,
                ));
            }
        }
    }
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let skip_any_of = schema.get("anyOf") == Some(&either);
    let skip_first_all_of = branches(schema, "allOf")
        .next()
        .is_some_and(|(_, first)| first.get("anyOf") == Some(&either));
    value_validation(at, schema, skip_any_of, skip_first_all_of, errors);

    let type_field = format!("{at}.type");
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            FieldError::required(&type_field, detail)
        } else {
            FieldError::invalid_text(&type_field, kind, detail)
        });
    } else if kind.is_empty() && !int_or_string && !preserve {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&type_field, detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid_text(
            &type_field,
            kind,
            "must be object at the root",
        ));
    }
    metadata_invariants(at, schema, level, embedded, errors);
    if embedded && !preserve && members(schema, "properties").next().is_none() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(format!("{at}.properties"), detail));
    }
}

fn metadata_invariants(
    at: &str,
    schema: &Map<String, Value>,
    level: Level,
    embedded: bool,
    errors: &mut Vec<FieldError>,
) {
    let is_resource = level == Level::Root || embedded;
    for (name, property) in members(schema, "properties") {
        let Some(property) = property.as_object() else {
            continue;
        };
        let kind = text(property, "type");
        let field = format!("{at}.properties[{name}]");
        match name.as_str() {
            "kind" | "apiVersion" if is_resource && kind != "string" => {
                errors.push(FieldError::invalid_text(
                    format!("{field}.type"),
                    kind,
                    "must be string",
                ));
            }
            "metadata" => {
                if is_resource && kind != "object" {
                    errors.push(FieldError::invalid_text(
                        format!("{field}.type"),
                        kind,
                        "must be object",
                    ));
                }
                if level == Level::Root && restricts_more_than_names(property) {
                    let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
                    errors.push(FieldError::forbidden(field, detail));
                }
            }
            _ => {}
        }
    }
}

fn restricts_more_than_names(metadata: &Map<String, Value>) -> bool {
    metadata.iter().any(|(key, value)| match key.as_str() {
        "type" | "default" => false,
        "properties" => value.as_object().is_some_and(|properties| {
            properties
                .keys()
                .any(|name| name != "name" && name != "generateName")
        }),
        _ => !matches!(value, Value::Null | Value::Bool(false)),
    })
}

fn value_validation(
    at: &str,
    schema: &Map<String, Value>,
    skip_any_of: bool,
    skip_first_all_of: bool,
    errors: &mut Vec<FieldError>,
) {
    if !skip_any_of {
        for (index, branch) in branches(schema, "anyOf") {
            nested(&format!("{at}.anyOf[{index}]"), branch, false, errors);
        }
    }
    for (index, branch) in branches(schema, "allOf") {
        nested(
            &format!("{at}.allOf[{index}]"),
            branch,
            skip_first_all_of && index == 0,
            errors,
        );
    }
    for (index, branch) in branches(schema, "oneOf") {
        nested(&format!("{at}.oneOf[{index}]"), branch, false, errors);
    }
    if let Some(not) = schema.get("not").and_then(Value::as_object) {
        nested(&format!("{at}.not"), not, false, errors);
    }
    let pattern = text(schema, "pattern");
    if !pattern.is_empty()
        && let Err(err) = pattern::compile(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {err}");
        errors.push(FieldError::invalid_text(
            format!("{at}.pattern"),
            pattern,
            &detail,
        ));
    }
}

/// Keywords that are forbidden inside of junctors, with the error text.
const OUTSIDE_JUNCTORS: [(&str, &str); 12] = [
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    (
        "x-kubernetes-preserve-unknown-fields",
        "must be false to be structural",
    ),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
];

fn nested(at: &str, schema: &Map<String, Value>, skip_any_of: bool, errors: &mut Vec<FieldError>) {
    value_validation(at, schema, skip_any_of, false, errors);
    if let Some(items) = schema.get("items").and_then(Value::as_object) {
        nested(&format!("{at}.items"), items, false, errors);
    }
    for (name, property) in members(schema, "properties") {
        if let Some(property) = property.as_object() {
            nested(&format!("{at}.properties[{name}]"), property, false, errors);
        }
        if name == "metadata" {
            let detail = "must not be specified in a nested context";
            errors.push(FieldError::forbidden(format!("{at}.properties[{name}]"), detail));
        }
    }
    for (key, detail) in OUTSIDE_JUNCTORS {
        if schema.get(key).is_some_and(|value| !is_zero(value)) {
            errors.push(FieldError::forbidden(format!("{at}.{key}"), detail));
        }
    }
    if schema
        .get("x-kubernetes-validations")
        .is_some_and(|rules| !is_zero(rules))
    {
        let field = format!("{at}.x-kubernetes-validations");
        errors.push(FieldError::forbidden(field, "must be empty to be structural"));
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::Object(_) => false,
    }
}

/// Checks that every field of a junctor is also defined outside of junctors.
fn completeness(
    at: &str,
    defined_at: &str,
    constraint: &Map<String, Value>,
    defined: Option<&Map<String, Value>>,
    errors: &mut Vec<FieldError>,
) {
    let junctors = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|key| {
        branches(constraint, key).map(move |(index, branch)| (format!("{at}.{key}[{index}]"), branch))
    });
    let not = constraint
        .get("not")
        .and_then(Value::as_object)
        .map(|not| (format!("{at}.not"), not));
    for (at, branch) in not.into_iter().chain(junctors) {
        nested_completeness(&at, defined_at, branch, defined, errors);
    }
}

fn nested_completeness(
    at: &str,
    defined_at: &str,
    constraint: &Map<String, Value>,
    defined: Option<&Map<String, Value>>,
    errors: &mut Vec<FieldError>,
) {
    let Some(schema) = defined else {
        errors.push(FieldError::required(
            defined_at,
            &format!("because it is defined in {at}"),
        ));
        return;
    };
    completeness(at, defined_at, constraint, defined, errors);
    if let Some(items) = constraint.get("items").and_then(Value::as_object) {
        let outside = schema.get("items").and_then(Value::as_object);
        nested_completeness(
            &format!("{at}.items"),
            &format!("{defined_at}.items"),
            items,
            outside,
            errors,
        );
    }
    for (name, property) in members(constraint, "properties") {
        let Some(property) = property.as_object() else {
            continue;
        };
        let outside = schema
            .get("properties")
            .and_then(|all| all.get(name))
            .and_then(Value::as_object);
        let suffix = format!(".properties[{name}]");
        let (at, defined_at) = (format!("{at}{suffix}"), format!("{defined_at}{suffix}"));
        nested_completeness(&at, &defined_at, property, outside, errors);
    }
}
