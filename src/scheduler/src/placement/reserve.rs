//! Room for the replicas of nodes that may fail.

use std::cmp::Reverse;

use super::filter::filter;
use super::topology::Domains;
use crate::fleet::Fleet;
use crate::fleet::node::{NodeState, Resident};
use crate::request::ReplicaRequest;

/// Sets of failing nodes that are tried for one placement. All of them in small fleets; in large
/// ones those around the nodes that are fullest, which are the hardest to lose.
const MAX_FAILURES: usize = 64;

/// Whether, with the request on the node at this place, the replicas of any so many nodes as the
/// fleet's reserve says would find room on the others. `fleet` is the same afterwards.
///
/// Nodes that are lost already are among them: so many fewer need be survivable beside them. Room
/// that their replicas need is not given to others, and is what the replacements of these replicas
/// may take.
pub(crate) fn survives(request: &ReplicaRequest, at: usize, fleet: &mut Fleet) -> bool {
    // Before it is promised: the request may be that of a replica on a lost node.
    let is_lost: Vec<_> = fleet.nodes.iter().map(is_lost).collect();
    let is_replacement = is_replacement(request, &fleet.nodes);
    let node = fleet.nodes[at].name.clone();
    let before = fleet.promise(request, &node);
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
    fleet.take_back(&request.key, before);
    survives
}

/// Whether the replicas of a node have to go elsewhere already. One that is drained is lost also
/// when it is empty: the last of its replacements may still wait for a node.
fn is_lost(node: &NodeState) -> bool {
    let is_left = |resident: &Resident| node.is_left_by(&resident.claim.request);
    node.draining || node.residents.values().any(is_left)
}

/// Whether the request may be for what a lost node had.
fn is_replacement(request: &ReplicaRequest, nodes: &[NodeState]) -> bool {
    let is_of_it = |resident: &Resident| {
        request.deployment.is_some() && resident.claim.request.deployment == request.deployment
    };
    let has_one = |node: &NodeState| {
        let mut residents = node.residents.values();
        residents.any(|resident| is_of_it(resident) && node.is_left_by(&resident.claim.request))
    };
    nodes.iter().any(has_one)
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

/// Whether the replicas of the failing nodes fit elsewhere, the largest first, each where it fits
/// tightest.
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
    // None of them counts any more where replicas are to be apart or spread.
    let before: Vec<_> = homeless
        .iter()
        .map(|request| fleet.withdraw(&request.key))
        .collect();
    let all = homeless.iter().all(|request| {
        let tightest = tightest(request, failing, fleet);
        tightest.is_some_and(|node| {
            fleet.promise(request, &node);
            true
        })
    });
    for (request, before) in homeless.iter().zip(before) {
        fleet.take_back(&request.key, before);
    }
    all
}

/// The smallest room that takes the request, on a node that does not fail.
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
