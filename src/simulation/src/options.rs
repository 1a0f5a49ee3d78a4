//! Options of one run.

use crate::scenario::fault::FaultSpec;
use crate::scenario::planted::Planted;
use crate::scenario::policy::Policy;

/// Properties of a run that are not part of the scenario.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    pub seed: u64,
    pub policy: Policy,
    /// Replacement for the faults of the scenario, including the random ones.
    pub faults: Option<Vec<FaultSpec>>,
    /// Record every write, start, end and fault.
    pub journal: bool,
    pub(crate) planted: Planted,
}

impl RunOptions {
    pub fn new(seed: u64, policy: Policy) -> Self {
        Self {
            seed,
            policy,
            ..Self::default()
        }
    }
}
