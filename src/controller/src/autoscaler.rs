//! Number of replicas of ModelDeployments with `spec.autoscaling`.
//!
//! The plan follows the load that replicas and gateways report. The only writes are
//! `spec.replicas` and the conditions of autoscaling.

mod conditions;
mod demand;
mod first_token;
mod plan;
mod reconciler;
mod schedule;
mod writes;

pub(super) use demand::Gateways;
pub use first_token::{FirstToken, ReadyReplica};
pub use plan::Signals;
pub(super) use reconciler::Autoscaler;
pub use writes::Autoscaling;
pub(super) use writes::bounds_of;
