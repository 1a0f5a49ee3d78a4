//! Drained nodes, and nodes in quiet hours.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::harness::{Cluster, eventually};

const GUIDE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 2
  model: {source: local://guide}
  serving: {contextTokens: 1024, maxConcurrency: 2}
";

fn lines(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// Returns the number of replicas on a node that are not being deleted, and the number of ready
/// ones among them.
fn on(cluster: &Cluster, node: &str) -> Result<(usize, usize), String> {
    let listed = cluster.kubectl.json("mrep")?["items"].clone();
    let staying: Vec<&Value> = listed
        .as_array()
        .into_iter()
        .flatten()
        .filter(|replica| {
            replica["spec"]["nodeName"] == node && replica["metadata"]["deletionTimestamp"].is_null()
        })
        .collect();
    let is_ready = |replica: &&&Value| replica["status"]["phase"] == "Ready";
    Ok((staying.len(), staying.iter().filter(is_ready).count()))
}

#[test]
fn drain_fails_no_request() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let _agents = ["node-1", "node-2"].map(|node| cluster.agent(node, &[]));
    // The node is Ready and never serves, because it is in quiet hours all day.
    let _quiet = cluster.agent("node-3", &["--quiet-hours=00:00-24:00".to_owned()]);
    for node in ["node-1", "node-2", "node-3"] {
        eventually("a node", || kubectl.json(&format!("mac {node}")));
        kubectl
            .run(&format!("wait --for=condition=Ready mac/{node} --timeout=120s"))
            .ok();
    }
    kubectl
        .run("wait --for=condition=QuietHours mac/node-3 --timeout=60s")
        .ok();
    kubectl.apply(GUIDE).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/guide --timeout=180s")
        .ok();
    assert_eq!(on(&cluster, "node-1"), Ok((1, 1)));
    assert_eq!(on(&cluster, "node-2"), Ok((1, 1)));

    let stop = AtomicBool::new(false);
    let gateway = cluster.gateway.duplicate();
    let (answered, drained) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut answered = 0;
            while !stop.load(Ordering::Relaxed) {
                let answer = gateway.try_chat("guide", "What is rooflet?").expect("a response");
                assert_eq!(answer.status, 200, "{}", answer.text);
                answered += 1;
            }
            answered
        });
        let drained = cluster.rooflet("drain node-1 --timeout=120s");
        let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("both replicas on the other node", || {
                match on(&cluster, "node-2")? {
                    (2, 2) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        }));
        stop.store(true, Ordering::Relaxed);
        let answered = load.join().expect("every request was answered");
        moved.expect("the replicas moved");
        (answered, drained)
    });
    assert!(answered > 0);
    assert!(drained.status.success(), "{}", lines(&drained.stderr));
    assert_eq!(
        lines(&drained.stdout),
        "fleetnode.rooflet.dev/node-1 cordoned\nfleetnode.rooflet.dev/node-1 drained\n"
    );
    assert_eq!(cluster.workers("node-1").len(), 0);
    assert_eq!(on(&cluster, "node-3"), Ok((0, 0)));

    // No other node accepts the replicas. They stay, and the command reports it.
    assert!(cluster.rooflet("cordon node-3").status.success());
    let stuck = cluster.rooflet("drain node-2 --timeout=5s");
    assert_eq!(stuck.status.code(), Some(1));
    let reported = lines(&stuck.stderr);
    assert!(
        reported.contains("2 replicas left")
            && reported.contains("no other node accepts a replacement: 0/3 nodes are available")
            && reported.contains(": cordoned.")
            && reported.contains("node-2 is not drained after 5 s"),
        "{reported}"
    );
    assert_eq!(on(&cluster, "node-2"), Ok((2, 2)));

    // The node in quiet hours accepts the replicas, because no other node does.
    assert!(cluster.rooflet("uncordon node-3").status.success());
    let drained = cluster.rooflet("drain node-2 --timeout=120s");
    assert!(drained.status.success(), "{}", lines(&drained.stderr));
    eventually("both replicas on the node in quiet hours", || {
        match on(&cluster, "node-3")? {
            (2, 2) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });

    let back = cluster.rooflet("uncordon node-1 node-2");
    assert_eq!(
        lines(&back.stdout),
        "fleetnode.rooflet.dev/node-1 uncordoned\nfleetnode.rooflet.dev/node-2 uncordoned\n"
    );
    let unknown = cluster.rooflet("cordon nobody");
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        lines(&unknown.stderr).contains("no FleetNode nobody"),
        "{}",
        lines(&unknown.stderr)
    );
}

