//! Roles of rooflet's kinds. Those of users become part of `view`, `edit` and `admin`.

use rooflet_api as api;
use serde_json::{Value, json};

use crate::machine_roles::machine_roles;

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
/// Kinds that users write. The controller and the agents write the others.
const WRITTEN_BY_USERS: &[&str] = &["modeldeployments", "capacityplans", "performanceclaims"];
/// Kinds that administrators write: a user with `edit` must not raise limits.
const WRITTEN_BY_ADMINISTRATORS: &[&str] = &["apikeys"];

/// Returns the roles and bindings that an API server with rooflet's kinds has.
pub fn roles() -> Vec<Value> {
    [user_roles(), vec![monitoring_role()], machine_roles()].concat()
}

/// Returns the ClusterRole of Prometheus: it finds all processes and reads their metrics.
fn monitoring_role() -> Value {
    json!({"kind": "ClusterRole", "metadata": {"name": "rooflet:monitoring"}, "rules": [
        {"verbs": ["get", "list"], "apiGroups": [api::GROUP], "resources": ["fleetnodes", "modelreplicas"]},
        {"verbs": ["get"], "nonResourceURLs": ["/metrics"]},
    ]})
}

/// Returns the ClusterRoles that become part of the roles of users.
fn user_roles() -> Vec<Value> {
    let role = |name: &str, aggregate_to: &str, rules: Value| {
        json!({"kind": "ClusterRole", "metadata": {"name": name, "labels": {
            format!("rbac.authorization.k8s.io/aggregate-to-{aggregate_to}"): "true"}}, "rules": rules})
    };
    let rule = |verbs: &[&str], resources: &[&str]| json!({"verbs": verbs, "apiGroups": [api::GROUP], "resources": resources});
    let all = [
        WRITTEN_BY_USERS,
        WRITTEN_BY_ADMINISTRATORS,
        &["modelrevisions", "modelreplicas", "fleetnodes"],
    ]
    .concat();
    let status: Vec<String> = all
        .iter()
        .filter(|kind| **kind != "modelrevisions")
        .map(|kind| format!("{kind}/status"))
        .collect();
    let status: Vec<&str> = status.iter().map(String::as_str).collect();
    let scale = ["modeldeployments/scale"];
    vec![
        role(
            "rooflet:aggregate-to-view",
            "view",
            json!([rule(READ, &all), rule(READ, &status), rule(READ, &scale)]),
        ),
        role(
            "rooflet:aggregate-to-edit",
            "edit",
            json!([
                rule(WRITE, WRITTEN_BY_USERS),
                rule(&["update", "patch"], &scale),
                // A deleted replica is replaced.
                rule(&["delete", "deletecollection"], &["modelreplicas"]),
            ]),
        ),
        role(
            "rooflet:aggregate-to-admin",
            "admin",
            json!([rule(WRITE, WRITTEN_BY_ADMINISTRATORS)]),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::crd;

    #[test]
    fn roles_name_only_kinds_and_subresources_that_exist() {
        let known: Vec<String> = crd::all()
            .iter()
            .flat_map(|definition| {
                let plural = definition.spec.names.plural.clone();
                let subresources = definition.spec.versions[0].subresources.as_ref();
                let status = subresources.and_then(|found| found.status.as_ref().map(|_| "status"));
                let scale = subresources.and_then(|found| found.scale.as_ref().map(|_| "scale"));
                let with = [status, scale].into_iter().flatten();
                let with: Vec<String> = with.map(|sub| format!("{plural}/{sub}")).collect();
                std::iter::once(plural).chain(with)
            })
            .collect();
        let mut viewed = Vec::new();
        for role in user_roles() {
            for rule in role["rules"].as_array().expect("rules") {
                for resource in rule["resources"].as_array().expect("resources") {
                    let resource = resource.as_str().expect("a text").to_owned();
                    assert!(known.contains(&resource), "{resource}");
                    if role["metadata"]["name"] == "rooflet:aggregate-to-view" {
                        viewed.push(resource);
                    }
                }
            }
        }
        for resource in known {
            assert!(viewed.contains(&resource), "{resource} is not part of view");
        }
    }
}
