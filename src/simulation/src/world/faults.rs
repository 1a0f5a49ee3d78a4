//! Active faults.

use crate::scenario::fault::{Fault, FaultSpec};
use crate::world::World;

impl World<'_> {
    /// Returns the highest strength of the active faults of the same kind and node; `default` if
    /// none is active.
    pub(crate) fn strongest(&self, like: &FaultSpec, default: f64) -> f64 {
        let active = self.active.iter().map(|index| &self.faults[*index]);
        let alike = active.filter(|fault| fault.is_like(like));
        alike.map(|fault| fault.strength()).fold(default, f64::max)
    }

    /// Returns true if the run has faults that change clocks.
    pub(crate) fn has_clock_skew(&self) -> bool {
        self.faults
            .iter()
            .any(|fault| matches!(fault.what, Fault::ClockSkew { .. }))
    }

    /// Returns true if a fault has deleted the FleetNode. The node has no Lease until its agent
    /// registers again.
    pub(crate) fn node_was_deleted(&self, node: &str) -> bool {
        self.faults.iter().any(|fault| {
            matches!(&fault.what, Fault::DeleteNode { node: deleted } if deleted == node)
                && fault.at <= self.now
        })
    }
}
