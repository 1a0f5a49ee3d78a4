use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::eviction::{EVICT_AFTER, EVICT_AFTER_DISRUPTION};
use super::heartbeats::Timings;
use super::observed::Observed;
use super::plan::{MISSING_GRACE, NodePlan, Step};
use super::silence::NODE_SILENT;
use rooflet_api::conditions::{AGENT_STOPPED, Truth, condition_type, set_condition};
use rooflet_api::meta::{
    DEPLOYMENT_LABEL, LEASE_DURATION, MIRROR_ANNOTATION, MOVE_ANNOTATION, REPLICA_FINALIZER, REVISION_LABEL,
};
use rooflet_api::v1alpha1::*;
use rooflet_base::clock::at;
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::ServedModel;
use rooflet_scheduler::taints_of;

mod heartbeats;
mod reserve;
mod surge;

const NOW: i64 = 1_000_000;

/// Parses `a mem=8 silent=SECONDS stopped=SECONDS taint drain battery since=SECONDS version=V
/// skewed`. Silent nodes were reported SECONDS ago, and taints have existed for SECONDS.
fn node(line: &str) -> FleetNode {
    let words: Vec<_> = line.split_whitespace().collect();
    let field = |key: &str| {
        words
            .iter()
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    };
    let mut node = FleetNode::new(words[0], FleetNodeSpec::default());
    if words.contains(&"taint") {
        node.spec.taints.push(Taint {
            key: "lid".to_owned(),
            value: None,
            effect: TaintEffect::NoExecute,
        });
    }
    node.spec.drain = words.contains(&"drain");
    let mut status = FleetNodeStatus {
        models: vec![ServedModel::of_size(Bytes::gib(1), 4).publish(
            "guide".to_owned(),
            "llama".to_owned(),
            1024,
        )],
        ..FleetNodeStatus::default()
    };
    status.allocatable.memory = format!("{}Gi", field("mem").unwrap_or("8"));
    let ago = |seconds: &str| NOW - seconds.parse::<i64>().expect("the test passes a number");
    let (truth, reason, since) = match (field("silent"), field("stopped")) {
        (Some(seconds), _) => (Truth::Unknown, NODE_SILENT, ago(seconds)),
        (None, Some(seconds)) => (Truth::False, AGENT_STOPPED, ago(seconds)),
        (None, None) => (Truth::True, "AgentReady", NOW),
    };
    set_condition(
        &mut status.conditions,
        condition_type::READY,
        truth,
        reason,
        "",
        None,
        at(since),
    );
    status.node_info.agent_version = field("version").unwrap_or_default().to_owned();
    if words.contains(&"skewed") {
        let skew = condition_type::VERSION_SKEW;
        set_condition(
            &mut status.conditions,
            skew,
            Truth::True,
            "AgentTooOld",
            "",
            None,
            at(NOW),
        );
    }
    if words.contains(&"battery") {
        let on_battery = condition_type::ON_BATTERY;
        set_condition(
            &mut status.conditions,
            on_battery,
            Truth::True,
            "OnBattery",
            "",
            None,
            at(NOW),
        );
    }
    node.status = Some(status);
    node
}

