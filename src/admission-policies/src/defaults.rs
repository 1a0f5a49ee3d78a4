//! Defaults of policies and bindings.

use serde_json::{Map, Value, json};

/// Applies the defaults of a ValidatingAdmissionPolicy.
pub(crate) fn default_validating_policy(policy: &mut Value) {
    default_policy(policy);
    if let Some(object) = policy.as_object_mut() {
        object.entry("status").or_insert_with(|| json!({}));
    }
}

/// Applies the defaults that policies of all kinds have.
pub(crate) fn default_policy(policy: &mut Value) {
    let Some(object) = policy.as_object_mut() else {
        return;
    };
    let spec = object.entry("spec").or_insert_with(|| json!({}));
    set(spec, "failurePolicy", &json!("Fail"));
    default_match(spec, "matchConstraints");
}

/// Applies the defaults of a binding.
pub(crate) fn default_binding(binding: &mut Value) {
    let Some(object) = binding.as_object_mut() else {
        return;
    };
    let spec = object.entry("spec").or_insert_with(|| json!({}));
    default_match(spec, "matchResources");
}

fn set(object: &mut Value, member: &str, value: &Value) {
    if let Some(object) = object.as_object_mut()
        && object
            .get(member)
            .is_none_or(|present| present.is_null() || *present == "")
    {
        object.insert(member.to_owned(), value.clone());
    }
}

fn default_match(spec: &mut Value, member: &str) {
    let Some(resources) = spec.get_mut(member).filter(|found| found.is_object()) else {
        return;
    };
    set(resources, "matchPolicy", &json!("Equivalent"));
    set(resources, "namespaceSelector", &Value::Object(Map::new()));
    set(resources, "objectSelector", &Value::Object(Map::new()));
    for rules in ["resourceRules", "excludeResourceRules"] {
        let rules = resources.get_mut(rules).and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten() {
            set(rule, "scope", &json!("*"));
        }
    }
}
