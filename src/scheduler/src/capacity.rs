//! Capacity planning: demand against a fleet, as pure functions without side effects.
//!
//! [`spec`] parses the plan, [`mod@question`] evaluates every model on every class of node with the
//! rules of admission, [`search`] places replicas, and [`verdict`] explains the result. Formulas
//! and bounds: docs/planner.md.

mod binding;
mod exact;
mod greedy;
mod instance;
mod linear;
mod loss;
mod purchase;
mod question;
mod rejected;
mod relaxation;
mod search;
mod shop;
mod spec;
mod streams;
#[cfg(test)]
mod tests;
mod verdict;
mod working;

pub use question::Question;
pub use spec::{LoadModelError, PlanError, WantedModel, current_fleet, question, runs_on_nodes};
pub use verdict::answer;
