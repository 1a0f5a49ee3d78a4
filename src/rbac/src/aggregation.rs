//! Rules of aggregated ClusterRoles: those of all ClusterRoles that their selectors match.

use serde_json::Value;

use crate::text;
use rooflet_apimachinery::selector::LabelSelector;

const NAME: [&str; 2] = ["metadata", "name"];

/// Returns the rules of `role`, or `None` if it is not aggregated or its rules are current. `all`
/// contains all ClusterRoles by ascending name.
pub fn changed_rules(role: &Value, all: &[&Value]) -> Option<Vec<Value>> {
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array()?;
    let mut rules: Vec<Value> = Vec::new();
    for selector in selectors {
        // An invalid selector was rejected when the role was written.
        let selector = LabelSelector::of_object(selector).ok()?;
        let selected = all
            .iter()
            .filter(|other| text(other, &NAME) != text(role, &NAME) && selector.matches(other));
        for rule in selected.flat_map(|other| other["rules"].as_array().into_iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    let current = role["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    (rules != current).then_some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn aggregated_role_has_the_rules_of_all_selected_roles_once() {
        let rule = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
        let role = |name: &str, labels: Value, resources: &[&str]| {
            let rules: Vec<Value> = resources.iter().map(|resource| rule(resource)).collect();
            json!({"metadata": {"name": name, "labels": labels}, "rules": rules})
        };
        let mut view = role("view", json!({"to": "view"}), &[]);
        view["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"to": "view"}},
            {"matchExpressions": [{"key": "more", "operator": "Exists"}]}]});
        let (a, b) = (
            role("a", json!({"to": "view"}), &["x", "y"]),
            role("b", json!({"more": ""}), &["y", "z"]),
        );
        let other = role("other", json!({"to": "edit"}), &["w"]);
        let all = [&a, &b, &other, &view];
        let expect: Vec<Value> = ["x", "y", "z"].into_iter().map(rule).collect();
        assert_eq!(changed_rules(&view, &all), Some(expect.clone()));
        assert_eq!(changed_rules(&a, &all), None, "not aggregated");
        let mut current = view.clone();
        current["rules"] = Value::from(expect);
        assert_eq!(changed_rules(&current, &[&a, &b, &current]), None);
        assert_eq!(changed_rules(&current, &[&current]), Some(Vec::new()));
    }
}
