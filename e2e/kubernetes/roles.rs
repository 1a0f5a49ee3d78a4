//! Impersonation, escalation, aggregation and `kubectl auth reconcile` on the embedded server and on
//! kube-apiserver, with the same expected answers.

use serde_json::{Value, json};

use super::cluster::KubernetesCluster;
use crate::harness::{Cluster, Kubectl, Output, eventually};

#[test]
fn roles_on_the_embedded_server() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    check_all(&cluster.kubectl);
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

fn headers_need_the_verb_impersonate(kubectl: &Kubectl) {
    kubectl.run("create serviceaccount caller").ok();
    let token = kubectl.run("create token caller").ok();
    let caller = format!("--token={}", token.trim());
    let read = format!("get --raw /api/v1/namespaces/default/configmaps {caller}");
    let refused = kubectl.run(&format!("{read} --as=bob")).expect_failure();
    // kube-apiserver names the verb of constrained impersonation, which is its last attempt.
    let expected = "cannot impersonate";
    assert!(refused.contains(expected), "{refused}");
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
    for options in [
        "--as=carol",
        "--as=bob --as-group=system:masters",
        "--as=bob --as-uid=1",
        "--as=system:serviceaccount:default:default",
    ] {
        let refused = kubectl.run(&format!("{read} {options}")).expect_failure();
        assert!(refused.contains(expected), "{options}: {refused}");
    }
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
