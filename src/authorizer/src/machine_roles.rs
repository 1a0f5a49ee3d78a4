//! Roles of the fleet's machines and processes: agents, gateways and controllers.
//!
//! Groups of client certificates have the roles of gateways and controllers. An agent with a node
//! certificate is subject to [`NodeAuthorizer`](crate::NodeAuthorizer) instead; its role is for
//! agents with a service account.

use rooflet_api::GROUP;
use rooflet_api::meta::{FLEET_TRUST, FLEET_TRUST_NAMESPACE, LEASE_NAMESPACE};
use rooflet_pki::{CONTROLLERS_GROUP, GATEWAYS_GROUP};
use serde_json::{Value, json};

use crate::{CONFIG_MAPS, CSR_GROUP, CSRS, DEPLOYMENTS, LEASE_GROUP, LEASES, NODES, REPLICAS};

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
const CORE_GROUP: &str = "";
const READ: &[&str] = &["get", "list", "watch"];
const CONTROLLER: &str = "rooflet:controller";
const GATEWAY: &str = "rooflet:gateway";
const NODE: &str = "rooflet:node";
/// Namespace and name of the Lease with which controllers elect a leader.
const LEADER_NAMESPACE: &str = "kube-system";
const LEADER_LEASE: &str = "rooflet-controller";

/// Returns the roles with their bindings.
pub(crate) fn machine_roles() -> Vec<Value> {
    [controller(), gateway(), node()].concat()
}

fn controller() -> Vec<Value> {
    let subject = group(CONTROLLERS_GROUP);
    let leader = format!("{CONTROLLER}-leader-election");
    let kinds = [
        DEPLOYMENTS,
        "modelrevisions",
        REPLICAS,
        NODES,
        "capacityplans",
        "performanceclaims",
    ];
    let status = [
        "modeldeployments/status",
        "modelreplicas/status",
        "fleetnodes/status",
        "capacityplans/status",
        "performanceclaims/status",
    ];
    vec![
        cluster_role(
            CONTROLLER,
            json!([
                rule(GROUP, &kinds, READ),
                rule(
                    GROUP,
                    &["modelrevisions", REPLICAS],
                    &["create", "update", "patch", "delete"]
                ),
                // The autoscaler writes `spec.replicas`.
                rule(GROUP, &[DEPLOYMENTS], &["patch"]),
                rule(GROUP, &status, &["get", "update", "patch"]),
                rule(CORE_GROUP, &["events"], &["create", "patch"]),
            ]),
        ),
        cluster_binding(CONTROLLER, &subject),
        role(
            LEADER_NAMESPACE,
            &leader,
            json!([
                rule(LEASE_GROUP, &[LEASES], &["create"]),
                named(LEASE_GROUP, LEASES, LEADER_LEASE, &["get", "update"]),
            ]),
        ),
        binding(LEADER_NAMESPACE, &leader, &subject),
        // Heartbeats of the Macs, and the gateways' reports of demand.
        role(
            LEASE_NAMESPACE,
            CONTROLLER,
            json!([rule(LEASE_GROUP, &[LEASES], READ)]),
        ),
        binding(LEASE_NAMESPACE, CONTROLLER, &subject),
    ]
}

fn gateway() -> Vec<Value> {
    let subject = group(GATEWAYS_GROUP);
    vec![
        cluster_role(
            GATEWAY,
            json!([
                rule(GROUP, &[DEPLOYMENTS, REPLICAS, NODES, "apikeys"], READ),
                rule(GROUP, &["apikeys/status"], &["patch"]),
                // The certificate for agents. The server approves requests for the gateway's own name.
                rule(CSR_GROUP, &[CSRS], &["create", "get"]),
            ]),
        ),
        cluster_binding(GATEWAY, &subject),
        role(
            LEASE_NAMESPACE,
            GATEWAY,
            json!([rule(LEASE_GROUP, &[LEASES], &["create", "patch", "delete"])]),
        ),
        binding(LEASE_NAMESPACE, GATEWAY, &subject),
        role(
            FLEET_TRUST_NAMESPACE,
            GATEWAY,
            json!([named(CORE_GROUP, CONFIG_MAPS, FLEET_TRUST, READ)]),
        ),
        binding(FLEET_TRUST_NAMESPACE, GATEWAY, &subject),
    ]
}