/// Parses `x on=a moves=b rev=REVISION notready ending alone mirror tolerates[=SECONDS] held leaving[=SECONDS]
/// bound=SECONDS silent stuck speed=TOKENS_PER_SECOND`. Replicas have been leaving and bound for
/// SECONDS. The agent of a silent replica has not reported.
fn replica(line: &str) -> ModelReplica {
    let words: Vec<_> = line.split_whitespace().collect();
    let has = |word: &str| words.contains(&word);
    let on = words.iter().find_map(|word| word.strip_prefix("on="));
    let spec = serde_json::json!({ "serving": { "name": "guide" }, "nodeName": on });
    let mut replica = ModelReplica::test(words[0], spec);
    let number = |key: &str| {
        let value = words
            .iter()
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?;
        Some(value.parse::<i64>().expect("the test passes a number"))
    };
    let tolerated_for = number("tolerates");
    if has("tolerates") || tolerated_for.is_some() {
        replica.spec.placement.tolerations.push(Toleration {
            operator: TolerationOperator::Exists,
            effect: tolerated_for.map(|_| TaintEffect::NoExecute),
            toleration_seconds: tolerated_for,
            ..Toleration::default()
        });
    }
    if !has("alone") {
        let labels = BTreeMap::from([(DEPLOYMENT_LABEL.to_owned(), "guide".to_owned())]);
        replica.metadata.labels = Some(labels);
    }
    if let Some(revision) = words.iter().find_map(|word| word.strip_prefix("rev=")) {
        let label = (REVISION_LABEL.to_owned(), revision.to_owned());
        replica.labels_mut().extend([label]);
    }
    if has("mirror") {
        let annotations = BTreeMap::from([(MIRROR_ANNOTATION.to_owned(), String::new())]);
        replica.metadata.annotations = Some(annotations);
    }
    if let Some(to) = words.iter().find_map(|word| word.strip_prefix("moves=")) {
        replica
            .annotations_mut()
            .insert(MOVE_ANNOTATION.to_owned(), to.to_owned());
    }
    if has("ending") {
        replica.metadata.deletion_timestamp = Some(Time(at(NOW)));
    }
    if has("held") {
        replica.metadata.finalizers = Some(vec![REPLICA_FINALIZER.to_owned()]);
    }
    let mut status = ModelReplicaStatus::default();
    let mut set = |kind, truth, reason: &str, message: &str, since| {
        let at = at(NOW - since);
        set_condition(&mut status.conditions, kind, truth, reason, message, None, at);
    };
    if let Some(since) = number("bound") {
        set(condition_type::SCHEDULED, Truth::True, "Scheduled", "", since);
    }
    if has("stuck") {
        set(condition_type::SCHEDULED, Truth::False, "Unschedulable", "", 0);
    }
    if has("leaving") || number("leaving").is_some() {
        let message = "a is being drained; the replica is deleted when its replacement is Ready";
        let since = number("leaving").unwrap_or(0);
        set(
            condition_type::DISRUPTION_TARGET,
            Truth::True,
            "NodeLeft",
            message,
            since,
        );
    }
    let (truth, reason) = if has("notready") {
        (Truth::False, crate::deployment::NODE_NOT_READY)
    } else {
        (Truth::True, "Serving")
    };
    let message = format!(
        "the agent of {} does not report; the replica may still run there",
        on.unwrap_or_default()
    );
    if on.is_some() && !has("silent") {
        set(condition_type::READY, truth, reason, &message, 0);
    }
    if let Some(each) = number("speed") {
        let each = each as f64;
        let speed = SpeedWorking {
            tokens_per_second: Percentiles {
                p10: each,
                p50: each,
                p90: each,
            },
            ..SpeedWorking::default()
        };
        status.admission = Some(AdmissionStatus {
            admitted: true,
            speed: Some(speed),
            ..AdmissionStatus::default()
        });
    }
    replica.status = Some(status);
    replica
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|line| !line.is_empty())
}

/// Returns a deployment whose desired count is the number of replicas and that may lack one.
fn deployment(replicas: &[ModelReplica]) -> ModelDeployment {
    let of_it = |replica: &&ModelReplica| replica.labels().contains_key(DEPLOYMENT_LABEL);
    deployment_of(replicas.iter().filter(of_it).count(), 1, 0)
}

fn deployment_of(replicas: usize, max_unavailable: i32, max_surge: i32) -> ModelDeployment {
    let rolling = serde_json::json!({ "maxUnavailable": max_unavailable, "maxSurge": max_surge });
    let spec = serde_json::json!({ "replicas": replicas, "strategy": { "rollingUpdate": rolling } });
    ModelDeployment::test("guide", spec)
}

/// Checks the steps. `silent` lists the nodes with an expired Lease, `missing` the nodes that have
/// been missing for longer than the grace period.
#[track_caller]
fn check(nodes: &str, replicas: &str, silent: &str, missing: &str, expect: &str) {
    let made: Vec<_> = lines(replicas).map(replica).collect();
    check_of(&deployment(&made), nodes, replicas, silent, missing, expect);
}

