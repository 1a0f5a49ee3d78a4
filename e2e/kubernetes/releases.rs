//! Helm 3 and 4 with a chart of a user, on the embedded server and on kube-apiserver: installation, upgrade,
//! rollback and removal. Helm 4 uses server-side apply and waits with kstatus.

use std::path::Path;

use serde_json::Value;

use super::apply;
use super::clients::client;
use super::cluster::{KubernetesCluster, binary};
use super::helm::{Helm, Version};
use crate::harness::{Fleet, Kubectl, Process, eventually, repository};

const CHART: &str = "e2e/kubernetes/plain-chart";
const RELEASE: &str = "plain";
const COLOR: [&str; 2] = ["f:data", "f:color"];

/// Server under test.
struct Server<'a> {
    kubectl: &'a Kubectl,
    helms: [Helm; 2],
}

/// Returns the versions of Helm that are provided.
pub(super) fn helms(kubeconfig: &Path, home: &Path) -> Vec<Helm> {
    let programs = [(Version::Three, binary("helm")), (Version::Four, client("helm"))];
    let of = |(version, program): (Version, Option<_>)| Some(Helm::of(version, program?, kubeconfig, home));
    programs.into_iter().filter_map(of).collect()
}

/// Returns whether both versions are provided.
fn are_provided() -> bool {
    binary("helm").is_some() && client("helm").is_some()
}

fn both(kubeconfig: &Path, home: &Path) -> [Helm; 2] {
    let found = helms(kubeconfig, home).try_into();
    found.unwrap_or_else(|_| panic!("both versions are provided"))
}

#[test]
fn helm_manages_a_chart_on_the_embedded_server() {
    if !are_provided() {
        return;
    }
    let Some((fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    let server = Server {
        kubectl: &kubectl,
        helms: both(&fleet.kubeconfig(), fleet.scratch.path()),
    };
    check_all(&server);
    for helm in &server.helms {
        chart_with_deployments_is_refused(helm, &kubectl);
    }
}

#[test]
fn helm_manages_a_chart_on_kube_apiserver() {
    if !are_provided() {
        return;
    }
    let Some(cluster) = KubernetesCluster::start() else {
        return;
    };
    let _controller = apply::start_controller(&cluster);
    let _agent = start_agent(&cluster);
    check_all(&Server {
        kubectl: &cluster.kubectl,
        helms: both(&cluster.kubeconfig, cluster.scratch.path()),
    });
}

/// Starts an agent with the rights of the administrator.
fn start_agent(cluster: &KubernetesCluster) -> Process {
    let args = [
        "agent".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig.display()),
        format!("--state-dir={}", cluster.scratch.join("agent").display()),
        format!("--model-dir={}", repository("examples/models").display()),
        "--node-name=mini-1".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        "--no-probe".to_owned(),
    ];
    Process::start(args, &cluster.scratch.join("agent.log"))
}

fn check_all(server: &Server<'_>) {
    for helm in &server.helms {
        release_is_managed(server, helm);
    }
    release_of_helm_3_is_taken_over(server);
    failure_ends_the_wait(&server.helms[1], server.kubectl);
}

fn release_is_managed(server: &Server<'_>, helm: &Helm) {
    let kubectl = server.kubectl;
    let run = |args: &[&str]| helm.run(args).unwrap_or_else(|error| panic!("{error}"));
    let wait = ["--wait", "--timeout=2m"];
    run(&[&["install", RELEASE, CHART][..], &wait].concat());
    let deployment = || kubectl.json(&format!("mdep {RELEASE}")).expect("the deployment");
    match helm.version {
        // Helm 3 does not wait for custom kinds.
        Version::Three => drop(kubectl.wait_for_condition(&format!("mdep {RELEASE}"), "Ready", "True")),
        Version::Four => assert!(is_ready(&deployment()), "{:#}", deployment()),
    }
    assert_eq!(
        kubectl.json(&format!("note {RELEASE}")).expect("a note")["spec"]["text"],
        "red"
    );
    assert_eq!(revision_of(kubectl, "plain-hook"), "1");
    let owner = match helm.version {
        Version::Three => "helm Update",
        Version::Four => "helm Apply",
    };
    let owners = || apply::owners(kubectl, &format!("cm {RELEASE}"), &COLOR);
    assert_eq!(owners(), [owner]);

    let larger = ["--reuse-values", "--set=contextTokens=1024"];
    run(&[&["upgrade", RELEASE, CHART][..], &larger, &wait].concat());
    assert_eq!(deployment()["spec"]["serving"]["contextTokens"], 1024);
    assert_eq!(revision_of(kubectl, "plain-hook"), "2");
    // An upgrade without changes leaves the objects as they are.
    let generation = deployment()["metadata"]["generation"].clone();
    let version = || {
        kubectl.json(&format!("secret {RELEASE}")).expect("a secret")["metadata"]["resourceVersion"].clone()
    };
    let before = version();
    run(&["upgrade", RELEASE, CHART, "--reuse-values"]);
    assert_eq!(
        (deployment()["metadata"]["generation"].clone(), version()),
        (generation, before)
    );
    let history = run(&["history", RELEASE, "--output=json"]);
    let history: Value = serde_json::from_str(&history).expect("JSON");
    assert_eq!(history.as_array().map(Vec::len), Some(3), "{history}");

    if helm.version == Version::Four {
        conflict_is_reported(helm, kubectl);
    }
    run(&[&["rollback", RELEASE, "1"][..], &wait].concat());
    assert_eq!(deployment()["spec"]["serving"]["contextTokens"], 512);
    assert_eq!(revision_of(kubectl, RELEASE), "1");
    remove(helm, kubectl);
}

/// Removes the release, which leaves the definition behind. Deletes the definition.
fn remove(helm: &Helm, kubectl: &Kubectl) {
    let removed = helm.run(&["uninstall", RELEASE, "--wait", "--timeout=2m"]);
    removed.unwrap_or_else(|error| panic!("{error}"));
    let selected = format!("-l app.kubernetes.io/instance={RELEASE} -o name");
    let left = kubectl.run(&format!("get mdep,cm,secret,notes {selected}"));
    assert_eq!(left.ok(), "");
    assert_eq!(kubectl.run("get secrets -l owner=helm -o name").ok(), "");
    kubectl
        .run("delete crd notes.plain.example.com --timeout=60s")
        .ok();
    kubectl.run("delete cm plain-hook").ok();
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn revision_of(kubectl: &Kubectl, map: &str) -> String {
    let map = kubectl.json(&format!("cm {map}")).expect("a ConfigMap");
    map["data"]["revision"].as_str().unwrap_or_default().to_owned()
}

/// A field that another manager has changed stops an upgrade with server-side apply.
fn conflict_is_reported(helm: &Helm, kubectl: &Kubectl) {
    let other =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {RELEASE}}}\ndata: {{color: blue}}\n");
    let args = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=other",
        "-f",
        "-",
    ];
    kubectl.run_with(&args, &other).ok();
    let upgrade = ["upgrade", RELEASE, CHART, "--reuse-values"];
    let refused = helm.run(&upgrade).expect_err("a conflict");
    let expected = "conflict with \"other\"";
    assert!(
        refused.contains(expected) && refused.contains(".data.color"),
        "{refused}"
    );
    let forced = helm.run(&[&upgrade[..], &["--force-conflicts"]].concat());
    forced.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        apply::owners(kubectl, &format!("cm {RELEASE}"), &COLOR),
        ["helm Apply"]
    );
}

