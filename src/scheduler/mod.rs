//! One replica to one node: filter, score, bind. The words and the order of kube-scheduler.
//!
//! In: the fleet as values ([`Fleet`]) and what a replica asks for ([`ReplicaRequest`]). Out: a placement, or every
//! node's reason against it. Pure and deterministic; never promises memory that is promised already.

mod bind;
mod filter;
mod fleet;
mod score;
mod taints;
#[cfg(test)]
mod tests;

pub(crate) use bind::{Decision, bind_all};
pub(crate) use filter::tolerated;
pub(crate) use fleet::{Fleet, ReplicaKey, ReplicaRequest, deployment_of, is_overridden};
pub(crate) use taints::of_conditions as taints_of_conditions;
