//! Notices nodes that fall silent, and decides what becomes of their replicas.

mod apply;
mod budgets;
mod eviction;
mod heard;
mod intents;
mod observed;
mod plan;
mod silence;
mod skew;
#[cfg(test)]
mod tests;

pub use apply::NODE_MONITOR_PERIOD;
pub(super) use apply::NodeLifecycle;
pub(super) use eviction::{left_node, moves_to};
pub use heard::Heartbeats;
pub use intents::intents as node_intents;
