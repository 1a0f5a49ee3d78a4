use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::ResourceExt;

use super::apply::Heartbeats;
use super::plan::{EVICT_AFTER, LEASE_EXPIRES, MISSING_GRACE, NODE_SILENT, NodePlan, Observed, Step};
use crate::api::conditions::{Truth, condition_type, set_condition};
use crate::api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION, REPLICA_FINALIZER};
use crate::api::v1alpha1::*;
use crate::clock::{Clock, ManualClock};
use crate::roofline::memory::ServedModel;
use crate::units::Bytes;

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

/// `a mem=8 silent=SECONDS taint drain battery`: silent nodes have been found so that long ago.
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
    let (truth, reason, since) = match field("silent") {
        Some(seconds) => (
            Truth::Unknown,
            NODE_SILENT,
            NOW - seconds.parse::<i64>().expect("a number"),
        ),
        None => (Truth::True, "AgentReady", NOW),
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

/// `x on=a notready ending alone mirror tolerates held`
fn replica(line: &str) -> ModelReplica {
    let words: Vec<_> = line.split_whitespace().collect();
    let has = |word: &str| words.contains(&word);
    let on = words.iter().find_map(|word| word.strip_prefix("on="));
    let mut spec: ModelReplicaSpec = serde_json::from_value(serde_json::json!({
        "model": { "source": "local://guide" },
        "serving": { "name": "guide", "contextTokens": 16, "maxConcurrency": 1 },
    }))
    .expect("valid");
    spec.node_name = on.map(str::to_owned);
    if has("tolerates") {
        spec.placement.tolerations.push(Toleration {
            operator: TolerationOperator::Exists,
            ..Toleration::default()
        });
    }
    let mut replica = ModelReplica::new(words[0], spec);
    replica.metadata.namespace = Some("default".to_owned());
    if !has("alone") {
        let labels = BTreeMap::from([(DEPLOYMENT_LABEL.to_owned(), "guide".to_owned())]);
        replica.metadata.labels = Some(labels);
    }
    if has("mirror") {
        let annotations = BTreeMap::from([(MIRROR_ANNOTATION.to_owned(), String::new())]);
        replica.metadata.annotations = Some(annotations);
    }
    if has("ending") {
        replica.metadata.deletion_timestamp = Some(Time(at(NOW)));
    }
    if has("held") {
        replica.metadata.finalizers = Some(vec![REPLICA_FINALIZER.to_owned()]);
    }
    let mut status = ModelReplicaStatus::default();
    let (truth, reason) = if has("notready") {
        (Truth::False, crate::controller::deployment::NODE_NOT_READY)
    } else {
        (Truth::True, "Serving")
    };
    let message = format!(
        "the agent of {} does not report; the replica may still run there",
        on.unwrap_or_default()
    );
    set_condition(
        &mut status.conditions,
        condition_type::READY,
        truth,
        reason,
        message,
        None,
        at(NOW),
    );
    replica.status = Some(status);
    replica
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|line| !line.is_empty())
}

/// As many replicas wanted as there are, of which one may be missing.
fn deployment(replicas: &[ModelReplica]) -> ModelDeployment {
    let of_it = |replica: &&ModelReplica| replica.labels().contains_key(DEPLOYMENT_LABEL);
    let spec = serde_json::from_value(serde_json::json!({
        "model": { "source": "local://guide" },
        "replicas": replicas.iter().filter(of_it).count(),
    }));
    let mut deployment = ModelDeployment::new("guide", spec.expect("valid"));
    deployment.metadata.namespace = Some("default".to_owned());
    deployment
}

/// `silent` names the nodes whose Lease has expired, `missing` those that have not been there for long enough.
fn check(nodes: &str, replicas: &str, silent: &str, missing: &str, expect: &str) {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let expired = |names: &str, after: Duration| {
        let names = names.split_whitespace();
        names.map(|name| (name.to_owned(), after)).collect()
    };
    let deployment = deployment(&replicas);
    let plan = NodePlan::new(&Observed {
        nodes: nodes.iter().collect(),
        replicas: replicas.iter().collect(),
        deployments: vec![&deployment],
        silence: expired(silent, LEASE_EXPIRES),
        missing: expired(missing, MISSING_GRACE),
        now: at(NOW),
    });
    let said: Vec<_> = plan
        .steps
        .iter()
        .map(|step| match step {
            Step::NodeSilent { node, .. } => format!("silent({})", node.name_any()),
            Step::ReplicaNotReady { replica, .. } => format!("notready({})", replica.name_any()),
            Step::NodeDrained { node, status, .. } => {
                let condition = status
                    .conditions
                    .iter()
                    .find(|one| one.type_ == condition_type::DRAINED);
                let message = condition.map_or("", |condition| &condition.message);
                format!("drained({}: {message})", node.name_any())
            }
            Step::Evict { replica, .. } => format!("evict({})", replica.name_any()),
            Step::Release { replica, .. } => format!("release({})", replica.name_any()),
        })
        .collect();
    assert_eq!(said.join(" "), expect);
}

