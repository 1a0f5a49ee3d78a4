//! A node that sends no status for a while, as a sleeping Mac does. Its replicas are replaced, and
//! surplus copies are removed when the node returns.
#![expect(
    clippy::disallowed_methods,
    reason = "the node's grace period is measured on the real clock"
)]

use std::time::{Duration, Instant};

use crate::harness::{Cluster, eventually, repository};

#[test]
fn replicas_of_a_silent_node_are_replaced_and_removed_on_its_return() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let agents = [
        ("node-1", cluster.pausable_agent("node-1")),
        ("node-2", cluster.pausable_agent("node-2")),
    ];
    for (node, _) in &agents {
        eventually("a node", || kubectl.json(&format!("mac {node}")));
        kubectl
            .run(&format!("wait --for=condition=Ready mac/{node} --timeout=120s"))
            .ok();
    }
    kubectl
        .run(&format!(
            "apply -f {}",
            repository("examples/guide.yaml").display()
        ))
        .ok();
    kubectl
        .run("wait --for=condition=Ready mdep/guide --timeout=120s")
        .ok();
    let first = kubectl.json("mrep").expect("a list")["items"][0].clone();
    let first_node = first["spec"]["nodeName"].as_str().expect("bound").to_owned();
    let (silent, agent) = agents
        .iter()
        .find(|(node, _)| **node == first_node)
        .expect("one of the two nodes");
    let (other, _) = agents
        .iter()
        .find(|(node, _)| **node != first_node)
        .expect("one of the two nodes");
    let worker = cluster.workers(silent);
    assert_eq!(worker.len(), 1);

    agent.pause();
    let since = Instant::now();
    let condition = |object: &str, kind: &str| -> Result<(String, String), String> {
        let found = kubectl.json(object)?;
        let conditions = found["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        conditions
            .iter()
            .find(|condition| condition["type"] == kind)
            .map(|condition| (text(&condition["status"]), text(&condition["reason"])))
            .ok_or_else(|| found.to_string())
    };
    let is = |object: &str, kind: &str, status: &str, reason: &str| match condition(object, kind)? {
        found if found == (status.to_owned(), reason.to_owned()) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("the node with an unknown status", || {
        is(&format!("mac {silent}"), "Ready", "Unknown", "NodeStatusUnknown")
    });
    // The agent renewed its lease up to ten seconds before the pause.
    let took = since.elapsed();
    assert!(
        (Duration::from_secs(28)..Duration::from_secs(60)).contains(&took),
        "{took:?}"
    );
    eventually("the replica being not ready", || {
        let name = first["metadata"]["name"].as_str().expect("a name");
        is(&format!("mrep {name}"), "Ready", "False", "NodeNotReady")
    });

    eventually("an answer of the replacement", || {
        match cluster.gateway.try_chat("guide", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
    assert_eq!(cluster.workers(other).len(), 1);
    // The old worker may still run, so its object and its memory reservation stay.
    assert_eq!(cluster.workers(silent), worker);
    let listed = kubectl.json("mrep").expect("a list")["items"].clone();
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed:#}");

    agent.resume();
    eventually("the old replica being gone", || {
        let listed = kubectl.json("mrep")?["items"].clone();
        let left = (listed.as_array().map(Vec::len), cluster.workers(silent).len());
        if left == (Some(1), 0) {
            Ok(())
        } else {
            Err(format!("{left:?} {listed:#}"))
        }
    });
    kubectl
        .run(&format!("wait --for=condition=Ready mac/{silent} --timeout=60s"))
        .ok();
    kubectl
        .run("wait --for=condition=Ready mdep/guide --timeout=60s")
        .ok();
    assert_eq!(cluster.workers(other).len(), 1, "the replacement still runs");
    assert!(!cluster.gateway.chat("guide", "What is rooflet?").is_empty());
}
