//! ModelDeployment → ModelRevision → ModelReplicas.
//!
//! [`plan`] decides, [`apply`] writes. A plan is a value: which revision, which replicas come and go, what the status
//! is then and what is told about it.

mod admission;
mod apply;
mod bounds;
mod idle;
mod intents;
mod maintenance;
mod observed;
mod ownership;
mod pause_reason;
mod plan;
mod preparation;
mod reasons;
mod refused;
mod replacement;
mod replica;
mod report;
mod revision;
mod rollout;
mod rollout_context;
mod selection;
mod served_names;
#[cfg(test)]
mod tests;
mod throughput;

pub(crate) use admission::HubAnswer;
pub use admission::is_template_of;
pub(super) use apply::DeploymentReconciler;
pub(super) use bounds::Bounds;
pub use intents::intents as deployment_intents;
pub(super) use reasons::NODE_NOT_READY;
pub(super) use replica::{is_leaving, is_unplaceable, leaving_since, refusal, refused_recently};

pub(super) use throughput::{Chips, Floor, Throughput};