fn node() -> Vec<Value> {
    vec![
        cluster_role(
            NODE,
            json!([
                rule(GROUP, &[NODES, REPLICAS], READ),
                rule(GROUP, &[NODES], &["create", "patch", "delete"]),
                rule(GROUP, &[REPLICAS], &["create", "patch", "delete"]),
                rule(GROUP, &[DEPLOYMENTS], &["get"]),
                rule(GROUP, &["fleetnodes/status", "modelreplicas/status"], &["patch"]),
                rule(CORE_GROUP, &["events"], &["create", "patch"]),
                named(CORE_GROUP, "namespaces", "kube-system", &["get"]),
            ]),
        ),
        role(
            LEASE_NAMESPACE,
            NODE,
            json!([
                rule(LEASE_GROUP, &[LEASES], &["get", "create", "patch"]),
                // The figures of the probe.
                rule(CORE_GROUP, &[CONFIG_MAPS], &["create", "patch"]),
            ]),
        ),
    ]
}

fn rule(api_group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [api_group], "resources": resources, "verbs": verbs})
}

fn named(api_group: &str, resource: &str, name: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [api_group], "resources": [resource], "resourceNames": [name], "verbs": verbs})
}

fn group(name: &str) -> Value {
    json!({"apiGroup": RBAC_GROUP, "kind": "Group", "name": name})
}

fn cluster_role(name: &str, rules: Value) -> Value {
    json!({"kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
}

fn role(namespace: &str, name: &str, rules: Value) -> Value {
    json!({"kind": "Role", "metadata": {"namespace": namespace, "name": name}, "rules": rules})
}

fn cluster_binding(name: &str, subject: &Value) -> Value {
    json!({"kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": [subject],
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name}})
}

fn binding(namespace: &str, name: &str, subject: &Value) -> Value {
    json!({"kind": "RoleBinding", "metadata": {"namespace": namespace, "name": name}, "subjects": [subject],
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Returns (kind, namespace, component, rule) for each verb on each resource.
    fn permissions(role: &Value, component: &str) -> BTreeSet<[String; 6]> {
        let texts = |list: &Value| -> Vec<String> {
            let list = list.as_array().into_iter().flatten();
            list.map(|text| text.as_str().expect("a text").to_owned())
                .collect()
        };
        let scope = [&role["kind"], &role["metadata"]["namespace"]].map(|text| text.to_string());
        let mut found = BTreeSet::new();
        for rule in role["rules"].as_array().expect("rules") {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        found.insert([
                            scope.join(" "),
                            component.to_owned(),
                            group.clone(),
                            resource.clone(),
                            rule["resourceNames"].to_string(),
                            verb,
                        ]);
                    }
                }
            }
        }
        found
    }

    /// The chart's roles were found by trial on a real cluster.
    #[test]
    fn roles_contain_the_permissions_of_the_charts_roles() {
        let own: BTreeSet<_> = machine_roles()
            .iter()
            .filter(|object| object["rules"].is_array())
            .flat_map(|role| {
                let name = role["metadata"]["name"].as_str().expect("a name");
                let component = name
                    .trim_start_matches("rooflet:")
                    .trim_end_matches("-leader-election");
                permissions(role, component)
            })
            .collect();
        let templates = rooflet_testing::repository().join("charts/rooflet/templates");
        let mut compared = 0;
        for file in ["rbac.yaml", "agents.yaml"] {
            let text = std::fs::read_to_string(templates.join(file)).expect("a template");
            let plain: Vec<&str> = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("{{"))
                .collect();
            for document in plain.join("\n").split("\n---\n") {
                let role_kind = ["kind: ClusterRole\n", "kind: Role\n"];
                // The roles of single agents permit tokens, which nodes of the embedded server do not use.
                let is_of_one_agent = document.contains("{{ $prefix }}");
                if is_of_one_agent
                    || !document.contains("\nrules:")
                    || !role_kind.iter().any(|kind| document.contains(kind))
                {
                    continue;
                }
                let document = document.replace("{{ $name }}-", "");
                let role: Value = rooflet_base::yaml::from_str(&document).expect("YAML");
                let name = role["metadata"]["name"].as_str().expect("a name");
                let component = match name {
                    "leader-election" => "controller",
                    "agent" => "node",
                    name => name,
                };
                for permission in permissions(&role, component) {
                    // The embedded API server itself signs certificates of the fleet.
                    if permission[2] == "certificates.k8s.io" {
                        continue;
                    }
                    assert!(own.contains(&permission), "{permission:?}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 50, "{compared}");
    }
}
