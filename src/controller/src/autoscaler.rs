//! How many replicas each ModelDeployment with `spec.autoscaling` should have: a plan from what its replicas and the
//! gateways report, and the one write of `spec.replicas` that follows from it.

mod conditions;
mod demand;
mod first_token;
mod plan;
mod reconciler;
mod schedule;
mod writes;

pub use first_token::{Answering, FirstToken};
pub use plan::Signals;
pub(super) use reconciler::Autoscaler;
pub use writes::Autoscaling;
