//! ConfigMap.

use serde_json::Value;

use super::{DATA_MAX_BYTES, check_data, check_immutable, decoded_bytes};
use rooflet_schema::FieldError;

pub(super) fn validate(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (data, binary) = (&object["data"], &object["binaryData"]);
    check_data(data, "data", &mut errors);
    for key in data
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| key)
        .filter(|key| binary.get(key).is_some())
    {
        let detail = "duplicate of key present in binaryData";
        errors.push(FieldError::invalid_text(format!("data[{key}]"), key, detail));
    }
    check_data(binary, "binaryData", &mut errors);
    let text_bytes = |value: &Value| value.as_str().map_or(0, str::len);
    let binary_bytes = |value: &Value| value.as_str().map_or(0, decoded_bytes);
    let bytes: usize = data
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, value)| text_bytes(value))
        .sum::<usize>()
        + binary
            .as_object()
            .into_iter()
            .flatten()
            .map(|(_, value)| binary_bytes(value))
            .sum::<usize>();
    if bytes > DATA_MAX_BYTES {
        errors.push(FieldError::too_long("", DATA_MAX_BYTES as u64));
    }
    if let Some(old) = old {
        errors.extend(check_immutable(object, old, &["data", "binaryData"]));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rejects_changes_of_immutable_data() {
        let old = json!({"immutable": true, "data": {"a": "1"}});
        let summaries = |new: &Value| -> Vec<String> {
            validate(new, Some(&old))
                .iter()
                .map(FieldError::summary)
                .collect()
        };
        assert_eq!(summaries(&old), Vec::<String>::new());
        assert_eq!(
            summaries(&json!({"immutable": true, "data": {"a": "2"}})),
            ["data: Forbidden: field is immutable when `immutable` is set"]
        );
        assert_eq!(
            summaries(&json!({"data": {"a": "1"}})),
            ["immutable: Forbidden: field is immutable when `immutable` is set"]
        );
    }

    #[test]
    fn validates_keys_and_size() {
        let errors = validate(&json!({"data": {"a b": "", "..x": ""}}), None);
        assert_eq!(errors.len(), 2);
        assert!(
            errors[0]
                .summary()
                .starts_with("data[..x]: Invalid value: \"..x\": must not start with '..'")
        );
        let big = "x".repeat(DATA_MAX_BYTES + 1);
        let errors = validate(&json!({"data": {"a": big}}), None);
        assert_eq!(
            errors[0].summary(),
            ": Too long: may not be more than 1048576 bytes"
        );
    }
}
