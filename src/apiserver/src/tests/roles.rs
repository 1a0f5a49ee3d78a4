//! Roles and bindings: enforcement, escalation, aggregation, default roles.

use http::Method;
use serde_json::{Value, json};

use super::{DEADLINE, GIZMOS, TestServer, gizmo};
use rooflet_testing::ApiResponse;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Sends requests as `user` by impersonation.
struct As<'a> {
    server: &'a TestServer,
    user: &'a str,
}

impl As<'_> {
    async fn send(&self, method: Method, path: &str, body: &Value) -> ApiResponse {
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let headers = [("Impersonate-User", self.user), ("content-type", content_type)];
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        self.server.send(method, path, &headers, body).await
    }

    async fn get(&self, path: &str) -> u16 {
        self.send(Method::GET, path, &Value::Null).await.code
    }

    async fn post(&self, path: &str, body: &Value) -> ApiResponse {
        self.send(Method::POST, path, body).await
    }
}

fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({"metadata": {"name": name}, "roleRef": {"kind": kind, "name": role, "apiGroup": "rbac.authorization.k8s.io"},
        "subjects": [{"kind": "User", "name": user}]})
}

async fn create(server: &TestServer, path: &str, object: &Value) {
    let created = server.post(path, object).await;
    assert_eq!(created.code, 201, "{}", created.body);
}

#[tokio::test]
async fn roles_apply_as_soon_as_they_are_written() {
    let server = TestServer::start().await;
    let alice = As {
        server: &server,
        user: "alice",
    };
    assert_eq!(alice.get(MAPS).await, 403);
    create(
        &server,
        ROLES,
        &role("maps", json!([rule(&["get", "list"], "", &["configmaps"])])),
    )
    .await;
    create(&server, BINDINGS, &binding("maps", "Role", "maps", "alice")).await;
    assert_eq!(alice.get(MAPS).await, 200);
    assert_eq!(
        alice.get(&format!("{MAPS}?watch=true&timeoutSeconds=1")).await,
        403
    );
    assert_eq!(alice.get("/api/v1/namespaces/kube-system/configmaps").await, 403);
    assert_eq!(alice.get("/api/v1/configmaps").await, 403);
    let none = json!({"rules": [rule(&["list"], "", &["secrets"])]});
    assert_eq!(server.merge(&format!("{ROLES}/maps"), &none).await.code, 200);
    assert_eq!(alice.get(MAPS).await, 403);
    assert_eq!(alice.get("/api/v1/namespaces/default/secrets").await, 200);
    assert_eq!(server.delete(&format!("{BINDINGS}/maps")).await.code, 200);
    assert_eq!(alice.get("/api/v1/namespaces/default/secrets").await, 403);
}

#[tokio::test]
async fn update_that_creates_requires_the_verb_create() {
    let server = TestServer::start().await;
    let alice = As {
        server: &server,
        user: "alice",
    };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "alice"}});
    let verbs = |verbs: &[&str]| json!([rule(verbs, "coordination.k8s.io", &["leases"])]);
    create(&server, ROLES, &role("leases", verbs(&["update"]))).await;
    create(&server, BINDINGS, &binding("leases", "Role", "leases", "alice")).await;
    let path = format!("{leases}/a");
    let refused = alice.send(Method::PUT, &path, &lease).await;
    assert_eq!(
        (refused.code, refused.message()),
        (
            403,
            "leases.coordination.k8s.io \"a\" is forbidden: User \"alice\" cannot create resource \"leases\" in API group \
             \"coordination.k8s.io\" in the namespace \"default\""
        )
    );
    server
        .merge(
            &format!("{ROLES}/leases"),
            &json!({"rules": verbs(&["update", "create"])}),
        )
        .await;
    assert_eq!(alice.send(Method::PUT, &path, &lease).await.code, 201);
}

#[tokio::test]
async fn users_grant_only_permissions_that_they_hold() {
    let server = TestServer::start().await;
    let alice = As {
        server: &server,
        user: "alice",
    };
    create(
        &server,
        BINDINGS,
        &binding("alice", "ClusterRole", "admin", "alice"),
    )
    .await;
    let maps = role("maps", json!([rule(&["get"], "", &["configmaps"])]));
    assert_eq!(alice.post(ROLES, &maps).await.code, 201);
    let gizmos = role(
        "gizmos",
        json!([rule(&["get", "list"], "example.com", &["gizmos"])]),
    );
    let refused = alice.post(ROLES, &gizmos).await;
    assert_eq!(
        (refused.code, refused.message()),
        (
            403,
            "roles.rbac.authorization.k8s.io \"gizmos\" is forbidden: user \"alice\" (groups=[\"system:authenticated\"]) is \
             attempting to grant RBAC permissions not currently held:\n\
             {APIGroups:[\"example.com\"], Resources:[\"gizmos\"], Verbs:[\"get\" \"list\"]}"
        )
    );
    let wider = json!({"rules": gizmos["rules"]});
    let path = format!("{ROLES}/maps");
    assert_eq!(alice.send(Method::PATCH, &path, &wider).await.code, 403);
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(alice.send(Method::PATCH, &path, &labels).await.code, 200);

    for (name, code) in [
        ("view", 201),
        ("admin", 201),
        ("cluster-admin", 403),
        ("gone", 404),
    ] {
        let bound = alice
            .post(
                BINDINGS,
                &binding(&format!("bob-{name}"), "ClusterRole", name, "bob"),
            )
            .await;
        assert_eq!(bound.code, code, "{}", bound.body);
    }
    let bindings = format!("{RBAC}/clusterrolebindings");
    let everywhere = binding("alice", "ClusterRole", "view", "alice");
    assert_eq!(alice.post(&bindings, &everywhere).await.code, 403);

    // The verbs `escalate` and `bind` permit it.
    let rules = json!([
        rule(&["escalate"], "rbac.authorization.k8s.io", &["roles"]),
        {"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
            "resourceNames": ["cluster-admin"]}]);
    create(&server, ROLES, &role("power", rules)).await;
    create(&server, BINDINGS, &binding("power", "Role", "power", "alice")).await;
    assert_eq!(alice.post(ROLES, &gizmos).await.code, 201);
    let cluster_admin = binding("carol", "ClusterRole", "cluster-admin", "carol");
    assert_eq!(alice.post(BINDINGS, &cluster_admin).await.code, 201);
}

