//! Impersonation, escalation, aggregation and `kubectl auth reconcile` on the embedded server and on
//! kube-apiserver, with the same expected answers.

use serde_json::{Value, json};

use super::cluster::{KubernetesCluster, binary};
use crate::harness::{Cluster, Kubectl, Output, eventually};

#[test]
fn roles_on_the_embedded_server() {
    // Earlier versions lack the flag `--as-user-extra`.
    let Some(program) = binary("kubectl") else {
        return;
    };
    let Some(cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let kubeconfig = cluster.scratch.join("kubeconfig");
    check_all(&Kubectl::of(&program, &kubeconfig, cluster.scratch.path()));
}

#[test]
fn roles_on_a_real_cluster() {
    let Some(cluster) = KubernetesCluster::start() else {
        return;
    };
    check_all(&cluster.kubectl);
}

fn check_all(kubectl: &Kubectl) {
    headers_need_the_verb_impersonate(kubectl);
    constrained_impersonation_permits_single_requests(kubectl);
    nobody_grants_more_than_own_permissions(kubectl);
    reconcile_adds_and_removes_permissions(kubectl);
    aggregated_role_follows_its_selector(kubectl);
}

fn run_all(kubectl: &Kubectl, commands: &[&str]) {
    for command in commands {
        kubectl.run(command).ok();
    }
}

/// Waits until the answer of `kubectl auth can-i WORDS` is `expected`.
fn wait_for_access(kubectl: &Kubectl, words: &str, expected: &str) {
    // kube-apiserver reads roles from a cache.
    eventually(&format!("{words}: {expected}"), || {
        let answer = kubectl.run(&format!("auth can-i {words}"));
        match answer.stdout.trim() == expected {
            true => Ok(()),
            false => Err(format!("{}{}", answer.stdout, answer.stderr)),
        }
    });
}

const READ: &str = "get --raw /api/v1/namespaces/default/configmaps";

/// Creates a ServiceAccount. Returns the option of kubectl with its token.
fn account(kubectl: &Kubectl, name: &str) -> String {
    kubectl.run(&format!("create serviceaccount {name}")).ok();
    let token = kubectl.run(&format!("create token {name}")).ok();
    format!("--token={}", token.trim())
}

/// Runs `kubectl COMMAND` as the ServiceAccount, with the options, which must be refused with the
/// error.
fn check_refusal(kubectl: &Kubectl, account: &str, command: &str, options: &str, error: &str) {
    let refused = kubectl.run(&format!("{command} {options}")).expect_failure();
    // The name of the user is in the middle of the message.
    let caller = format!("User \"system:serviceaccount:default:{account}\" ");
    let refused = refused.replace(&caller, "");
    assert!(refused.contains(error), "{options}: {refused}");
}

fn headers_need_the_verb_impersonate(kubectl: &Kubectl) {
    let caller = account(kubectl, "caller");
    let read = format!("{READ} {caller}");
    let check = |options: &str, error: &str| check_refusal(kubectl, "caller", &read, options, error);
    check(
        "--as=bob",
        "configmaps is forbidden: cannot impersonate-on:user-info:list resource \"configmaps\" in API group \"\" in the \
         namespace \"default\"",
    );
    check(
        "--as=system:node:mac",
        "cannot impersonate-on:arbitrary-node:list resource \"configmaps\"",
    );
    run_all(
        kubectl,
        &[
            "create rolebinding bob --clusterrole=view --user=bob",
            "create clusterrole as-bob --verb=impersonate --resource=users --resource-name=bob",
            "create clusterrolebinding as-bob --clusterrole=as-bob --serviceaccount=default:caller",
        ],
    );
    eventually("access as bob", || {
        let read = kubectl.run(&format!("{read} --as=bob"));
        read.success.then_some(()).ok_or(read.stderr)
    });
    // The request has the permissions of bob, not those of the caller.
    kubectl.run(&read).expect_failure();
    let identity = kubectl
        .run(&format!("auth whoami -o json {caller} --as=bob"))
        .ok();
    let identity: Value = serde_json::from_str(&identity).expect("JSON");
    assert_eq!(identity["status"]["userInfo"]["username"], "bob", "{identity}");
    // The error is that of the mode which permitted the last impersonation.
    for (options, error) in [
        (
            "--as=carol",
            "users \"carol\" is forbidden: cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
        ),
        (
            "--as=bob --as-group=system:masters --as-uid=1",
            "uids.authentication.k8s.io \"1\" is forbidden: cannot impersonate resource \"uids\" in API group \
             \"authentication.k8s.io\" at the cluster scope",
        ),
        (
            "--as=bob --as-group=system:masters",
            "groups \"system:masters\" is forbidden: cannot impersonate resource \"groups\" in API group \"\" at the \
             cluster scope",
        ),
        (
            "--as=bob --as-user-extra=scopes=x",
            "userextras.authentication.k8s.io \"x\" is forbidden: cannot impersonate resource \"userextras/scopes\" in \
             API group \"authentication.k8s.io\" at the cluster scope",
        ),
        (
            "--as=system:serviceaccount:default:default",
            "serviceaccounts \"default\" is forbidden: cannot impersonate resource \"serviceaccounts\" in API group \"\" \
             in the namespace \"default\"",
        ),
    ] {
        check(options, error);
    }
}

/// Role of constrained impersonation: bob, lists of ConfigMaps; the node mac, identity.
const LIMITED: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: limited}
rules:
- {verbs: ['impersonate-on:user-info:list'], apiGroups: [''], resources: [configmaps]}
- {verbs: ['impersonate:user-info'], apiGroups: [authentication.k8s.io], resources: [users], resourceNames: [bob]}
- {verbs: ['impersonate:user-info'], apiGroups: [authentication.k8s.io], resources: [groups], resourceNames: ['*']}
- verbs: ['impersonate-on:arbitrary-node:create']
  apiGroups: [authentication.k8s.io]
  resources: [selfsubjectreviews]
