//! ModelDeployment → ModelRevision → ModelReplicas.
//!
//! [`plan`] decides, [`apply`] writes. A plan is a value: which revision, which replicas come and go, what the status
//! is then and what is told about it.

mod admission;
mod analysis;
mod apply;
mod conditions;
mod counts;
mod course;
mod events;
mod figures;
mod idle;
mod intents;
mod maintenance;
mod namesake;
mod ownership;
mod plan;
mod preparation;
mod refused;
mod replacement;
mod replica;
mod report;
mod revision;
mod rollout;
mod selection;
mod start;
#[cfg(test)]
mod tests;
mod throughput;
mod trial;
mod view;

pub(crate) use admission::HubAnswer;
pub use admission::is_template_of;
pub(super) use apply::DeploymentReconciler;
pub use intents::intents as deployment_intents;
pub(super) use replica::{
    NODE_NOT_READY, is_leaving, is_unplaceable, leaving_since, refusal, refused_recently,
};
pub(super) use rollout::Bounds;
pub(super) use throughput::{Chips, Floor, Throughput};
