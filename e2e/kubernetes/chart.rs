//! Helm with the chart: validation by the server, installation, upgrade from an earlier chart,
//! rollback and removal.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::cluster::KubernetesCluster;
use super::control_plane::NAMESPACE;
use super::helm::Helm;
use super::releases;
use crate::harness::{Scratch, eventually, repository};

const CHART: &str = "charts/rooflet";
const OLD_CHART: &str = "e2e/kubernetes/old-chart";
/// Values that enable every optional object.
const ALL_VALUES: &str = "charts/testdata/all.yaml";

#[test]
fn chart_is_installed_upgraded_rolled_back_and_removed() {
    let Some(cluster) = KubernetesCluster::start() else {
        return;
    };
    server_accepts_all_variants(&cluster);
    plain_manifests_are_accepted(&cluster);
    let helms = releases::helms(&cluster.kubeconfig, cluster.scratch.path());
    for helm in &helms {
        release_is_managed(&cluster, helm);
    }
}

/// Kubernetes 1.33 is the oldest version that kube-apiserver 1.36 emulates.
#[test]
fn definitions_are_accepted_by_an_earlier_version() {
    let Some(cluster) = KubernetesCluster::start_with(&["--emulated-version=1.33"]) else {
        return;
    };
    let version = cluster.kubectl.run("get --raw /version").ok();
    assert!(version.contains("\"emulationMinor\": \"33\""), "{version}");
    let definitions = repository("manifests/crds.yaml").display().to_string();
    cluster
        .kubectl
        .run(&format!("apply --server-side -f {definitions}"))
        .ok();
    cluster
        .kubectl
        .run("wait --for=condition=Established crd --all --timeout=60s")
        .ok();
}

#[test]
fn versions_of_helm_render_the_same_objects() {
    let scratch = Scratch::new();
    let helms = releases::helms(&scratch.join("absent"), scratch.path());
    let rendered = helms.iter().map(|helm| {
        let run = |args: &[&str]| helm.run(args).unwrap_or_else(|error| panic!("{error}"));
        run(&["lint", "--strict", CHART]);
        let values = format!("--values={ALL_VALUES}");
        let text = run(&["template", "rooflet", CHART, &values, "--kube-version=1.36.0"]);
        let documents = text.split("---\n").map(|document| document.trim().to_owned());
        documents
            .filter(|document| !document.is_empty())
            .collect::<BTreeSet<_>>()
    });
    if let [three, four] = rendered.collect::<Vec<_>>().as_slice() {
        assert_eq!(four, three);
    }
}

fn release_is_managed(cluster: &KubernetesCluster, helm: &Helm) {
    let namespace = format!("--namespace={NAMESPACE}");
    let release = |args: &[&str]| helm.run(&[args, &[namespace.as_str()]].concat());
    release(&["install", "rooflet", OLD_CHART, "--create-namespace"]).expect("installed");
    let deployment = json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment",
        "metadata": {"name": "kept"}, "spec": {"model": {"source": "local://guide"}}});
    eventually("a stored deployment", || {
        let applied = cluster.kubectl.apply(&deployment.to_string());
        applied.success.then_some(()).ok_or(applied.stderr)
    });
    assert!(!has_strategy(cluster));

    release(&["upgrade", "rooflet", CHART, "--set=agents.nodes={mini-1}"]).expect("upgraded");
    eventually("the new definition", || match has_strategy(cluster) {
        true => Ok(()),
        false => Err("the definition is the old one".to_owned()),
    });
    let kept = || {
        cluster
            .kubectl
            .json("modeldeployment kept")
            .expect("the stored object")
    };
    assert_eq!(kept()["spec"]["model"]["source"], "local://guide");
    // The server applies the new schema to the stored object.
    let patched = cluster.kubectl.run_with(
        &[
            "patch",
            "mdep",
            "kept",
            "--type=merge",
            "-p",
            r#"{"spec": {"serving": {"contextTokens": 2048}}}"#,
        ],
        "",
    );
    patched.ok();
    assert_eq!(kept()["spec"]["serving"]["contextTokens"], 2048);
    assert_eq!(controllers(cluster), 2);

    release(&["rollback", "rooflet", "1"]).expect("rolled back");
    assert_eq!(controllers(cluster), 1);
    kept();
    // `helm rollback rooflet 2` fails if revision 2 has a definition that revision 1 does not have:
    // Helm keeps the definition, but does not find it in the current release.
    release(&["upgrade", "rooflet", CHART, "--set=agents.nodes={mini-1}"]).expect("upgraded again");
    assert_eq!(controllers(cluster), 2);
    assert_eq!(kept()["spec"]["model"]["source"], "local://guide");

    release(&["uninstall", "rooflet", "--wait"]).expect("removed");
    kept();
    let left = cluster.kubectl.run(&format!(
        "get all,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets -A -o name \
         -l app.kubernetes.io/instance=rooflet --namespace={NAMESPACE}"
    ));
    assert_eq!(left.ok(), "");
    let left = "get clusterroles,clusterrolebindings,validatingadmissionpolicies -o name \
                -l app.kubernetes.io/instance=rooflet";
    assert_eq!(cluster.kubectl.run(left).ok(), "");

    // The definitions that the removed release left behind belong to a new release of this name.
    release(&["install", "rooflet", CHART]).expect("installed again");
    kept();
    release(&["uninstall", "rooflet", "--wait"]).expect("removed again");
    cluster.kubectl.run("delete mdep kept --timeout=60s").ok();
    definitions_are_served(cluster);
    let definitions = "delete crd -l app.kubernetes.io/name=rooflet --timeout=60s";
    cluster.kubectl.run(definitions).ok();
    let namespace = format!("delete namespace {NAMESPACE} --timeout=60s");
    cluster.kubectl.run(&namespace).ok();
}

