//! Notices nodes that fall silent, and decides what becomes of their replicas.

mod budgets;
mod eviction;
mod heard;
mod observed;
mod plan;
mod reconciler;
mod silence;
mod skew;
#[cfg(test)]
mod tests;
mod writes;

pub(super) use eviction::{left_node, moves_to};
pub use heard::Heartbeats;
pub use reconciler::NODE_MONITOR_PERIOD;
pub(super) use reconciler::NodeLifecycle;
pub use writes::intents as node_intents;
