//! Identities of the control plane's own processes.

use crate::harness::{Cluster, Kubectl, eventually};

const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  model: {source: local://guide}
  serving: {name: guide, contextTokens: 512}
  # The machine of the test may be short of memory.
  placement: {tolerations: [{operator: Exists}]}
";

/// Asserts the answers of `kubectl auth can-i`.
#[track_caller]
fn assert_permissions(kubectl: &Kubectl, cases: &[(&str, bool)]) {
    for (request, expect) in cases {
        let answer = kubectl.run(&format!("auth can-i {request}"));
        assert_eq!(answer.stdout.trim() == "yes", *expect, "{request}: {answer:?}");
    }
}

#[test]
fn gateway_and_controller_have_only_the_permissions_of_their_roles() {
    let Some(cluster) = Cluster::start(&["--audit", "all"]) else {
        return;
    };
    let _agent = cluster.agent("mini-1", &[]);
    cluster.kubectl.apply(GUIDE).ok();
    cluster
        .kubectl
        .run("wait --for=condition=Available mdep/guide --timeout=180s")
        .ok();
    cluster.gateway.chat("guide", "What is rooflet?");

    let data = cluster.scratch.join("data");
    let of = |process: &str| {
        Kubectl::find(
            &data.join(format!("{process}.kubeconfig")),
            cluster.scratch.path(),
        )
        .expect("kubectl, as above")
    };
    let gateway = of("gateway");
    let identity = gateway.run("auth whoami").ok();
    assert!(
        identity.contains("rooflet:gateway:") && identity.contains("rooflet:gateways"),
        "{identity}"
    );
    assert_permissions(
        &gateway,
        &[
            ("watch modelreplicas -A", true),
            ("patch apikeys --subresource=status -A", true),
            ("get secrets -A", false),
            ("get configmaps -n kube-system", false),
            ("list configmap/rooflet-fleet-trust -n kube-system", true),
            ("update modeldeployments -A", false),
            ("delete fleetnodes", false),
            ("approve certificatesigningrequests", false),
        ],
    );
    let controller = of("controller");
    assert_permissions(
        &controller,
        &[
            ("create modelreplicas -A", true),
            ("patch fleetnodes --subresource=status", true),
            ("get secrets -A", false),
            ("list apikeys -A", false),
            ("create modeldeployments -A", false),
            ("delete fleetnodes", false),
        ],
    );

    // The audit log shows which process did what.
    let log = std::fs::read_to_string(data.join("audit.log"));
    let log = log.expect("the audit log");
    for (user, verb, resource) in [
        ("rooflet:controller:", "create", "modelreplicas"),
        ("rooflet:gateway:", "watch", "modelreplicas"),
    ] {
        let is_found = log.lines().any(|line| {
            let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let by = event["user"]["username"].as_str().unwrap_or_default();
            by.starts_with(user) && event["verb"] == verb && event["objectRef"]["resource"] == resource
        });
        assert!(is_found, "{user} {verb} {resource}");
    }
    let refused: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("rooflet:gateway:") || line.contains("rooflet:controller:"))
        .filter(|line| line.contains("\"forbid\"") && !line.contains("kubectl"))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

/// The certificate for agents, which the gateway requests with its own identity.
#[test]
fn gateway_gets_its_machine_certificate_without_an_administrator() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    eventually("the approved request of the gateway", || {
        let columns = "-o=custom-columns=BY:.spec.username,WHY:.status.conditions[*].reason";
        let found = cluster
            .kubectl
            .run(&format!("get csr --no-headers {columns}"))
            .ok();
        let is_approved = |line: &str| line.contains("rooflet:gateway:") && line.contains("AutoApproved");
        match found.lines().any(is_approved) {
            true => Ok(()),
            false => Err(found),
        }
    });
}
