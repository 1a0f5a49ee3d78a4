//! Drained nodes, and nodes in quiet hours.

use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::Method;
use serde_json::{Value, json};

use crate::access::web_page::{self, Browser};
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

const SIMULATED_FLEET: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 4}
models:
  - {name: small, model: qwen3-8b, quantization: mlx4}
";

const TWO_DEPLOYMENTS: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: one}
spec:
  model: {source: 'local://small'}
  serving: {contextTokens: 4096, maxConcurrency: 2}
  strategy: {rollingUpdate: {maxSurge: 1}}
---
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: two}
spec:
  replicas: 2
  model: {source: 'local://small'}
  serving: {contextTokens: 4096}
";

/// Returns the deployment and the node of each replica that is not being deleted, sorted.
fn placements(cluster: &Cluster) -> Vec<(String, String)> {
    let listed = cluster.kubectl.json("mrep").expect("a list")["items"].clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut placements: Vec<_> = listed
        .as_array()
        .into_iter()
        .flatten()
        .filter(|replica| replica["metadata"]["deletionTimestamp"].is_null())
        .map(|replica| {
            let deployment = text(&replica["metadata"]["labels"]["rooflet.dev/deployment"]);
            (
                format!("default/{deployment}"),
                text(&replica["spec"]["nodeName"]),
            )
        })
        .collect();
    placements.sort();
    placements
}

#[test]
fn preview_of_a_drain_matches_the_drain() {
    let Some(cluster) = Cluster::simulated(SIMULATED_FLEET, &[]) else {
        return;
    };
    cluster.kubectl.apply(TWO_DEPLOYMENTS).ok();
    cluster
        .kubectl
        .run("wait --for=condition=Ready mdep/one mdep/two --timeout=120s")
        .ok();
    let before = placements(&cluster);
    let node = before[0].1.clone();

    let dry_run = cluster.rooflet(&format!("drain {node} --dry-run"));
    assert!(dry_run.status.success(), "{}", lines(&dry_run.stderr));
    let spec = cluster.kubectl.json(&format!("mac {node}")).expect("the node")["spec"].clone();
    assert!(spec["drain"] != true && spec["unschedulable"] != true, "{spec}");
    // The page shows the same preview.
    let mut browser = Browser::new(&cluster.web);
    browser.sign_in(&json!({ "token": web_page::token(&cluster) }));
    let patch = json!({ "spec": { "unschedulable": true, "drain": true } });
    let change = json!({ "object": { "node": node }, "patch": patch });
    let answer = browser.write(Method::POST, "/proxy/preview", &change);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let preview = answer.json();
    let mut expected = before.clone();
    let mut printed = format!("fleetnode.rooflet.dev/{node} cordoned (dry run)\n");
    for replica in preview["replicas"].as_array().expect("a list") {
        let text = |field: &str| replica[field].as_str().expect(field).to_owned();
        assert_eq!(text("course"), "Moves", "{replica}");
        let left = (text("deployment"), text("from"));
        assert_eq!(left.1, node);
        let at = expected.iter().position(|placement| *placement == left);
        expected.remove(at.expect("the replica exists"));
        expected.push((left.0, text("to")));
        printed.push_str(&format!("{} (dry run)\n", text("message")));
    }
    expected.sort();
    assert_ne!(expected, before, "{preview}");
    printed.push_str(&format!("fleetnode.rooflet.dev/{node} drained (dry run)\n"));
    assert_eq!(lines(&dry_run.stdout), printed);
    assert_eq!(placements(&cluster), before);

    let drained = cluster.rooflet(&format!("drain {node} --timeout=120s"));
    assert!(drained.status.success(), "{}", lines(&drained.stderr));
    eventually("the placements of the preview", || match placements(&cluster) {
        found if found == expected => Ok(()),
        found => Err(format!("{found:?} instead of {expected:?}")),
    });

    // Without another node, the replicas stay.
    let was_drained = node;
    let node = placements(&cluster)[0].1.clone();
    let others: Vec<_> = (1..=4)
        .map(|number| format!("mini-{number}"))
        .filter(|name| *name != node)
        .collect();
    // The drained node is cordoned already.
    let free = others
        .iter()
        .find(|name| **name != was_drained)
        .expect("three others");
    let planned = cluster.rooflet(&format!("cordon {free} --dry-run"));
    assert_eq!(
        lines(&planned.stdout),
        format!("fleetnode.rooflet.dev/{free} cordoned (dry run)\n")
    );
    let cordon = cluster.rooflet(&format!("cordon {}", others.join(" ")));
    assert!(cordon.status.success(), "{}", lines(&cordon.stderr));
    assert!(
        lines(&cordon.stdout).contains(&format!("{free} cordoned")),
        "the dry run has cordoned {free}: {}",
        lines(&cordon.stdout)
    );
    let stuck = cluster.rooflet(&format!("drain {node} --dry-run"));
    assert_eq!(stuck.status.code(), Some(1));
    assert!(
        lines(&stuck.stdout).contains(&format!(" stays on {node}: no other node accepts a replacement"))
            && lines(&stuck.stderr).contains(&format!("{node} would not be drained")),
        "{stuck:?}"
    );

    let forced = cluster.rooflet(&format!("drain {node} --force --dry-run"));
    assert!(forced.status.success(), "{forced:?}");
    assert!(
        lines(&forced.stdout).contains("stops, and no node accepts its replacement: "),
        "{forced:?}"
    );
    let unknown = cluster.rooflet("rollout abort one --dry-run");
    assert!(
        lines(&unknown.stderr).contains("has no rollout in progress"),
        "{unknown:?}"
    );
    let restart = cluster.rooflet("rollout restart one --dry-run");
    let restarted = lines(&restart.stdout);
    assert!(
        restarted.starts_with("modeldeployment.rooflet.dev/one restarted (dry run)\ndefault/one-"),
        "{restart:?}"
    );
}
