//! Default ClusterRoles and ClusterRoleBindings: those of kube-apiserver, for the kinds that this
//! server has.

use serde_json::{Value, json};

use crate::{AUTHENTICATED, GROUP, MASTERS, UNAUTHENTICATED};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
const READ_WRITE: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];
const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const HEALTH: [&str; 3] = ["/livez", "/readyz", "/healthz"];
/// Label prefix of the roles that are part of `admin`, `edit` and `view`.
const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";

fn resources(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": groups, "resources": resources})
}

fn urls(urls: &[&str]) -> Value {
    json!({"verbs": ["get"], "nonResourceURLs": urls})
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}})
}

fn role(name: &str, rules: Vec<Value>) -> Value {
    json!({"metadata": metadata(name), "rules": rules})
}

/// Returns a role with the rules of all roles that are aggregated to it.
fn aggregated(name: &str) -> Value {
    let label = format!("{AGGREGATE_TO}{name}");
    json!({"metadata": metadata(name),
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}})
}

/// Adds the label with which a role becomes part of another role.
fn to(mut role: Value, aggregate: &str) -> Value {
    role["metadata"]["labels"][format!("{AGGREGATE_TO}{aggregate}")] = json!("true");
    role
}

/// Returns the role with which a user may approve the requests to a signer.
fn approver(signer: &str) -> Value {
    let rule = json!({"verbs": ["approve"], "apiGroups": [CERTIFICATES], "resources": ["signers"],
        "resourceNames": [format!("kubernetes.io/{signer}")]});
    role(
        &format!("system:certificates.k8s.io:{signer}-approver"),
        vec![rule],
    )
}

/// Returns the default ClusterRoles.
pub fn cluster_roles() -> Vec<Value> {
    let discovery = [
        "/version",
        "/version/",
        "/openapi",
        "/openapi/*",
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
    ];
    let monitoring = ["/metrics", "/metrics/slis", "/livez/*", "/readyz/*", "/healthz/*"];
    let public = ["/version", "/version/"];
    let with_health = |more: &[&str]| urls(&[&HEALTH[..], more].concat());
    vec![
        role(
            "cluster-admin",
            vec![
                resources(&["*"], &["*"], &["*"]),
                json!({"verbs": ["*"], "nonResourceURLs": ["*"]}),
            ],
        ),
        role("system:discovery", vec![with_health(&discovery)]),
        role("system:monitoring", vec![with_health(&monitoring)]),
        role(
            "system:basic-user",
            vec![
                resources(
                    &["create"],
                    &[AUTHORIZATION],
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                ),
                resources(&["create"], &[AUTHENTICATION], &["selfsubjectreviews"]),
            ],
        ),
        role("system:public-info-viewer", vec![with_health(&public)]),
        aggregated("admin"),
        to(aggregated("edit"), "admin"),
        to(aggregated("view"), "edit"),
        to(
            role(
                "system:aggregate-to-admin",
                vec![
                    resources(&["create"], &[AUTHORIZATION], &["localsubjectaccessreviews"]),
                    resources(READ_WRITE, &[GROUP], &["roles", "rolebindings"]),
                ],
            ),
            "admin",
        ),
        to(
            role(
                "system:aggregate-to-edit",
                vec![
                    resources(READ, &[""], &["secrets"]),
                    resources(&["impersonate"], &[""], &["serviceaccounts"]),
                    resources(WRITE, &[""], &["serviceaccounts", "configmaps", "secrets"]),
                    resources(&["create"], &[""], &["serviceaccounts/token"]),
                    resources(WRITE, &["", "events.k8s.io"], &["events"]),
                    resources(READ_WRITE, &["coordination.k8s.io"], &["leases"]),
                ],
            ),
            "edit",
        ),
        to(
            role(
                "system:aggregate-to-view",
                vec![
                    resources(READ, &[""], &["serviceaccounts", "configmaps"]),
                    resources(READ, &[""], &["namespaces/status"]),
                    // In a RoleBinding, this rule permits to read the namespace of the binding.
                    resources(READ, &[""], &["namespaces"]),
                    resources(READ, &["", "events.k8s.io"], &["events"]),
                ],
            ),
            "view",
        ),
        role(
            "system:auth-delegator",
            vec![
                resources(&["create"], &[AUTHENTICATION], &["tokenreviews"]),
                resources(&["create"], &[AUTHORIZATION], &["subjectaccessreviews"]),
            ],
        ),
        approver("kubelet-serving"),
        approver("kube-apiserver-client"),
        approver("kube-apiserver-client-kubelet"),
    ]
}

/// Returns the default ClusterRoleBindings. Each has the name of its role.
pub fn cluster_role_bindings() -> Vec<Value> {
    let binding = |name: &str, groups: &[&str]| {
        let subjects: Vec<Value> = groups
            .iter()
            .map(|group| json!({"apiGroup": GROUP, "kind": "Group", "name": group}))
            .collect();
        json!({"metadata": metadata(name), "subjects": subjects,
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}})
    };
    vec![
        binding("cluster-admin", &[MASTERS]),
        binding("system:monitoring", &["system:monitoring"]),
        binding("system:discovery", &[AUTHENTICATED]),
        binding("system:basic-user", &[AUTHENTICATED]),
        binding("system:public-info-viewer", &[AUTHENTICATED, UNAUTHENTICATED]),
    ]
}
