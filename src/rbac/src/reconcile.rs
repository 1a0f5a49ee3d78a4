//! Update of stored default roles and bindings: adds what is missing, and keeps what an
//! administrator added.

use serde_json::{Value, json};

use crate::rule::{On, Rule, list};
use crate::text;

/// Annotation with which an administrator excludes an object from updates.
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Returns the stored object with the missing parts of the default one, or `None` if nothing is
/// missing or the object is excluded from updates.
pub fn reconciled(stored: &Value, default: &Value) -> Option<Value> {
    if text(stored, &["metadata", "annotations", AUTO_UPDATE]) == "false" {
        return None;
    }
    let mut new = stored.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in default["metadata"][field].as_object().into_iter().flatten() {
            let own = &mut new["metadata"][field];
            if own.get(key).is_none() {
                own[key] = value.clone();
            }
        }
    }
    let rules = missing_rules(&stored["rules"], &default["rules"]);
    append(&mut new, "rules", rules);
    let missing = |path: &str| -> Vec<Value> {
        let items = |object: &Value| object.pointer(path).and_then(Value::as_array).cloned();
        let own = items(stored).unwrap_or_default();
        let expected = items(default).unwrap_or_default();
        expected.into_iter().filter(|item| !own.contains(item)).collect()
    };
    let subjects = missing("/subjects");
    append(&mut new, "subjects", subjects);
    match default.get("aggregationRule") {
        None => drop(new.as_object_mut().and_then(|map| map.remove("aggregationRule"))),
        Some(_) => {
            let selectors = missing("/aggregationRule/clusterRoleSelectors");
            append(&mut new["aggregationRule"], "clusterRoleSelectors", selectors);
        }
    }
    (new != *stored).then_some(new)
}

fn append(object: &mut Value, list: &str, items: Vec<Value>) {
    if items.is_empty() {
        return;
    }
    match object[list].as_array_mut() {
        Some(own) => own.extend(items),
        None => object[list] = Value::from(items),
    }
}

/// Returns a rule for each permission of the default rules that the stored rules lack.
fn missing_rules(stored: &Value, default: &Value) -> Vec<Value> {
    let (stored, default) = (list(stored), list(default));
    let singles = default.iter().flat_map(Rule::singles);
    let missing = singles.filter(|single| !stored.iter().any(|rule| single.is_covered_by(rule)));
    missing
        .map(|single| match single.on {
            On::Url(url) => json!({"verbs": [single.verb], "nonResourceURLs": [url]}),
            On::Resource {
                group,
                resource,
                name,
            } => {
                let mut rule = json!({"verbs": [single.verb], "apiGroups": [group], "resources": [resource]});
                if let Some(name) = name {
                    rule["resourceNames"] = json!([name]);
                }
                rule
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::defaults;
    use super::*;

    fn of(name: &str, mut objects: Vec<Value>) -> Value {
        objects.retain(|object| text(object, &["metadata", "name"]) == name);
        objects.pop().expect("a default object")
    }

    #[test]
    fn adds_missing_rules_subjects_and_labels_and_keeps_the_rest() {
        let default = of("system:basic-user", defaults::cluster_roles());
        assert_eq!(reconciled(&default, &default), None);
        let own = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]});
        let stored = json!({"metadata": {"name": "system:basic-user", "labels": {"team": "a"}},
            "rules": [own, default["rules"][0]]});
        let new = reconciled(&stored, &default).expect("changed");
        assert_eq!(
            new["rules"],
            json!([own, default["rules"][0], default["rules"][1]])
        );
        assert_eq!(new["metadata"]["labels"]["team"], "a");
        assert_eq!(
            new["metadata"]["labels"]["kubernetes.io/bootstrapping"],
            "rbac-defaults"
        );
        assert_eq!(reconciled(&new, &default), None);

        let default = of("system:discovery", defaults::cluster_role_bindings());
        let mut stored = default.clone();
        stored["subjects"] = json!([{"apiGroup": crate::GROUP, "kind": "User", "name": "alice"}]);
        let new = reconciled(&stored, &default).expect("changed");
        assert_eq!(new["subjects"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn excluded_objects_are_unchanged() {
        let default = of("system:basic-user", defaults::cluster_roles());
        let mut stored = default.clone();
        stored["rules"] = json!([]);
        assert!(reconciled(&stored, &default).is_some());
        stored["metadata"]["annotations"][AUTO_UPDATE] = json!("false");
        assert_eq!(reconciled(&stored, &default), None);
    }

    #[test]
    fn rules_of_aggregated_roles_are_left_to_the_aggregation() {
        let default = of("view", defaults::cluster_roles());
        let mut stored = default.clone();
        stored["rules"] = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]);
        assert_eq!(reconciled(&stored, &default), None);
    }
}
