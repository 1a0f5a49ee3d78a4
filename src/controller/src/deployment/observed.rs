//! Observed state of one deployment: the input of its plan.

use jiff::Timestamp;

use super::admission::HubAnswer;
use super::throughput::Chips;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, ModelRevision, RolloutStatus};
use rooflet_scheduler::Fleet;

/// Input of a plan. The deployment controls all of `revisions` and `replicas`.
pub(crate) struct Observed<'a, 'f> {
    pub deployment: &'a ModelDeployment,
    pub revisions: Vec<&'a ModelRevision>,
    pub replicas: Vec<&'a ModelReplica>,
    /// Revisions in the same namespace that the deployment neither controls nor adopts. Their names
    /// are in use.
    pub foreign: Vec<&'a ModelRevision>,
    /// Older deployment in the same namespace with the same served name.
    pub namesake: Option<&'a str>,
    pub fleet: &'f Fleet,
    /// Answer of the hub for a template without a revision. `None` if no query is needed.
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
