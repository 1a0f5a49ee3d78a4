//! Reconciler of ModelDeployments: creates ModelRevisions and ModelReplicas.
//!
//! [`plan`] computes the plan, [`writes`] returns the writes of the plan in order, and
//! [`reconciler`] executes them. A plan is a value: the revision, the replicas to create and
//! delete, the new status and its events.

mod admission;
mod bounds;
mod idle;
mod index;
mod maintenance;
mod observed;
mod ownership;
mod pause_reason;
mod plan;
mod preparation;
mod progress;
mod reasons;
mod reconciler;
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
mod writes;

pub(crate) use admission::HubAnswer;
pub use admission::is_template_of;
pub(super) use bounds::Bounds;
pub(super) use index::{Affected, DeploymentIndex, labelled};
pub(super) use reasons::NODE_NOT_READY;
pub(super) use reconciler::DeploymentReconciler;
pub(super) use replica::{
    is_leaving, is_of, is_unschedulable, leaving_since, refusal, refusal_expiry, refused_recently,
};
pub(super) use served_names::served_name;
pub use writes::intents as deployment_intents;
pub(super) use writes::intents_for;

pub(super) use throughput::{Chips, Floor, Throughput, throughput_floor};