#[track_caller]
fn check_of(
    deployment: &ModelDeployment,
    nodes: &str,
    replicas: &str,
    silent: &str,
    missing: &str,
    expect: &str,
) {
    assert_eq!(plan_of(deployment, nodes, replicas, silent, missing), expect);
}

fn plan_of(deployment: &ModelDeployment, nodes: &str, replicas: &str, silent: &str, missing: &str) -> String {
    let tainted = lines(nodes)
        .filter_map(|line| {
            let since = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix("since="))
                .map_or(0, |since| since.parse().expect("the test passes a number"));
            let node = node(line);
            let taints: Vec<_> = taints_of(&node)
                .into_iter()
                .filter(|taint| taint.effect == TaintEffect::NoExecute)
                .map(|taint| (taint, Duration::from_secs(since)))
                .collect();
            (!taints.is_empty()).then(|| (node.name_any(), taints))
        })
        .collect();
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let expired = |names: &str, after: Duration| {
        let names = names.split_whitespace();
        names.map(|name| (name.to_owned(), after)).collect()
    };
    let plan = NodePlan::new(&Observed {
        nodes: nodes.iter().collect(),
        replicas: replicas.iter().collect(),
        deployments: vec![deployment],
        timings: Timings {
            silence: expired(silent, LEASE_DURATION),
            missing: expired(missing, MISSING_GRACE),
            tainted,
        },
        reserve_node_failures: 0,
        version: "0.3.0",
        now: at(NOW),
    });
    let steps: Vec<_> = plan.steps.iter().map(describe).collect();
    steps.join(" ")
}

fn describe(step: &Step<'_>) -> String {
    match step {
        Step::NodeSilent { node, .. } => format!("silent({})", node.name_any()),
        Step::ReplicaNotReady { replica, .. } => format!("notready({})", replica.name_any()),
        Step::NodeSkewed { node, message, .. } => {
            let advice = message.as_ref().and_then(|message| message.rsplit(", ").next());
            format!("skewed({}: {})", node.name_any(), advice.unwrap_or("compatible"))
        }
        Step::ReplicaLeaving { replica, cause, .. } => match cause {
            Some(cause) => format!("leaving({}: {cause})", replica.name_any()),
            None => format!("stays({})", replica.name_any()),
        },
        Step::NodeDrained { node, status, .. } => {
            let condition = status
                .conditions
                .iter()
                .find(|condition| condition.type_ == condition_type::DRAINED);
            let message = condition.map_or("", |condition| &condition.message);
            format!("drained({}: {message})", node.name_any())
        }
        Step::Evict { replica, .. } => format!("evict({})", replica.name_any()),
        Step::Release { replica, .. } => format!("release({})", replica.name_any()),
    }
}

#[test]
fn silent_node_and_its_replicas_are_not_ready() {
    check("a; b", "x on=a; y on=b; z on=a ending", "", "", "");
    check(
        "a; b",
        "x on=a; y on=b; z on=a ending",
        "a",
        "",
        "silent(a) notready(x) notready(z)",
    );
}

#[test]
fn replica_of_silent_node_is_replaced_if_another_node_has_room() {
    let late = EVICT_AFTER.as_secs();
    let silent = |rest: &str| format!("a silent={late}; {rest}");
    check(
        &format!("a silent={}; b", late - 1),
        "x on=a notready held",
        "a",
        "",
        "silent(a)",
    );
    let held = "x on=a notready held";
    check(&silent("b"), held, "a", "", "silent(a) evict(x)");
    check(&silent("b mem=1"), held, "a", "", "silent(a)");
    check(&silent(""), held, "a", "", "silent(a)");
    // The status reports silence, but the Lease was renewed: a former leader wrote the status late.
    check(&silent("b"), held, "", "", "");
    // The free memory suffices for one replica, and an unscheduled replica has precedence.
    check(
        &silent("b mem=2"),
        "x on=a notready; y on=a notready",
        "a",
        "",
        "silent(a) evict(x)",
    );
    check(&silent("b mem=2"), "x on=a notready; y", "a", "", "silent(a)");
    // No deployment would create a replacement.
    check(
        &silent("b"),
        "x on=a notready alone; y on=a notready mirror; z on=a notready ending",
        "a",
        "",
        "silent(a)",
    );
}

