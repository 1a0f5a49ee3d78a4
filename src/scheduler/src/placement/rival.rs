//! How others place: by memory alone, whatever that does to the speed of what runs there. For
//! comparisons in the simulation; nothing in a real fleet is placed so.

use std::cmp::Reverse;

use super::filter::filter;
use super::topology::Domains;
use crate::fleet::Fleet;
use crate::fleet::machine::Fit;
use crate::fleet::node::NodeState;
use crate::request::ReplicaRequest;
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::RUNTIME_OVERHEAD;

/// Parts of a node's memory that are told apart when nodes are compared by how full they are.
const PARTS: u64 = 10_000;

/// A rule that picks one of the nodes with enough memory. It makes nobody leave and looks at
/// nothing twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// Where the least memory is left; of equal ones where the model runs fastest alone.
    BestFit,
    /// Whose memory is then used least, as a part of what it has (Kubernetes' LeastAllocated).
    LeastLoaded,
    /// The next one by name.
    RoundRobin,
}

impl Rival {
    /// Decides for every request in the order given, and enters each placement into `fleet`.
    pub fn place_all(self, requests: &[ReplicaRequest], fleet: &mut Fleet) -> Vec<Option<String>> {
        requests
            .iter()
            .map(|request| {
                let node = self.place(request, fleet)?;
                fleet.promise(request, &node);
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

/// Memory that is left with the replica on the node.
fn left(node: &NodeState, fit: &Fit) -> Bytes {
    let takes = fit
        .appraisal
        .as_ref()
        .map_or(RUNTIME_OVERHEAD, |appraisal| appraisal.reservation.total());
    node.free() - takes
}

/// Tokens of one stream in a thousand seconds with the chip to itself; zero where nobody can tell.
fn alone(fit: &Fit) -> u64 {
    let speed = fit.appraisal.as_ref().and_then(|appraisal| appraisal.speed);
    speed.map_or(0, |speed| (speed.decode.p50 * 1e3).max(0.0) as u64)
}
