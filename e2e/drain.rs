//! Nodes that are to serve no more: by command, and by the time of day.

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

/// How many replicas are on a node and not being deleted, and how many of those are ready.
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
fn a_node_is_drained_and_no_request_fails() {
    let Some(cluster) = Cluster::start(&[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let _agents = ["node-1", "node-2"].map(|node| cluster.agent(node, &[]));
    // It is known, and never serves: all day is quiet.
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
    let gateway = cluster.gateway.another();
    let (answered, drained) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut answered = 0;
            while !stop.load(Ordering::Relaxed) {
                let answer = gateway.try_chat("guide", "What is rooflet?").expect("an answer");
                assert_eq!(answer.status, 200, "{}", answer.text);
                answered += 1;
            }
            answered
        });
        let drained = cluster.rooflet("drain node-1 --timeout=120");
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

    // No other node takes them: they stay, and the command reports it.
    assert!(cluster.rooflet("cordon node-3").status.success());
    let stuck = cluster.rooflet("drain node-2 --timeout=5");
    assert_eq!(stuck.status.code(), Some(1));
    let told = lines(&stuck.stderr);
    assert!(
        told.contains("2 replicas left")
            && told.contains("no other node accepts a replacement: 0/3 nodes are available")
            && told.contains(": cordoned.")
            && told.contains("node-2 is not drained after 5 s"),
        "{told}"
    );
    assert_eq!(on(&cluster, "node-2"), Ok((2, 2)));

    // The node in quiet hours takes them, because no other does.
    assert!(cluster.rooflet("uncordon node-3").status.success());
    let drained = cluster.rooflet("drain node-2 --timeout=120");
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

const LONE: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 1
  model: {source: local://guide}
  serving: {contextTokens: 1024, maxConcurrency: 2}
  strategy: {rollingUpdate: {maxSurge: 1}}
";

/// When a condition of the deployment last became what it is, which is true. It stays so as long as it stays true.
fn true_since(cluster: &Cluster, kind: &str) -> Result<String, String> {
    let found = cluster.kubectl.json("mdep guide")?;
    let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .filter(|condition| condition["type"] == kind && condition["status"] == "True")
        .find_map(|condition| Some(condition["lastTransitionTime"].as_str()?.to_owned()))
        .ok_or_else(|| found["status"].to_string())
}

#[test]
fn the_only_replica_is_replaced_before_it_leaves() {
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
    kubectl.apply(LONE).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/guide --timeout=180s")
        .ok();
    let home = match on(&cluster, "node-1") {
        Ok((1, 1)) => ("node-1", "node-2"),
        _ => ("node-2", "node-1"),
    };
    let (from, to) = home;
    assert_eq!(on(&cluster, from), Ok((1, 1)));
    let since = ["Available", "Ready"].map(|kind| true_since(&cluster, kind).expect("true"));

    let stop = AtomicBool::new(false);
    let gateway = cluster.gateway.another();
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
                let answer = gateway.post("/v1/chat/completions", &body).expect("an answer");
                assert_eq!(answer.status, 200, "{}", answer.text);
                let end = answer.events().last().cloned();
                assert_eq!(end.as_deref(), Some("[DONE]"), "{}", answer.text);
                answered += 1;
            }
            answered
        });
        let drained = cluster.rooflet(&format!("drain {from} --timeout=120"));
        stop.store(true, Ordering::Relaxed);
        (load.join().expect("every stream came to its end"), drained)
    });
    assert!(answered > 0);
    assert!(drained.status.success(), "{}", lines(&drained.stderr));
    assert_eq!(on(&cluster, from), Ok((0, 0)));
    assert_eq!(on(&cluster, to), Ok((1, 1)));
    assert_eq!(
        ["Available", "Ready"].map(|kind| true_since(&cluster, kind).expect("true")),
        since,
        "there was always one that answers"
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

/// The agents of simulated Macs stop within ten seconds; the answer takes about twice as long.
#[test]
fn an_answer_is_not_cut_short_however_long_it_takes() {
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
    let began = AtomicBool::new(false);
    let gateway = cluster.gateway.another();
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let hear = |_: u16, _: &_| began.store(true, Ordering::Relaxed);
            gateway.post_hearing("/v1/chat/completions", &body, hear)
        });
        eventually("the answer begins", || match began.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("not yet".to_owned()),
        });
        let drained = cluster.rooflet(&format!("drain {from} --timeout=120"));
        assert!(drained.status.success(), "{}", lines(&drained.stderr));
        let answer = answering.join().expect("no panic").expect("an answer");
        assert_eq!(answer.events().last().map(String::as_str), Some("[DONE]"));
        assert!(answer.events().len() >= 400, "{}", answer.events().len());
    });
}
