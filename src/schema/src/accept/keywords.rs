//! Keyword checks beyond structural rules: unsupported keywords, list and map types, CEL rules.

use serde_json::{Map, Value};

use super::{cel, cost::Costs};
use crate::cel::checker::{Decl, limit};
use crate::compile::compile;
use crate::node::{Node, members, texts};
use crate::{FieldError, field_path};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const LIST_TYPES: [&str; 3] = ["atomic", "set", "map"];
const MAP_TYPES: [&str; 2] = ["atomic", "granular"];
const RULE_REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

/// JSON schema keywords that CRDs must not use.
const UNSUPPORTED: [&str; 6] = [
    "id",
    "additionalItems",
    "patternProperties",
    "definitions",
    "dependencies",
    "$ref",
];

/// Context of a node.
#[derive(Clone)]
struct Place {
    /// Reason why defaults are not allowed, if they are not.
    no_defaults: Option<String>,
    inside_metadata: bool,
    /// First ancestor whose items cannot be correlated between two revisions.
    uncorrelatable: Option<String>,
    is_root: bool,
    /// Maximum number of values of the node in an object. `None` if an ancestor has no limit.
    max_values: Option<u64>,
    /// If false, rules may have any cost.
    limits_cost: bool,
}

#[derive(Default)]
struct Findings {
    schema: Vec<FieldError>,
    rules: Vec<FieldError>,
    costs: Costs,
}

/// Checks the schema at `at`. `node` is the compiled schema if it is structural; otherwise its CEL
/// rules are not checked. If `limits_cost` is false, rules may have any cost.
pub(super) fn check(at: &str, schema: &Value, node: Option<&Node>, limits_cost: bool) -> Vec<FieldError> {
    let place = Place {
        no_defaults: None,
        inside_metadata: false,
        uncorrelatable: None,
        is_root: true,
        max_values: Some(1),
        limits_cost,
    };
    let found = schema
        .as_object()
        .map(|schema| walk(at, schema, node, &place))
        .unwrap_or_default();
    let mut errors = found.schema;
    errors.extend(found.rules);
    errors.extend(found.costs.into_errors(at));
    errors
}

/// Returns true if the schema uses keywords that have no structural form.
pub(super) fn has_unsupported(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let here = UNSUPPORTED
                .iter()
                .any(|key| fields.get(*key).is_some_and(|value| !value.is_null()))
                || fields.get("items").is_some_and(Value::is_array)
                || fields.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false));
            let named = members(fields, "properties").any(|(_, property)| has_unsupported(property));
            let nested = ["items", "additionalProperties", "not"]
                .iter()
                .any(|key| fields.get(*key).is_some_and(has_unsupported));
            let listed = ["allOf", "anyOf", "oneOf"].iter().any(|key| {
                fields
                    .get(*key)
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .any(has_unsupported)
            });
            here || named || nested || listed
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
    }
}

