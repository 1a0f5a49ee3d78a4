//! RoleBinding and ClusterRoleBinding: a role and its subjects.

use serde_json::{Value, json};

use crate::object;
use rooflet_schema::metadata::NameRule;
use rooflet_schema::{FieldError, gotext, names};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Kind of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Namespace,
    Cluster,
}

/// Adds the API groups of the role and of users and groups.
pub(super) fn default(binding: &mut Value) {
    let Some(map) = binding.as_object_mut() else {
        return;
    };
    let role = map.entry("roleRef").or_insert_with(|| json!({}));
    if object::text(role, &["apiGroup"]).is_empty() {
        role["apiGroup"] = json!(GROUP);
    }
    for subject in map
        .get_mut("subjects")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let is_user = matches!(object::text(subject, &["kind"]), "User" | "Group");
        if is_user && object::text(subject, &["apiGroup"]).is_empty() {
            subject["apiGroup"] = json!(GROUP);
        }
    }
}

pub(super) fn validate(binding: &Value, old: Option<&Value>, scope: Scope) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_role(&binding["roleRef"], scope, &mut errors);
    for (index, subject) in binding["subjects"].as_array().into_iter().flatten().enumerate() {
        check_subject(subject, scope, &format!("subjects[{index}]"), &mut errors);
    }
    if old.is_some_and(|old| old["roleRef"] != binding["roleRef"]) {
        let role = &binding["roleRef"];
        // The names of kube-apiserver's internal type.
        let shown =
            gotext::json(&json!({"APIGroup": role["apiGroup"], "Kind": role["kind"], "Name": role["name"]}));
        errors.push(FieldError::invalid_shown(
            "roleRef",
            &shown,
            "cannot change roleRef",
        ));
    }
    errors
}

fn check_role(role: &Value, scope: Scope, errors: &mut Vec<FieldError>) {
    let text = |key: &str| object::text(role, &[key]);
    if text("apiGroup") != GROUP {
        errors.push(not_supported("roleRef.apiGroup", text("apiGroup"), &[GROUP]));
    }
    let kinds: &[&str] = match scope {
        Scope::Namespace => &["Role", "ClusterRole"],
        Scope::Cluster => &["ClusterRole"],
    };
    if !kinds.contains(&text("kind")) {
        errors.push(not_supported("roleRef.kind", text("kind"), kinds));
    }
    match text("name") {
        "" => errors.push(FieldError::required("roleRef.name", "")),
        name => {
            for fault in NameRule::PathSegment.check(name) {
                errors.push(FieldError::invalid_text("roleRef.name", name, &fault));
            }
        }
    }
}

fn check_subject(subject: &Value, scope: Scope, field: &str, errors: &mut Vec<FieldError>) {
    let text = |key: &str| object::text(subject, &[key]);
    let name = text("name");
    if name.is_empty() {
        errors.push(FieldError::required(format!("{field}.name"), ""));
    }
    let group = format!("{field}.apiGroup");
    match text("kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                for fault in names::dns_subdomain(name) {
                    errors.push(FieldError::invalid_text(format!("{field}.name"), name, &fault));
                }
            }
            if !text("apiGroup").is_empty() {
                errors.push(not_supported(&group, text("apiGroup"), &[""]));
            }
            if scope == Scope::Cluster && text("namespace").is_empty() {
                errors.push(FieldError::required(format!("{field}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if text("apiGroup") != GROUP {
                errors.push(not_supported(&group, text("apiGroup"), &[GROUP]));
            }
        }
        kind => errors.push(not_supported(
            &format!("{field}.kind"),
            kind,
            &["ServiceAccount", "User", "Group"],
        )),
    }
}

fn not_supported(field: &str, value: &str, supported: &[&str]) -> FieldError {
    FieldError::not_supported(field, &Value::from(value), supported)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(kind: &str, subject: Value) -> Value {
        let mut binding = json!({"roleRef": {"kind": kind, "name": "r"}, "subjects": [subject]});
        default(&mut binding);
        binding
    }

    fn check(binding: &Value, old: Option<&Value>, scope: Scope, expect: &[&str]) {
        let errors = validate(binding, old, scope);
        let got: Vec<String> = errors.iter().map(FieldError::summary).collect();
        assert_eq!(got, expect, "{binding}");
    }

    #[test]
    fn adds_api_groups() {
        let user = binding("Role", json!({"kind": "User", "name": "alice"}));
        assert_eq!(user["roleRef"]["apiGroup"], GROUP);
        assert_eq!(user["subjects"][0]["apiGroup"], GROUP);
        let account = binding("Role", json!({"kind": "ServiceAccount", "name": "robot"}));
        assert_eq!(account["subjects"][0].get("apiGroup"), None);
    }

    #[test]
    fn requires_a_role_and_known_subjects() {
        let alice = || json!({"kind": "User", "name": "alice"});
        check(&binding("Role", alice()), None, Scope::Namespace, &[]);
        check(
            &binding("Role", alice()),
            None,
            Scope::Cluster,
            &["roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\""],
        );
        let mut unnamed = json!({});
        default(&mut unnamed);
        check(
            &unnamed,
            None,
            Scope::Namespace,
            &[
                "roleRef.kind: Unsupported value: \"\": supported values: \"Role\", \"ClusterRole\"",
                "roleRef.name: Required value",
            ],
        );
        let account = json!({"kind": "ServiceAccount", "name": "robot"});
        check(
            &binding("ClusterRole", account.clone()),
            None,
            Scope::Namespace,
            &[],
        );
        check(
            &binding("ClusterRole", account),
            None,
            Scope::Cluster,
            &["subjects[0].namespace: Required value"],
        );
        check(
            &binding("ClusterRole", json!({"kind": "Robot", "name": ""})),
            None,
            Scope::Cluster,
            &[
                "subjects[0].name: Required value",
                "subjects[0].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
            ],
        );
    }

    #[test]
    fn role_of_a_binding_is_immutable() {
        let alice = json!({"kind": "User", "name": "alice"});
        let (old, new) = (binding("Role", alice.clone()), binding("ClusterRole", alice));
        let errors = validate(&new, Some(&old), Scope::Namespace);
        assert_eq!(errors.len(), 1);
        assert!(
            errors[0].summary().ends_with(": cannot change roleRef"),
            "{errors:?}"
        );
    }
}
