//! Scheduling decisions for all unscheduled replicas, in sequence. Each decision considers the
//! previous ones.

use super::choice::{Decision, choose, place};
use super::exchange::exchange;
use super::preempt::preempt;
use super::repair::repair;
use crate::fleet::Fleet;
use crate::request::ReplicaRequest;

/// Maximum number of decisions of one call that are revised, and the number of revisions. A single
/// decision needs none.
const MAX_REVISED: usize = 256;
const REVISION_ROUNDS: usize = 3;

/// Like [`decide_all`], without preemption.
pub fn bind_all<'a>(
    requests: impl IntoIterator<Item = &'a ReplicaRequest>,
    fleet: &mut Fleet,
) -> Vec<Decision> {
    decide_all(requests, fleet, 0)
}

/// Decides for every request in the given order, and enters each placement into `fleet`.
///
/// If no node accepts a request, earlier requests of the same call may move to other nodes. Up to
/// `max_preemptions` requests may preempt bound replicas; pass the requests in order of priority.
pub fn decide_all<'a>(
    requests: impl IntoIterator<Item = &'a ReplicaRequest>,
    fleet: &mut Fleet,
    max_preemptions: usize,
) -> Vec<Decision> {
    let mut preemptions = max_preemptions;
    let requests: Vec<_> = requests.into_iter().collect();
    let mut decisions: Vec<_> = requests
        .iter()
        .map(|request| {
            let outcome = place(request, fleet);
            if let Ok(placement) = &outcome {
                fleet.end_nomination(&request.key);
                fleet.place(request, placement.node());
            }
            let mut preemption = None;
            let is_deferred = outcome.is_err() && preemptions == 0 && max_preemptions > 0;
            if outcome.is_err() && preemptions > 0 {
                preemption = preempt(request, fleet);
                preemptions -= usize::from(preemption.is_some());
            }
            Decision {
                key: request.key.clone(),
                outcome,
                preemption,
                is_deferred,
            }
        })
        .collect();
    repair(&requests, &mut decisions, fleet);
    revise(&requests, &mut decisions, fleet);
    if fleet.reserve_node_failures == 0 {
        exchange(&requests, &mut decisions, fleet);
    }
    decisions
}

/// Revises each placement with knowledge of all others. All replicas of a call start at the same
/// time, so the order of decisions should not disadvantage the first ones.
fn revise(requests: &[&ReplicaRequest], decisions: &mut [Decision], fleet: &mut Fleet) {
    if !(2..=MAX_REVISED).contains(&decisions.len()) || fleet.reserve_node_failures > 0 {
        return;
    }
    for _ in 0..REVISION_ROUNDS {
        let mut moved = false;
        for (request, decision) in requests.iter().zip(decisions.iter_mut()) {
            let Ok(placement) = &mut decision.outcome else {
                continue;
            };
            // A replica of unknown size fills its node, and was placed where that costs least.
            if placement.needed.is_none() {
                continue;
            }
            fleet.undo(&request.key, None);
            if let Some(better) = choose(request, fleet) {
                moved |= better.node() != placement.node();
                *placement = better;
            }
            fleet.place(request, placement.node());
        }
        if !moved {
            return;
        }
    }
}
