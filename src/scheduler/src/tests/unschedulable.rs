//! Messages for unschedulable replicas.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::check;
use super::fixture::{lines, node, replica};
use crate::fleet::Fleet;
use crate::placement::choice::place;
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_api::v1alpha1::ModelReplica;

fn message(nodes: &str, replicas: &str) -> String {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let mut fleet = Fleet::new(&nodes, &replicas);
    let waiting = replicas.iter().rfind(|replica| replica.spec.node_name.is_none());
    let request = ReplicaRequest::new(waiting.expect("one waits"));
    let why = place(&request, &mut fleet).expect_err("no node accepts it");
    why.to_string()
}

/// Checks the remedies of the last unschedulable replica.
fn helps(nodes: &str, replicas: &str, expect: &str) {
    let message = message(nodes, replicas);
    let remedies = message.split_once(". Remedies, smallest change first: ");
    assert_eq!(remedies.map_or("", |(_, remedies)| remedies), expect, "{message}");
}

#[test]
fn nodes_are_counted_by_class_and_reason() {
    check(
        "a chip=M4 ram=16 mem=10 model=big:22; b chip=M4 ram=16 mem=10 model=big:22 cordoned; \
         c chip=M4 ram=16 mem=9 model=big:22; d chip=M4_Pro ram=48 mem=36 model=big:22 taint=lid:NoSchedule; \
         e chip=M4_Pro ram=48 mem=36 model=big:22 taint=lid:NoSchedule",
        "x model=big",
        "x: 0/5 nodes are available: 3 Apple M4 16 GiB: 2 insufficient memory (10.0 GiB free at most), 1 cordoned; \
         2 Apple M4 Pro 48 GiB: untolerated taint {lid:NoSchedule}; a: needs 22.5 GiB (weights 22.0 GiB + KV cache 4.0 \
         MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 10.0 GiB free. Remedies, smallest change first: tolerate {lid:NoSchedule} (spec.placement.tolerations) or remove it from d",
    );
}

#[test]
fn message_of_a_large_fleet_is_bounded() {
    let nodes: Vec<_> = (0..40)
        .map(|ram| format!("n{ram:02} chip=M4 ram={} mem=1 model=guide:2", 100 + ram))
        .collect();
    let message = message(&nodes.join("; "), "x");
    assert!(message.contains("; 34 of 34 other classes; "), "{message}");
    assert!(
        message.len() < 1024,
        "an event holds {}: {message}",
        message.len()
    );
}

#[test]
fn every_rejection_has_a_remedy() {
    helps("a model=guide:2 cordoned", "x", "`rooflet uncordon a`");
    helps(
        "a model=guide:2 drain",
        "x",
        "end the drain (`rooflet uncordon a`)",
    );
    helps("a model=guide:2 notready", "x", "make a ready (LeaseExpired)");
    helps(
        "a model=guide:2 taint=lid:NoExecute",
        "x",
        "tolerate {lid:NoExecute} (spec.placement.tolerations) or remove it from a",
    );
    // Taints that follow from a condition cannot be removed.
    helps(
        "a model=guide:2 taint=rooflet.dev/on-battery:NoExecute",
        "x",
        "tolerate {rooflet.dev/on-battery:NoExecute} (spec.placement.tolerations) or wait until OnBattery of a ends",
    );
    helps(
        "a model=guide:2 label=zone:x",
        "x select=zone:y",
        "`kubectl label mac a zone=y --overwrite`, or another spec.placement.nodeSelector, which no node matches",
    );
    // The agent would restore its labels.
    helps(
        "a model=guide:2 label=kubernetes.io/hostname:a",
        "x select=kubernetes.io/hostname:b",
        "another spec.placement.nodeSelector, which no node matches",
    );
    helps(
        "a model=guide:2; b label=zone:y mem=1 model=guide:2",
        "x select=zone:y",
        "`kubectl label mac a zone=y`, or another spec.placement.nodeSelector",
    );
    helps(
        "a model=guide:2 broken",
        "x",
        "fix the model `guide` on a: config.json is missing",
    );
    helps(
        "a model=guide:1",
        "x context=5000",
        "spec.serving.contextTokens: 4096",
    );
    helps(
        "a model=guide:2",
        "old of=d on=a; x of=d anti=Required",
        "spec.placement.antiAffinity: Preferred",
    );
    helps(
        "a model=guide:2 label=zone:x; b model=guide:2 mem=1 label=zone:y; c model=guide:2",
        "p of=d on=a; q of=d on=a; x of=d spread=zone",
        "add the label zone to c; spec.placement.spread.maxSkew: 3, or whenUnsatisfiable: ScheduleAnyway",
    );
    helps(
        "a mem=4 model=guide:3",
        "old on=a; x",
        "fewer other replicas on a",
    );
}

#[test]
fn remedy_lists_all_required_changes() {
    helps(
        "a model=guide:2 cordoned taint=lid:NoSchedule",
        "x",
        "`rooflet uncordon a`, and tolerate {lid:NoSchedule} (spec.placement.tolerations) or remove it from a",
    );
    // One change before two, lower effort first.
    helps(
        "a model=guide:2 cordoned taint=lid:NoSchedule; b; c model=guide:2 cordoned",
        "x",
        "`rooflet uncordon c`; `rooflet uncordon a`, and tolerate {lid:NoSchedule} (spec.placement.tolerations) or remove it from a; put the model `guide` under b's --model-dir",
    );
    // Insufficient changes are omitted: neither node has the memory.
    helps(
        "a mem=1; b model=guide:2 mem=1 cordoned; c model=guide:2 notready",
        "x",
        "make c ready (LeaseExpired)",
    );
}

