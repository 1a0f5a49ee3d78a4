//! Placement of one replica on one node: filter, score, bind, with the phases of kube-scheduler.
//!
//! The input is the fleet ([`Fleet`]) and the requirements of a replica ([`ReplicaRequest`]). The
//! output is a placement with its scores, or the reasons why no node accepts the replica, with
//! remedies. For a replica of a higher priority, the output may name replicas to preempt. All
//! functions are pure and deterministic. Memory and chip time are never reserved twice.
//!
//! Four techniques make the scheduler fast in large fleets:
//! - The requirements of a request on a kind of machine are computed once (`fleet::machine`).
//! - The fleet is updated incrementally (`fleet`).
//! - The ranking of nodes for a kind of request is kept while nodes change
//!   (`placement::ranking`).
//! - A replica that no node accepts waits until a change of the fleet can help it
//!   (`unschedulable_queue`).

pub mod bench;
pub mod capacity;
mod condition_taints;
mod fleet;
mod placement;
mod request;
#[cfg(test)]
mod tests;
mod unschedulable;
mod unschedulable_queue;

pub use condition_taints::{TolerationPeriod, condition_taints, taints_of, toleration_period, usage_taints};
pub use fleet::Fleet;
pub use fleet::node::NodeState;
pub use placement::bind::{bind_all, decide_all};
pub use placement::choice::Decision;
pub use placement::preempt::{Preemption, is_waited_for};
pub use placement::rebalance::{Move, rebalance};
pub use placement::rival::Rival;
pub use request::{ReplicaKey, ReplicaRequest, deployment_of, is_overridden};
pub use unschedulable_queue::UnschedulableQueue;
