//! Tokens of agents: bound to a Secret of their FleetNode, renewed by the agent, and refused by
//! kube-apiserver when the FleetNode is deleted.
#![expect(
    clippy::disallowed_methods,
    reason = "tokens of tests expire by the real clock"
)]

use std::path::Path;
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::cluster::KubernetesCluster;
use super::control_plane::{NAMESPACE, create_token, install, join, run_agent};
use crate::access::oidc::signed_token;
use crate::harness::{Kubectl, eventually, rooflet};

const NODE: &str = "mini-1";
const ACCOUNT: &str = "rooflet-agent-mini-1";

#[test]
fn token_of_an_agent_is_valid_while_its_node_exists() {
    let Some(cluster) = KubernetesCluster::start() else {
        return;
    };
    install(&cluster, &[NODE, "mini-2"]);
    wrong_flags_are_rejected(&cluster);
    let join_token = kubeconfig_for_joining(&cluster);
    let printed = text(&join(&cluster, NODE, &join_token));
    assert!(
        printed.contains("node mini-1 joined https://127.0.0.1:"),
        "{printed}"
    );
    let kubeconfig = cluster.scratch.join(NODE).join("kubeconfig");
    let first = std::fs::read_to_string(&kubeconfig).expect("a kubeconfig");
    let again = text(&join(&cluster, NODE, &kubeconfig_for_joining(&cluster)));
    assert!(again.contains("node mini-1 has joined"), "{again}");
    let listed = Command::new(rooflet())
        .args(["token", "list"])
        .env("KUBECONFIG", &cluster.kubeconfig)
        .output();
    let listed = text(&listed.expect("the binary starts"));
    let state = |node: &str| {
        let line = listed.lines().map(str::trim).find(|line| line.starts_with(node));
        line.unwrap_or_else(|| panic!("{node}: {listed}")).to_owned()
    };
    assert!(
        state("mini-1").contains("rooflet-agent-mini-1") && state("mini-1").contains("valid"),
        "{listed}"
    );
    assert!(state("mini-2").contains("no token"), "{listed}");
    assert_eq!(std::fs::read_to_string(&kubeconfig).expect("a kubeconfig"), first);
    agent_may_request_only_bound_tokens(&cluster, &kubectl_with(&cluster, &kubeconfig));

    node_cannot_set_its_own_spec(&cluster, &kubectl_with(&cluster, &kubeconfig));

    let aged = aged_token(&cluster, &token(&first));
    std::fs::write(&kubeconfig, first.replace(&token(&first), &aged)).expect("written");
    let mut agent = run_agent(&cluster, NODE);
    eventually("a renewed token", || match agent.log() {
        log if log.contains("renewed the node's token") => Ok(()),
        log => Err(log),
    });
    let renewed = std::fs::read_to_string(&kubeconfig).expect("a kubeconfig");
    assert!(seconds_left(&token(&renewed)) > 80 * 24 * 3600, "{renewed}");
    cluster.kubectl.wait_for_condition("mac mini-1", "Ready", "True");

    // kube-controller-manager deletes the Secret.
    let old = cluster.scratch.join("old.kubeconfig");
    std::fs::write(&old, &renewed).expect("written");
    let old = kubectl_with(&cluster, &old);
    old.run("get fleetnode mini-1").ok();
    cluster.kubectl.run("delete fleetnode mini-1").ok();
    wait_until_refused(&old);
    eventually("the remedy in the log of the agent", || match agent.log() {
        log if log.contains("FleetNode mini-1: run `rooflet token create --node mini-1`") => Ok(()),
        log => Err(log),
    });
    wait_until_removed(&cluster);
    agent.terminate();

    let printed = text(&join(&cluster, NODE, &join_token));
    assert!(printed.contains("rejected the credentials"), "{printed}");
    let printed = text(&join(&cluster, NODE, &kubeconfig_for_joining(&cluster)));
    assert!(printed.contains("node mini-1 joined"), "{printed}");
    let mut agent = run_agent(&cluster, NODE);
    cluster.kubectl.wait_for_condition("mac mini-1", "Ready", "True");
    wait_until_refused(&old);
    agent.terminate();

    let current = cluster.scratch.join("current.kubeconfig");
    std::fs::copy(&kubeconfig, &current).expect("copied");
    let left = Command::new(rooflet())
        .arg("leave")
        .arg(format!("--state-dir={}", cluster.scratch.join(NODE).display()))
        .output();
    let left = text(&left.expect("the binary starts"));
    assert!(left.contains("node mini-1 left https://127.0.0.1:"), "{left}");
    assert!(!kubeconfig.exists());
    wait_until_refused(&kubectl_with(&cluster, &current));
    wait_until_removed(&cluster);
}

