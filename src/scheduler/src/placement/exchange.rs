//! Exchange of two placements of one scheduling pass, if it raises the total speed.
//!
//! Each replica without objectives takes the node with the largest gain at its turn, so the replicas
//! that come first get the fastest nodes. A small model uses them better: on a node of twice the
//! bandwidth, it gains more tokens per second than a large model loses. No replica is bound yet, so
//! an exchange moves no running replica.

use super::choice::{Decision, Placement, placement_on};
use crate::fleet::Fleet;
use crate::request::ReplicaRequest;
use rooflet_api::v1alpha1::PlacementStrategy;

/// Maximum number of placements of one call whose pairs are compared, and the number of rounds.
const MAX_COMPARED: usize = 128;
const ROUNDS: usize = 3;

/// Minimum total speed after an exchange, and minimum product of the speeds, relative to the values
/// before. The product keeps a large model from a much slower node. The tolerance is the one of the
/// score, because predictions are not more precise.
const MIN_TOTAL: f64 = 1.05;
const MIN_PRODUCT: f64 = 0.95;

/// Exchanges the nodes of two replicas without objectives while that raises their total speed.
pub(super) fn exchange(requests: &[&ReplicaRequest], decisions: &mut [Decision], fleet: &mut Fleet) {
    let may_move = |index: &usize| {
        let request = requests[*index];
        let is_known = |placement: &Placement| placement.needed.is_some();
        request.placement.strategy == PlacementStrategy::SloSlack
            && request.placement.spread.is_none()
            && request.nominated.is_none()
            && !request.has_objectives()
            && decisions[*index].outcome.as_ref().is_ok_and(is_known)
    };
    let movable: Vec<usize> = (0..decisions.len()).filter(may_move).collect();
    if movable.len() > MAX_COMPARED {
        return;
    }
    for _ in 0..ROUNDS {
        let mut changed = false;
        for (at, first) in movable.iter().enumerate() {
            for second in &movable[at + 1..] {
                changed |= exchange_pair(requests, decisions, [*first, *second], fleet);
            }
        }
        if !changed {
            return;
        }
    }
}

/// Exchanges the nodes of two replicas if that raises their total speed and both nodes accept it.
fn exchange_pair(
    requests: &[&ReplicaRequest],
    decisions: &mut [Decision],
    pair: [usize; 2],
    fleet: &mut Fleet,
) -> bool {
    let [one, other] = pair.map(|index| requests[index]);
    let [Ok(here), Ok(there)] = pair.map(|index| &decisions[index].outcome) else {
        return false;
    };
    let nodes = [here.node().to_owned(), there.node().to_owned()];
    if nodes[0] == nodes[1] || one.is_like(other) || !is_faster(one, other, &nodes, fleet) {
        return false;
    }
    let before = [here.clone(), there.clone()];
    fleet.undo(&one.key, None);
    fleet.undo(&other.key, None);
    if let Some([here, there]) = place_both(one, other, &nodes, fleet) {
        decisions[pair[0]].outcome = Ok(here.exchanged_with(&other.key, &before[0]));
        decisions[pair[1]].outcome = Ok(there.exchanged_with(&one.key, &before[1]));
        return true;
    }
    fleet.place(one, &nodes[0]);
    fleet.place(other, &nodes[1]);
    false
}

/// Compares the speeds of two replicas on `nodes` with those after an exchange. The number of
/// replicas on each node stays the same, so no other speed changes.
fn is_faster(one: &ReplicaRequest, other: &ReplicaRequest, nodes: &[String; 2], fleet: &mut Fleet) -> bool {
    let mut speeds = |request: &ReplicaRequest| {
        let at = [fleet.position(&nodes[0]).ok()?, fleet.position(&nodes[1]).ok()?];
        let (fits, states) = fleet.fits(request);
        let speed = |at: usize| {
            let node = &states[at];
            let alone = fits[node.machine_id].requirements.as_ref()?.speed?.decode.p50;
            Some(alone * node.load.best_effort_part())
        };
        Some([speed(at[0])?, speed(at[1])?])
    };
    let (Some(one), Some(other)) = (speeds(one), speeds(other)) else {
        return false;
    };
    let before = [one[0], other[1]];
    let after = [one[1], other[0]];
    after[0] + after[1] >= MIN_TOTAL * (before[0] + before[1])
        && after[0] * after[1] >= MIN_PRODUCT * before[0] * before[1]
}

/// Places two replicas that have no node on the node of the other one. Changes nothing on failure.
fn place_both(
    one: &ReplicaRequest,
    other: &ReplicaRequest,
    nodes: &[String; 2],
    fleet: &mut Fleet,
) -> Option<[Placement; 2]> {
    let mut before = |request: &ReplicaRequest, node: &str| Some(placement_on(request, node, fleet)?.1);
    let (old_one, old_other) = (before(one, &nodes[0])?, before(other, &nodes[1])?);
    let (new_one, score) = placement_on(one, &nodes[1], fleet)?;
    if score.precedence() > old_one.precedence() {
        return None;
    }
    fleet.place(one, &nodes[1]);
    match placement_on(other, &nodes[0], fleet) {
        Some((new_other, score)) if score.precedence() <= old_other.precedence() => {
            fleet.place(other, &nodes[0]);
            Some([new_one, new_other])
        }
        _ => {
            fleet.undo(&one.key, None);
            None
        }
    }
}
