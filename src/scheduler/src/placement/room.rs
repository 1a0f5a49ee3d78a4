//! Moves of running replicas that make room for one that has found none, be it that no node is free
//! enough although several together are. Proposed by [`mod@super::rebalance`] only: the scheduler
//! itself moves nothing that runs.

use std::cmp::Reverse;

use super::bind::choose;
use super::preempt::leaving;
use super::rebalance::{Move, arrival, at_home, is_movable, settled};
use super::topology::Domains;
use crate::fleet::Fleet;
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_base::units::Bytes;

/// Nodes that are tried for one replica, those first where the least would have to be loaded
/// elsewhere.
const TRIED_NODES: usize = 64;

/// A node that could take the replica, were these elsewhere.
struct Candidate {
    node: String,
    leaving: Vec<ReplicaKey>,
    bytes: Bytes,
}

/// For each of `waiting` for which it can be done, in this order: moves after which it finds a
/// node.
pub(crate) fn make_room(waiting: &[ReplicaRequest], fleet: &mut Fleet) -> Vec<Move> {
    let mut moves = Vec::new();
    // Those like them have no better luck while nothing else has changed.
    let mut in_vain: Vec<&ReplicaRequest> = Vec::new();
    for request in waiting {
        if fleet.is_bound(&request.key) || in_vain.iter().any(|one| one.is_like(request)) {
            continue;
        }
        // The scheduler is about to place it anyway.
        if let Some(placement) = choose(request, fleet) {
            fleet.promise(request, placement.node());
            continue;
        }
        let found = candidates(request, fleet)
            .iter()
            .take(TRIED_NODES)
            .find_map(|candidate| clear(candidate, request, fleet));
        match found {
            Some(found) => moves.extend(found),
            None => in_vain.push(request),
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

/// Moves all that have to leave the node, and enters the replica there; or leaves everything as it
/// is.
fn clear(candidate: &Candidate, request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Vec<Move>> {
    let node = &candidate.node;
    let residents = &fleet.node(node)?.residents;
    let mut movers: Vec<(Bytes, ReplicaRequest)> = candidate
        .leaving
        .iter()
        .map(|key| (residents[key].bytes(), settled(&residents[key].claim)))
        .collect();
    // The largest finds a place the hardest.
    movers.sort_by_key(|(bytes, mover)| (Reverse(*bytes), mover.key.clone()));
    let mut moves: Vec<Move> = Vec::new();
    let mut claims = Vec::new();
    for (_, mover) in &movers {
        let claim = fleet.withdraw(&mover.key)?;
        let here = at_home(mover, node, fleet);
        fleet.take_back(&mover.key, Some(claim.clone()));
        claims.push(claim);
        moves.push(Move {
            replica: mover.key.clone(),
            deployment: mover.deployment.clone(),
            from: node.clone(),
            to: String::new(),
            before: match here {
                Some(Ok(score)) => score.columns(),
                Some(Err(rejection)) => rejection.words().into_owned(),
                None => String::new(),
            },
            after: String::new(),
            arrival: None,
            makes_room_for: Some(request.key.clone()),
        });
    }
    for (_, mover) in &movers {
        fleet.withdraw(&mover.key);
    }
    fleet.promise(request, node);
    let all = movers.iter().zip(&mut moves).all(|((_, mover), one)| {
        let Some(placement) = choose(mover, fleet).filter(|placement| placement.node() != node) else {
            return false;
        };
        one.arrival = arrival(mover, placement.node(), fleet);
        fleet.promise(mover, placement.node());
        one.to = placement.node().to_owned();
        one.after = placement
            .table
            .chosen()
            .map(|score| score.columns())
            .unwrap_or_default();
        true
    });
    if all {
        return Some(moves);
    }
    fleet.take_back(&request.key, None);
    for ((_, mover), claim) in movers.iter().zip(claims) {
        fleet.take_back(&mover.key, Some(claim));
    }
    None
}
