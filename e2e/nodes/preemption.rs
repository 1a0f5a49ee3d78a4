//! Preemption by priority on one simulated Mac with memory for one replica.

use serde_json::Value;

use crate::harness::{Cluster, Kubectl, eventually};

/// Fleet of one Mac. A replica of the model reserves nearly all of its allocatable memory.
const FLEET: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 1}
models:
  - {name: qwen3-8b-4bit, model: qwen3-8b, quantization: mlx4}
";

fn deployment(name: &str, priority: i32) -> String {
    format!(
        "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {{name: {name}}}
spec:
  priority: {priority}
  model: {{source: 'local://qwen3-8b-4bit'}}
  serving: {{contextTokens: 8192, maxConcurrency: 4}}
"
    )
}

/// Waits for a replica of a deployment that satisfies `is`, and returns the replica.
#[track_caller]
fn replica(kubectl: &Kubectl, deployment: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("the replica of {deployment} {what}"), || {
        let listed = kubectl.json(&format!("mrep -l rooflet.dev/deployment={deployment}"))?;
        let found = listed["items"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|one| is(one));
        found.cloned().ok_or_else(|| listed.to_string())
    })
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .find(|one| one["type"] == kind)
        .unwrap_or(&Value::Null)
}

fn is_ready(replica: &Value) -> bool {
    condition(replica, "Ready")["status"] == "True"
}

fn is_unschedulable(replica: &Value) -> bool {
    condition(replica, "Scheduled")["status"] == "False" && replica["spec"]["nodeName"].is_null()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// Returns the messages of an object's events with this reason.
fn messages(kubectl: &Kubectl, object: &Value, reason: &str) -> Result<Vec<String>, String> {
    let events = kubectl.json("events")?;
    let of = |event: &&Value| {
        event["involvedObject"]["name"] == object["metadata"]["name"] && event["reason"] == reason
    };
    let found = events["items"].as_array().into_iter().flatten().filter(of);
    Ok(found
        .filter_map(|event| event["message"].as_str().map(str::to_owned))
        .collect())
}

#[track_caller]
fn wait_for_event(kubectl: &Kubectl, object: &Value, reason: &str, words: &str) {
    eventually(&format!("the event {reason}"), || {
        let found = messages(kubectl, object, reason)?;
        match found.iter().any(|message| message.contains(words)) {
            true => Ok(()),
            false => Err(format!("{found:?}")),
        }
    });
}

#[test]
fn lower_priority_is_preempted_and_an_equal_one_is_not() {
    let Some(cluster) = Cluster::simulated(FLEET, &[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    kubectl.apply(&deployment("low", 0)).ok();
    let low = replica(kubectl, "low", "is ready", is_ready);
    kubectl.apply(&deployment("equal", 0)).ok();
    replica(kubectl, "equal", "has no node", is_unschedulable);

    kubectl.apply(&deployment("high", 5)).ok();
    let high = replica(kubectl, "high", "is ready", is_ready);
    let preempted_by = format!("Preempted by default/{} of priority 5", name(&high));
    wait_for_event(kubectl, &low, "Preempted", &preempted_by);
    wait_for_event(kubectl, &high, "Preempting", name(&low));
    // The deployment's replacement replica stays unscheduled, as `equal` does.
    let again = replica(kubectl, "low", "has no node", is_unschedulable);
    assert_ne!(again["metadata"]["uid"], low["metadata"]["uid"]);

    kubectl.apply(&deployment("peer", 5)).ok();
    let peer = replica(kubectl, "peer", "has no node", is_unschedulable);
    wait_for_event(kubectl, &peer, "FailedScheduling", "insufficient memory");
    let still = replica(kubectl, "high", "is ready", is_ready);
    assert_eq!(still["metadata"]["uid"], high["metadata"]["uid"]);
    let equal = replica(kubectl, "equal", "has no node", is_unschedulable);
    assert_eq!(
        messages(kubectl, &equal, "Scheduled"),
        Ok(Vec::new()),
        "memory freed for `high` was reserved by `equal`"
    );
    assert_eq!(messages(kubectl, &high, "Preempted"), Ok(Vec::new()));
}
