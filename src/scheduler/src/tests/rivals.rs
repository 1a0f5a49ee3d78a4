//! Baseline placement policies.

use super::*;
use crate::placement::rival::Rival;

const FLEET: &str = "a chip=M4_Max/40 mem=40 model=guide:4; b chip=M4 mem=10 model=guide:4; \
                     c chip=M4_Pro/20 mem=10 model=guide:4; d chip=M4 mem=3 model=guide:4";

fn check(rival: Rival, replicas: &str, expect: &str) {
    let nodes: Vec<_> = lines(FLEET).map(node).collect();
    let replicas: Vec<_> = lines(replicas).map(replica).collect();
    let mut fleet = Fleet::new(&nodes, &replicas);
    let requests: Vec<_> = replicas
        .iter()
        .filter(|replica| replica.spec.node_name.is_none())
        .map(ReplicaRequest::new)
        .collect();
    let placed = rival.place_all(&requests, &mut fleet);
    let nodes: Vec<_> = placed
        .into_iter()
        .map(|node| node.unwrap_or_else(|| "-".to_owned()))
        .collect();
    assert_eq!(nodes.join(" "), expect, "{rival:?}");
}

#[test]
fn baselines_place_by_remaining_memory_in_sequence() {
    // 4.5 GiB per replica: two fit on b and on c, eight on a, none on d.
    check(Rival::BestFit, "u; v; w; x; y", "c c b b a");
    check(Rival::LeastLoaded, "u; v; w; x; y", "a a a a b");
    check(Rival::RoundRobin, "u; v; w; x; y; z", "a b c a a b");
    check(Rival::RoundRobin, "u on=a; v", "b");
}

proptest! {
    #[test]
    fn baselines_never_reserve_memory_twice((nodes, replicas) in properties::any_fleet()) {
        let requests: Vec<_> = replicas
            .iter()
            .filter(|replica| replica.spec.node_name.is_none())
            .map(ReplicaRequest::new)
            .collect();
        for rival in [Rival::BestFit, Rival::LeastLoaded, Rival::RoundRobin] {
            let before = Fleet::new(&nodes, &replicas);
            let mut after = before.clone();
            rival.place_all(&requests, &mut after);
            for (before, after) in before.nodes.iter().zip(&after.nodes) {
                let limit = before.allocatable.max(before.load.reserved);
                prop_assert!(after.load.reserved <= limit, "{rival:?} {}", after.name);
            }
        }
    }
}
