//! Features of ModelDeployments and all verbs of `rooflet rollout`, with simulated Macs in two
//! racks, real agents and kubectl.
#![expect(clippy::disallowed_methods, reason = "maintenance windows use the real clock")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::harness::{Cluster, eventually};

/// A replica of `large` reserves nearly all allocatable memory of a Mac.
const FLEET: &str = "
fleet:
  macs:
    - {name: left, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
    - {name: right, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
  labels: {left: {rack: a}, right: {rack: b}}
models:
  - {name: small, model: tinyllama-1.1b, quantization: mlx4}
  - {name: large, model: qwen3-8b, quantization: mlx4}
";

const NODES: [&str; 4] = ["left-1", "left-2", "right-1", "right-2"];

/// Returns a deployment of a model. `rest` has the other fields of the spec in flow style.
fn deployment(name: &str, model: &str, rest: &str) -> String {
    format!(
        "apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {{name: {name}}}\n\
         spec: {{model: {{source: 'local://{model}'}}, {rest}}}\n"
    )
}

/// Returns the replicas of a deployment, including those that are being deleted.
fn replicas(cluster: &Cluster, deployment: &str) -> Result<Vec<Value>, String> {
    let listed = cluster
        .kubectl
        .json(&format!("mrep -l rooflet.dev/deployment={deployment}"))?;
    Ok(listed["items"].as_array().cloned().unwrap_or_default())
}

/// Returns the nodes of the ready replicas, sorted.
fn ready_on(cluster: &Cluster, deployment: &str) -> Result<Vec<String>, String> {
    let all = replicas(cluster, deployment)?;
    let ready = all.iter().filter(|replica| replica["status"]["phase"] == "Ready");
    let mut nodes: Vec<_> = ready
        .map(|replica| {
            replica["spec"]["nodeName"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    nodes.sort();
    Ok(nodes)
}

#[track_caller]
fn wait_for_ready(cluster: &Cluster, deployment: &str, count: usize) -> Vec<String> {
    eventually(&format!("{count} replicas of {deployment}"), || {
        let nodes = ready_on(cluster, deployment)?;
        let all = replicas(cluster, deployment)?.len();
        if (nodes.len(), all) == (count, count) {
            Ok(nodes)
        } else {
            Err(format!("{all}, ready on {nodes:?}"))
        }
    })
}

/// Waits until the deployment has an unscheduled replica whose message contains `words`.
#[track_caller]
fn wait_for_unscheduled(cluster: &Cluster, deployment: &str, words: &str) {
    let object = format!("mdep {deployment}");
    cluster
        .kubectl
        .wait_for_message(&object, "Scheduled", "False", words);
}

fn delete(cluster: &Cluster, deployment: &str) {
    cluster.kubectl.run(&format!("delete mdep {deployment}")).ok();
    eventually("no replica", || match replicas(cluster, deployment)? {
        none if none.is_empty() => Ok(()),
        some => Err(format!("{} replicas", some.len())),
    });
}

#[test]
fn deployment_features_work_on_a_simulated_fleet() {
    let Some(cluster) = Cluster::simulated(FLEET, &["--reserve-node-failures=1"]) else {
        return;
    };
    for node in NODES {
        eventually("a node", || cluster.kubectl.json(&format!("mac {node}")));
        cluster
            .kubectl
            .wait_for_condition(&format!("mac {node}"), "Ready", "True");
    }
    capacity_is_reserved_for_a_node_failure(&cluster);
    replicas_are_spread_over_racks(&cluster);
    std::thread::scope(|scope| {
        scope.spawn(|| autoscaler_follows_requests(&cluster));
        recreate_never_runs_two_revisions(&cluster);
        closed_window_pauses_a_rollout_until_it_opens(&cluster);
        rollout_verbs_work(&cluster);
    });
    orphans_are_adopted(&cluster);
}

fn capacity_is_reserved_for_a_node_failure(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    let rest = "replicas: 3, serving: {contextTokens: 8192, maxConcurrency: 4}";
    kubectl.apply(&deployment("large", "large", rest)).ok();
    let taken = wait_for_ready(cluster, "large", 3);
    kubectl.run("scale mdep/large --replicas=4").ok();
    wait_for_unscheduled(
        cluster,
        "large",
        "1 kept free for the failure of 1 nodes (--reserve-node-failures)",
    );
    kubectl.run("scale mdep/large --replicas=3").ok();

    // A drain may use the reserved capacity.
    let (drained, free) = (
        &taken[0],
        NODES
            .iter()
            .find(|node| !taken.iter().any(|taken| taken == *node)),
    );
    let output = cluster.rooflet(&format!("drain {drained} --timeout=60s"));
    assert!(output.status.success(), "{output:?}");
    let nodes = wait_for_ready(cluster, "large", 3);
    assert!(nodes.iter().any(|node| Some(&node.as_str()) == free), "{nodes:?}");
    assert!(cluster.rooflet(&format!("uncordon {drained}")).status.success());
    delete(cluster, "large");
}

fn replicas_are_spread_over_racks(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    let apply = |name: &str, spread: &str| {
        let rest = format!(
            "replicas: 4, serving: {{contextTokens: 1024}}, placement: {{strategy: BinPack, spread: {spread}}}"
        );
        kubectl.apply(&deployment(name, "small", &rest)).ok();
    };
    apply("packed", "null");
    let nodes = wait_for_ready(cluster, "packed", 4);
    assert!(nodes.iter().all(|node| *node == nodes[0]), "{nodes:?}");
    delete(cluster, "packed");

    apply("spread", "{topologyKey: rack, maxSkew: 1}");
    let nodes = wait_for_ready(cluster, "spread", 4);
    let in_rack_a = nodes.iter().filter(|node| node.starts_with("left-")).count();
    assert_eq!(in_rack_a, 2, "{nodes:?}");
    delete(cluster, "spread");

    apply("nowhere", "{topologyKey: shelf}");
    wait_for_unscheduled(cluster, "nowhere", "0/4 nodes are available: 4 ");
    wait_for_unscheduled(cluster, "nowhere", "shelf");
    delete(cluster, "nowhere");
}

fn recreate_never_runs_two_revisions(cluster: &Cluster) {
    let rest = "replicas: 2, serving: {contextTokens: 1024}, strategy: {type: Recreate}";
    let before = deployment("anew", "small", rest);
    cluster.kubectl.apply(&before).ok();
    wait_for_ready(cluster, "anew", 2);
    cluster.kubectl.apply(&before.replace("1024", "2048")).ok();
    eventually("two new replicas", || {
        let all = replicas(cluster, "anew")?;
        let revision = |replica: &Value| replica["metadata"]["labels"]["rooflet.dev/revision"].to_string();
        let revisions: BTreeSet<_> = all.iter().map(revision).collect();
        assert!(revisions.len() <= 1, "{revisions:?}");
        let is_new = |replica: &&Value| {
            replica["spec"]["serving"]["contextTokens"] == 2048 && replica["status"]["phase"] == "Ready"
        };
        match all.iter().filter(is_new).count() {
            2 => Ok(()),
            count => Err(format!("{count} of {}", all.len())),
        }
    });
    cluster.rollout_ok("status mdep/anew --timeout=60s");
    delete(cluster, "anew");
}

/// Returns a patch with a daily maintenance window that starts in `hours_ahead` hours, in UTC.
fn window(hours_ahead: u64, duration: &str) -> Value {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    let hour = (now.as_secs() / 3600 + hours_ahead) % 24;
    json!({"spec": {"strategy": {"maintenanceWindows": [{"start": format!("{hour:02}:00"), "duration": duration}]}}})
}

fn closed_window_pauses_a_rollout_until_it_opens(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    let patch = |patch: &Value| {
        let text = patch.to_string();
        kubectl
            .run_with(&["patch", "mdep", "night", "--type=merge", "-p", &text], "")
            .ok();
    };
    kubectl
        .apply(&deployment("night", "small", "serving: {contextTokens: 1024}"))
        .ok();
    cluster.rollout_ok("status mdep/night --timeout=60s");
    patch(&window(3, "1h"));
    patch(&json!({"spec": {"serving": {"contextTokens": 2048}}}));
    let held = eventually("the closed window", || {
        let held = kubectl.wait_for_condition("mdep night", "Progressing", "Unknown");
        match held["reason"] == "OutsideMaintenanceWindow" {
            true => Ok(held),
            false => Err(held.to_string()),
        }
    });
    let (_, printed) = cluster.rollout("status night --watch=false");
    assert!(
        printed.contains(held["message"].as_str().unwrap_or("?")),
        "{printed} {held}"
    );
    let replica = &replicas(cluster, "night").expect("listed")[0];
    assert_eq!(replica["spec"]["serving"]["contextTokens"], 1024);

    patch(&window(23, "3h"));
    let printed = cluster.rollout_ok("status night --timeout=60s");
    assert!(printed.ends_with("successfully rolled out\n"), "{printed}");
    let replica = &replicas(cluster, "night").expect("listed")[0];
    assert_eq!(replica["spec"]["serving"]["contextTokens"], 2048);
    delete(cluster, "night");
}

const CANARY: &str = "replicas: 2, serving: {contextTokens: 1024}, \
    strategy: {type: Canary, canary: {steps: [{setWeight: 50}, {pause: {}}]}}";

fn rollout_verbs_work(cluster: &Cluster) {
    let first = deployment("verbs", "small", CANARY);
    let apply = |context: u32| {
        cluster
            .kubectl
            .apply(&first.replace("1024", &context.to_string()))
            .ok()
    };
    let at_pause = |what: &str| {
        eventually(&format!("the canary's pause after {what}"), || {
            let found = cluster.kubectl.json("mdep verbs")?;
            let status = &found["status"];
            let is_seen = status["observedGeneration"] == found["metadata"]["generation"];
            if is_seen && status["rollout"]["step"] == 1 && status["rollout"]["aborted"].is_null() {
                Ok(())
            } else {
                Err(status.to_string())
            }
        });
    };
    let serves = |context: u64| {
        cluster.rollout_ok("status mdep/verbs --timeout=60s");
        let all = replicas(cluster, "verbs").expect("listed");
        for replica in all {
            assert_eq!(replica["spec"]["serving"]["contextTokens"], context, "{replica}");
        }
    };
    let uids = || -> BTreeSet<String> {
        let all = replicas(cluster, "verbs").expect("listed");
        all.iter()
            .map(|replica| replica["metadata"]["uid"].to_string())
            .collect()
    };
    apply(1024);
    serves(1024);

    apply(2048);
    at_pause("a change");
    cluster.rollout_ok("promote mdep/verbs --full");
    serves(2048);
    let printed = cluster.rollout_ok("history verbs --revision=2");
    assert!(
        printed.contains("with revision #2") && printed.contains("contextTokens: 2048"),
        "{printed}"
    );

    let printed = cluster.rollout_ok("undo verbs --to-revision=1");
    assert!(printed.ends_with("rolled back\n"), "{printed}");
    at_pause("an undo");
    cluster.rollout_ok("promote mdep/verbs");
    serves(1024);
    let (success, printed) = cluster.rollout("status verbs --watch=false --revision=1");
    let expected = "desired revision (1) is different from the running revision (3)";
    assert!(!success && printed.contains(expected), "{printed}");

    apply(512);
    at_pause("another change");
    cluster.rollout_ok("abort mdep/verbs");
    let (success, printed) = cluster.rollout("status verbs --timeout=60s");
    assert!(!success && printed.contains("back to revision 3"), "{printed}");
    let (success, printed) = cluster.rollout("promote verbs");
    assert!(!success && printed.contains("was rolled back"), "{printed}");
    cluster.rollout_ok("undo verbs");
    serves(1024);

    cluster.rollout_ok("pause mdep/verbs");
    apply(2048);
    cluster
        .kubectl
        .wait_for_condition("mdep verbs", "Progressing", "Unknown");
    let (_, printed) = cluster.rollout("status verbs --timeout=1s");
    assert!(
        printed.contains("timed out waiting for the condition"),
        "{printed}"
    );
    cluster.rollout_ok("resume mdep/verbs");
    at_pause("a resume");
    cluster.rollout_ok("promote mdep/verbs --full");
    serves(2048);

    let before = uids();
    let printed = cluster.rollout_ok("restart mdep/verbs");
    assert!(printed.ends_with("restarted\n"), "{printed}");
    at_pause("a restart");
    cluster.rollout_ok("promote mdep/verbs --full");
    serves(2048);
    eventually("no old replica", || match uids().is_disjoint(&before) {
        true => Ok(()),
        false => Err("old replicas are left".to_owned()),
    });
    delete(cluster, "verbs");
}

fn orphans_are_adopted(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    let apply = |context: u32| {
        let rest = format!("serving: {{contextTokens: {context}}}");
        kubectl.apply(&deployment("orphan", "small", &rest)).ok();
    };
    let uids = || -> Result<Vec<Value>, String> {
        let replicas = replicas(cluster, "orphan")?;
        Ok(replicas
            .iter()
            .map(|replica| replica["metadata"]["uid"].clone())
            .collect())
    };
    let orphan = || {
        kubectl.run("delete mdep orphan --cascade=orphan").ok();
        let left = replicas(cluster, "orphan").expect("listed");
        assert!(left[0]["metadata"]["ownerReferences"].is_null(), "{left:?}");
    };
    apply(1024);
    wait_for_ready(cluster, "orphan", 1);
    let before = uids().expect("listed");

    // A deployment with the same template adopts the running replica.
    orphan();
    apply(1024);
    kubectl.wait_for_condition("mdep orphan", "Ready", "True");
    assert_eq!(uids().expect("listed"), before);
    let events = kubectl
        .run("get events --field-selector involvedObject.name=orphan,reason=Adopted")
        .ok();
    assert!(
        events.contains("Adopted objects without a controller"),
        "{events}"
    );

    // A deployment with another template is rolled out and replaces the orphan.
    orphan();
    apply(512);
    kubectl.wait_for_condition("mdep orphan", "Ready", "True");
    eventually("only the new replica", || match uids()? {
        after if after.len() == 1 && after != before => Ok(()),
        after => Err(format!("{after:?}, before {before:?}")),
    });
    kubectl
        .run("annotate mdep orphan kubernetes.io/change-cause=shorter")
        .ok();
    eventually("the change-cause in the history", || {
        let history = cluster.rollout_ok("history mdep/orphan");
        match history.lines().last() {
            Some("2         shorter") => Ok(()),
            _ => Err(history),
        }
    });
    let newer = deployment("orphans-namesake", "small", "serving: {name: orphan}");
    kubectl.apply(&newer).ok();
    let reported = kubectl.wait_for_condition("mdep orphans-namesake", "NameShared", "True");
    assert_eq!(reported["reason"], "ServedNameShared", "{reported}");
    delete(cluster, "orphans-namesake");
    let history = cluster.rollout_ok("history mdep/orphan");
    assert_eq!(
        history.lines().count(),
        4,
        "title, header and two revisions: {history}"
    );
    delete(cluster, "orphan");
}

fn autoscaler_follows_requests(cluster: &Cluster) {
    let kubectl = &cluster.kubectl;
    let behavior = "behavior: {scaleDown: {stabilizationWindowSeconds: 5}}";
    let metric = "metric: {type: Concurrency, target: 1}";
    let rest = format!(
        "serving: {{contextTokens: 2048, maxConcurrency: 4}}, autoscaling: {{maxReplicas: 2, {metric}, {behavior}}}"
    );
    kubectl.apply(&deployment("scaled", "small", &rest)).ok();
    wait_for_ready(cluster, "scaled", 1);
    let stop = AtomicBool::new(false);
    let body = json!({"model": "scaled", "prompt": "Count.", "max_tokens": 200});
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let (gateway, stop, body) = (cluster.gateway.duplicate(), &stop, &body);
                scope.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let answer = gateway.post("/v1/completions", body).expect("a response");
                        assert_eq!(answer.status, 200, "{}", answer.text);
                    }
                })
            })
            .collect();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for_ready(cluster, "scaled", 2);
        }));
        stop.store(true, Ordering::SeqCst);
        for client in clients {
            client.join().expect("every request was answered");
        }
        outcome.expect("a second replica is ready");
    });
    wait_for_ready(cluster, "scaled", 1);
    let events = kubectl
        .run("get events --field-selector involvedObject.name=scaled")
        .ok();
    for reason in ["ScaledUp", "ScaledDown"] {
        assert!(events.contains(reason), "{reason} is missing in {events}");
    }
    delete(cluster, "scaled");
}
