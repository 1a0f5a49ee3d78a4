//! Validation of type and object metadata of `x-kubernetes-embedded-resource` nodes.

use serde_json::Value;

use super::{
    FieldError, metadata, names,
    node::{Additional, Node},
    path::Path,
};
use rooflet_base::json_syntax::type_name;

pub(super) fn validate(node: &Node, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(node, value, &Path::Root, &mut |resource, path| {
        check(resource, path, &mut errors);
    });
    errors
}

/// Validates a default. As in kube-apiserver, a fault of a type precludes the other checks.
pub(super) fn validate_default(node: &Node, value: &Value, path: &Path<'_>) -> Vec<FieldError> {
    if let Some(fault) = first_type_fault(node, value, path) {
        return vec![fault];
    }
    let mut errors = Vec::new();
    walk(node, value, path, &mut |resource, path| {
        check(resource, path, &mut errors);
    });
    errors
}

/// Returns the first member of type and object metadata with another JSON type.
pub(super) fn first_type_fault(node: &Node, value: &Value, path: &Path<'_>) -> Option<FieldError> {
    let mut fault = None;
    walk(node, value, path, &mut |resource, path| {
        fault = fault.take().or_else(|| type_fault(resource, path));
    });
    fault
}

/// Calls `visit` with each embedded resource.
fn walk(node: &Node, value: &Value, path: &Path<'_>, visit: &mut dyn FnMut(&Value, &Path<'_>)) {
    if !node.contents.embedded {
        return;
    }
    match value {
        Value::Object(fields) => {
            if node.embedded {
                visit(value, path);
            }
            for (name, field) in fields {
                match (node.property(name), &node.additional) {
                    (Some(property), _) => walk(property, field, &path.child(name), visit),
                    (None, Additional::Schema(child)) => walk(child, field, &path.key(name), visit),
                    (None, Additional::Unset | Additional::Any | Additional::Forbidden) => {}
                }
            }
        }
        Value::Array(items) => {
            let Some(child) = node.items.as_deref() else {
                return;
            };
            for (index, item) in items.iter().enumerate() {
                walk(child, item, &path.index(index), visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn type_fault(resource: &Value, path: &Path<'_>) -> Option<FieldError> {
    let keys = ["apiVersion", "kind"];
    let mut given = keys.into_iter().filter_map(|key| Some((key, resource.get(key)?)));
    if let Some((key, other)) = given.find(|(_, value)| !value.is_string()) {
        let field = path.child(key).field();
        return Some(FieldError::invalid(field, other, "must be a string"));
    }
    let given = resource.get("metadata")?;
    let detail = match given {
        Value::Object(_) | Value::Null => {
            let fault = metadata::check_types(given).err()?.to_string();
            // The metadata are decoded alone.
            fault.replace("ObjectMeta.metadata.", "ObjectMeta.")
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let kind = type_name(given);
            format!("json: cannot unmarshal {kind} into Go value of type v1.ObjectMeta")
        }
    };
    Some(FieldError::invalid(
        path.child("metadata").field(),
        given,
        &detail,
    ))
}

fn check(resource: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in ["apiVersion", "kind"] {
        let field = path.child(key).field();
        match resource.get(key) {
            None => errors.push(FieldError::required(field, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid_text(field, "", "must not be empty"));
            }
            Some(Value::String(text)) => errors.extend(check_type(field, key, text)),
            Some(other) => errors.push(FieldError::invalid(field, other, "must be a string")),
        }
    }
    let Some(given) = resource.get("metadata") else {
        return;
    };
    let field = path.child("metadata").field();
    if let Err(err) = metadata::check_types(given) {
        errors.push(FieldError::invalid(field, given, &err.to_string()));
        return;
    }
    for mut error in metadata::validate_embedded(given) {
        if let Some(rest) = error.field.strip_prefix("metadata") {
            error.field = format!("{field}{rest}");
        }
        errors.push(error);
    }
}

fn check_type(field: String, key: &str, text: &str) -> Option<FieldError> {
    if key == "apiVersion" {
        let detail = format!("unexpected GroupVersion string: {text}");
        return (text.matches('/').count() > 1).then(|| FieldError::invalid_text(field, text, &detail));
    }
    let details = names::dns_1035_label(&text.to_lowercase());
    let detail = format!(
        "may have mixed case, but should otherwise match: {}",
        details.join(",")
    );
    (!details.is_empty()).then(|| FieldError::invalid_text(field, text, &detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::compile;
    use serde_json::json;

    #[test]
    fn embedded_objects_require_type_and_valid_metadata() {
        let node = compile(&json!({"type": "object", "properties": {"t": {"type": "object",
            "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}));
        let check = |template: Value, expect: &[&str]| {
            let errors = validate(&node, &json!({"t": template}));
            let found: Vec<String> = errors.iter().map(FieldError::summary).collect();
            assert_eq!(found, expect);
        };
        check(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}}),
            &[],
        );
        check(
            json!({"kind": ""}),
            &[
                "t.apiVersion: Required value",
                r#"t.kind: Invalid value: "": must not be empty"#,
            ],
        );
        check(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a/b"}}),
            &[r#"t.metadata.name: Invalid value: "a/b": may not contain '/'"#],
        );
    }
}
