//! Role and ClusterRole: rules, and the selectors of aggregated ClusterRoles.

use serde_json::Value;

use rooflet_schema::FieldError;
use rooflet_schema::names::label_selector;

pub(super) fn validate(role: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_rules(role, true, &mut errors);
    errors
}

pub(super) fn validate_cluster_role(role: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_rules(role, false, &mut errors);
    let Some(aggregation) = role.get("aggregationRule") else {
        return errors;
    };
    let field = "aggregationRule.clusterRoleSelectors";
    let selectors = items(aggregation, "clusterRoleSelectors");
    if selectors.is_empty() {
        errors.push(FieldError::required(
            field,
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        ));
    }
    for (index, selector) in selectors.iter().enumerate() {
        label_selector::check(selector, &format!("{field}[{index}]"), &mut errors);
    }
    errors
}

fn items<'a>(object: &'a Value, list: &str) -> &'a [Value] {
    object[list].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn check_rules(role: &Value, is_namespaced: bool, errors: &mut Vec<FieldError>) {
    for (index, rule) in items(role, "rules").iter().enumerate() {
        let field = |name: &str| format!("rules[{index}].{name}");
        let is_empty = |list: &str| items(rule, list).is_empty();
        let mut require = |list: &str, detail: &str| {
            if is_empty(list) {
                errors.push(FieldError::required(field(list), detail));
            }
        };
        require("verbs", "verbs must contain at least one value");
        if is_empty("nonResourceURLs") {
            require("apiGroups", "resource rules must supply at least one api group");
            require("resources", "resource rules must supply at least one resource");
            continue;
        }
        let mut reject = |detail: &str| {
            errors.push(FieldError::invalid(
                field("nonResourceURLs"),
                &rule["nonResourceURLs"],
                detail,
            ));
        };
        if is_namespaced {
            reject("namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"]
            .iter()
            .any(|list| !is_empty(list))
        {
            reject("rules cannot apply to both regular resources and non-resource URLs");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(FieldError::summary).collect()
    }

    #[test]
    fn rules_apply_to_resources_or_urls() {
        let role = json!({"rules": [
            {},
            {"verbs": ["get"], "nonResourceURLs": ["/metrics"], "resources": ["pods"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
        let required = [
            "rules[0].verbs: Required value: verbs must contain at least one value",
            "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
            "rules[0].resources: Required value: resource rules must supply at least one resource",
        ];
        let both = "rules[1].nonResourceURLs: Invalid value: [\"/metrics\"]: rules cannot apply to both regular resources \
                    and non-resource URLs";
        let namespaced = "rules[1].nonResourceURLs: Invalid value: [\"/metrics\"]: namespaced rules cannot apply to non-resource URLs";
        assert_eq!(
            texts(&validate(&role)),
            [&required[..], &[namespaced, both]].concat()
        );
        assert_eq!(
            texts(&validate_cluster_role(&role)),
            [&required[..], &[both]].concat()
        );
    }

    #[test]
    fn aggregation_rule_requires_valid_selectors() {
        let check = |aggregation: Value, expect: &[&str]| {
            let errors = validate_cluster_role(&json!({"aggregationRule": aggregation}));
            assert_eq!(texts(&errors), expect, "{aggregation}");
        };
        check(
            json!({}),
            &[
                "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if \
                aggregationRule is non-nil",
            ],
        );
        check(
            json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}),
            &[],
        );
        let at = "aggregationRule.clusterRoleSelectors[0].matchExpressions[0]";
        check(
            json!({"clusterRoleSelectors": [{"matchExpressions": [{"key": "a", "operator": "Near"}]}]}),
            &[&format!(
                "{at}.operator: Invalid value: \"Near\": not a valid selector operator"
            )],
        );
        check(
            json!({"clusterRoleSelectors": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}),
            &[&format!(
                "{at}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
            )],
        );
    }
}
