//! Joining of machines with a token, and the permissions of nodes.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;

use crate::harness::{Cluster, Kubectl, Process, eventually, rooflet};

pub(super) const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  model: {source: local://guide}
  serving: {contextTokens: 256, maxConcurrency: 2}
";

/// Returns the arguments of the join command that `rooflet token create` prints.
pub(super) fn join_line(cluster: &Cluster, more: &str) -> Vec<String> {
    let server = format!("https://{}", cluster.address);
    let output = cluster.rooflet(&format!("token create --server={server} {more}"));
    assert!(output.status.success(), "{}", output_text(&output));
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = line.split_whitespace().map(str::to_owned);
    let words: Vec<String> = words.skip(1).collect();
    assert_eq!((words[0].as_str(), words[1].as_str()), ("join", server.as_str()));
    words
}

/// Runs the join command for a node with a separate state directory.
pub(super) fn join(cluster: &Cluster, line: &[String], node: &str) -> Output {
    Command::new(rooflet())
        .args(line)
        .arg(format!("--node-name={node}"))
        .arg(format!("--state-dir={}", cluster.scratch.join(node).display()))
        .output()
        .expect("the binary starts")
}

pub(super) fn output_text(output: &Output) -> String {
    let bytes = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[track_caller]
fn assert_rejected(output: &Output, why: &str) {
    let printed = output_text(output);
    assert!(!output.status.success() && printed.contains(why), "{printed}");
}

/// Starts the agent of a joined node, which needs neither a kubeconfig nor a name.
fn agent(cluster: &Cluster, node: &str) -> Process {
    let args = [
        "agent".to_owned(),
        format!("--state-dir={}", cluster.scratch.join(node).display()),
        format!("--model-dir={}", cluster.model_dir.display()),
        "--no-probe".to_owned(),
    ];
    Process::start(args, &cluster.scratch.join(&format!("{node}.log")))
}

/// Returns kubectl with the credentials of a node.
pub(super) fn as_node(cluster: &Cluster, node: &str) -> Kubectl {
    let kubeconfig = cluster.scratch.join(node).join("kubeconfig");
    Kubectl::find(&kubeconfig, Path::new(&cluster.scratch.join(node))).expect("kubectl is installed")
}

/// Returns the client certificate in the kubeconfig of a node.
fn certificate(cluster: &Cluster, node: &str) -> String {
    let path = cluster.scratch.join(node).join("kubeconfig");
    let text = std::fs::read_to_string(path).expect("a kubeconfig");
    let (_, rest) = text
        .split_once("client-certificate-data:")
        .expect("a certificate");
    let mut words = rest.split_whitespace();
    // A long text starts on the next line.
    words
        .find(|word| *word != ">-")
        .expect("a certificate")
        .to_owned()
}

/// Replaces the certificate of the only joined node by one with the same key that expires in ten
/// minutes.
fn shorten_certificate(cluster: &Cluster, node: &str) {
    let made = cluster.kubectl.json("csr").expect("requests");
    let made = made["items"].as_array().expect("a list");
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    let made = made.iter().find(|made| made["spec"]["signerName"] == signer);
    let request = made.expect("a request of a node")["spec"]["request"]
        .as_str()
        .expect("a request");
    let kubectl = as_node(cluster, node);
    let csr = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "short"},
        "spec": {
            "request": request,
            "signerName": signer,
            "expirationSeconds": 600,
            "usages": ["digital signature", "client auth"],
        },
    });
    kubectl
        .run_with(&["create", "--validate=false", "-f", "-"], &csr.to_string())
        .ok();
    let signed = eventually("a short certificate", || {
        let found = kubectl.json("csr/short")?;
        let signed = found["status"]["certificate"].as_str().map(str::to_owned);
        signed.ok_or_else(|| found.to_string())
    });
    let path = cluster.scratch.join(node).join("kubeconfig");
    let text = std::fs::read_to_string(&path).expect("a kubeconfig");
    std::fs::write(&path, text.replace(&certificate(cluster, node), &signed)).expect("written");
}

