//! Roles and access reviews with kubectl.

mod browser;
mod keys;
mod login;
mod monitoring;
mod network_input;
pub(crate) mod oidc;
mod processes;
mod tls_input;
pub(crate) mod web_page;

use crate::harness::{Cluster, Kubectl, eventually};

/// Starts the API server with kubectl of the administrator and of alice, a member of team-a.
/// Returns `None` if kubectl is not installed.
fn start() -> Option<(Cluster, Kubectl)> {
    let server = Cluster::start(&["--roles=apiserver"])?;
    let authority = server.scratch.join("data/client-ca.pem");
    let alice = server.kubectl_as("alice", &["team-a"], &authority);
    Some((server, alice))
}

/// Returns the answer of `kubectl auth can-i WORDS`.
fn can_i(kubectl: &Kubectl, words: &str) -> String {
    let output = kubectl.run(&format!("auth can-i {words}"));
    let answer = output.stdout.trim().to_owned();
    assert_eq!(
        output.success,
        answer == "yes",
        "{words}: {answer}\n{}",
        output.stderr
    );
    answer
}

#[test]
fn kubectl_creates_roles_and_asks_for_access() {
    let Some((server, alice)) = start() else { return };
    let admin = &server.kubectl;
    admin.run("create namespace team").ok();
    // These commands send protobuf.
    assert_eq!(
        admin
            .run("create role reader --verb=get,list --resource=configmaps -n team")
            .ok(),
        "role.rbac.authorization.k8s.io/reader created\n"
    );
    admin
        .run("create rolebinding reader --role=reader --user=alice -n team")
        .ok();
    admin
        .run("create clusterrole nodes --verb=list --resource=fleetnodes.rooflet.dev")
        .ok();
    admin
        .run("create clusterrole metrics --verb=get --non-resource-url=/metrics")
        .ok();
    for role in ["nodes", "metrics"] {
        admin
            .run(&format!(
                "create clusterrolebinding {role} --clusterrole={role} --group=team-a"
            ))
            .ok();
    }

    let identity = alice.run("auth whoami").ok();
    for expect in ["alice", "team-a", "system:authenticated"] {
        assert!(identity.contains(expect), "{identity}");
    }
    for (request, expect) in [
        ("list configmaps -n team", "yes"),
        ("delete configmaps -n team", "no"),
        ("list configmaps", "no"),
        ("list fleetnodes", "yes"),
        ("get /metrics", "yes"),
        ("get /openapi/v3", "yes"),
        ("get /logs", "no"),
    ] {
        assert_eq!(can_i(&alice, request), expect, "{request}");
    }
    assert_eq!(can_i(admin, "list configmaps -n team --as=alice"), "yes");
    assert_eq!(can_i(admin, "list configmaps --as=alice"), "no");
    assert_eq!(can_i(admin, "delete configmaps --all-namespaces"), "yes");
    let listed = alice.run("auth can-i --list -n team").ok();
    for expect in ["configmaps", "fleetnodes.rooflet.dev", "[/metrics]", "[get list]"] {
        assert!(listed.contains(expect), "{expect} in\n{listed}");
    }

    // The answers are those of the requests.
    alice.run("get configmaps -n team").ok();
    alice.run("get fleetnodes").ok();
    alice.run("get --raw /metrics").ok();
    let refused = alice.run("get secrets -n team").expect_failure();
    assert!(
        refused.contains(
            "User \"alice\" cannot list resource \"secrets\" in API group \"\" in the namespace \"team\""
        ),
        "{refused}"
    );
    let wide = admin.run("get rolebindings -n team -o wide").ok();
    assert!(wide.contains("Role/reader") && wide.contains("alice"), "{wide}");
    let described = admin.run("describe clusterrole nodes").ok();
    assert!(described.contains("fleetnodes.rooflet.dev"), "{described}");
}

#[test]
fn kubectl_reconciles_roles() {
    let Some((server, alice)) = start() else { return };
    let admin = &server.kubectl;
    let manifest = |verbs: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: maps, namespace: default}}\nrules:\n- \
             {{apiGroups: [\"\"], resources: [configmaps], verbs: {verbs}}}\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: maps, namespace: default}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: maps}}\nsubjects:\n- \
             {{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}}\n"
        )
    };
    let reconcile = |verbs: &str| {
        admin
            .run_with(&["auth", "reconcile", "-f", "-"], &manifest(verbs))
            .ok()
    };
    let printed = reconcile("[list]");
    assert!(
        printed.contains("role.rbac.authorization.k8s.io/maps reconciled"),
        "{printed}"
    );
    assert_eq!(can_i(&alice, "list configmaps"), "yes");
    assert_eq!(can_i(&alice, "get configmaps"), "no");
    reconcile("[get]");
    for verb in ["list", "get"] {
        assert_eq!(can_i(&alice, &format!("{verb} configmaps")), "yes");
    }
}

