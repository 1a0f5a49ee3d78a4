//! Cell with the parameters of a binding.

use serde_json::Value;

use super::{at, text_at};

/// Returns namespace and name of the parameters of a binding, or Go's form of their selector.
pub(super) fn shown(reference: &Value) -> String {
    let name = text_at(reference, "name");
    if !name.is_empty() {
        return match text_at(reference, "namespace") {
            "" => format!("*/{name}"),
            namespace => format!("{namespace}/{name}"),
        };
    }
    let labels = at(reference, "selector.matchLabels").and_then(Value::as_object);
    let label = |(key, value): (&String, &Value)| format!("{key}: {},", value.as_str().unwrap_or_default());
    let labels: String = labels.into_iter().flatten().map(label).collect();
    let expressions = at(reference, "selector.matchExpressions").and_then(Value::as_array);
    let expression = |expression: &Value| {
        let values = at(expression, "values").and_then(Value::as_array);
        let values: Vec<&str> = values.into_iter().flatten().filter_map(Value::as_str).collect();
        format!(
            "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
            text_at(expression, "key"),
            text_at(expression, "operator"),
            values.join(" ")
        )
    };
    let expressions: String = expressions.into_iter().flatten().map(expression).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shows_name_or_selector() {
        assert_eq!(shown(&json!({"name": "x"})), "*/x");
        assert_eq!(shown(&json!({"name": "x", "namespace": "y"})), "y/x");
        assert_eq!(
            shown(&json!({"selector": {"matchLabels": {"a": "b"}}})),
            "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}"
        );
    }
}
