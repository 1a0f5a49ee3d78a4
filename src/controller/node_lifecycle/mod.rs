//! Notices nodes that fall silent, and decides what becomes of their replicas.

mod apply;
mod budgets;
mod intents;
mod plan;
#[cfg(test)]
mod tests;

pub(crate) use apply::Heartbeats;
pub(super) use apply::NodeLifecycle;
pub(crate) use intents::intents as node_intents;