const SINGLE_REPLICA: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 1
  model: {source: local://guide}
  serving: {contextTokens: 1024, maxConcurrency: 2}
  strategy: {rollingUpdate: {maxSurge: 1}}
";

/// Returns the last transition time of a condition of the deployment, which must be True.
fn true_since(cluster: &Cluster, kind: &str) -> Result<String, String> {
    let found = cluster.kubectl.json("mdep guide")?;
    let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .filter(|condition| condition["type"] == kind && condition["status"] == "True")
        .find_map(|condition| Some(condition["lastTransitionTime"].as_str()?.to_owned()))
        .ok_or_else(|| found["status"].to_string())
}

#[test]
fn single_replica_is_replaced_before_its_eviction() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let _agents = ["node-1", "node-2"].map(|node| cluster.agent(node, &[]));
    for node in ["node-1", "node-2"] {
        eventually("a node", || kubectl.json(&format!("mac {node}")));
        kubectl
            .run(&format!("wait --for=condition=Ready mac/{node} --timeout=120s"))
            .ok();
    }
    kubectl.apply(SINGLE_REPLICA).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/guide --timeout=180s")
        .ok();
    let nodes = match on(&cluster, "node-1") {
        Ok((1, 1)) => ("node-1", "node-2"),
        _ => ("node-2", "node-1"),
    };
    let (from, to) = nodes;
    assert_eq!(on(&cluster, from), Ok((1, 1)));
    let since = ["Available", "Ready"].map(|kind| true_since(&cluster, kind).expect("true"));

    let stop = AtomicBool::new(false);
    let gateway = cluster.gateway.duplicate();
    let (answered, drained) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut answered = 0;
            let body = serde_json::json!({
                "model": "guide",
                "messages": [{ "role": "user", "content": "What is rooflet?" }],
                "stream": true,
                "temperature": 0,
                "max_tokens": 48,
            });
            while !stop.load(Ordering::Relaxed) {
                let answer = gateway.post("/v1/chat/completions", &body).expect("a response");
                assert_eq!(answer.status, 200, "{}", answer.text);
                let end = answer.events().last().cloned();
                assert_eq!(end.as_deref(), Some("[DONE]"), "{}", answer.text);
                answered += 1;
            }
            answered
        });
        let drained = cluster.rooflet(&format!("drain {from} --timeout=120s"));
        stop.store(true, Ordering::Relaxed);
        (load.join().expect("every stream is complete"), drained)
    });
    assert!(answered > 0);
    assert!(drained.status.success(), "{}", lines(&drained.stderr));
    assert_eq!(on(&cluster, from), Ok((0, 0)));
    assert_eq!(on(&cluster, to), Ok((1, 1)));
    assert_eq!(
        ["Available", "Ready"].map(|kind| true_since(&cluster, kind).expect("true")),
        since,
        "the deployment was available at all times"
    );
    let events = kubectl.run("get events").ok();
    assert!(events.contains("ReplacementRequested"), "{events}");
}

const SIMULATED: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
models:
  - {name: qwen3-8b, model: qwen3-8b, quantization: mlx4}
";

const SLOW: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: slow}
spec:
  model: {source: local://qwen3-8b}
  serving: {contextTokens: 4096, maxConcurrency: 1}
";

/// Agents of simulated Macs stop within 10 s when they are terminated. The answer takes about twice
/// as long.
#[test]
fn drain_waits_for_a_long_answer() {
    let Some(cluster) = Cluster::simulated(SIMULATED, &[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    kubectl.apply(SLOW).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/slow --timeout=60s")
        .ok();
    let from = match on(&cluster, "mini-1") {
        Ok((1, 1)) => "mini-1",
        _ => "mini-2",
    };
    let body = serde_json::json!({
        "model": "slow",
        "messages": [{ "role": "user", "content": "Tell me all." }],
        "stream": true,
        "max_tokens": 400,
    });
    let started = AtomicBool::new(false);
    let gateway = cluster.gateway.duplicate();
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let on_head = |_: u16, _: &_| started.store(true, Ordering::Relaxed);
            gateway.post_with_head("/v1/chat/completions", &body, on_head)
        });
        eventually("the start of the answer", || {
            match started.load(Ordering::Relaxed) {
                true => Ok(()),
                false => Err("not yet".to_owned()),
            }
        });
        let drained = cluster.rooflet(&format!("drain {from} --timeout=120s"));
        assert!(drained.status.success(), "{}", lines(&drained.stderr));
        let answer = answering.join().expect("no panic").expect("a response");
        assert_eq!(answer.events().last().map(String::as_str), Some("[DONE]"));
        assert!(answer.events().len() >= 400, "{}", answer.events().len());
    });
}
