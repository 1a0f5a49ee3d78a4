//! Replicas that would be better off on another node, now that the fleet is what it is. A proposal;
//! nothing is moved here.

use super::bind::place;
use super::filter::filter;
use super::rejection::Rejection;
use super::room::make_room;
use super::score::{PlacementScore, Terms};
use crate::fleet::Fleet;
use crate::fleet::node::Claim;
use crate::request::{ReplicaKey, ReplicaRequest};
use rooflet_roofline::loading::Arrival;

/// A move has a cost, so it must gain at least so much: percent points of slack, of use, and of the
/// time of a token.
const MIN_SLACK_GAIN: i64 = 5;
const MIN_USE_GAIN: i64 = 10;
const MIN_TOKEN_GAIN: i64 = 20;

/// One replica that had better be elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Move {
    pub replica: ReplicaKey,
    pub deployment: Option<ReplicaKey>,
    pub from: String,
    pub to: String,
    /// How it is placed, and how it would be.
    pub before: String,
    pub after: String,
    /// What has to be read on the other node; `None` where a replica there has it in memory.
    pub arrival: Option<Arrival>,
    /// The replica without a node that takes its place. Nothing is gained before all moves for it
    /// are made.
    pub makes_room_for: Option<ReplicaKey>,
}

/// Moves that are worth their cost, each on top of the ones before: those that make room for a
/// replica of `waiting`, which has no node, and then those that leave a replica itself better off.
/// `fleet` is afterwards as if they were done.
pub fn rebalance(fleet: &mut Fleet, waiting: &[ReplicaRequest]) -> Vec<Move> {
    let mut moves = make_room(waiting, fleet);
    let settled: Vec<ReplicaRequest> = fleet
        .nodes
        .iter()
        .flat_map(|node| node.residents.values())
        .filter(|resident| is_movable(&resident.claim))
        .map(|resident| settled(&resident.claim))
        .collect();
    for request in &settled {
        moves.extend(propose(request, fleet));
    }
    moves
}

/// Whether it serves, and would be made anew elsewhere.
pub(crate) fn is_movable(claim: &Claim) -> bool {
    claim.ready && !claim.ending && claim.replaceable
}

/// What it asks for wherever it goes next.
pub(crate) fn settled(claim: &Claim) -> ReplicaRequest {
    ReplicaRequest {
        nominated: None,
        ..claim.request.clone()
    }
}

fn propose(request: &ReplicaRequest, fleet: &mut Fleet) -> Option<Move> {
    let before = fleet.withdraw(&request.key)?;
    let from = before.0.clone();
    let found = better(request, &from, fleet);
    let Some(found) = found else {
        fleet.take_back(&request.key, Some(before));
        return None;
    };
    fleet.promise(request, &found.to);
    Some(found)
}

/// `request` is on no node.
fn better(request: &ReplicaRequest, from: &str, fleet: &mut Fleet) -> Option<Move> {
    let here = match at_home(request, from, fleet)? {
        Ok(here) => Ok(here),
        // More is promised there than there is.
        Err(rejection @ (Rejection::Memory { .. } | Rejection::Disk { .. } | Rejection::Speed { .. })) => {
            Err(rejection.words().into_owned())
        }
        // What made it unfit since is not ours to judge: drains and evictions do.
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
        before: here.map_or_else(|words| words, |score| score.columns()),
        after: there.columns(),
        arrival: arrival(request, placement.node(), fleet),
        makes_room_for: None,
    })
}

/// How well it would be placed where it was, given the others there.
pub(crate) fn at_home(
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

/// What has to come to the node for it.
pub(crate) fn arrival(request: &ReplicaRequest, node: &str, fleet: &mut Fleet) -> Option<Arrival> {
    let at = fleet.position(node).ok()?;
    let (fits, nodes) = fleet.fits(request);
    let node = &nodes[at];
    let fit = &fits[node.machine_id];
    fit.appraisal.as_ref()?;
    node.arrival(request, fit)
}

fn is_worth(here: &PlacementScore, there: &PlacementScore) -> bool {
    // Beside a held canary another revision stays as well: only fewer replicas of the deployment
    // are a gain.
    let first = |score: &PlacementScore| {
        let copies = score.copies.same + score.copies.others;
        (score.excess, score.unwelcome, copies)
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
        // Both are of one request.
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
    fn a_move_brings_replicas_of_a_deployment_apart_whatever_their_revisions() {
        let score = |(same, others): (u32, u32), used: i64| PlacementScore {
            excess: 0,
            unwelcome: 0,
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
            // Old replicas beside a held canary.
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