#[test]
fn reserves_requested_disk_space() {
    let nodes = "a chip=M4 ram=16 room=60 model=guide:2; b chip=M4 ram=16 room=20 model=guide:2; c chip=M4 ram=16 model=guide:2 cordoned";
    check(nodes, "x store=40", "x->a");
    // Disk budgets on one node add up; replicas without a budget need none.
    check(
        nodes,
        "old on=a store=30; x store=40; y store=30",
        "x: 0/3 nodes are available: 3 Apple M4 16 GiB: 2 \
         insufficient disk (30.0 GiB free at most), 1 cordoned; a: spec.serving.kvCache.diskSize is 40.0 GiB, and 30.0 GiB of the \
         60.0 GiB that replicas may store on the node's disk are unreserved. Remedies, smallest change first: \
         `rooflet uncordon c`; spec.serving.kvCache.diskSize: 30Gi for a\ny->a",
    );
    check(nodes, "old on=a store=60; lots on=b store=20; x", "x->a");
    check(
        nodes,
        "old on=a store=60 priority=-1 of=d ready; x store=40",
        "x preempts old on a",
    );
    // If the agent reports no disk space, the agent itself decides.
    check("a model=guide:2", "x store=4000", "x->a");
}

#[test]
fn suggests_a_mac_if_no_node_could_ever_run_the_replica() {
    // 22.5 GiB: the GPU may use three quarters of 32 GiB, minus 5 % that stay free.
    helps(
        "a chip=M4 ram=16 mem=10 model=big:22",
        "x model=big",
        "a Mac with at least 32 GiB",
    );
    // Other replicas use the memory.
    helps(
        "a mem=24 model=big:22",
        "old on=a model=big; x model=big",
        "fewer other replicas on a",
    );
    helps(
        "a mem=4000 model=big:900",
        "old on=a model=big; x model=big select=zone:x",
        "`kubectl label mac a zone=x`, or another spec.placement.nodeSelector, which no node matches",
    );
    helps(
        "a model=big:900",
        "x model=big",
        "a smaller model: no available Mac has enough memory for this one",
    );
}

/// The memory suffices, but the speed does not.
#[test]
fn suggests_lower_objectives_if_no_mac_is_fast_enough() {
    let message = message("a chip=M4 ram=16 mem=10 model=guide:2", "x rate=100000000");
    assert!(
        message.ends_with("lower spec.objectives: no available Mac reaches them"),
        "{message}"
    );
}

/// Change of one of six nodes. Numbers select the node.
#[derive(Debug, Clone)]
enum Change {
    Cordon(usize),
    /// Binds a replica of this size in GiB, or removes it.
    Occupy(usize, u32),
    Label(usize, u8),
    Nominate(usize),
}

fn any_change() -> impl Strategy<Value = Change> {
    let node = 0usize..6;
    prop_oneof![
        3 => node.clone().prop_map(Change::Cordon),
        6 => (node.clone(), 1u32..6).prop_map(|(node, gib)| Change::Occupy(node, gib)),
        1 => (node.clone(), 0u8..2).prop_map(|(node, zone)| Change::Label(node, zone)),
        1 => node.prop_map(Change::Nominate),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The reasons of an incrementally updated fleet are those of a fleet built from all objects.
    #[test]
    fn reasons_follow_each_change(changes in prop::collection::vec(any_change(), 1..40)) {
        let mut nodes: Vec<_> = (0..6)
            .map(|index| {
                let model = if index % 3 == 0 { "tiny:1" } else { "tiny:1,big:22" };
                node(&format!("n{index} ram={} mem=10 model={model} label=zone:z0", 16 + index / 2))
            })
            .collect();
        let mut bound: BTreeMap<String, ModelReplica> = BTreeMap::new();
        let mut fleet = Fleet::new(&nodes, []);
        let mut nominated = None;
        for change in changes {
            match change {
                Change::Cordon(at) => {
                    nodes[at].spec.unschedulable ^= true;
                    fleet.set_node(&nodes[at]);
                }
                Change::Label(at, zone) => {
                    let labels = BTreeMap::from([("zone".to_owned(), format!("z{zone}"))]);
                    nodes[at].metadata.labels = Some(labels);
                    fleet.set_node(&nodes[at]);
                }
                Change::Occupy(at, gib) => {
                    let line = format!("r{at}-{gib} of=dep on=n{at} model=tiny reserved={gib}");
                    let replica = replica(&line);
                    let key = ReplicaKey::of(&replica);
                    match bound.remove(&key.to_string()) {
                        Some(_) => fleet.remove_replica(&key),
                        None => {
                            fleet.set_replica(&replica);
                            bound.insert(key.to_string(), replica);
                        }
                    }
                }
                Change::Nominate(at) => nominated = Some(at),
            }
            let nominated = nominated.map_or(String::new(), |at| format!("nominated=n{at}"));
            for line in [
                format!("x model=big {nominated}"),
                "x of=dep model=big anti=Required".to_owned(),
                "x model=big select=zone:z1".to_owned(),
                "x model=big spread=zone".to_owned(),
                "x model=none".to_owned(),
            ] {
                let request = ReplicaRequest::new(&replica(&line));
                let anew = place(&request, &mut Fleet::new(&nodes, bound.values()));
                prop_assert_eq!(place(&request, &mut fleet), anew, "{}", line);
            }
        }
    }
}
