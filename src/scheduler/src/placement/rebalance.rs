//! Rebalancing: proposals to move running replicas to better nodes. This module moves no replicas.

use super::choice::place;
use super::filter::filter;
use super::rejection::Rejection;
use super::room::make_room;
use super::score::{PlacementScore, Terms};
use crate::fleet::Fleet;
use crate::fleet::node::Claim;
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_roofline::loading::LoadTime;

/// Minimum gains of a move, because a move has a cost: percentage points of slack, percentage
/// points of utilization, and percent of the time per token.
const MIN_SLACK_GAIN: i64 = 5;
const MIN_USE_GAIN: i64 = 10;
const MIN_TOKEN_GAIN: i64 = 20;

/// Proposed move of a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Move {
    pub replica: ReplicaKey,
    pub deployment: Option<ReplicaKey>,
    pub from: String,
    pub to: String,
    /// Score columns before and after the move.
    pub before: String,
    pub after: String,
    /// Weights to load on the target node; `None` if a replica there has them in memory.
    pub arrival: Option<LoadTime>,
    /// Unscheduled replica that gets the released capacity, after all moves for it are done.
    pub makes_room_for: Option<ReplicaKey>,
}

/// Returns the moves that are worth their cost, in order; each assumes the previous ones.
///
/// The first moves release capacity for unscheduled replicas in `waiting`. The others improve the
/// moved replica itself. Afterwards, `fleet` reflects all moves.
pub fn rebalance(fleet: &mut Fleet, waiting: &[ReplicaRequest]) -> Vec<Move> {
    let mut moves = make_room(waiting, fleet);
    let requests: Vec<ReplicaRequest> = fleet
        .nodes
        .iter()
        .flat_map(|node| node.residents.values())
        .filter(|resident| is_movable(&resident.claim))
        .map(|resident| request_for_move(&resident.claim))
        .collect();
    for request in &requests {
        moves.extend(propose(request, fleet));
    }
    moves
}

/// Returns whether the replica is ready and its controller replaces it elsewhere.
pub(crate) fn is_movable(claim: &Claim) -> bool {
    claim.ready && !claim.ending && claim.replaceable
}

/// Returns the request of a bound replica for another node.
pub(crate) fn request_for_move(claim: &Claim) -> ReplicaRequest {
    ReplicaRequest {
        nominated: None,
        ..claim.request.clone()
    }
}