fn text(output: &Output) -> String {
    let bytes = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn kubeconfig_for_joining(cluster: &KubernetesCluster) -> Vec<u8> {
    let created = create_token(cluster, &["--node", NODE]);
    assert!(created.status.success(), "{}", text(&created));
    created.stdout
}

fn wrong_flags_are_rejected(cluster: &KubernetesCluster) {
    for (args, fault) in [
        (&[][..], "--node is missing"),
        (&["--node=mini-1", "--uses=1"], "--uses and --description"),
        (
            &["--node=mini-1", "--ttl=5m"],
            "--ttl: tokens of this cluster expire: pass a duration of at least 10m",
        ),
        (
            &["--node=mini-9"],
            "no ServiceAccount of the chart is for node mini-9: add mini-9 to the value agents.nodes",
        ),
    ] {
        let output = create_token(cluster, args);
        assert!(
            !output.status.success() && text(&output).contains(fault),
            "{args:?}: {}",
            text(&output)
        );
    }
    let foreign = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                   contexts: [{name: c, context: {cluster: c, user: c}}]\n\
                   clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n\
                   users: [{name: c, user: {token: t}}]\n";
    let output = join(cluster, NODE, foreign.as_bytes());
    let fault = "the kubeconfig does not contain the token of a node";
    assert!(
        !output.status.success() && text(&output).contains(fault),
        "{}",
        text(&output)
    );
}

fn kubectl_with(cluster: &KubernetesCluster, kubeconfig: &Path) -> Kubectl {
    Kubectl::of(&cluster.kubectl_program(), kubeconfig, cluster.scratch.path())
}

/// Without a binding, or bound to another Secret, a token would stay valid after the FleetNode is deleted.
fn agent_may_request_only_bound_tokens(cluster: &KubernetesCluster, agent: &Kubectl) {
    let create = format!("--namespace={NAMESPACE} create");
    cluster
        .kubectl
        .run(&format!("{create} secret generic other"))
        .ok();
    let bound = "--bound-object-kind=Secret --bound-object-name=";
    agent
        .run(&format!("{create} token {ACCOUNT} {bound}{ACCOUNT}"))
        .ok();
    let fault = "the agent of mini-1 may create only tokens bound to the Secret rooflet-agent-mini-1";
    for (words, fault) in [
        (format!("token {ACCOUNT}"), fault),
        (format!("token {ACCOUNT} {bound}other"), fault),
        (
            format!("token rooflet-agent-mini-2 {bound}{ACCOUNT}"),
            "cannot create resource",
        ),
        (format!("secret generic {ACCOUNT}-2"), "cannot create resource"),
    ] {
        let message = agent.run(&format!("{create} {words}")).expect_failure();
        assert!(message.contains(fault), "{words}: {message}");
    }
}

/// The chart does not permit agents to create FleetNodes. The policy checks their content as well. kube-apiserver
/// checks a creation before it finds that the object exists.
fn node_cannot_set_its_own_spec(cluster: &KubernetesCluster, agent: &Kubectl) {
    let create = |spec: Value| {
        let node = json!({"apiVersion": "rooflet.dev/v1alpha1", "kind": "FleetNode",
            "metadata": {"name": NODE}, "spec": spec});
        let created = agent.run_with(&["create", "-f", "-"], &node.to_string());
        created.expect_failure()
    };
    let message = create(json!({}));
    assert!(message.contains("cannot create resource"), "{message}");
    let admin = &cluster.kubectl;
    admin
        .run("create clusterrole creator --verb=create --resource=fleetnodes.rooflet.dev")
        .ok();
    let account = format!("--serviceaccount={NAMESPACE}:{ACCOUNT}");
    admin
        .run(&format!(
            "create clusterrolebinding creator --clusterrole=creator {account}"
        ))
        .ok();
    eventually("the permission", || match create(json!({})) {
        message if message.contains("already exists") => Ok(()),
        message => Err(message),
    });
    for spec in [
        json!({"unschedulable": true}),
        json!({"drain": true}),
        json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}),
    ] {
        let message = create(spec.clone());
        let fault = "the agent of mini-1 may not set the spec of its FleetNode";
        assert!(message.contains(fault), "{spec}: {message}");
    }
    let message = create(json!({"unschedulable": false, "taints": []}));
    assert!(message.contains("already exists"), "{message}");
    admin.run("delete clusterrolebinding creator").ok();
}

/// Returns the token in a kubeconfig.
fn token(kubeconfig: &str) -> String {
    let (_, rest) = kubeconfig.split_once("token:").expect("a token");
    // A long text starts on the next line.
    let mut words = rest.split_whitespace();
    words.find(|word| *word != ">-").expect("a token").to_owned()
}

fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).expect("three parts");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).expect("base64")).expect("JSON")
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs()
}

fn seconds_left(token: &str) -> u64 {
    claims(token)["exp"]
        .as_u64()
        .expect("an expiry")
        .saturating_sub(now())
}

/// Returns the token with earlier times: more than two thirds of its lifetime are over.
fn aged_token(cluster: &KubernetesCluster, token: &str) -> String {
    let mut claims = claims(token);
    for claim in ["iat", "nbf"] {
        claims[claim] = json!(now() - 7200);
    }
    claims["exp"] = json!(now() + 600);
    let key = std::fs::read_to_string(cluster.scratch.join("service-account.key")).expect("a key");
    let key = KeyPair::from_pem(&key).expect("a key");
    signed_token(&key, &json!({"alg": "ES256"}), &claims)
}

/// kube-apiserver accepts a token that it checked in the last 10 s.
pub(super) fn wait_until_refused(agent: &Kubectl) {
    eventually("a refused token", || match agent.run("get fleetnode mini-1") {
        refused
            if refused.stderr.contains("Unauthorized") || refused.stderr.contains("must be logged in") =>
        {
            Ok(())
        }
        other => Err(format!("{}{}", other.stdout, other.stderr)),
    });
}

fn wait_until_removed(cluster: &KubernetesCluster) {
    eventually("no Secret and no FleetNode", || {
        let secret = format!("--namespace={NAMESPACE} get secret {ACCOUNT} --ignore-not-found -o name");
        let left = [secret.as_str(), "get fleetnode mini-1 --ignore-not-found -o name"]
            .map(|words| cluster.kubectl.run(words).ok());
        match left.iter().all(String::is_empty) {
            true => Ok(()),
            false => Err(left.concat()),
        }
    });
}
