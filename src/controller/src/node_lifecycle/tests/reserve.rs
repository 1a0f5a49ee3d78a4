//! Evictions with capacity reserved for node failures. A drained node counts as a failed node.

use super::*;

/// Returns the evicted replicas with a reserve for this number of node failures.
fn evicted(nodes: &str, replicas: &str, reserve_node_failures: usize) -> String {
    let nodes: Vec<_> = lines(nodes).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let deployment = deployment(&replicas);
    let plan = NodePlan::new(&Observed {
        nodes: nodes.iter().collect(),
        replicas: replicas.iter().collect(),
        deployments: vec![&deployment],
        timings: Timings::default(),
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
fn drain_uses_the_reserve_of_one_node_failure() {
    let nodes = "a drain; b";
    assert_eq!(evicted(nodes, "x on=a", 0), "x");
    assert_eq!(evicted(nodes, "x on=a", 1), "x");
    // Besides the drained node, another node may fail. Then no node would remain for the replica.
    assert_eq!(evicted(nodes, "x on=a", 2), "");
    assert_eq!(evicted("a drain; b; c", "x on=a", 2), "x");
}
