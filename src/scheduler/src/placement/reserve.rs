//! Node-loss reserve: free capacity for the replicas of nodes that may fail.

use std::cmp::Reverse;

use super::filter::filter;
use super::topology::Domains;
use crate::fleet::Fleet;
use crate::fleet::node::{NodeState, Resident};
use crate::request::ReplicaRequest;

/// Maximum number of node sets whose failure is tried for one placement. Small fleets try all sets.
/// Large fleets try sets of the fullest nodes, whose loss is the hardest to absorb.
const MAX_FAILURES: usize = 64;

/// Returns whether the fleet, with the request on node `at`, survives the loss of as many nodes as
/// the reserve configures. `fleet` is unchanged afterwards.
///
/// Lost nodes count towards the configured number. Capacity for their replicas is reserved, and
/// only the replacements of these replicas may use it.
pub(crate) fn survives(request: &ReplicaRequest, at: usize, fleet: &mut Fleet) -> bool {
    // Compute this before reserving: the request may be for a replica of a lost node.
    let is_lost: Vec<_> = fleet.nodes.iter().map(is_lost).collect();
    let is_replacement = is_replacement(request, &fleet.nodes);
    let node = fleet.nodes[at].name.clone();
    let before = fleet.place(request, &node);
    let order = by_reserved(&fleet.nodes);
    let (mut lost, left): (Vec<_>, Vec<_>) = order.into_iter().partition(|at| is_lost[*at]);
    lost.truncate(fleet.reserve_node_failures);
    let count = (fleet.reserve_node_failures - lost.len()).min(left.len());
    if is_replacement {
        lost.clear();
    }
    let mut sets = Vec::new();
    choose(&left, count, &mut lost, &mut sets);
    let survives = sets.iter().all(|failing| evacuates(fleet, failing));
    fleet.undo(&request.key, before);
    survives
}

/// Returns whether the replicas of a node must move. A drained node is lost even if it is empty,
/// because replacements may still be unscheduled.
fn is_lost(node: &NodeState) -> bool {
    let is_left = |resident: &Resident| node.evicts(&resident.claim.request);
    node.draining || node.residents.values().any(is_left)
}

/// Returns whether the request may replace a replica of a lost node.
fn is_replacement(request: &ReplicaRequest, nodes: &[NodeState]) -> bool {
    let is_of_it = |resident: &Resident| {
        request.deployment.is_some() && resident.claim.request.deployment == request.deployment
    };
    let has_one = |node: &NodeState| {
        let mut residents = node.residents.values();
        residents.any(|resident| is_of_it(resident) && node.evicts(&resident.claim.request))
    };
    nodes.iter().any(has_one)
}

/// Returns all nodes, fullest first; empty nodes by descending size.
fn by_reserved(nodes: &[NodeState]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|at| Reverse((nodes[*at].load.reserved, nodes[*at].free(), Reverse(*at))));
    order
}

/// Collects subsets of `count` nodes, in lexicographic order.
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

/// Returns whether the replicas of the failing nodes fit on the other nodes. The largest is placed
/// first, each on the node with the least free memory that accepts it.
fn evacuates(fleet: &mut Fleet, failing: &[usize]) -> bool {
    let mut displaced: Vec<&Resident> = failing
        .iter()
        .flat_map(|at| fleet.nodes[*at].residents.values())
        .filter(|resident| !resident.claim.ending && resident.claim.replaceable)
        .collect();
    displaced.sort_by_key(|resident| (Reverse(resident.bytes()), &resident.claim.request.key));
    let displaced: Vec<_> = displaced
        .into_iter()
        .map(|resident| ReplicaRequest {
            nominated: None,
            ..resident.claim.request.clone()
        })
        .collect();
    // Displaced replicas no longer count for anti-affinity and spread.
    let before: Vec<_> = displaced
        .iter()
        .map(|request| fleet.unbind(&request.key))
        .collect();
    let all = displaced.iter().all(|request| {
        let tightest = tightest(request, failing, fleet);
        tightest.is_some_and(|node| {
            fleet.place(request, &node);
            true
        })
    });
    for (request, before) in displaced.iter().zip(before) {
        fleet.undo(&request.key, before);
    }
    all
}

/// Returns the surviving node with the least free memory that accepts the request.
fn tightest(request: &ReplicaRequest, failing: &[usize], fleet: &mut Fleet) -> Option<String> {
    let (fits, nodes) = fleet.fits(request);
    let domains = Domains::new(request, nodes);
    let may_be_at = |at: usize| domains.as_ref().is_none_or(|domains| domains.allows(at));
    nodes
        .iter()
        .enumerate()
        .filter(|(at, _)| !failing.contains(at))
        .filter(|(_, node)| filter(request, node, &fits[node.machine_id], &node.load).is_ok())
        .filter(|(at, _)| may_be_at(*at))
        .min_by_key(|(at, node)| (node.free(), *at))
        .map(|(_, node)| node.name.clone())
}
