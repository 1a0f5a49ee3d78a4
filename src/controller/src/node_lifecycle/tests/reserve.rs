//! Nothing leaves for a place that is kept for nodes that may fail; a node that is emptied is one of them.

use super::*;

/// What leaves the nodes while so many failures are to be survived.
fn evicted(nodes: &str, replicas: &str, reserve_node_failures: usize) -> String {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let deployment = deployment(&replicas);
    let plan = NodePlan::new(&Observed {
        nodes: nodes.iter().collect(),
        replicas: replicas.iter().collect(),
        deployments: vec![&deployment],
        heard: Heard::default(),
        reserve_node_failures,
        version: "0.3.0",
        now: at(NOW),
    });
    let evicted = plan.steps.iter().filter_map(|step| match step {
        Step::Evict { replica, .. } => Some(replica.name_any()),
        Step::NodeSilent { .. }
        | Step::ReplicaNotReady { .. }
        | Step::NodeDrained { .. }
        | Step::NodeSkewed { .. }
        | Step::ReplicaLeaving { .. }
        | Step::Release { .. } => None,
    });
    evicted.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_drain_takes_the_room_that_is_kept_for_a_failure_and_no_more() {
    let nodes = "a drain; b";
    assert_eq!(evicted(nodes, "x on=a", 0), "x");
    assert_eq!(evicted(nodes, "x on=a", 1), "x");
    // Beside the drained node another one may fail, and then it would be nowhere.
    assert_eq!(evicted(nodes, "x on=a", 2), "");
    assert_eq!(evicted("a drain; b; c", "x on=a", 2), "x");
}