- verbs: ['impersonate:arbitrary-node']
  apiGroups: [authentication.k8s.io]
  resources: [nodes]
  resourceNames: [mac]
";

fn constrained_impersonation_permits_single_requests(kubectl: &Kubectl) {
    let limited = account(kubectl, "limited");
    kubectl.run_with(&["apply", "-f", "-"], LIMITED).ok();
    kubectl
        .run("create clusterrolebinding limited --clusterrole=limited --serviceaccount=default:limited")
        .ok();
    let read = format!("{READ} {limited}");
    eventually("access as bob", || {
        let read = kubectl.run(&format!("{read} --as=bob"));
        read.success.then_some(()).ok_or(read.stderr)
    });
    let many = "--as=bob --as-group=a --as-group=b --as-group=c --as-group=d";
    kubectl.run(&format!("{read} {many}")).ok();
    let one = format!("get --raw /api/v1/namespaces/default/configmaps/x {limited}");
    check_refusal(
        kubectl,
        "limited",
        &one,
        "--as=bob",
        "configmaps \"x\" is forbidden: cannot impersonate-on:user-info:get resource \"configmaps\" in API group \"\" in \
         the namespace \"default\"",
    );
    for (options, error) in [
        (
            "--as=carol",
            "users.authentication.k8s.io \"carol\" is forbidden: cannot impersonate:user-info resource \"users\" in API \
             group \"authentication.k8s.io\" at the cluster scope",
        ),
        (
            "--as=bob --as-group=a",
            "groups.authentication.k8s.io \"a\" is forbidden: cannot impersonate:user-info resource \"groups\" in API \
             group \"authentication.k8s.io\" at the cluster scope",
        ),
        (
            "--as=bob --as-group=system:masters",
            "groups.authentication.k8s.io \"system:masters\" is forbidden: cannot impersonate:user-info resource \"groups\" \
             in API group \"authentication.k8s.io\" at the cluster scope: impersonating the system:masters group is \
             not allowed",
        ),
        (
            "--as=bob --as-user-extra=scopes=x",
            "userextras.authentication.k8s.io is forbidden: cannot impersonate:user-info resource \"userextras\" in API \
             group \"authentication.k8s.io\" at the cluster scope: impersonating an invalid key in extra is not allowed: \
             extra.key: Invalid value: \"scopes\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
        (
            "--as=bob --as-user-extra=acme.io/a@b=x",
            "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
        ),
        (
            "--as=system:serviceaccount:default:default",
            "cannot impersonate-on:serviceaccount:list resource \"configmaps\"",
        ),
    ] {
        check_refusal(kubectl, "limited", &read, options, error);
    }
    let identity = kubectl
        .run(&format!("auth whoami -o json {limited} --as=system:node:mac"))
        .ok();
    let identity: Value = serde_json::from_str(&identity).expect("JSON");
    assert_eq!(
        identity["status"]["userInfo"],
        json!({"username": "system:node:mac", "groups": ["system:nodes", "system:authenticated"]})
    );
}

fn nobody_grants_more_than_own_permissions(kubectl: &Kubectl) {
    run_all(
        kubectl,
        &[
            "create clusterrole granter --verb=get,create,patch,update \
             --resource=roles.rbac.authorization.k8s.io,rolebindings.rbac.authorization.k8s.io",
            "create rolebinding granter --clusterrole=granter --user=alice",
        ],
    );
    wait_for_access(
        kubectl,
        "create roles.rbac.authorization.k8s.io --as=alice",
        "yes",
    );
    let attempt = "user \"alice\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not \
                   currently held:\n";
    let secrets = "{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"list\"]}";
    let new_role = "create role secrets --verb=list --resource=secrets";
    let refused = kubectl.run(&format!("{new_role} --as=alice")).expect_failure();
    assert!(refused.contains(&format!("{attempt}{secrets}")), "{refused}");
    let refused = kubectl
        .run_with(
            &["auth", "reconcile", "--as=alice", "-f", "-"],
            &role("[list]", "secrets"),
        )
        .expect_failure();
    assert!(refused.contains(&format!("{attempt}{secrets}")), "{refused}");
    kubectl.run(new_role).ok();
    let new_binding = "create rolebinding secrets --role=secrets --user=bob";
    let refused = kubectl.run(&format!("{new_binding} --as=alice")).expect_failure();
    assert!(refused.contains(&format!("{attempt}{secrets}")), "{refused}");

    // The verbs `bind` and `escalate` permit both.
    run_all(
        kubectl,
        &[
            "create role bind --verb=bind --resource=roles.rbac.authorization.k8s.io --resource-name=secrets",
            "create rolebinding bind --role=bind --user=alice",
        ],
    );
    wait_for_access(
        kubectl,
        "bind roles.rbac.authorization.k8s.io/secrets --as=alice",
        "yes",
    );
    kubectl.run(&format!("{new_binding} --as=alice")).ok();
    kubectl
        .run("create role other --verb=get --resource=secrets")
        .ok();
    let refused = kubectl
        .run("create rolebinding other --role=other --user=bob --as=alice")
        .expect_failure();
    assert!(refused.contains(attempt), "{refused}");
    run_all(
        kubectl,
        &[
            "create role escalate --verb=escalate --resource=roles.rbac.authorization.k8s.io",
            "create rolebinding escalate --role=escalate --user=alice",
        ],
    );
    wait_for_access(
        kubectl,
        "escalate roles.rbac.authorization.k8s.io --as=alice",
        "yes",
    );
    kubectl
        .run("create role all --verb=delete --resource=secrets --as=alice")
        .ok();
}

/// Returns a Role with one rule.
fn role(verbs: &str, resource: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: reconciled, namespace: default}}\n\
         rules:\n- {{apiGroups: [\"\"], resources: [{resource}], verbs: {verbs}}}\n"
    )
}

/// Returns a RoleBinding of the role for a user.
fn binding(role: &str, user: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n\
         metadata: {{name: reconciled, namespace: default}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {role}}}\n\
         subjects:\n- {{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}\n"
    )
}