fn propose(request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Move> {
    let before = fleet.unbind(&request.key)?;
    let from = before.0.clone();
    let found = better(request, &from, fleet);
    let Some(found) = found else {
        fleet.undo(&request.key, Some(before));
        return None;
    };
    fleet.place(request, &found.to);
    Some(found)
}

/// Returns a better node for `request`, which must not be in the fleet.
fn better(request: &ReplicaRequest, from: &str, fleet: &mut Fleet) -> Option<Move> {
    let here = match score_on_current_node(request, from, fleet)? {
        Ok(here) => Ok(here),
        // The node is overcommitted.
        Err(rejection @ (Rejection::Memory { .. } | Rejection::Disk { .. } | Rejection::Speed { .. })) => {
            Err(rejection.summary().into_owned())
        }
        // Drains and evictions handle nodes that became unsuitable.
        Err(_) => return None,
    };
    let placement = place(request, fleet).ok()?;
    let there = placement.table.chosen()?;
    let worth = match &here {
        Ok(here) => is_worth(here, there),
        Err(_) => true,
    };
    (worth && placement.node() != from).then(|| Move {
        replica: request.key.clone(),
        deployment: request.deployment.clone(),
        from: from.to_owned(),
        to: placement.node().to_owned(),
        before: here.map_or_else(|words| words, |score| score.describe()),
        after: there.describe(),
        arrival: arrival(request, placement.node(), fleet),
        makes_room_for: None,
    })
}

/// Returns the score on the replica's current node, next to the other replicas there.
pub(crate) fn score_on_current_node(
    request: &ReplicaRequest,
    node: &str,
    fleet: &mut Fleet,
) -> Option<Result<PlacementScore, Rejection>> {
    let at = fleet.position(node).ok()?;
    let (fits, nodes) = fleet.fits(request);
    let node = &nodes[at];
    let fit = &fits[node.machine_id];
    let load = node.load_for(request);
    let judged = filter(request, node, fit, &load);
    Some(judged.map(|()| PlacementScore::new(request, at, node, fit, &load)))
}

/// Returns the weights that the node must load for the replica.
pub(crate) fn arrival(request: &ReplicaRequest, node: &str, fleet: &mut Fleet) -> Option<LoadTime> {
    let at = fleet.position(node).ok()?;
    let (fits, nodes) = fleet.fits(request);
    let node = &nodes[at];
    let fit = &fits[node.machine_id];
    fit.requirements.as_ref()?;
    node.load_time(request, fit)
}

fn is_worth(here: &PlacementScore, there: &PlacementScore) -> bool {
    // During a paused canary, replicas of another revision also stay. Only fewer replicas of the
    // deployment are a gain.
    let first = |score: &PlacementScore| {
        let copies = score.copies.same + score.copies.others;
        (score.excess, score.soft_taints, copies)
    };
    if first(here) != first(there) {
        return first(there) < first(here);
    }
    match (here.terms, there.terms) {
        (
            Terms::SloSlack { slack_lost: here, .. },
            Terms::SloSlack {
                slack_lost: there, ..
            },
        ) => here - there >= MIN_SLACK_GAIN,
        (
            Terms::BestEffort { tokens: here, .. },
            Terms::BestEffort {
                gain, tokens: there, ..
            },
        ) => gain.0 > 0 && here > 0 && here.saturating_mul(100 + MIN_TOKEN_GAIN) / 100 <= there,
        (Terms::BinPack { unused: here, .. }, Terms::BinPack { unused: there, .. }) => here && !there,
        (Terms::Spread { used: here, .. }, Terms::Spread { used: there, .. }) => here - there >= MIN_USE_GAIN,
        (
            Terms::Fastest {
                token_micros: here, ..
            },
            Terms::Fastest {
                token_micros: there, ..
            },
        ) => there.saturating_mul(100 + MIN_TOKEN_GAIN) / 100 <= here && there < here,
        // Unreachable: both scores belong to one request.
        (
            Terms::SloSlack { .. }
            | Terms::BestEffort { .. }
            | Terms::BinPack { .. }
            | Terms::Spread { .. }
            | Terms::Fastest { .. },
            _,
        ) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::node::Copies;
    use crate::placement::score::Loading;

    #[test]
    fn moves_separate_replicas_of_a_deployment_across_revisions() {
        let score = |(same, others): (u32, u32), used: i64| PlacementScore {
            excess: 0,
            soft_taints: 0,
            copies: Copies { same, others },
            terms: Terms::Spread {
                used,
                replicas: 1,
                loading: Loading::Loaded,
            },
            at: 0,
        };
        for (here, there, gain, expect) in [
            ((1, 0), (0, 0), 0, true),
            ((0, 1), (0, 0), 0, true),
            ((1, 1), (0, 1), 0, true),
            // Old replicas next to a paused canary.
            ((1, 0), (0, 1), 0, false),
            ((1, 0), (0, 3), 0, false),
            ((1, 0), (0, 3), MIN_USE_GAIN, false),
            ((1, 0), (0, 1), MIN_USE_GAIN, true),
            ((0, 1), (1, 0), MIN_USE_GAIN, true),
            ((0, 0), (1, 0), MIN_USE_GAIN, false),
        ] {
            let is_worth = is_worth(&score(here, 50), &score(there, 50 - gain));
            assert_eq!(is_worth, expect, "{here:?} to {there:?}, gaining {gain}");
        }
    }
}
