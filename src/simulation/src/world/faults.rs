//! Faults that are active.

use crate::scenario::fault::{Fault, FaultSpec};
use crate::world::World;

impl World<'_> {
    /// Of the faults of one kind that are on, the strongest shows.
    pub(crate) fn strongest(&self, like: &FaultSpec, otherwise: f64) -> f64 {
        let active = self.active.iter().map(|index| &self.faults[*index]);
        let alike = active.filter(|fault| fault.is_like(like));
        alike.map(|fault| fault.strength()).fold(otherwise, f64::max)
    }

    pub(crate) fn skew_in_play(&self) -> bool {
        self.faults
            .iter()
            .any(|fault| matches!(fault.what, Fault::ClockSkew { .. }))
    }

    /// A FleetNode that was deleted has no Lease until its agent has registered again.
    pub(crate) fn skipped_leases(&self, node: &str) -> bool {
        self.faults.iter().any(|fault| {
            matches!(&fault.what, Fault::DeleteNode { node: deleted } if deleted == node)
                && fault.at <= self.now
        })
    }
}
