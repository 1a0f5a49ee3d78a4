//! What a fleet can carry: demand against machines, as a what-if without side effects. Pure.
//!
//! [`spec`] reads the question, [`mod@question`] judges every model on every class of node by
//! admission's own rules, the search below places replicas, and [`verdict`] explains. Formulas and
//! bounds: docs/planning.md.

mod binding;
mod exact;
mod greedy;
mod instance;
mod linear;
mod loss;
mod purchase;
mod question;
mod relaxation;
mod search;
mod shop;
mod spec;
#[cfg(test)]
mod tests;
mod verdict;
mod working;

pub use question::Question;
pub use spec::{LoadModelError, PlanError, WantedModel, current_fleet, question};
pub use verdict::answer;