#[test]
fn a_silent_node_and_its_replicas_are_not_ready() {
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
fn a_replica_of_a_silent_node_is_replaced_only_where_another_node_has_room() {
    let late = EVICT_AFTER.as_secs();
    let silent = |rest: &str| format!("a silent={late}; {rest}");
    check(
        &format!("a silent={}; b", late - 1),
        "x on=a notready held",
        "",
        "",
        "",
    );
    check(&silent("b"), "x on=a notready held", "", "", "evict(x)");
    check(&silent("b mem=1"), "x on=a notready held", "", "", "");
    check(&silent(""), "x on=a notready held", "", "", "");
    // Room for one, and one that waits already takes it.
    check(
        &silent("b mem=2"),
        "x on=a notready; y on=a notready",
        "",
        "",
        "evict(x)",
    );
    check(&silent("b mem=2"), "x on=a notready; y", "", "", "");
    // Nobody would make another one.
    check(
        &silent("b"),
        "x on=a notready alone; y on=a notready mirror; z on=a notready ending",
        "",
        "",
        "",
    );
}

#[test]
fn a_taint_of_effect_no_execute_expels_what_does_not_tolerate_it() {
    check(
        "a taint; b",
        "x on=a; y on=a tolerates; z on=b",
        "",
        "",
        "evict(x)",
    );
}

#[test]
fn a_drained_node_is_left_as_fast_as_its_deployments_can_spare_their_replicas() {
    check(
        "a drain; b",
        "x on=a; y on=a; z on=b",
        "",
        "",
        "evict(x) drained(a: 2 replicas left; default/x: its worker is stopping)",
    );
    // One is missing already; what does not serve anyway may go.
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
        "drained(a: 1 replica left; default/x: no other node takes it: 0/2 nodes are available: 1 cordoned, 1 \
         insufficient memory; b: needs 1.5 GiB (weights 1.0 GiB + KV cache 1.0 KiB for 1 streams of 16 tokens + \
         activations 0 B + runtime 476.8 MiB), 1.0 GiB free)",
    );
    check(
        "a drain; b",
        "x on=b; y on=a mirror; z on=a alone",
        "",
        "",
        "drained(a: no replica is left)",
    );
}

#[test]
fn a_node_whose_conditions_speak_against_it_is_left_gently() {
    check(
        "a battery; b",
        "x on=a; y on=a; z on=a tolerates",
        "",
        "",
        "evict(x)",
    );
    check("a battery; b battery", "x on=a", "", "", "");
}

#[test]
fn replicas_of_a_node_that_was_deleted_are_let_go() {
    let replicas = "x on=gone held; y on=gone ending held; z on=a held; w on=gone ending";
    check("a", replicas, "", "", "");
    check("a", replicas, "", "gone", "release(x) release(y)");
}

#[test]
fn it_looks_again_when_a_lease_may_have_expired() {
    let nodes = [node("a"), node("b")];
    let plan = NodePlan::new(&Observed {
        nodes: nodes.iter().collect(),
        replicas: Vec::new(),
        deployments: Vec::new(),
        silence: BTreeMap::from([("a".to_owned(), Duration::from_secs(30))]),
        missing: BTreeMap::new(),
        now: at(NOW),
    });
    let wait = plan.look_again_after.expect("a lease may expire");
    assert!(
        wait >= Duration::from_secs(10) && wait < Duration::from_secs(11),
        "{wait:?}"
    );
}

#[test]
fn silence_is_measured_by_our_own_clock() {
    let manual = ManualClock::new(at(NOW));
    let clock = Clock::Manual(manual.clone());
    let node = node("a");
    let lease = |renewed: i64| {
        move |name: &str| {
            assert_eq!(name, "fleetnode-a");
            let spec = LeaseSpec {
                renew_time: Some(MicroTime(at(renewed))),
                ..LeaseSpec::default()
            };
            Some(Lease {
                spec: Some(spec),
                ..Lease::default()
            })
        }
    };
    let mut heartbeats = Heartbeats::default();
    let mut silence = |renewed| heartbeats.silence([&node], lease(renewed), clock.instant())["a"];
    // Its clock is an hour behind: that is no silence.
    assert_eq!(silence(NOW - 3600), Duration::ZERO);
    manual.advance(Duration::from_secs(30));
    assert_eq!(silence(NOW - 3600), Duration::from_secs(30));
    assert_eq!(silence(NOW - 3590), Duration::ZERO);
    manual.advance(Duration::from_secs(5));
    assert_eq!(silence(NOW - 3590), Duration::from_secs(5));
}