#[test]
fn mac_joins_renews_its_certificate_and_may_access_only_its_objects() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let line = join_line(&cluster, "--description=rack");
    let listed = output_text(&cluster.rooflet("token list"));
    let token = line.iter().position(|word| word == "--token").expect("a token") + 1;
    let (id, secret) = line[token].split_once('.').expect("an id and a secret");
    assert!(
        listed.contains(id) && listed.contains("rack") && !listed.contains(secret),
        "{listed}"
    );
    for node in ["mini-1", "mini-2"] {
        let joined = join(&cluster, &line, node);
        assert!(joined.status.success(), "{}", output_text(&joined));
        assert!(
            output_text(&joined).contains("rooflet agent "),
            "{}",
            output_text(&joined)
        );
        if node == "mini-1" {
            shorten_certificate(&cluster, node);
        }
    }
    let short = certificate(&cluster, "mini-1");

    let _agents = ["mini-1", "mini-2"].map(|node| agent(&cluster, node));
    for node in ["mini-1", "mini-2"] {
        eventually("the node", || cluster.kubectl.json(&format!("mac/{node}")));
        cluster
            .kubectl
            .wait_for_condition(&format!("mac/{node}"), "Ready", "True");
    }
    eventually("a renewed certificate", || {
        match certificate(&cluster, "mini-1") {
            unchanged if unchanged == short => Err("the certificate is unchanged".to_owned()),
            _ => Ok(()),
        }
    });
    cluster.kubectl.apply(GUIDE).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");
    eventually("an answer", || {
        match cluster.gateway.try_chat("guide", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });

    let node = as_node(&cluster, "mini-1");
    node.run("get mac mini-1").ok();
    for forbidden in [
        "get mac mini-2",
        "get mac",
        "get mac no-such-mac",
        "label mac mini-2 team=x",
        "delete mac mini-2",
        "delete mac mini-1",
        "get secrets -A",
        "get mdep -A",
        "delete mdep guide",
        "get mrep -A",
        "get lease -A",
        "get namespaces",
        "create configmap x",
        "create namespace x",
        "get crd",
        "get csr",
    ] {
        let why = node.run(forbidden).expect_failure();
        assert!(why.contains("orbidden"), "{forbidden}: {why}");
    }
    cluster.kubectl.run("get mac mini-2").ok();

    // Joined nodes keep their access after the deletion of the token.
    let deleted = cluster.rooflet(&format!("token delete {id}"));
    assert!(deleted.status.success(), "{}", output_text(&deleted));
    assert_rejected(&join(&cluster, &line, "mini-3"), "nauthorized");
    node.run("get mac mini-1").ok();
}

#[test]
fn join_rejects_a_wrong_server_or_token() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let line = join_line(&cluster, "--ttl=1h");
    let with = |at: &str, value: &str| {
        let mut line = line.clone();
        let at = line.iter().position(|word| word == at).expect("a flag");
        line[at + 1] = value.to_owned();
        line
    };
    let other = format!("sha256:{}", "0".repeat(64));
    assert_rejected(&join(&cluster, &with("--ca-hash", &other), "mini"), "--ca-hash");
    assert_rejected(
        &join(&cluster, &with("--ca-hash", "sha256:1"), "mini"),
        "64 hexadecimal",
    );
    assert_rejected(
        &join(&cluster, &with("--token", "secret"), "mini"),
        "a token consists",
    );
    assert_rejected(
        &join(&cluster, &with("--token", "abcdef.0123456789abcdef"), "mini"),
        "nauthorized",
    );
    assert_rejected(
        &join(&cluster, &with("join", "http://localhost:1"), "mini"),
        "https://HOST:PORT",
    );
    assert_rejected(
        &join(&cluster, &with("join", "https://127.0.0.1:1"), "mini"),
        "no server responds",
    );
    assert_rejected(&join(&cluster, &line, "Bob's Mac"), "--node-name");
    assert!(!cluster.scratch.join("mini").join("kubeconfig").exists());

    // The error of an agent that has not joined contains the remedy.
    let mut agent = agent(&cluster, "mini");
    assert!(!agent.wait().success());
    assert!(agent.log().contains("rooflet join"), "{}", agent.log());
}
