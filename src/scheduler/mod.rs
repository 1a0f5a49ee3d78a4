//! One replica to one node: filter, score, bind. The words and the order of kube-scheduler.
//!
//! In: the fleet as values ([`NodeState`]) and what a replica asks for ([`ReplicaRequest`]). Out: a placement, or every
//! node's reason against it. Pure and deterministic; never promises memory that is promised already.

mod bind;
mod filter;
mod fleet;
mod score;
#[cfg(test)]
mod tests;

pub(crate) use bind::{Decision, Placement, bind_all, place};
pub(crate) use filter::{Rejection, Unschedulable, tolerated};
pub(crate) use fleet::{Fleet, NodeState, ReplicaKey, ReplicaRequest};
pub(crate) use score::PlacementScore;
