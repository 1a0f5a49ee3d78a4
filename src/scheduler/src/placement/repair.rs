//! Makes room for what has found none by placing others of the same call anew. They are nowhere
//! yet, so it costs nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::iter;

use super::bind::{Decision, Placement, choose};
use crate::fleet::Fleet;
use crate::fleet::node::Resident;
use crate::request::ReplicaRequest;
use rooflet_base::units::Bytes;

/// Nodes of one call that are emptied to see whether it helps.
const MAX_TRIES: usize = 512;

pub(crate) fn repair(requests: &[&ReplicaRequest], decisions: &mut [Decision], fleet: &mut Fleet) {
    let mut by_node: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, decision) in decisions.iter().enumerate() {
        if let Ok(placement) = &decision.outcome {
            by_node
                .entry(placement.node().to_owned())
                .or_default()
                .push(index);
        }
    }
    let mut tries = MAX_TRIES;
    // Those like them have no better luck while nothing else has changed.
    let mut in_vain: Vec<&ReplicaRequest> = Vec::new();
    for waiting in 0..decisions.len() {
        let request = requests[waiting];
        if decisions[waiting].outcome.is_ok()
            || decisions[waiting].preemption.is_some()
            || in_vain.iter().any(|one| one.is_like(request))
        {
            continue;
        }
        let moves = |index: &usize| {
            let is_known = |placement: &Placement| placement.needed.is_some();
            decisions[*index].outcome.as_ref().is_ok_and(is_known) && !requests[*index].is_like(request)
        };
        // Where the fewest have to move comes first.
        let mut nodes: Vec<(String, Vec<usize>)> = by_node
            .iter()
            .map(|(node, placed)| (node.clone(), placed.iter().copied().filter(moves).collect()))
            .filter(|(_, moved): &(String, Vec<usize>)| !moved.is_empty())
            .collect();
        nodes.sort_by_key(|(_, moved)| moved.len());
        let found = nodes.into_iter().take(tries).find_map(|(node, mut moved)| {
            tries -= 1;
            moved.sort_by_key(|index| Reverse(bytes(requests[*index], &node, fleet)));
            let anew: Vec<usize> = iter::once(waiting).chain(moved).collect();
            let placements = place_anew(&anew, requests, &node, fleet)?;
            Some((anew, placements))
        });
        let Some((anew, placements)) = found else {
            in_vain.push(request);
            continue;
        };
        in_vain.clear();
        for placed in by_node.values_mut() {
            placed.retain(|index| !anew.contains(index));
        }
        for (index, placement) in anew.into_iter().zip(placements) {
            by_node
                .entry(placement.node().to_owned())
                .or_default()
                .push(index);
            decisions[index].outcome = Ok(placement);
        }
    }
}

fn bytes(request: &ReplicaRequest, node: &str, fleet: &Fleet) -> Bytes {
    let node = fleet.node(node);
    let resident = node.and_then(|node| node.residents.get(&request.key));
    resident.map_or(Bytes::ZERO, Resident::bytes)
}

/// Places the first of them, which is nowhere, and then the others, which are all on the node, or
/// leaves everything as it is.
fn place_anew(
    anew: &[usize],
    requests: &[&ReplicaRequest],
    node: &str,
    fleet: &mut Fleet,
) -> Option<Vec<Placement>> {
    for index in &anew[1..] {
        fleet.take_back(&requests[*index].key, None);
    }
    let placements: Vec<_> = anew
        .iter()
        .map_while(|index| {
            let placement = choose(requests[*index], fleet)?;
            fleet.promise(requests[*index], placement.node());
            Some(placement)
        })
        .collect();
    if placements.len() == anew.len() {
        return Some(placements);
    }
    fleet.take_back(&requests[anew[0]].key, None);
    for index in &anew[1..] {
        fleet.promise(requests[*index], node);
    }
    None
}