#[test]
fn no_execute_taint_evicts_replicas_without_toleration() {
    check(
        "a taint; b",
        "x on=a; y on=a tolerates; z on=b",
        "",
        "",
        "evict(x)",
    );
}

#[test]
fn drain_evicts_within_the_disruption_budget() {
    check(
        "a drain; b",
        "x on=a; y on=a; z on=b",
        "",
        "",
        "evict(x) drained(a: 2 replicas left; default/x: its worker is stopping)",
    );
    // One replica is already missing. Replicas that are not Ready may be evicted.
    check(
        "a drain; b",
        "x on=a; y on=a notready; z on=a notready",
        "",
        "",
        "evict(y) evict(z) drained(a: 3 replicas left; default/x: its deployment has no replica to spare, see \
         spec.strategy.rollingUpdate.maxUnavailable)",
    );
    check(
        "a drain; b mem=1",
        "x on=a",
        "",
        "",
        "drained(a: 1 replica left; default/x: no other node accepts a replacement: 0/2 nodes are available: 2 unknown \
         chip: 1 insufficient memory (1.0 GiB free at most), 1 cordoned; b: needs 1.5 GiB (weights 1.0 GiB + KV cache 1.0 \
         KiB for 1 streams of 16 tokens + activations 0 B + runtime 476.8 MiB), 1.0 GiB free)",
    );
    check(
        "a drain; b",
        "x on=b; y on=a mirror; z on=a alone",
        "",
        "",
        "drained(a: no replicas left)",
    );
}

#[test]
fn usage_taint_evicts_to_nodes_without_such_taints() {
    check(
        "a battery; b",
        "x on=a; y on=a; z on=a tolerates",
        "",
        "",
        "evict(x)",
    );
    check("a battery; b battery", "x on=a", "", "", "");
    // The replacement of a replica on a silent node may run on any node.
    let nodes = format!("a silent={}; b battery", EVICT_AFTER.as_secs());
    check(&nodes, "x on=a notready", "a", "", "silent(a) evict(x)");
}

#[test]
fn replicas_of_a_deleted_node_are_released() {
    let replicas = "x on=gone held; y on=gone ending held; z on=a held; w on=gone ending";
    check("a", replicas, "", "", "");
    check("a", replicas, "", "gone", "release(x) release(y)");
}

#[test]
fn requeues_when_a_lease_may_expire() {
    let nodes = [node("a"), node("b")];
    let plan = NodePlan::new(&Observed {
        nodes: nodes.iter().collect(),
        replicas: Vec::new(),
        deployments: Vec::new(),
        timings: Timings {
            silence: BTreeMap::from([("a".to_owned(), Duration::from_secs(30))]),
            ..Timings::default()
        },
        reserve_node_failures: 0,
        version: "0.3.0",
        now: at(NOW),
    });
    let wait = plan.requeue_after.expect("a lease may expire");
    assert!(
        wait >= Duration::from_secs(10) && wait < Duration::from_secs(11),
        "{wait:?}"
    );
}

#[test]
fn limited_toleration_delays_the_eviction() {
    let tolerant = "x on=a tolerates=60";
    check("a taint since=59; b", tolerant, "", "", "");
    check("a taint since=60; b", tolerant, "", "", "evict(x)");
    check("a taint; b", "x on=a tolerates=0", "", "", "evict(x)");
    check("a battery since=59; b", tolerant, "", "", "");
    check("a battery since=60; b", tolerant, "", "", "evict(x)");
    // The replica was bound after the taint appeared.
    check("a taint since=900; b", "x on=a tolerates=60 bound=59", "", "", "");
    // The binding is not confirmed yet.
    check("a taint since=900; b", "x on=a silent tolerates=60", "", "", "");
    check(
        "a taint since=900; b",
        "x on=a tolerates=60 bound=60",
        "",
        "",
        "evict(x)",
    );
    // Silence counts as a taint.
    let patient = "x on=a notready tolerates=300";
    check("a silent=299; b", patient, "a", "", "silent(a)");
    check("a silent=300; b", patient, "a", "", "silent(a) evict(x)");
    check(
        "a silent=9999; b",
        "x on=a notready tolerates",
        "a",
        "",
        "silent(a)",
    );
}