fn walk(at: &str, schema: &Map<String, Value>, node: Option<&Node>, place: &Place) -> Findings {
    let mut found = Findings::default();
    keywords(at, schema, place, &mut found.schema);
    let mut merge = |other: Findings| {
        found.schema.extend(other.schema);
        found.rules.extend(other.rules);
        found.costs.merge(other.costs);
    };
    let child_place = Place {
        is_root: false,
        max_values: place
            .max_values
            .zip(max_children(schema))
            .map(|(parents, children)| parents.saturating_mul(children)),
        ..place.clone()
    };
    if let Some(additional) = schema.get("additionalProperties").and_then(Value::as_object) {
        let mut place = child_place.clone();
        if place.inside_metadata {
            place.no_defaults = Some("inside additionalProperties applying to object metadata".to_owned());
        }
        let child = node.and_then(Node::additional_schema);
        merge(walk(
            &format!("{at}.additionalProperties"),
            additional,
            child,
            &place,
        ));
    }
    let embedded = schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true));
    for (name, property) in members(schema, "properties") {
        let Some(property) = property.as_object() else {
            continue;
        };
        let mut child_place = child_place.clone();
        if (place.is_root || embedded) && ["metadata", "kind", "apiVersion"].contains(&name.as_str()) {
            child_place.inside_metadata = true;
            if place.is_root {
                child_place.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        let child = node.and_then(|node| node.property(name));
        merge(walk(
            &format!("{at}.properties[{name}]"),
            property,
            child,
            &child_place,
        ));
    }
    if let Some(not) = schema.get("not").and_then(Value::as_object) {
        merge(walk(&format!("{at}.not"), not, None, &child_place));
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        let list = schema.get(key).and_then(Value::as_array).into_iter().flatten();
        for (index, branch) in list.enumerate() {
            let Some(branch) = branch.as_object() else {
                continue;
            };
            merge(walk(&format!("{at}.{key}[{index}]"), branch, None, &child_place));
        }
    }
    if let Some(items) = schema.get("items").and_then(Value::as_object) {
        let mut place = child_place;
        if schema.get("x-kubernetes-list-type").and_then(Value::as_str) != Some("map") {
            place.uncorrelatable.get_or_insert_with(|| at.to_owned());
        }
        let child = node.and_then(|node| node.items.as_deref());
        merge(walk(&format!("{at}.items"), items, child, &place));
    }
    map_and_list_types(at, schema, &mut found.schema);
    rules(at, schema, node, place, &mut found);
    found
}

/// Returns the maximum number of items or entries of a value, or 1 if its children are fields.
/// `None` means that there is no limit.
fn max_children(schema: &Map<String, Value>) -> Option<u64> {
    let has_entries = schema
        .get("additionalProperties")
        .is_some_and(|all| !all.is_null());
    match schema.get("type").and_then(Value::as_str) {
        Some("object") if has_entries => limit(schema, "maxProperties"),
        Some("array") => limit(schema, "maxItems"),
        _ => Some(1),
    }
}

fn keywords(at: &str, schema: &Map<String, Value>, place: &Place, errors: &mut Vec<FieldError>) {
    let set = |key: &str| schema.get(key).is_some_and(|value| !value.is_null());
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(
            format!("{at}.type"),
            &Value::from(kind),
            TYPES,
        ));
    }
    if let Some(reason) = place.no_defaults.as_ref().filter(|_| set("default")) {
        errors.push(FieldError::forbidden(
            format!("{at}.default"),
            &format!("must not be set {reason}"),
        ));
    }
    for key in UNSUPPORTED {
        if set(key) {
            errors.push(FieldError::forbidden(
                format!("{at}.{key}"),
                &format!("{key} is not supported"),
            ));
        }
    }
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(format!("{at}.type"), detail));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        let detail = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(format!("{at}.items"), detail));
    }
    if place.inside_metadata && schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        let field = format!("{at}.x-kubernetes-embedded-resource");
        errors.push(FieldError::forbidden(
            field,
            "must not be used inside of resource meta",
        ));
    }
    if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(format!("{at}.uniqueItems"), detail));
    }
    let has_properties = members(schema, "properties").next().is_some();
    if has_properties
        && set("additionalProperties")
        && schema.get("additionalProperties") != Some(&Value::Bool(true))
    {
        let field = format!("{at}.additionalProperties");
        errors.push(FieldError::forbidden(
            field,
            "additionalProperties and properties are mutual exclusive",
        ));
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let field = format!("{at}.x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(
            field,
            &Value::Bool(false),
            "must be true or undefined",
        ));
    }
}

