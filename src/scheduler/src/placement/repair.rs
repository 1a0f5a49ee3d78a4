//! Repair of a scheduling pass: places earlier requests of the same call again, to make room for
//! requests without a node. No replica is bound yet, so a repair moves no running replica.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::iter;

use super::choice::{Decision, Placement, choose};
use crate::fleet::Fleet;
use crate::fleet::node::Resident;
use crate::request::ReplicaRequest;
use rooflet_base::units::Bytes;

/// Maximum number of nodes whose new placements are moved in one call.
const MAX_TRIES: usize = 512;

/// Places requests without a node by moving other placements of the same call.
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
    // Equal requests fail as well, as long as nothing changes.
    let mut unplaceable: Vec<&ReplicaRequest> = Vec::new();
    for waiting in 0..decisions.len() {
        let request = requests[waiting];
        if decisions[waiting].outcome.is_ok()
            || decisions[waiting].preemption.is_some()
            || unplaceable.iter().any(|one| one.is_like(request))
        {
            continue;
        }
        let moves = |index: &usize| {
            let is_known = |placement: &Placement| placement.needed.is_some();
            decisions[*index].outcome.as_ref().is_ok_and(is_known) && !requests[*index].is_like(request)
        };
        // Nodes with the fewest moves come first.
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
            let placements = place_again(&anew, requests, &node, fleet)?;
            Some((anew, placements))
        });
        let Some((anew, placements)) = found else {
            unplaceable.push(request);
            continue;
        };
        unplaceable.clear();
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

/// Places the first request, which has no node, and then the others, which are all on `node`.
/// Changes nothing on failure.
fn place_again(
    anew: &[usize],
    requests: &[&ReplicaRequest],
    node: &str,
    fleet: &mut Fleet,
) -> Option<Vec<Placement>> {
    for index in &anew[1..] {
        fleet.undo(&requests[*index].key, None);
    }
    let placements: Vec<_> = anew
        .iter()
        .map_while(|index| {
            let placement = choose(requests[*index], fleet)?;
            fleet.place(requests[*index], placement.node());
            Some(placement)
        })
        .collect();
    if placements.len() == anew.len() {
        return Some(placements);
    }
    fleet.undo(&requests[anew[0]].key, None);
    for index in &anew[1..] {
        fleet.place(requests[*index], node);
    }
    None
}
