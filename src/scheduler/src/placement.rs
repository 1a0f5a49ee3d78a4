//! Placement of replicas on nodes: filter, score and bind, preemption and rebalancing.

pub(crate) mod bind;
pub(crate) mod choice;
mod exchange;
pub(crate) mod filter;
pub(crate) mod outlook;
pub(crate) mod preempt;
pub(crate) mod ranking;
pub(crate) mod rebalance;
pub(crate) mod rejection;
mod repair;
pub(crate) mod reserve;
pub(crate) mod rival;
mod room;
pub(crate) mod score;
pub(crate) mod topology;
