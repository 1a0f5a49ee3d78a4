//! One replica to one node: filter, score, bind. The words and the order of kube-scheduler.
//!
//! In: the fleet as values ([`Fleet`]) and what a replica asks for ([`ReplicaRequest`]). Out: a
//! placement with the scores behind it, or why there is none and what would help; and who leaves
//! for a replica of a higher priority. Pure and deterministic; never promises memory or time of a
//! chip that is promised already.
//!
//! Fast in large fleets by three means: what a request takes of a kind of machine is computed once
//! (`fleet::machine`), the fleet follows its objects one by one (`fleet`), and the order of nodes
//! for a kind of request is kept while nodes change (`placement::ranking`).

pub mod bench;
pub mod capacity;
mod fleet;
mod placement;
mod request;
mod taints;
#[cfg(test)]
mod tests;
mod unschedulable;

pub use fleet::Fleet;
pub use fleet::node::NodeState;
pub use placement::bind::{Decision, bind_all, decide_all};
pub use placement::preempt::{Preemption, is_waited_for};
pub use placement::rebalance::{Move, rebalance};
pub use placement::rival::Rival;
pub use request::{ReplicaKey, ReplicaRequest, deployment_of, is_overridden};
pub use taints::{
    Stay, of as taints_of, of_conditions as taints_of_conditions, preferences as taints_of_preferences, stay,
};
