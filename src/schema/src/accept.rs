//! Validation of a CustomResourceDefinition's schemas, as kube-apiserver does it on create.
//!
//! Works on the raw JSON, because an invalid schema has no compiled form.

mod cel;
mod cost;
mod defaults;
mod keywords;
mod structural;

use serde_json::Value;

use super::{FieldError, compile::compile};

/// Checks a version's `openAPIV3Schema` in field `at`. If `limits_cost` is false, rules may have any
/// cost.
pub(super) fn check(at: &str, schema: &Value, has_status: bool, limits_cost: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    if has_status && !kind.is_empty() && kind != "object" {
        let detail = r#"only "object" is allowed as the type at the root of the schema if the status subresource is enabled"#;
        errors.push(FieldError::invalid_text(format!("{at}.type"), kind, detail));
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden(
            format!("{at}.nullable"),
            "nullable cannot be true at the root",
        ));
    }
    // Rules and defaults are checked only if the schema is structural.
    let mut sound = false;
    if !keywords::has_unsupported(schema) {
        let mut structure = structural::check(at, schema);
        if structure.is_empty() {
            structure = defaults::check(at, schema);
            sound = structure.is_empty();
        }
        errors.extend(structure);
    }
    let node = sound.then(|| compile(schema));
    errors.extend(keywords::check(at, schema, node.as_ref(), limits_cost));
    errors
}
