//! Replicas that would be better off on another node, now that the fleet is what it is. A proposal; nothing is moved here.

use super::bind::place;
use super::filter::{Rejection, filter};
use super::fleet::Fleet;
use super::request::{ReplicaKey, ReplicaRequest};
use super::score::{PlacementScore, Terms};
use crate::units::Bytes;

/// A move has a cost, so it must gain at least so much: percent points of slack, of use, and of the time of a token.
const MIN_SLACK_GAIN: i64 = 5;
const MIN_USE_GAIN: i64 = 10;
const MIN_TOKEN_GAIN: i64 = 20;

/// One replica that would be better off elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) replica: ReplicaKey,
    pub(crate) deployment: Option<ReplicaKey>,
    pub(crate) from: String,
    pub(crate) to: String,
    /// How it is placed, and how it would be.
    pub(crate) before: String,
    pub(crate) after: String,
    /// What has to be loaded on the other node.
    pub(crate) load: Bytes,
}

/// Moves that are worth their cost, each on top of the ones before; `fleet` is afterwards as if they were done.
pub(crate) fn rebalance(fleet: &mut Fleet) -> Vec<Move> {
    let settled: Vec<ReplicaRequest> = fleet
        .nodes
        .iter()
        .flat_map(|node| node.residents.values())
        .map(|resident| &resident.claim)
        .filter(|claim| claim.ready && !claim.ending && claim.replaceable)
        .map(|claim| ReplicaRequest {
            nominated: None,
            ..claim.request.clone()
        })
        .collect();
    settled
        .iter()
        .filter_map(|request| propose(request, fleet))
        .collect()
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
    let at = fleet.position(from).ok()?;
    let (fits, nodes) = fleet.fits(request);
    let node = &nodes[at];
    let fit = &fits[node.machine_id];
    let load = node.load_for(request);
    let here = match filter(request, node, fit, &load) {
        Ok(()) => Ok(PlacementScore::new(request, at, node, fit, &load)),
        // More is promised there than there is.
        Err(rejection @ (Rejection::Memory { .. } | Rejection::Speed { .. })) => {
            Err(rejection.words().into_owned())
        }
        // What made it unfit since is not ours to judge: drains and evictions do.
        Err(_) => return None,
    };
    let bytes = fit
        .appraisal
        .as_ref()
        .map_or(Bytes::ZERO, |appraisal| appraisal.reservation.weights);
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
        load: bytes,
    })
}

fn is_worth(here: &PlacementScore, there: &PlacementScore) -> bool {
    let first = |score: &PlacementScore| (score.excess, score.unwelcome, score.copies);
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
            Terms::SloSlack { .. } | Terms::BinPack { .. } | Terms::Spread { .. } | Terms::Fastest { .. },
            _,
        ) => false,
    }
}