fn reconcile_adds_and_removes_permissions(kubectl: &Kubectl) {
    let reconcile = |options: &[&str], manifest: &str| -> Output {
        let args = [&["auth", "reconcile", "-f", "-"], options].concat();
        kubectl.run_with(&args, manifest)
    };
    let verbs = || {
        let found = kubectl.json("role reconciled").expect("the role");
        let rules = found["rules"].as_array().expect("rules").iter();
        let verbs = rules.flat_map(|rule| rule["verbs"].as_array().expect("verbs").clone());
        verbs.collect::<Value>()
    };
    let printed = reconcile(&[], &role("[list]", "configmaps")).ok();
    let expected = "role.rbac.authorization.k8s.io/reconciled reconciled\n";
    assert!(printed.starts_with(expected), "{printed}");
    reconcile(&[], &role("[get]", "configmaps")).ok();
    assert_eq!(verbs(), json!(["list", "get"]));
    let remove = "--remove-extra-permissions";
    reconcile(&[remove, "--dry-run=client"], &role("[get]", "configmaps")).ok();
    assert_eq!(verbs(), json!(["list", "get"]));
    reconcile(&[remove], &role("[get]", "configmaps")).ok();
    assert_eq!(verbs(), json!(["get"]));

    let subjects = || {
        let found = kubectl.json("rolebinding reconciled").expect("the binding");
        let names = found["subjects"].as_array().expect("subjects").iter();
        let names: Value = names.map(|subject| subject["name"].clone()).collect();
        (
            found["roleRef"]["name"].clone(),
            names,
            found["metadata"]["uid"].clone(),
        )
    };
    reconcile(&[], &binding("reconciled", "dora")).ok();
    reconcile(&[], &binding("reconciled", "emil")).ok();
    let (referred, names, uid) = subjects();
    assert_eq!((referred, names), (json!("reconciled"), json!(["dora", "emil"])));
    reconcile(&["--remove-extra-subjects"], &binding("reconciled", "emil")).ok();
    assert_eq!(subjects(), (json!("reconciled"), json!(["emil"]), uid.clone()));
    wait_for_access(kubectl, "get configmaps --as=emil", "yes");
    // The reference of a binding is immutable, so that kubectl replaces the binding.
    reconcile(&[], &binding("secrets", "emil")).ok();
    let (referred, names, replaced) = subjects();
    assert_eq!((referred, names), (json!("secrets"), json!(["emil"])));
    assert_ne!(replaced, uid);
}

