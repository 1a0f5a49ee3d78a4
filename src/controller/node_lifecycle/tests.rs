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

/// `a mem=8 silent=SECONDS taint`: silent nodes have been found so that long ago.
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

/// `silent` names the nodes whose Lease has expired, `missing` those that have not been there for long enough.
fn check(nodes: &str, replicas: &str, silent: &str, missing: &str, expect: &str) {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let expired = |names: &str, after: Duration| {
        let names = names.split_whitespace();
        names.map(|name| (name.to_owned(), after)).collect()
    };
    let plan = NodePlan::new(&Observed {
        nodes: nodes.iter().collect(),
        replicas: replicas.iter().collect(),
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
