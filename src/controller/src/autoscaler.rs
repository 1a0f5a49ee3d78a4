//! How many replicas each ModelDeployment with `spec.autoscaling` should have: a plan from what its replicas and the
//! gateways report, and the one write of `spec.replicas` that follows from it.

mod apply;
mod conditions;
mod demand;
mod first_token;
mod intents;
mod plan;
mod schedule;

pub(super) use apply::Autoscaler;
pub use first_token::{Answering, FirstToken};
pub use intents::Autoscaling;
pub use plan::Signals;
