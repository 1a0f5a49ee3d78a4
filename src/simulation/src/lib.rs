//! Simulation of a fleet on a virtual clock: the real plans of controller, agent and gateway over a
//! modelled API server, network and engine. `rooflet simulate` uses it, and tests search with it
//! for faults that violate an invariant of the design.
//!
//! All decisions are made by the code of the product: deployment plan, binder and scheduler, node
//! lifecycle, sync plan and statuses of the agent, routing table, request queue and API keys of the
//! gateway, certificates of all machines. The code around them is modelled: watches that lag,
//! writes that are delayed, rejected or lost, and processes that load, drain and crash. An answer
//! takes the time that the roofline predicts. No code reads a clock or a disk. The same scenario
//! and seed produce the same outcome.
//!
//! Input: a [`Scenario`] and [`RunOptions`]. Output: an [`Outcome`], with the first violated
//! invariant.
//!
//! The simulation omits periodic events without effect: Lease renewals of healthy nodes, and passes
//! over unchanged objects. A day of a thousand Macs therefore takes minutes.

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
pub use scenario::{Scenario, ScenarioError, format_duration};
pub use shrink::shrink;
pub use world::report::{idle, power};

/// Longest time from the last fault or change until the fleet has recovered. It covers the
/// detection and eviction of a silent node, and the longest backoff of a failing worker (5 min).
const RECOVERY_TIME: Duration = Duration::from_secs(600);