fn map_and_list_types(at: &str, schema: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let text = |key: &str| schema.get(key).and_then(Value::as_str);
    let kind = text("type").unwrap_or_default();
    let mut need_type = |wanted: &str, key: &str| {
        let detail = format!("must be {wanted} if {key} is specified");
        let field = format!("{at}.type");
        errors.push(if kind.is_empty() {
            FieldError::required(field, &detail)
        } else {
            FieldError::invalid_text(field, kind, &detail)
        });
    };
    let (map_type, list_type) = (text("x-kubernetes-map-type"), text("x-kubernetes-list-type"));
    if map_type.is_some() && kind != "object" {
        need_type("object", "x-kubernetes-map-type");
    }
    if list_type.is_some() && kind != "array" {
        need_type("array", "x-kubernetes-list-type");
    }
    if let Some(map_type) = map_type.filter(|map_type| !MAP_TYPES.contains(map_type)) {
        let field = format!("{at}.x-kubernetes-map-type");
        errors.push(FieldError::not_supported(
            field,
            &Value::from(map_type),
            MAP_TYPES,
        ));
    }
    let items = schema.get("items").and_then(Value::as_object);
    if let Some(items) = items.filter(|_| list_type == Some("set") && kind == "array") {
        set_items(at, items, errors);
    }
    if let Some(list_type) = list_type.filter(|list_type| !LIST_TYPES.contains(list_type)) {
        let field = format!("{at}.x-kubernetes-list-type");
        errors.push(FieldError::not_supported(
            field,
            &Value::from(list_type),
            LIST_TYPES,
        ));
    }
    let keys = texts(schema, "x-kubernetes-list-map-keys");
    if !keys.is_empty() && list_type != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        let field = format!("{at}.x-kubernetes-list-type");
        errors.push(match list_type {
            None => FieldError::required(field, detail),
            Some(list_type) => FieldError::invalid_text(field, list_type, detail),
        });
    }
    if list_type == Some("map") {
        if keys.is_empty() {
            let field = format!("{at}.x-kubernetes-list-map-keys");
            errors.push(FieldError::required(
                field,
                "must not be empty if x-kubernetes-list-type is map",
            ));
        }
        match items {
            None => {
                let detail = "must have a schema if x-kubernetes-list-type is map";
                errors.push(FieldError::required(format!("{at}.items"), detail));
            }
            Some(items) => map_items(at, items, &keys, errors),
        }
    }
    if let Some(items) = items.filter(|_| matches!(list_type, Some("set" | "map"))) {
        keyed_items(at, items, list_type.unwrap_or_default(), &keys, errors);
    }
}

fn set_items(at: &str, items: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let shown = items.get("x-kubernetes-list-type").cloned().unwrap_or_default();
    match items.get("type").and_then(Value::as_str) {
        Some("array") if !matches!(shown.as_str(), None | Some("atomic")) => {
            errors.push(FieldError::invalid(
                format!("{at}.items.x-kubernetes-list-type"),
                &shown,
                detail,
            ));
        }
        Some("object") if items.get("x-kubernetes-map-type").and_then(Value::as_str) != Some("atomic") => {
            errors.push(FieldError::invalid(
                format!("{at}.items.x-kubernetes-map-type"),
                &shown,
                detail,
            ));
        }
        _ => {}
    }
}

fn map_items(at: &str, items: &Map<String, Value>, keys: &[String], errors: &mut Vec<FieldError>) {
    let kind = items.get("type").and_then(Value::as_str).unwrap_or_default();
    if kind != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid_text(format!("{at}.items.type"), kind, detail));
        return;
    }
    let keys_field = format!("{at}.x-kubernetes-list-map-keys");
    let all_keys = Value::from(keys);
    for (index, key) in keys.iter().enumerate() {
        let property = items.get("properties").and_then(|properties| properties.get(key));
        match property {
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(FieldError::invalid(&keys_field, &all_keys, detail));
            }
            Some(property) => {
                if matches!(
                    property.get("type").and_then(Value::as_str),
                    Some("array" | "object")
                ) {
                    let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    let field = format!("{at}.items.properties[{key}].type");
                    errors.push(FieldError::invalid_text(field, kind, detail));
                }
            }
        }
        if keys[..index].contains(key) {
            errors.push(FieldError::invalid(
                &keys_field,
                &all_keys,
                "must not contain duplicate entries",
            ));
        }
    }
}

