//! `rooflet.dev/v1alpha1`: one file per kind, and shared parts.
#![expect(
    unreachable_pub,
    reason = "the derive KubeSchema copies each struct into a function, where no `pub` is reachable"
)]

mod api_key;
mod autoscaling;
mod capacity_plan;
mod count_or_percent;
mod fixture;
mod fleet_node;
mod model;
mod model_deployment;
mod model_replica;
mod model_revision;
mod performance_claim;
mod plan_verdict;
mod probe;
mod routing;
mod strategy;

pub use api_key::*;
pub use autoscaling::*;
pub use capacity_plan::*;
pub use count_or_percent::*;
pub use fleet_node::*;
pub use model::*;
pub use model_deployment::*;
pub use model_replica::*;
pub use model_revision::*;
pub use performance_claim::*;
pub use plan_verdict::*;
pub use probe::*;
pub use routing::*;
pub use strategy::*;
