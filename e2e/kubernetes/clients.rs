//! Clients of other projects, in Go: client-go with protobuf, gnostic, kstatus, the types of Flux, and the
//! Lua of Argo CD.
//!
//! `cargo xtask test-kubernetes` builds them from the folder `clients`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::cluster::KubernetesCluster;
use crate::harness::{Cluster, Fleet, eventually, not_run, repository};

/// Returns the path of a client, or `None` if it is not provided.
pub(super) fn client(name: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("ROOFLET_KUBERNETES_CLIENTS");
    if directory.is_none() {
        not_run("the clients that `cargo xtask test-kubernetes` builds with Go");
    }
    Some(PathBuf::from(directory?).join(name))
}

/// Runs a client, which fails if the server's answers are not as expected.
fn run(program: &Path, kubeconfig: &Path) {
    let output = Command::new(program).env("KUBECONFIG", kubeconfig).output();
    let output = output.expect("the client starts");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{stdout}{stderr}");
}

#[test]
fn clients_run_on_the_embedded_server() {
    let (Some(client_go), Some(documents)) = (client("client-go"), client("documents")) else {
        return;
    };
    let Some(cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let kubeconfig = cluster.scratch.join("kubeconfig");
    run(&client_go, &kubeconfig);
    run(&documents, &kubeconfig);
}

/// Checks the expectations of the clients.
#[test]
fn clients_run_on_kube_apiserver() {
    let (Some(client_go), Some(documents)) = (client("client-go"), client("documents")) else {
        return;
    };
    let Some(cluster) = KubernetesCluster::start() else {
        return;
    };
    run(&client_go, &cluster.kubeconfig);
    run(&documents, &cluster.kubeconfig);
}

/// Results of the tools for an object.
#[derive(Debug)]
struct Health {
    /// Status by kstatus.
    kstatus: String,
    /// Status by the health check of Argo CD, or empty without one.
    argo: String,
}

fn health(program: &Path, object: &Value) -> Health {
    let kind = object["kind"].as_str().expect("a kind");
    let mut child = Command::new(program)
        .arg(repository("examples/gitops/argocd-cm.yaml"))
        .arg(format!("resource.customizations.health.rooflet.dev_{kind}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(object.to_string().as_bytes()).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success(), "{kind}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let result = |prefix: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(prefix));
        line.and_then(|line| line.split(':').next())
            .unwrap_or_default()
            .to_owned()
    };
    Health {
        kstatus: result("kstatus "),
        argo: result("health "),
    }
}

#[test]
fn gitops_tools_read_the_health_of_objects() {
    let Some(program) = client("health") else { return };
    let Some((_fleet, kubectl)) = Fleet::with_guide() else {
        return;
    };
    let reads = |object: &str, kstatus: &str, argo: &str| {
        eventually(&format!("{object}: {kstatus} and {argo}"), || {
            let found = kubectl.json(object)?;
            let health = health(&program, &found);
            match (&*health.kstatus, &*health.argo) == (kstatus, argo) {
                true => Ok(found),
                false => Err(format!("{health:?} of {found}")),
            }
        })
    };
    let ready = reads("mdep guide", "Current", "Healthy");
    let nodes = kubectl.json("mac").expect("nodes");
    let node = nodes["items"][0]["metadata"]["name"].as_str().expect("a name");
    reads(&format!("mac {node}"), "Current", "");
    let replicas = kubectl.json("mrep").expect("replicas");
    let replica = replicas["items"][0]["metadata"]["name"].as_str().expect("a name");
    reads(&format!("mrep {replica}"), "Current", "");
    kubectl
        .apply(
            "apiVersion: rooflet.dev/v1alpha1\nkind: FleetNode\nmetadata: {name: without-agent}\nspec: {}\n",
        )
        .ok();
    reads("mac without-agent", "InProgress", "");
    kubectl.run("delete mac without-agent").ok();

    // The controller has not processed a new generation.
    let mut newer = ready.clone();
    newer["metadata"]["generation"] = json!(100);
    let found = health(&program, &newer);
    assert_eq!((&*found.kstatus, &*found.argo), ("InProgress", "Progressing"));
    let mut deleted = ready;
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(health(&program, &deleted).kstatus, "Terminating");

    // A model that does not exist: first in progress, then failed, then repaired.
    let deployment = |source: &str| {
        format!(
            "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {{name: failing}}\nspec:\n  \
             progressDeadlineSeconds: 5\n  serving: {{contextTokens: 512, maxConcurrency: 1}}\n  \
             model: {{source: 'local://{source}'}}\n"
        )
    };
    kubectl.apply(&deployment("absent")).ok();
    reads("mdep failing", "InProgress", "Progressing");
    reads("mdep failing", "Failed", "Degraded");
    kubectl.apply(&deployment("guide")).ok();
    reads("mdep failing", "Current", "Healthy");
    kubectl.run("delete mdep failing").ok();

    let plan = repository("examples/plan.yaml");
    kubectl.run(&format!("apply -f {}", plan.display())).ok();
    let found = kubectl.wait_for_condition("cplan team-chat", "Feasible", "False");
    assert_eq!(found["status"], "False");
    reads("cplan team-chat", "Current", "Degraded");
    let claims = repository("examples/claims.yaml");
    kubectl.run(&format!("apply -f {}", claims.display())).ok();
    reads("pclaim too-fast", "Current", "");
}

#[test]
fn flux_accepts_the_example() {
    let Some(program) = client("flux") else { return };
    let example = repository("examples/gitops/flux.yaml");
    let output = Command::new(&program).arg(&example).output();
    let output = output.expect("the program starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(printed, "wait true\n");
}