/// Checks that items of sets and maps are not nullable and that map keys always have a value.
fn keyed_items(
    at: &str,
    items: &Map<String, Value>,
    list_type: &str,
    keys: &[String],
    errors: &mut Vec<FieldError>,
) {
    let nullable = |schema: &Map<String, Value>| schema.get("nullable") == Some(&Value::Bool(true));
    if nullable(items) {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(format!("{at}.items.nullable"), &detail));
    }
    if list_type != "map" {
        return;
    }
    let required = texts(items, "required");
    for key in keys {
        let property = items.get("properties").and_then(|properties| properties.get(key));
        let Some(property) = property.and_then(Value::as_object) else {
            continue;
        };
        let field = format!("{at}.items.properties[{key}]");
        if !required.contains(key) && !property.contains_key("default") {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(format!("{field}.default"), detail));
        }
        if nullable(property) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(format!("{field}.nullable"), detail));
        }
    }
}

fn rules(at: &str, schema: &Map<String, Value>, node: Option<&Node>, place: &Place, found: &mut Findings) {
    let list = schema.get("x-kubernetes-validations").and_then(Value::as_array);
    let Some(list) = list.filter(|list| !list.is_empty()) else {
        return;
    };
    let compiled = compile(&Value::Object(schema.clone()));
    for (index, rule) in list.iter().enumerate() {
        let at = format!("{at}.x-kubernetes-validations[{index}]");
        rule_object(&at, rule, &compiled, &mut found.schema);
    }
    // Rules are checked only if the schema at and below this node is valid.
    let Some(node) = node.filter(|_| found.schema.is_empty()) else {
        return;
    };
    let decl = Decl::of(schema, place.is_root || node.embedded);
    let spot = cel::Spot {
        uncorrelatable: place.uncorrelatable.as_deref(),
        decl: decl.as_ref(),
        limits_cost: place.limits_cost,
        max_values: place.max_values,
    };
    for (index, rule) in list.iter().enumerate() {
        let at = format!("{at}.x-kubernetes-validations[{index}]");
        found.rules.extend(cel::check(&at, rule, &spot, &mut found.costs));
    }
}

fn rule_object(at: &str, rule: &Value, node: &Node, errors: &mut Vec<FieldError>) {
    let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default();
    let (source, message) = (text("rule").trim(), text("message"));
    let broken = |text: &str| text.contains(['\n', '\r']);
    if source.is_empty() {
        errors.push(FieldError::required(
            format!("{at}.rule"),
            "rule is not specified",
        ));
    } else if !message.is_empty() && message.trim().is_empty() {
        errors.push(FieldError::invalid_text(
            format!("{at}.message"),
            message,
            "must be non-empty if specified",
        ));
    } else if broken(message.trim()) {
        errors.push(FieldError::invalid_text(
            format!("{at}.message"),
            message,
            "must not contain line breaks",
        ));
    } else if broken(source) && message.trim().is_empty() {
        let detail = "message must be specified if rule contains line breaks";
        errors.push(FieldError::required(format!("{at}.message"), detail));
    }
    let expression = text("messageExpression");
    if !expression.is_empty() && expression.trim().is_empty() {
        let detail = "messageExpression must be non-empty if specified";
        errors.push(FieldError::required(format!("{at}.messageExpression"), detail));
    }
    if let Some(reason) = rule.get("reason").and_then(Value::as_str)
        && !RULE_REASONS.contains(&reason)
    {
        errors.push(FieldError::not_supported(
            format!("{at}.reason"),
            &Value::from(reason),
            RULE_REASONS,
        ));
    }
    let path = text("fieldPath");
    if path.is_empty() {
        return;
    }
    let field = format!("{at}.fieldPath");
    if path.trim().is_empty() {
        errors.push(FieldError::invalid_text(
            &field,
            path,
            "must be non-empty if specified",
        ));
    }
    if broken(path) {
        errors.push(FieldError::invalid_text(
            &field,
            path,
            "must not contain line breaks",
        ));
    }
    if field_path::resolve(node, path).is_err() {
        errors.push(FieldError::invalid_text(&field, path, "must be a valid path"));
    }
}
