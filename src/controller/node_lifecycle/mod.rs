//! Notices nodes that fall silent, and decides what becomes of their replicas.

mod apply;
mod budgets;
mod plan;
#[cfg(test)]
mod tests;

pub(super) use apply::NodeLifecycle;
