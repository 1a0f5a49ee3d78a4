//! Detection of silent nodes, evictions, and release of the replicas of deleted nodes.

mod budgets;
mod eviction;
mod heartbeats;
mod observed;
mod plan;
mod reconciler;
mod silence;
mod skew;
#[cfg(test)]
mod tests;
mod writes;

pub(super) use eviction::{left_node, moves_to};
pub use heartbeats::Heartbeats;
pub(super) use heartbeats::Timings;
pub(super) use observed::concerns_lifecycle;
pub(super) use plan::MISSING_GRACE;
pub use reconciler::NODE_MONITOR_PERIOD;
pub(super) use reconciler::NodeLifecycle;
pub use writes::intents as node_intents;
pub(super) use writes::{drain_obstacles, intents_with_reserve as node_intents_with_reserve};
