//! Observed state of one deployment: the input of its plan.

use jiff::Timestamp;

use super::admission::HubAnswer;
use super::throughput::Chips;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, ModelRevision, RolloutStatus};
use rooflet_scheduler::Fleet;

/// Input of a plan. `revisions` and `replicas` are those that the deployment controls.
pub(crate) struct Observed<'a, 'f> {
    pub deployment: &'a ModelDeployment,
    pub revisions: Vec<&'a ModelRevision>,
    pub replicas: Vec<&'a ModelReplica>,
    /// Revisions in the same namespace that belong to no deployment. Their names are taken.
    pub foreign: Vec<&'a ModelRevision>,
    /// An older deployment in its namespace that is served under the same name.
    pub namesake: Option<&'a str>,
    pub fleet: &'f Fleet,
    /// What the hub says of a template that has no revision yet; `None` where it was not asked.
    pub hub: Option<HubAnswer>,
    pub now: Timestamp,
}

impl Observed<'_, '_> {
    pub(super) fn chips(&self) -> Chips<'_> {
        Chips::new(self.fleet, self.deployment)
    }

    pub(super) fn rollout(&self) -> Option<&RolloutStatus> {
        Some(&self.deployment.status.as_ref()?.rollout)
    }
}
