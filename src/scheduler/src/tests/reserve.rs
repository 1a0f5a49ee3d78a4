//! Node-loss reserve.

use super::check_with_reserve;
use super::fixture::{lines, node, replica};
use crate::fleet::Fleet;
use crate::placement::bind::{bind_all, decide_all};
use crate::placement::choice::place;
use crate::request::ReplicaRequest;

/// Two replicas of 3 GiB fit on each.
const THREE: &str = "a mem=8 model=guide:3; b mem=8 model=guide:3; c mem=8 model=guide:3";

#[test]
fn reserves_capacity_for_replicas_of_failing_nodes() {
    let six = "p of=d; q of=d; r of=d; s of=d; t of=d; u of=d";
    let placed = |node_failures: usize| {
        let nodes: Vec<_> = lines(THREE).map(node).collect();
        let replicas: Vec<_> = lines(six).map(replica).collect();
        let requests: Vec<_> = replicas.iter().map(ReplicaRequest::new).collect();
        let mut fleet = Fleet::new(&nodes, []).with_reserve(node_failures);
        let decisions = bind_all(&requests, &mut fleet);
        decisions
            .iter()
            .filter(|decision| decision.outcome.is_ok())
            .count()
    };
    // Two replicas fit on a node: four without one node, two without two nodes.
    assert_eq!([0, 1, 2, 3].map(placed), [6, 4, 2, 0]);
    check_with_reserve(
        "a mem=8 model=guide:3",
        "x of=d",
        1,
        "x: 0/1 nodes are available: 1 unknown chip: kept free for the failure of 1 nodes (--reserve-node-failures). Remedies, smallest change first: add a node, or lower --reserve-node-failures",
    );
}

/// Returns the node of the last unscheduled replica, or the reason.
fn outcome(nodes: &str, replicas: &str, node_failures: usize) -> String {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let mut fleet = Fleet::new(&nodes, &replicas).with_reserve(node_failures);
    let waiting = replicas.iter().rfind(|replica| replica.spec.node_name.is_none());
    let request = ReplicaRequest::new(waiting.expect("one waits"));
    match place(&request, &mut fleet) {
        Ok(placement) => placement.node().to_owned(),
        Err(why) => why.reason().to_owned(),
    }
}

#[test]
fn replicas_of_a_failed_node_may_use_the_reserve() {
    let others = "q of=d on=b; r of=e on=c; s of=f on=c";
    assert_eq!(
        outcome(THREE, &format!("p of=d on=a; {others}; x of=d"), 1),
        "FailureReserve"
    );
    let failed = "a mem=8 model=guide:3 notready; b mem=8 model=guide:3; c mem=8 model=guide:3";
    let ending = format!("p of=d on=a ending; {others}");
    assert_eq!(outcome(failed, &format!("{ending}; x of=d"), 1), "b");
    // Other replicas may not use it.
    assert_eq!(
        outcome(failed, &format!("p of=d on=a; {others}; x of=g"), 1),
        "FailureReserve"
    );
    // The reserve covers two failures, so one more counts.
    assert_eq!(outcome(failed, &format!("{ending}; x of=d"), 2), "FailureReserve");
}

#[test]
fn drained_and_tainted_nodes_count_as_failed() {
    let others = "q of=d on=b; r of=e on=c; s of=f on=c";
    let drained = "a mem=8 model=guide:3 drain; b mem=8 model=guide:3; c mem=8 model=guide:3";
    assert_eq!(
        outcome(drained, &format!("p of=d on=a ending; {others}; x of=d"), 1),
        "b"
    );
    // The agent removed the replica first, so the reason for the replacement is unknown.
    assert_eq!(outcome(drained, &format!("{others}; x of=d"), 1), "b");
    let lid = "a mem=8 model=guide:3 taint=lid:NoExecute; b mem=8 model=guide:3; c mem=8 model=guide:3";
    assert_eq!(outcome(lid, &format!("p of=d on=a; {others}; x of=d"), 1), "b");
    let tolerated = format!("p of=d on=a tolerate=lid; {others}; x of=d");
    assert_eq!(outcome(lid, &tolerated, 1), "FailureReserve");
}

#[test]
fn reserve_respects_spread_constraints() {
    let nodes = "a mem=8 model=guide:3 label=rack:1; b mem=8 model=guide:3 label=rack:1; \
                 c mem=8 model=guide:3 label=rack:2";
    assert_eq!(outcome(nodes, "p of=d on=a; x of=d", 1), "b");
    // Without c, rack 1 would get a second replica while rack 2 has none.
    assert_eq!(
        outcome(nodes, "p of=d on=a; x of=d spread=rack", 1),
        "FailureReserve"
    );
}

#[test]
fn does_not_preempt_if_the_reserve_forbids_the_placement() {
    let nodes = "a mem=8 model=guide:3; b mem=8 model=guide:3";
    let waiting = |bound: &str, node_failures: usize| {
        let nodes: Vec<_> = lines(nodes).map(node).collect();
        let bound: Vec<_> = lines(bound).map(replica).collect();
        let mut fleet = Fleet::new(&nodes, &bound).with_reserve(node_failures);
        let request = ReplicaRequest::new(&replica("x of=e priority=5"));
        let decision = decide_all([&request], &mut fleet, 1)
            .pop()
            .expect("one was asked for");
        decision.preemption.map(|preemption| preemption.node)
    };
    let full = "p of=d on=a; q of=d on=a; r of=d on=b; s of=d on=b";
    assert_eq!(waiting(full, 0).as_deref(), Some("a"));
    assert_eq!(waiting(full, 1), None);
    // If one replica leaves b, the remaining one and x fit on the other node.
    assert_eq!(waiting("p of=d on=a; r of=d on=b; s of=d on=b", 1), None);
    assert_eq!(waiting("r of=d on=b; s of=d on=b", 1).as_deref(), Some("b"));
    // A nominated node is also rejected if the fleet would not survive a failure.
    let nominated = "p of=d on=a; r of=d on=b; s of=d on=b; x of=e nominated=a priority=5";
    assert_eq!(outcome(nodes, nominated, 0), "a");
    assert_eq!(outcome(nodes, nominated, 1), "FailureReserve");
}