#[test]
fn requeues_when_a_toleration_ends() {
    let node = node("a taint");
    let replica = replica("x on=a tolerates=60");
    let mut taints = taints_of(&node);
    let taint = (
        taints.pop().expect("the node has one taint"),
        Duration::from_secs(20),
    );
    let plan = NodePlan::new(&Observed {
        nodes: vec![&node],
        replicas: vec![&replica],
        deployments: Vec::new(),
        timings: Timings {
            silence: BTreeMap::from([("a".to_owned(), Duration::ZERO)]),
            tainted: BTreeMap::from([("a".to_owned(), vec![taint])]),
            ..Timings::default()
        },
        reserve_node_failures: 0,
        version: "0.3.0",
        now: at(NOW),
    });
    let wait = plan.requeue_after.expect("a toleration ends");
    let expect = Duration::from_secs(40);
    assert!(
        wait >= expect.min(LEASE_DURATION) && wait < expect + Duration::from_secs(1),
        "{wait:?}"
    );
}

#[test]
fn evictions_are_delayed_while_most_nodes_are_silent() {
    let nodes = |silent: u64| {
        let names = ["a", "b", "c"].map(|name| format!("{name} silent={silent};"));
        names.concat() + "d; e"
    };
    let replica = "x on=a notready";
    let late = EVICT_AFTER.as_secs();
    // Three of five nodes are a disruption, two of five are none.
    let three = "silent(a) silent(b) silent(c)";
    check(&nodes(late), replica, "a b c", "", three);
    check(&nodes(late), replica, "a b", "", "silent(a) silent(b) evict(x)");
    let later = EVICT_AFTER_DISRUPTION.as_secs();
    check(&nodes(later - 1), replica, "a b c", "", three);
    check(&nodes(later), replica, "a b c", "", &format!("{three} evict(x)"));
}

#[test]
fn unsupported_version_skew_is_reported() {
    check("a version=0.3.1; b version=0.2.0; c", "", "", "", "");
    check("a version=0.1.0", "", "", "", "skewed(a: upgrade the agent)");
    check(
        "a version=0.5.0",
        "",
        "",
        "",
        "skewed(a: upgrade the control plane)",
    );
    check("a version=0.3.0 skewed", "", "", "", "skewed(a: compatible)");
}

#[test]
fn evictions_keep_the_throughput_floor() {
    let check = |nodes: &str, replicas: &str, surge: i32, expect: &str| {
        let mut deployment = deployment_of(2, 1, surge);
        let rolling = deployment.spec.strategy.rolling_update.as_mut();
        rolling.expect("the test sets a rolling update").min_throughput = Some(CountOrPercent::Percent(60));
        check_of(&deployment, nodes, replicas, "", "", expect);
    };
    // The floor is 60 % of 50 tokens/s: the fast replica must stay, the slow one may be evicted.
    let two = "x on=a speed=40; y on=b speed=10";
    check(
        "a drain; b; c",
        two,
        0,
        "drained(a: 1 replica left; default/x: its deployment would keep 10.0 of 50.0 predicted tokens/s, but \
         spec.strategy.rollingUpdate.minThroughput requires 30.0)",
    );
    check(
        "a; b drain; c",
        two,
        0,
        "evict(y) drained(b: 1 replica left; default/y: its worker is stopping)",
    );
    // The replacement exists but is too slow.
    check(
        "a drain; b; c",
        "x on=a speed=40 leaving; y on=b speed=10; z on=c speed=5",
        1,
        // The floor is 60 % of the speed of two replicas with the mean speed of all three.
        "drained(a: 1 replica left; default/x: its deployment would keep 15.0 of 55.0 predicted tokens/s, but \
         spec.strategy.rollingUpdate.minThroughput requires 22.0)",
    );
    check(
        "a drain; b; c",
        "x on=a speed=40 leaving; y on=b speed=10; z on=c speed=40",
        1,
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
    // If the speed is unknown, only the replica counts limit evictions.
    check(
        "a drain; b; c",
        "x on=a; y on=b",
        0,
        "evict(x) drained(a: 1 replica left; default/x: its worker is stopping)",
    );
}
