//! Options of one run.

use crate::scenario::fault::FaultSpec;
use crate::scenario::planted::Planted;
use crate::scenario::policy::Policy;

/// How one run differs from others of the same scenario.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    pub seed: u64,
    pub policy: Policy,
    /// Instead of the scenario's faults, written or drawn.
    pub faults: Option<Vec<FaultSpec>>,
    /// Write down what happens.
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
