//! Decides for all waiting replicas, one after the other, each on what the ones before have left.

use super::filter::{Unschedulable, feasible};
use super::fleet::{Fleet, ReplicaKey, ReplicaRequest};
use super::score::PlacementScore;
use crate::roofline::admission::Verdict;

/// Where a replica goes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placement {
    pub(crate) score: PlacementScore,
    /// `None` while only the agent can tell.
    pub(crate) needed: Option<Verdict>,
}

impl Placement {
    pub(crate) fn node(&self) -> &str {
        &self.score.node
    }
}

/// What is to become of one waiting replica.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    pub(crate) key: ReplicaKey,
    pub(crate) outcome: Result<Placement, Unschedulable>,
}

/// The best node for one replica. `fleet` is not changed.
pub(crate) fn place(request: &ReplicaRequest, fleet: &Fleet) -> Result<Placement, Unschedulable> {
    let (score, needed) = feasible(request, fleet)?
        .into_iter()
        .map(|(node, needed)| (PlacementScore::new(request, node, &needed), needed))
        .min_by(|(a, _), (b, _)| a.cmp(b))
        .expect("`feasible` gives at least one node or an error");
    Ok(Placement { score, needed })
}

/// Decides for every request in the order given, and enters each placement into `fleet`.
pub(crate) fn bind_all<'a>(
    requests: impl IntoIterator<Item = &'a ReplicaRequest>,
    fleet: &mut Fleet,
) -> Vec<Decision> {
    requests
        .into_iter()
        .map(|request| {
            let outcome = place(request, fleet);
            if let Ok(placement) = &outcome
                && let Some(node) = fleet.node_mut(placement.node())
            {
                node.promise(request, placement.needed.as_ref());
            }
            Decision {
                key: request.key.clone(),
                outcome,
            }
        })
        .collect()
}
