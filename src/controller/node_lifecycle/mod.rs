//! Notices nodes that fall silent, and decides what becomes of their replicas.

mod apply;
mod budgets;
mod eviction;
mod heard;
mod intents;
mod plan;
mod skew;
#[cfg(test)]
mod tests;

pub(super) use apply::NodeLifecycle;
pub(crate) use heard::Heartbeats;
pub(crate) use intents::intents as node_intents;