/// Returns whether the stored definition has a field of the current version.
fn has_strategy(cluster: &KubernetesCluster) -> bool {
    let definition = cluster
        .kubectl
        .json("crd modeldeployments.rooflet.dev")
        .expect("installed");
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["strategy"].is_object()
}

fn controllers(cluster: &KubernetesCluster) -> u64 {
    let deployment = cluster
        .kubectl
        .json(&format!("--namespace={NAMESPACE} deployment rooflet-controller"))
        .expect("installed");
    deployment["spec"]["replicas"].as_u64().unwrap_or_default()
}

/// Renders the chart with a file of values and returns the objects.
fn rendered(cluster: &KubernetesCluster, values: &str) -> Vec<Value> {
    let namespace = format!("--namespace={NAMESPACE}");
    let values = format!("--values={values}");
    let text = cluster
        .helm(&[
            "template",
            "rooflet",
            CHART,
            &namespace,
            &values,
            "--set=crds.install=false",
            // Without a cluster, Helm assumes an old version.
            "--kube-version=1.36.0",
        ])
        .expect("rendered");
    let converted = cluster.kubectl.run_with(
        &[
            "create",
            "--dry-run=client",
            "--validate=false",
            "-f",
            "-",
            "-o",
            "json",
        ],
        &known_kinds(&text),
    );
    let converted = converted.ok();
    let stream = serde_json::Deserializer::from_str(&converted).into_iter::<Value>();
    stream.map(|object| object.expect("JSON")).collect()
}

/// Returns the documents without the kinds of operators, which the cluster does not serve.
fn known_kinds(text: &str) -> String {
    let documents = text.split("\n---\n").filter(|document| {
        ["monitoring.coreos.com/", "gateway.networking.k8s.io/"]
            .iter()
            .all(|group| !document.contains(&format!("apiVersion: {group}")))
    });
    documents.collect::<Vec<_>>().join("\n---\n")
}

/// Sends every object that the chart can contain to the server, which checks fields and rules.
fn server_accepts_all_variants(cluster: &KubernetesCluster) {
    cluster.kubectl.run(&format!("create namespace {NAMESPACE}")).ok();
    for values in ["charts/rooflet/values.yaml", ALL_VALUES] {
        for object in rendered(cluster, values) {
            let applied = cluster.kubectl.run_with(
                &[
                    "apply",
                    "--server-side",
                    "--dry-run=server",
                    "--validate=strict",
                    "-f",
                    "-",
                ],
                &object.to_string(),
            );
            assert!(applied.success, "{}\n{object:#}", applied.stderr);
        }
    }
    let all = rendered(cluster, ALL_VALUES);
    let kinds: Vec<_> = all.iter().filter_map(|object| object["kind"].as_str()).collect();
    for kind in [
        "Ingress",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "ValidatingAdmissionPolicy",
    ] {
        assert!(kinds.contains(&kind), "{kind}");
    }
    for object in all.iter().filter(|object| object["kind"] == "Deployment") {
        let pod = &object["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert!(
            container["livenessProbe"].is_object() && container["resources"]["limits"]["memory"].is_string()
        );
        let image = container["image"].as_str().unwrap_or_default();
        assert!(image.starts_with("ghcr.io/rooflet/rooflet@sha256:"), "{image}");
    }
    cluster
        .kubectl
        .run(&format!("delete namespace {NAMESPACE} --timeout=60s"))
        .ok();
}

/// Applies manifests/ with kubectl, checks that a second time changes nothing, and deletes all.
fn plain_manifests_are_accepted(cluster: &KubernetesCluster) {
    let directory = repository("manifests").display().to_string();
    let apply = ["apply", "--server-side", "-k", directory.as_str()];
    cluster.kubectl.run_with(&apply, "").ok();
    let difference = cluster
        .kubectl
        .run_with(&["diff", "--server-side", "-k", &directory], "");
    assert_eq!(difference.ok(), "");
    definitions_are_served(cluster);
    cluster
        .kubectl
        .run_with(&["delete", "-k", &directory, "--timeout=60s"], "")
        .ok();
}

/// Lists the objects of all definitions. kube-apiserver deletes a definition only minutes later if its storage
/// has never been used.
fn definitions_are_served(cluster: &KubernetesCluster) {
    let definitions = cluster.kubectl.json("crd").expect("definitions");
    for definition in definitions["items"].as_array().expect("a list") {
        let kind = definition["metadata"]["name"].as_str().expect("a name");
        eventually(kind, || match cluster.kubectl.run(&format!("get {kind}")) {
            listed if listed.success => Ok(()),
            listed => Err(listed.stderr),
        });
    }
}