/// Helm 4 turns the fields that Helm 3 has set into fields of server-side apply.
fn release_of_helm_3_is_taken_over(server: &Server<'_>) {
    let ([three, four], kubectl) = (&server.helms, server.kubectl);
    let installed = three.run(&["install", RELEASE, CHART]);
    installed.unwrap_or_else(|error| panic!("{error}"));
    let args = [
        "upgrade",
        RELEASE,
        CHART,
        "--reuse-values",
        "--set=color=green",
        "--server-side=true",
        "--wait",
    ];
    let upgraded = four.run(&args);
    upgraded.unwrap_or_else(|error| panic!("{error}"));
    let map = format!("cm {RELEASE}");
    assert_eq!(apply::owners(kubectl, &map, &COLOR), ["helm Apply"]);
    assert_eq!(kubectl.json(&map).expect("a ConfigMap")["data"]["color"], "green");
    remove(four, kubectl);
}

/// `--wait` ends when the deployment has failed, long before its own time limit.
fn failure_ends_the_wait(helm: &Helm, kubectl: &Kubectl) {
    let args = [
        "install",
        RELEASE,
        CHART,
        "--set=source=local://absent",
        "--set=progressDeadlineSeconds=5",
        "--wait",
        "--timeout=10m",
    ];
    let failed = helm.run(&args).expect_err("the model does not exist");
    assert!(failed.contains("status: Failed"), "{failed}");
    assert!(!failed.contains("context deadline exceeded"), "{failed}");
    let args = [
        "upgrade",
        RELEASE,
        CHART,
        "--reuse-values",
        "--set=source=local://guide",
        "--wait",
    ];
    let repaired = helm.run(&args);
    repaired.unwrap_or_else(|error| panic!("{error}"));
    remove(helm, kubectl);
}

/// The chart of the control plane needs kinds that the embedded server does not serve. Nothing is created.
fn chart_with_deployments_is_refused(helm: &Helm, kubectl: &Kubectl) {
    let refused = helm.run(&["install", "rooflet", "charts/rooflet"]);
    let refused = refused.expect_err("the server has no Deployments");
    let expected = "no matches for kind \"Deployment\" in version \"apps/v1\"";
    assert!(refused.contains(expected), "{refused}");
    eventually("no release", || {
        match kubectl.run("get secrets,sa -A -l owner=helm -o name").ok() {
            names if names.is_empty() => Ok(()),
            names => Err(names),
        }
    });
    let roles = "get clusterroles,sa -A -l app.kubernetes.io/instance=rooflet -o name";
    assert_eq!(kubectl.run(roles).ok(), "");
}
