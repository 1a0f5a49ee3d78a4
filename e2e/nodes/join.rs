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
pub(crate) fn join_line(cluster: &Cluster, more: &str) -> Vec<String> {
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
pub(crate) fn join(cluster: &Cluster, line: &[String], node: &str) -> Output {
    Command::new(rooflet())
        .args(line)
        .arg(format!("--node-name={node}"))
        .arg(format!("--state-dir={}", cluster.scratch.join(node).display()))
        .output()
        .expect("the binary starts")
}

pub(crate) fn output_text(output: &Output) -> String {
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
pub(super) fn valid_certificate(cluster: &Cluster, node: &str) -> String {
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
pub(super) fn shorten_certificate(cluster: &Cluster, node: &str) {
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
    std::fs::write(&path, text.replace(&valid_certificate(cluster, node), &signed)).expect("written");
}

/// Tries to register a node with a spec, before its agent registers it.
fn node_cannot_set_its_own_spec(cluster: &Cluster, node: &str) {
    let of_spec = "may not set the spec of its FleetNode";
    for (metadata, spec, why) in [
        ("", "{drain: true}", of_spec),
        ("", "{taints: [{key: a, effect: NoSchedule}]}", of_spec),
        (
            ", finalizers: [example.com/held]",
            "{}",
            "may not change metadata.finalizers of its FleetNode",
        ),
    ] {
        let object = format!(
            "apiVersion: rooflet.dev/v1alpha1\nkind: FleetNode\nmetadata: {{name: {node}{metadata}}}\n\
             spec: {spec}\n"
        );
        let create = ["create", "--validate=false", "-f", "-"];
        let found = as_node(cluster, node).run_with(&create, &object).expect_failure();
        assert!(found.contains(why), "{object}: {found}");
    }
}

#[test]
fn mac_joins_renews_its_certificate_and_may_access_only_its_objects() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let line = join_line(&cluster, "--description=rack");
    let listed = output_text(&cluster.rooflet("token list"));
    let token = line.iter().position(|word| word == "--token").expect("a token") + 1;
    let parts: Vec<&str> = line[token].split('.').collect();
    let ["rf1", _, id, secret] = parts.as_slice() else {
        panic!("{}", line[token]);
    };
    assert!(
        listed.contains(id) && listed.contains("rack") && !listed.contains(secret),
        "{listed}"
    );
    for node in ["mini-1", "mini-2"] {
        let joined = join(&cluster, &line, node);
        assert!(joined.status.success(), "{}", output_text(&joined));
        node_cannot_set_its_own_spec(&cluster, node);
        assert!(
            output_text(&joined).contains("rooflet agent "),
            "{}",
            output_text(&joined)
        );
        if node == "mini-1" {
            shorten_certificate(&cluster, node);
        }
    }
    let short = valid_certificate(&cluster, "mini-1");

    let _agents = ["mini-1", "mini-2"].map(|node| agent(&cluster, node));
    for node in ["mini-1", "mini-2"] {
        eventually("the node", || cluster.kubectl.json(&format!("mac/{node}")));
        cluster
            .kubectl
            .wait_for_condition(&format!("mac/{node}"), "Ready", "True");
    }
    eventually("a renewed certificate", || {
        match valid_certificate(&cluster, "mini-1") {
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
        "label mac mini-1 team=x",
        "delete mac mini-2",
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
    // Labels that placement selects are set by users only. The agent sets its own labels.
    node.run("label mac mini-1 kubernetes.io/os=test --overwrite")
        .ok();
    cluster.kubectl.run("label mac mini-1 example.com/rack=7").ok();
    for change in ["example.com/rack=8 --overwrite", "example.com/rack-", "zone=a"] {
        let why = node.run(&format!("label mac mini-1 {change}")).expect_failure();
        let label = change.split(['=', '-']).next().expect("a label");
        assert!(
            why.contains(&format!("may not change the label {label} of its FleetNode")),
            "{change}: {why}"
        );
    }
    let applied =
        "apiVersion: rooflet.dev/v1alpha1\nkind: FleetNode\nmetadata: {name: mini-1, labels: {zone: a}}\n";
    let apply = ["apply", "--server-side", "--validate=false", "-f", "-"];
    let why = node.run_with(&apply, applied).expect_failure();
    assert!(why.contains("may not change the label zone "), "{why}");
    eventually("the label of the agent", || {
        let mac = cluster.kubectl.json("mac/mini-1")?;
        let labels = &mac["metadata"]["labels"];
        match labels["kubernetes.io/os"] != "test" && labels["example.com/rack"] == "7" {
            true => Ok(()),
            false => Err(labels.to_string()),
        }
    });

    // Joined nodes keep their access after the deletion of the token.
    let deleted = cluster.rooflet(&format!("token delete {id}"));
    assert!(deleted.status.success(), "{}", output_text(&deleted));
    assert_rejected(&join(&cluster, &line, "mini-3"), "rejected the credentials");
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
    let token = line.last().expect("a token");
    let hash = token.split('.').nth(1).expect("a hash");
    for (wrong, why) in [
        (
            token.replace(hash, &"0".repeat(64)),
            "its certificate authority has another hash",
        ),
        (token.replace(hash, "1"), "64 hexadecimal"),
        ("secret".to_owned(), "neither rf1.HASH.ID.SECRET"),
        ("abcdef.0123456789abcdef".to_owned(), "--ca-hash is missing"),
        (
            format!("rf1.{hash}.abcdef.0123456789abcdef"),
            "rejected the credentials",
        ),
    ] {
        assert_rejected(&join(&cluster, &with("--token", &wrong), "mini"), why);
    }
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

#[test]
fn tokens_limit_nodes_and_uses() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver,controller"]) else {
        return;
    };
    let joins = |line: &[String], node: &str| {
        let joined = join(&cluster, line, node);
        assert!(joined.status.success(), "{}", output_text(&joined));
        output_text(&joined)
    };
    // The server stores a hash of the secret part.
    let line = join_line(&cluster, "--uses=1");
    let parts: Vec<&str> = line.last().expect("a token").split('.').collect();
    let secret = cluster
        .kubectl
        .json(&format!("-n kube-system secret/bootstrap-token-{}", parts[2]))
        .expect("the Secret of the token");
    assert!(secret["data"]["token-secret"].is_null(), "{secret}");
    assert!(secret["data"]["token-secret-hash"].is_string(), "{secret}");

    joins(&line, "mini-1");
    assert_rejected(&join(&cluster, &line, "mini-2"), "no uses left");
    assert!(output_text(&cluster.rooflet("token list")).contains(" 0 "));
    // The same machine joins again: it needs no use, and keeps its certificate.
    let before = valid_certificate(&cluster, "mini-1");
    assert!(joins(&line, "mini-1").contains("has joined"));
    assert_eq!(valid_certificate(&cluster, "mini-1"), before);

    // Another machine cannot take over the name of a node.
    let _agent = agent(&cluster, "mini-1");
    eventually("the node", || cluster.kubectl.json("mac/mini-1"));
    let line = join_line(&cluster, "");
    let other = Command::new(rooflet())
        .args(&line)
        .arg("--node-name=mini-1")
        .arg(format!("--state-dir={}", cluster.scratch.join("other").display()))
        .output()
        .expect("the binary starts");
    assert_rejected(&other, "rooflet token create --node mini-1");
    let bound = join_line(&cluster, "--node=mini-1");
    assert_rejected(&join(&cluster, &bound, "mini-3"), "permits only the node mini-1");
    std::fs::remove_file(cluster.scratch.join("mini-1").join("kubeconfig")).expect("removed");
    joins(&bound, "mini-1");

    // The token can come from a file.
    let file = cluster
        .scratch
        .write("token", &format!("{}\n", line.last().expect("a token")));
    let mut from_file = line.clone();
    from_file.truncate(2);
    from_file.push(format!("--token-file={}", file.display()));
    joins(&from_file, "mini-4");
    from_file.truncate(2);
    assert_rejected(&join(&cluster, &from_file, "mini-5"), "--token-file is missing");
}

#[test]
fn machine_leaves_and_its_certificate_is_revoked() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let line = join_line(&cluster, "");
    let joined = join(&cluster, &line, "mini-1");
    assert!(joined.status.success(), "{}", output_text(&joined));
    let mut agent = agent(&cluster, "mini-1");
    eventually("the node", || cluster.kubectl.json("mac/mini-1"));
    cluster.kubectl.wait_for_condition("mac/mini-1", "Ready", "True");
    cluster.kubectl.apply(GUIDE).ok();
    cluster.kubectl.wait_for_condition("mdep/guide", "Ready", "True");

    let state = cluster.scratch.join("mini-1");
    let leave = |more: &str| {
        Command::new(rooflet())
            .arg("leave")
            .arg(format!("--state-dir={}", state.display()))
            .args(more.split_whitespace())
            .output()
            .expect("the binary starts")
    };
    assert_rejected(&leave(""), "rooflet drain mini-1");
    cluster.kubectl.run("delete mdep guide").ok();
    eventually("no replica", || {
        let left = cluster.kubectl.json("mrep")?;
        match left["items"].as_array().is_some_and(Vec::is_empty) {
            true => Ok(()),
            false => Err(left.to_string()),
        }
    });
    assert!(agent.terminate().success(), "{}", agent.log());
    let credentials = std::fs::read_to_string(state.join("kubeconfig")).expect("a kubeconfig");
    let left = leave("");
    assert!(left.status.success(), "{}", output_text(&left));
    assert!(!state.join("kubeconfig").exists() && !state.join("machine-tls.json").exists());
    assert!(cluster.kubectl.json("mac/mini-1").is_err());
    assert!(output_text(&leave("")).contains("has not joined"));

    // A copy of the credentials is useless, and the machine can join again.
    std::fs::write(state.join("kubeconfig"), credentials).expect("written");
    eventually("the revocation", || {
        match as_node(&cluster, "mini-1").run("get mac mini-1").stderr {
            refused
                if refused.contains("rejected the credentials") || refused.contains("must be logged in") =>
            {
                Ok(())
            }
            other => Err(other),
        }
    });
    let joined = join(&cluster, &line, "mini-1");
    assert!(joined.status.success(), "{}", output_text(&joined));
    let found = as_node(&cluster, "mini-1").run("get mac mini-1").expect_failure();
    assert!(found.contains("NotFound"), "{found}");
}

#[test]
fn guessing_of_tokens_is_stopped() {
    let Some(cluster) = Cluster::start(&["--roles=apiserver"]) else {
        return;
    };
    let line = join_line(&cluster, "");
    let token = line.last().expect("a token");
    let secret = token.split('.').next_back().expect("a secret");
    let mut wrong = line.clone();
    wrong.pop();
    wrong.push(token.replace(secret, "0123456789abcdef"));
    for _ in 0..10 {
        assert_rejected(&join(&cluster, &wrong, "mini"), "rejected the credentials");
    }
    for line in [&wrong, &line] {
        assert_rejected(&join(&cluster, line, "mini"), "too many wrong bootstrap tokens");
    }
    // Other credentials of the same address stay valid.
    cluster.kubectl.run("get namespaces").ok();
}