#[test]
fn namespace_administrator_grants_only_own_permissions() {
    let Some((server, alice)) = start() else { return };
    let admin = &server.kubectl;
    admin
        .run("create rolebinding alice --clusterrole=admin --user=alice")
        .ok();
    alice
        .run("create rolebinding bob --clusterrole=edit --user=bob")
        .ok();
    assert_eq!(can_i(&alice, "create modeldeployments"), "yes");
    assert_eq!(can_i(&alice, "create modelreplicas"), "no");
    assert_eq!(can_i(&alice, "list modeldeployments -n kube-system"), "no");
    let refused = alice
        .run("create rolebinding carol --clusterrole=cluster-admin --user=carol")
        .expect_failure();
    assert!(
        refused.contains("is attempting to grant RBAC permissions not currently held"),
        "{refused}"
    );
    let refused = alice
        .run("create role replicas --verb=create --resource=modelreplicas.rooflet.dev")
        .expect_failure();
    assert!(
        refused.contains(r#"{APIGroups:["rooflet.dev"], Resources:["modelreplicas"], Verbs:["create"]}"#),
        "{refused}"
    );
    let refused = alice.run("get clusterroles").expect_failure();
    assert!(refused.contains("at the cluster scope"), "{refused}");
}

#[test]
fn service_account_acts_with_its_token() {
    let Some((server, _)) = start() else { return };
    let admin = &server.kubectl;
    admin.run("create namespace team").ok();
    assert_eq!(
        admin.run("create serviceaccount robot -n team").ok(),
        "serviceaccount/robot created\n"
    );
    admin
        .run("create rolebinding robot --clusterrole=view --serviceaccount=team:robot -n team")
        .ok();
    let token = admin.run("create token robot -n team --duration=20m").ok();
    let as_robot = format!("--token={}", token.trim());
    let identity = admin.run(&format!("auth whoami {as_robot}")).ok();
    for expect in ["system:serviceaccount:team:robot", "system:serviceaccounts:team"] {
        assert!(identity.contains(expect), "{identity}");
    }
    admin.run(&format!("get configmaps -n team {as_robot}")).ok();
    let refused = admin.run(&format!("get configmaps {as_robot}")).expect_failure();
    assert!(
        refused.contains("User \"system:serviceaccount:team:robot\" cannot list resource \"configmaps\""),
        "{refused}"
    );
    assert_eq!(
        can_i(
            admin,
            "list configmaps -n team --as=system:serviceaccount:team:robot"
        ),
        "yes"
    );
    admin.run("delete serviceaccount robot -n team").ok();
    let refused = admin
        .run(&format!("get configmaps -n team {as_robot}"))
        .expect_failure();
    assert!(
        refused.contains("You must be logged in to the server"),
        "{refused}"
    );
}

#[test]
fn impersonation_requires_the_verb_impersonate() {
    let Some((server, alice)) = start() else { return };
    let admin = &server.kubectl;
    admin
        .run("create rolebinding bob --clusterrole=view --user=bob")
        .ok();
    // For forbidden discovery requests, kubectl prints only `unknown`.
    let read = "get --raw /api/v1/namespaces/default/configmaps";
    let refused = alice.run(&format!("{read} --as=bob")).expect_failure();
    assert!(
        refused.contains("User \"alice\" cannot impersonate-on:user-info:list resource \"configmaps\""),
        "{refused}"
    );
    admin
        .run("create clusterrole as-bob --verb=impersonate --resource=users --resource-name=bob")
        .ok();
    admin
        .run("create clusterrolebinding as-bob --clusterrole=as-bob --user=alice")
        .ok();
    alice.run("get configmaps --as=bob").ok();
    let identity = alice.run("auth whoami --as=bob").ok();
    assert!(
        identity.contains("bob") && !identity.contains("alice"),
        "{identity}"
    );
    for other in [
        "--as=carol",
        "--as=bob --as-group=system:masters",
        "--as=bob --as-uid=1",
    ] {
        let refused = alice.run(&format!("{read} {other}")).expect_failure();
        assert!(
            refused.contains("cannot impersonate resource"),
            "{other}: {refused}"
        );
    }
}

#[test]
fn audit_log_records_who_did_what() {
    let Some((server, alice)) = start() else { return };
    let admin = &server.kubectl;
    admin.run("create configmap mine").ok();
    admin
        .run("create secret generic hub --from-literal=token=swordfish")
        .ok();
    alice.run("get secrets").expect_failure();
    admin.run("delete configmap mine --as=alice").expect_failure();
    admin.run("get configmaps").ok();
    let log = server.scratch.join("data/audit.log");
    let events = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        assert!(!text.contains("c3dvcmRmaXNo"), "the log contains a Secret");
        let events: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        events
    };
    let find = |user: &str, verb: &str, resource: &str, code: u16| {
        eventually("the event", || {
            let events = events();
            let found = events.iter().find(|event| {
                event["user"]["username"] == user
                    && event["verb"] == verb
                    && event["objectRef"]["resource"] == resource
                    && event["responseStatus"]["code"] == code
            });
            found.cloned().ok_or_else(|| format!("{events:?}"))
        })
    };
    let created = find("system:admin", "create", "configmaps", 201);
    assert_eq!(created["objectRef"]["namespace"], "default");
    assert_eq!(created["objectRef"]["name"], "mine");
    assert_eq!(created["sourceIPs"], serde_json::json!(["127.0.0.1"]));
    assert!(created["userAgent"].to_string().contains("kubectl"), "{created}");
    find("system:admin", "create", "secrets", 201);
    let denied = find("alice", "list", "secrets", 403);
    assert_eq!(denied["annotations"]["authorization.k8s.io/decision"], "forbid");
    let impersonated = find("system:admin", "delete", "configmaps", 403);
    assert_eq!(impersonated["impersonatedUser"]["username"], "alice");
    assert_eq!(
        impersonated["authenticationMetadata"]["impersonationConstraint"],
        "impersonate:user-info"
    );
    let is_read =
        |event: &serde_json::Value| event["verb"] == "list" && event["objectRef"]["resource"] == "configmaps";
    assert!(!events().iter().any(is_read));
}
