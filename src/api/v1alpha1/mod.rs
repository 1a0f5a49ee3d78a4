//! `rooflet.dev/v1alpha1`: one file per kind, and the parts that several kinds share.

mod autoscaling;
mod capacity_plan;
mod count_or_percent;
#[cfg(test)]
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

pub(crate) use autoscaling::*;
pub(crate) use capacity_plan::*;
pub(crate) use count_or_percent::*;
pub(crate) use fleet_node::*;
pub(crate) use model::*;
pub(crate) use model_deployment::*;
pub(crate) use model_replica::*;
pub(crate) use model_revision::*;
pub(crate) use performance_claim::*;
pub(crate) use plan_verdict::*;
pub(crate) use probe::*;
pub(crate) use routing::*;
pub(crate) use strategy::*;
