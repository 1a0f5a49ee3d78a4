//! Defragmentation: moves of running replicas that release a node's capacity for an unscheduled
//! replica. Only [`mod@super::rebalance`] proposes them; scheduling never moves running replicas.

use std::cmp::Reverse;

use super::choice::choose;
use super::preempt::leaving;
use super::rebalance::{Move, arrival, is_movable, request_for_move, score_on_current_node};
use super::topology::Domains;
use crate::fleet::Fleet;
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_base::units::Bytes;

/// Maximum number of nodes that are tried for one replica, in order of the bytes to load elsewhere.
const TRIED_NODES: usize = 64;

/// Node that accepts the replica after the replicas in `leaving` have moved.
struct Candidate {
    node: String,
    leaving: Vec<ReplicaKey>,
    bytes: Bytes,
}

/// Returns the moves that give each replica in `waiting` a node, where possible.
pub(crate) fn make_room(waiting: &[ReplicaRequest], fleet: &mut Fleet) -> Vec<Move> {
    let mut moves = Vec::new();
    // Equal requests fail as well, as long as nothing changes.
    let mut unplaceable: Vec<&ReplicaRequest> = Vec::new();
    for request in waiting {
        if fleet.is_bound(&request.key) || unplaceable.iter().any(|one| one.is_like(request)) {
            continue;
        }
        // The scheduler places it without moves.
        if let Some(placement) = choose(request, fleet) {
            fleet.place(request, placement.node());
            continue;
        }
        let found = candidates(request, fleet)
            .iter()
            .take(TRIED_NODES)
            .find_map(|candidate| clear(candidate, request, fleet));
        match found {
            Some(found) => moves.extend(found),
            None => unplaceable.push(request),
        }
    }
    moves
}

fn candidates(request: &ReplicaRequest, fleet: &mut Fleet) -> Vec<Candidate> {
    let (fits, nodes) = fleet.fits(request);
    let domains = Domains::new(request, nodes);
    let mut found: Vec<Candidate> = nodes
        .iter()
        .enumerate()
        .filter(|(at, _)| domains.as_ref().is_none_or(|domains| domains.allows(*at)))
        .filter_map(|(_, node)| {
            let gone = leaving(request, node, &fits[node.machine_id], |resident| {
                is_movable(&resident.claim)
            })?;
            let bytes = gone.iter().map(|key| node.residents[key].bytes());
            Some(Candidate {
                node: node.name.clone(),
                bytes: bytes.sum(),
                leaving: gone,
            })
        })
        .collect();
    found.sort_by_key(|candidate| (candidate.bytes, candidate.leaving.len()));
    found
}

/// Moves all leaving replicas, and places the request on their node. Changes nothing on failure.
fn clear(candidate: &Candidate, request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Vec<Move>> {
    let node = &candidate.node;
    let residents = &fleet.node(node)?.residents;
    let mut movers: Vec<(Bytes, ReplicaRequest)> = candidate
        .leaving
        .iter()
        .map(|key| (residents[key].bytes(), request_for_move(&residents[key].claim)))
        .collect();
    // Place the largest first: it fits the fewest nodes.
    movers.sort_by_key(|(bytes, mover)| (Reverse(*bytes), mover.key.clone()));
    let mut moves: Vec<Move> = Vec::new();
    let mut claims = Vec::new();
    for (_, mover) in &movers {
        let claim = fleet.unbind(&mover.key)?;
        let here = score_on_current_node(mover, node, fleet);
        fleet.undo(&mover.key, Some(claim.clone()));
        claims.push(claim);
        moves.push(Move {
            replica: mover.key.clone(),
            deployment: mover.deployment.clone(),
            from: node.clone(),
            to: String::new(),
            before: match here {
                Some(Ok(score)) => score.describe(),
                Some(Err(rejection)) => rejection.summary().into_owned(),
                None => String::new(),
            },
            after: String::new(),
            arrival: None,
            makes_room_for: Some(request.key.clone()),
        });
    }
    for (_, mover) in &movers {
        fleet.unbind(&mover.key);
    }
    fleet.place(request, node);
    let all = movers.iter().zip(&mut moves).all(|((_, mover), one)| {
        let Some(placement) = choose(mover, fleet).filter(|placement| placement.node() != node) else {
            return false;
        };
        one.arrival = arrival(mover, placement.node(), fleet);
        fleet.place(mover, placement.node());
        one.to = placement.node().to_owned();
        one.after = placement
            .table
            .chosen()
            .map(|score| score.describe())
            .unwrap_or_default();
        true
    });
    if all {
        return Some(moves);
    }
    fleet.undo(&request.key, None);
    for ((_, mover), claim) in movers.iter().zip(claims) {
        fleet.undo(&mover.key, Some(claim));
    }
    None
}
