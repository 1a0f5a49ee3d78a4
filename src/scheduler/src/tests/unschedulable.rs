//! What is said where no node takes a replica.

use super::check;
use super::fixture::{lines, node, replica};
use crate::fleet::Fleet;
use crate::placement::bind::place;
use crate::request::ReplicaRequest;

fn said(nodes: &str, replicas: &str) -> String {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let mut fleet = Fleet::new(&nodes, &replicas);
    let waiting = replicas.iter().rfind(|replica| replica.spec.node_name.is_none());
    let request = ReplicaRequest::new(waiting.expect("one waits"));
    let why = place(&request, &mut fleet).expect_err("no node takes it");
    why.to_string()
}

/// What would help the last one that has no node.
fn helps(nodes: &str, replicas: &str, expect: &str) {
    let said = said(nodes, replicas);
    let remedies = said.split_once(". What would help, the least first: ");
    assert_eq!(remedies.map_or("", |(_, remedies)| remedies), expect, "{said}");
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
         MiB for 1 streams of 4096 tokens + activations 0 B + runtime 476.8 MiB), 10.0 GiB free. What would help, the \
         least first: tolerate {lid:NoSchedule} (spec.placement.tolerations) or take it off d",
    );
}

#[test]
fn a_large_fleet_is_told_in_few_words() {
    let nodes: Vec<_> = (0..40)
        .map(|ram| format!("n{ram:02} chip=M4 ram={} mem=1 model=guide:2", 100 + ram))
        .collect();
    let said = said(&nodes.join("; "), "x");
    assert!(said.contains("; 34 of 34 other classes; "), "{said}");
    assert!(said.len() < 1024, "an event holds {}: {said}", said.len());
}

#[test]
fn each_obstacle_has_its_remedy() {
    helps("a model=guide:2 cordoned", "x", "`rooflet uncordon a`");
    helps(
        "a model=guide:2 drain",
        "x",
        "end the drain (`rooflet uncordon a`)",
    );
    helps("a model=guide:2 notready", "x", "get a ready (LeaseExpired)");
    helps(
        "a model=guide:2 taint=lid:NoExecute",
        "x",
        "tolerate {lid:NoExecute} (spec.placement.tolerations) or take it off a",
    );
    // Nobody can take off what follows from a condition.
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
    // The agent would put its own back.
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
        "mend the model `guide` on a: config.json is missing",
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
        "give c a label zone; spec.placement.spread.maxSkew: 3, or whenUnsatisfiable: ScheduleAnyway",
    );
    helps(
        "a mem=4 model=guide:3",
        "old on=a; x",
        "fewer other replicas on a",
    );
}

#[test]
fn what_takes_several_changes_is_told_whole() {
    helps(
        "a model=guide:2 cordoned taint=lid:NoSchedule",
        "x",
        "`rooflet uncordon a`, and tolerate {lid:NoSchedule} (spec.placement.tolerations) or take it off a",
    );
    // One change before two, and the cheaper one first.
    helps(
        "a model=guide:2 cordoned taint=lid:NoSchedule; b; c model=guide:2 cordoned",
        "x",
        "`rooflet uncordon c`; `rooflet uncordon a`, and tolerate {lid:NoSchedule} (spec.placement.tolerations) or take \
         it off a; put the model `guide` under b's --model-dir",
    );
    // What would not be enough is not told: neither node has the memory.
    helps(
        "a mem=1; b model=guide:2 mem=1 cordoned; c model=guide:2 notready",
        "x",
        "get c ready (LeaseExpired)",
    );
}

#[test]
fn disk_that_is_asked_for_is_promised() {
    let nodes = "a chip=M4 ram=16 room=60 model=guide:2; b chip=M4 ram=16 room=20 model=guide:2; c chip=M4 ram=16 model=guide:2 cordoned";
    check(nodes, "x store=40", "x->a");
    // Budgets of replicas on one node add up; who asks for nothing takes what is left.
    check(
        nodes,
        "old on=a store=30; x store=40; y store=30",
        "x: 0/3 nodes are available: 3 Apple M4 16 GiB: 2 \
         insufficient disk (30.0 GiB free at most), 1 cordoned; a: spec.serving.kvCache.diskSize is 40.0 GiB, and 30.0 GiB of the \
         60.0 GiB that replicas may store on the node's disk are promised to no other. What would help, the least first: \
         `rooflet uncordon c`; spec.serving.kvCache.diskSize: 30Gi for a\ny->a",
    );
    check(nodes, "old on=a store=60; lots on=b store=20; x", "x->a");
    check(
        nodes,
        "old on=a store=60 priority=-1 of=d ready; x store=40",
        "x preempts old on a",
    );
    // An agent that does not say is asked itself.
    check("a model=guide:2", "x store=4000", "x->a");
}

#[test]
fn where_no_node_could_ever_hold_it_a_mac_that_could_is_told() {
    // 22.5 GiB: of 32 GiB the GPU may use three quarters, and a twentieth of that is kept free.
    helps(
        "a chip=M4 ram=16 mem=10 model=big:22",
        "x model=big",
        "a Mac with at least 32 GiB",
    );
    // Others hold what it needs.
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
        "a smaller model: no Mac that is made holds this one as it is to be served",
    );
}

/// It is not the memory.
#[test]
fn where_no_mac_is_fast_enough_nobody_is_told_to_buy_one_or_another_model() {
    let told = said("a chip=M4 ram=16 mem=10 model=guide:2", "x rate=100000000");
    assert!(
        told.ends_with("lower spec.objectives: no Mac that is made reaches these"),
        "{told}"
    );
}
