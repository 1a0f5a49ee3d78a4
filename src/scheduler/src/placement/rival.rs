//! Baseline placement policies that consider only memory, for comparison in the simulation.

use std::cmp::Reverse;

use super::filter::filter;
use super::topology::Domains;
use crate::fleet::Fleet;
use crate::fleet::machine::Fit;
use crate::fleet::node::NodeState;
use crate::request::ReplicaRequest;
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::RUNTIME_OVERHEAD;

/// Resolution of the comparison of memory utilization.
const PARTS: u64 = 10_000;

/// Baseline policy that selects a node with enough memory, without preemption or revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// Least remaining memory; ties go to the node with the highest speed without other replicas.
    BestFit,
    /// Lowest memory utilization afterwards (LeastAllocated in Kubernetes).
    LeastLoaded,
    /// Next node by name.
    RoundRobin,
}

impl Rival {
    /// Places all requests in the given order, and enters each placement into `fleet`.
    pub fn place_all(self, requests: &[ReplicaRequest], fleet: &mut Fleet) -> Vec<Option<String>> {
        requests
            .iter()
            .map(|request| {
                let node = self.place(request, fleet)?;
                fleet.place(request, &node);
                Some(node)
            })
            .collect()
    }

    fn place(self, request: &ReplicaRequest, fleet: &mut Fleet) -> Option<String> {
        let turn = fleet.placed();
        let (fits, nodes) = fleet.fits(request);
        let domains = Domains::new(request, nodes);
        let may_be_at = |at: usize| domains.as_ref().is_none_or(|domains| domains.allows(at));
        let candidates = nodes.iter().enumerate().filter(|(at, node)| {
            filter(request, node, &fits[node.machine_id], &node.load).is_ok() && may_be_at(*at)
        });
        let chosen = match self {
            Self::BestFit => candidates.min_by_key(|(at, node)| {
                let fit = &fits[node.machine_id];
                (left(node, fit), Reverse(alone(fit)), *at)
            }),
            Self::LeastLoaded => candidates.min_by_key(|(at, node)| {
                let all = node.allocatable.0.max(1);
                let used = all.saturating_sub(left(node, &fits[node.machine_id]).0);
                (used.saturating_mul(PARTS) / all, *at)
            }),
            Self::RoundRobin => {
                let first = turn % nodes.len().max(1);
                candidates.min_by_key(|(at, _)| (*at < first, *at))
            }
        };
        chosen.map(|(_, node)| node.name.clone())
    }
}

/// Returns the free memory with the replica on the node.
fn left(node: &NodeState, fit: &Fit) -> Bytes {
    let takes = fit
        .requirements
        .as_ref()
        .map_or(RUNTIME_OVERHEAD, |requirements| requirements.reservation.total());
    node.free() - takes
}

/// Returns the tokens of one stream per 1,000 seconds without other replicas, or 0 if unknown.
fn alone(fit: &Fit) -> u64 {
    let speed = fit
        .requirements
        .as_ref()
        .and_then(|requirements| requirements.speed);
    speed.map_or(0, |speed| (speed.decode.p50 * 1e3).max(0.0) as u64)
}