fn aggregated_role_follows_its_selector(kubectl: &Kubectl) {
    let label = "test.example.com/gathered";
    kubectl
        .run(&format!(
            "create clusterrole gathered --aggregation-rule={label}=yes"
        ))
        .ok();
    kubectl
        .run("create clusterrolebinding gathered --clusterrole=gathered --user=fred")
        .ok();
    let wait_for_rules = |expected: Value| {
        eventually(&format!("the rules {expected}"), || {
            let found = kubectl.json("clusterrole gathered")?;
            let rules = found["rules"].as_array().cloned().unwrap_or_default();
            match Value::Array(rules) == expected {
                true => Ok(()),
                false => Err(found.to_string()),
            }
        });
    };
    let rule = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
    for resource in ["configmaps", "secrets"] {
        let create = format!("create clusterrole part-{resource} --verb=get --resource={resource}");
        kubectl.run(&create).ok();
        let set = format!("label clusterrole part-{resource} {label}=yes");
        kubectl.run(&set).ok();
    }
    wait_for_rules(json!([rule("configmaps"), rule("secrets")]));
    wait_for_access(kubectl, "get secrets --as=fred", "yes");
    kubectl
        .run(&format!("label clusterrole part-configmaps {label}-"))
        .ok();
    wait_for_rules(json!([rule("secrets")]));
    // Rules from another writer are overwritten.
    let patch = r#"{"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}"#;
    let args = ["patch", "clusterrole", "gathered", "--type=merge", "-p", patch];
    kubectl.run_with(&args, "").ok();
    wait_for_rules(json!([rule("secrets")]));
    kubectl.run("delete clusterrole part-secrets").ok();
    wait_for_rules(json!([]));
    wait_for_access(kubectl, "get secrets --as=fred", "no");
}
