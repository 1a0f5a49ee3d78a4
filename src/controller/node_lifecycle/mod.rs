//! Notices nodes that fall silent, and decides what becomes of their replicas.

mod apply;
mod plan;

pub(super) use apply::NodeLifecycle;
