//! Room for the replicas of nodes that may fail.

use std::cmp::Reverse;

use super::filter::filter;
use super::fleet::Fleet;
use super::node::{NodeState, Resident};
use super::request::ReplicaRequest;

/// Sets of failing nodes that are tried for one placement. All of them in small fleets; in large ones those around the
/// nodes that are fullest, which are the hardest to lose.
const MAX_FAILURES: usize = 64;

/// Whether, with the request on the node at this place, the replicas of any so many nodes as the fleet's reserve says
/// would find room on the others. `fleet` is the same afterwards.
pub(super) fn survives(request: &ReplicaRequest, at: usize, fleet: &mut Fleet) -> bool {
    let node = fleet.nodes[at].name.clone();
    let before = fleet.promise(request, &node);
    let order = by_reserved(&fleet.nodes);
    let count = fleet.reserve_node_failures.min(order.len());
    let mut sets = Vec::new();
    choose(&order, count, &mut Vec::new(), &mut sets);
    let survives = sets.iter().all(|failing| evacuates(fleet, failing));
    fleet.take_back(&request.key, before);
    survives
}

/// All nodes, the fullest first, and of the empty ones the largest: the refuge of the others.
fn by_reserved(nodes: &[NodeState]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|at| Reverse((nodes[*at].load.reserved, nodes[*at].free(), Reverse(*at))));
    order
}

/// Subsets of so many nodes, those of the first ones first.
fn choose(from: &[usize], count: usize, chosen: &mut Vec<usize>, sets: &mut Vec<Vec<usize>>) {
    if sets.len() >= MAX_FAILURES {
        return;
    }
    if count == 0 {
        sets.push(chosen.clone());
        return;
    }
    for (index, at) in from.iter().enumerate() {
        if from.len() - index < count {
            return;
        }
        chosen.push(*at);
        choose(&from[index + 1..], count - 1, chosen, sets);
        chosen.pop();
    }
}

/// Whether the replicas of the failing nodes fit elsewhere, the largest first, each where it fits tightest.
fn evacuates(fleet: &mut Fleet, failing: &[usize]) -> bool {
    let mut homeless: Vec<&Resident> = failing
        .iter()
        .flat_map(|at| fleet.nodes[*at].residents.values())
        .filter(|resident| !resident.claim.ending && resident.claim.replaceable)
        .collect();
    homeless.sort_by_key(|resident| (Reverse(resident.bytes()), &resident.claim.request.key));
    let homeless: Vec<_> = homeless
        .into_iter()
        .map(|resident| ReplicaRequest {
            nominated: None,
            ..resident.claim.request.clone()
        })
        .collect();
    let mut moved = Vec::new();
    let mut all = true;
    for request in homeless {
        let (fits, nodes) = fleet.fits(&request);
        let tightest = nodes
            .iter()
            .enumerate()
            .filter(|(at, _)| !failing.contains(at))
            .filter(|(_, node)| filter(&request, node, &fits[node.machine_id], &node.load).is_ok())
            .min_by_key(|(at, node)| (node.free(), *at))
            .map(|(_, node)| node.name.clone());
        let Some(node) = tightest else {
            all = false;
            break;
        };
        let before = fleet.promise(&request, &node);
        moved.push((request.key, before));
    }
    for (key, before) in moved {
        fleet.take_back(&key, before);
    }
    all
}
