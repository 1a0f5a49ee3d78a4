//! A node that says nothing for a while, as a Mac that fell asleep: its replicas are replaced, and it comes back
//! without a copy too many.
#![expect(
    clippy::disallowed_methods,
    reason = "how long a node may be silent is the real clock's"
)]

use std::time::{Duration, Instant};

use crate::harness::{Cluster, eventually, repository};

#[test]
fn a_silent_node_is_replaced_and_comes_back() {
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
    let home = first["spec"]["nodeName"].as_str().expect("bound").to_owned();
    let (silent, agent) = agents
        .iter()
        .find(|(node, _)| **node == home)
        .expect("one of ours");
    let (other, _) = agents
        .iter()
        .find(|(node, _)| **node != home)
        .expect("one of ours");
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
        (is, why) if is == status && why == reason => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("the node being known as silent", || {
        is(&format!("mac {silent}"), "Ready", "Unknown", "NodeStatusUnknown")
    });
    // The last renewal was up to ten seconds before the pause.
    let took = since.elapsed();
    assert!(
        (Duration::from_secs(28)..Duration::from_secs(60)).contains(&took),
        "{took:?}"
    );
    eventually("the replica being not ready", || {
        let name = first["metadata"]["name"].as_str().expect("a name");
        is(&format!("mrep {name}"), "Ready", "False", "NodeNotReady")
    });

    eventually("a replacement that serves", || {
        match cluster.gateway.try_chat("guide", "What is rooflet?")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
    assert_eq!(cluster.workers(other).len(), 1);
    // Nobody can know whether the old one still runs, so its memory stays taken and its object stays.
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
    assert_eq!(cluster.workers(other).len(), 1, "no copy too many");
    assert!(!cluster.gateway.chat("guide", "What is rooflet?").is_empty());
}
