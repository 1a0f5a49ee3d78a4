//! One replica to one node: filter, score, bind. The words and the order of kube-scheduler.
//!
//! In: the fleet as values ([`Fleet`]) and what a replica asks for ([`ReplicaRequest`]). Out: a placement with the scores
//! behind it, or why there is none and what would help; and who leaves for a replica of a higher priority. Pure and
//! deterministic; never promises memory or time of a chip that is promised already.
//!
//! Fast in large fleets by three means: what a request takes of a kind of machine is computed once (`machine`), the fleet
//! follows its objects one by one (`fleet`), and the order of nodes for a kind of request is kept while nodes change
//! (`ranking`).

pub mod bench;
mod bind;
pub mod capacity;
mod filter;
mod fleet;
mod machine;
mod node;
mod outlook;
mod preempt;
mod ranking;
mod rebalance;
mod remedy;
mod repair;
mod request;
mod reserve;
mod rival;
mod room;
mod score;
mod taints;
#[cfg(test)]
mod tests;
mod topology;
mod unschedulable;

pub use bind::{Decision, bind_all, decide_all};
pub use fleet::Fleet;
pub use node::NodeState;
pub use preempt::{Preemption, is_waited_for};
pub use rebalance::{Move, rebalance};
pub use request::{ReplicaKey, ReplicaRequest, deployment_of, is_overridden};
pub use rival::Rival;
pub use taints::{Stay, of as taints_of, of_conditions as taints_of_conditions, stay};