#[tokio::test]
async fn aggregated_role_requires_all_permissions() {
    let server = TestServer::start().await;
    let alice = As {
        server: &server,
        user: "alice",
    };
    let (roles, bindings) = (
        format!("{RBAC}/clusterroles"),
        format!("{RBAC}/clusterrolebindings"),
    );
    let rules = json!([rule(&["*"], "rbac.authorization.k8s.io", &["clusterroles"])]);
    create(&server, &roles, &role("roles", rules)).await;
    create(
        &server,
        &bindings,
        &binding("roles", "ClusterRole", "roles", "alice"),
    )
    .await;
    let selector = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    let mut mine = role("mine", json!([]));
    assert_eq!(
        alice.post(&roles, &mine).await.code,
        201,
        "the rule for all verbs includes escalate"
    );
    mine["metadata"]["name"] = json!("aggregated");
    mine["aggregationRule"] = selector;
    let narrow = json!([rule(
        &["create", "update"],
        "rbac.authorization.k8s.io",
        &["clusterroles"]
    )]);
    server
        .merge(&format!("{roles}/roles"), &json!({"rules": narrow}))
        .await;
    let refused = alice.post(&roles, &mine).await;
    assert_eq!(
        refused.message(),
        "clusterroles.rbac.authorization.k8s.io \"aggregated\" is forbidden: must have cluster-admin privileges to use the \
         aggregationRule"
    );
    create(
        &server,
        &bindings,
        &binding("all", "ClusterRole", "cluster-admin", "alice"),
    )
    .await;
    assert_eq!(alice.post(&roles, &mine).await.code, 201);
}

#[tokio::test]
async fn labeled_cluster_role_becomes_part_of_the_default_roles() {
    let server = TestServer::start().await;
    let alice = As {
        server: &server,
        user: "alice",
    };
    create(&server, GIZMOS, &gizmo("a")).await;
    create(
        &server,
        BINDINGS,
        &binding("alice", "ClusterRole", "admin", "alice"),
    )
    .await;
    assert_eq!(alice.get(MAPS).await, 200);
    assert_eq!(alice.get(GIZMOS).await, 403);
    let mut gizmos = role(
        "view-gizmos",
        json!([rule(&["list"], "example.com", &["gizmos"])]),
    );
    gizmos["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let roles = format!("{RBAC}/clusterroles");
    let mut changes = server
        .watch(&format!("{roles}?watch=true&fieldSelector=metadata.name=admin"))
        .await;
    create(&server, &roles, &gizmos).await;
    // `view` is part of `edit`, which is part of `admin`.
    let has_gizmos = async {
        loop {
            let frame = changes.next().await.expect("a frame");
            if frame["object"]["rules"].to_string().contains("gizmos") {
                break;
            }
        }
        // Watches may show a role shortly before the server applies it.
        while alice.get(GIZMOS).await != 200 {}
    };
    tokio::time::timeout(DEADLINE, has_gizmos).await.expect("in time");
}

#[tokio::test]
async fn invalid_roles_and_bindings_are_rejected() {
    let server = TestServer::start().await;
    let rejected = server.post(ROLES, &role("a", json!([{"verbs": ["get"]}]))).await;
    assert_eq!(
        (rejected.code, rejected.message()),
        (
            422,
            "Role.rbac.authorization.k8s.io \"a\" is invalid: [rules[0].apiGroups: Required value: resource rules must \
             supply at least one api group, rules[0].resources: Required value: resource rules must supply at least one \
             resource]"
        )
    );
    let rejected = server
        .post(
            &format!("{RBAC}/clusterrolebindings"),
            &binding("a", "Role", "r", "alice"),
        )
        .await;
    assert_eq!(
        (rejected.code, rejected.message()),
        (
            422,
            "ClusterRoleBinding.rbac.authorization.k8s.io \"a\" is invalid: roleRef.kind: Unsupported value: \"Role\": \
             supported values: \"ClusterRole\""
        )
    );
}

/// As in Kubernetes, the field selector `metadata.name=NAME` makes a list or watch a request for NAME.
#[tokio::test]
async fn permission_for_a_name_permits_a_list_of_this_name() {
    let server = TestServer::start().await;
    let mut named = rule(&["list", "watch"], "", &["configmaps"]);
    named["resourceNames"] = json!(["mine"]);
    create(&server, ROLES, &role("one", json!([named]))).await;
    create(&server, BINDINGS, &binding("one", "Role", "one", "alice")).await;
    let alice = As {
        server: &server,
        user: "alice",
    };
    let list = |selector: &str| format!("{MAPS}?{selector}");
    assert_eq!(alice.get(&list("fieldSelector=metadata.name%3Dmine")).await, 200);
    for other in [
        "",
        "fieldSelector=metadata.name%3Dother",
        "fieldSelector=metadata.name%21%3Dmine",
        "fieldSelector=metadata.namespace%3Dmine",
    ] {
        assert_eq!(alice.get(&list(other)).await, 403, "{other}");
    }
}
