//! A whole fleet on a virtual clock: the real plans of controller, agent and gateway over a
//! modelled API server, network and engine. For `rooflet simulate`, and to look for what breaks the
//! design's guarantees.
//!
//! What decides is the product's own code: the deployment plan, the binder with the scheduler, the
//! node lifecycle, the agent's sync plan and statuses, the gateway's routing table and order. What
//! is modelled are the shells around it: watches that lag, writes that are delayed, refused or
//! lost, processes that load, drain and die. An answer takes the time that the roofline predicts.
//! Nothing reads a clock or a disk; the same scenario and seed give the same outcome.
//!
//! In: a [`Scenario`] and [`RunOptions`]. Out: an [`Outcome`], with the first rule that was broken,
//! if any.
//!
//! What time alone would do again and again without a change (renewals of Leases, passes over what
//! is as it was) is left out, so that a day of a thousand Macs takes minutes.

mod network;
mod options;
mod outcome;
mod random;
mod rules;
mod run;
mod scenario;
mod shrink;
#[cfg(test)]
mod tests;
mod world;

use std::time::Duration;

pub use options::RunOptions;
pub use outcome::{DemandOutcome, Outcome};
pub use run::simulate;
pub use scenario::fault::{Fault, FaultSpec};
pub use scenario::machine::{Machine, chip_of, identity, machines};
pub use scenario::policy::Policy;
pub use scenario::{Scenario, ScenarioError, show};
pub use shrink::shrink;
pub use world::report::{idle, power};

/// After the last fault and the last change, everything is as it should be within this time: a
/// silent node is noticed and given up, a worker that failed again and again is started after five
/// minutes.
const SETTLED: Duration = Duration::from_secs(600);
