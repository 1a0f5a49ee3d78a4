//! Validation of label selectors.

use serde_json::Value;

use super::{label_value, qualified_name};
use crate::FieldError;

/// Checks a label selector.
pub fn check(selector: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let mut check = |field: String, text: &str, faults: Vec<String>| {
        for fault in faults {
            errors.push(FieldError::invalid_text(&field, text, &fault));
        }
    };
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        check(format!("{field}.matchLabels"), key, qualified_name(key));
        check(format!("{field}.matchLabels"), value, label_value(value));
    }
    for (index, expression) in items(selector, "matchExpressions").iter().enumerate() {
        let field = format!("{field}.matchExpressions[{index}]");
        let values = items(expression, "values");
        match expression["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
                format!("{field}.values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(FieldError::forbidden(
                format!("{field}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid_text(
                format!("{field}.operator"),
                other,
                "not a valid selector operator",
            )),
        }
        let key = expression["key"].as_str().unwrap_or_default();
        for fault in qualified_name(key) {
            errors.push(FieldError::invalid_text(format!("{field}.key"), key, &fault));
        }
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            for fault in label_value(value) {
                errors.push(FieldError::invalid_text(
                    format!("{field}.values[{index}]"),
                    value,
                    &fault,
                ));
            }
        }
    }
}

fn items<'a>(object: &'a Value, list: &str) -> &'a [Value] {
    object[list].as_array().map(Vec::as_slice).unwrap_or_default()
}
