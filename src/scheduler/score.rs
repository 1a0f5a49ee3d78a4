//! Which of the nodes that can take a replica should.

use std::cmp::Reverse;
use std::fmt;

use super::filter::{Needed, reluctance};
use super::fleet::{NodeState, ReplicaRequest};
use crate::roofline::memory::RUNTIME_OVERHEAD;
use crate::units::Bytes;

/// Lower is better. Fields compare top to bottom.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlacementScore {
    /// Taints of effect PreferNoSchedule that are not tolerated.
    pub(crate) unwelcome: usize,
    /// Replicas of the same deployment on the node: one machine's failure should not take all of them.
    pub(crate) same_deployment: u32,
    /// Free memory after placement; more is better, so that what grows later still fits.
    pub(crate) memory_left: Reverse<Bytes>,
    /// So that equal nodes are taken in order of name.
    pub(crate) node: String,
}

impl PlacementScore {
    pub(super) fn new(request: &ReplicaRequest, node: &NodeState, needed: &Needed) -> Self {
        let same_deployment = request
            .deployment
            .as_ref()
            .and_then(|deployment| node.replicas.get(deployment));
        let needed = needed
            .as_ref()
            .map_or(RUNTIME_OVERHEAD, |verdict| verdict.reservation.total());
        Self {
            unwelcome: reluctance(request, node),
            same_deployment: same_deployment.copied().unwrap_or(0),
            memory_left: Reverse(node.free() - needed),
            node: node.name.clone(),
        }
    }
}

impl fmt::Display for PlacementScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} left free", self.memory_left.0)?;
        if self.same_deployment > 0 {
            write!(f, ", {} of the same deployment there", self.same_deployment)?;
        }
        Ok(())
    }
}
