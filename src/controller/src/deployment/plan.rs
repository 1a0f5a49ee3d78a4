//! What has to be done for one deployment, as a value.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;

use super::admission::HubAnswer;
use super::replacement::{Present, Replacement};
use super::report::Report;
use super::revision::RevisionStep;
use super::rollout::DeleteReason;
use super::selection::Selection;
use super::throughput::Chips;
use rooflet_api::meta::ADMISSION_ANNOTATION;
use rooflet_api::v1alpha1::{
    ModelDeployment, ModelDeploymentStatus, ModelReplica, ModelRevision, RolloutStatus,
};
use rooflet_client::EventType;
use rooflet_scheduler::Fleet;

/// What one pass does for one deployment. Empty, but for a status equal to the present one, when all is as it should.
#[derive(Debug, PartialEq)]
pub(crate) struct DeploymentPlan<'a> {
    pub(super) revision: RevisionStep,
    /// Old revisions beyond the history limit.
    pub(super) prune: Vec<&'a ModelRevision>,
    pub(super) delete: Vec<(&'a ModelReplica, DeleteReason)>,
    pub(super) create: Vec<ModelReplica>,
    /// Replicas that follow what may change without a restart, each with its merge patch.
    pub(super) amend: Vec<(&'a ModelReplica, Value)>,
    pub(super) status: ModelDeploymentStatus,
    pub(super) events: Vec<(EventType, String, String)>,
    /// When the plan may change although nothing else does.
    pub(super) look_again_after: Option<Duration>,
}

/// What a plan is made from. Revisions and replicas are those the deployment controls.
pub(crate) struct Observed<'a, 'f> {
    pub deployment: &'a ModelDeployment,
    pub revisions: Vec<&'a ModelRevision>,
    pub replicas: Vec<&'a ModelReplica>,
    /// Revisions in its namespace that no deployment controls, nor may.
    pub strangers: Vec<&'a ModelRevision>,
    /// An older deployment in its namespace that is served under the same name.
    pub namesake: Option<&'a str>,
    pub fleet: &'f Fleet,
    /// What the hub says of a template that has no revision yet; `None` where it was not asked.
    pub hub: Option<HubAnswer>,
    pub now: Timestamp,
}

impl<'a> DeploymentPlan<'a> {
    /// `None` for a deployment that is being deleted: garbage collection does the rest.
    pub(crate) fn new(observed: &Observed<'a, '_>) -> Option<Self> {
        if observed.deployment.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let present = Present::of(observed);
        let selection = Selection::new(observed, &present.active);
        let replacement = Replacement::new(observed, &selection, &present);
        let report = Report::new(observed, &selection, &replacement);
        let prune = observed.prunable(&selection.revisions_in_use(&report.status.rollout));
        Some(Self {
            revision: selection.step,
            prune,
            delete: replacement.delete,
            create: replacement.create,
            amend: replacement.amend,
            status: report.status,
            events: report.events,
            look_again_after: report.look_again_after,
        })
    }
}

impl Observed<'_, '_> {
    pub(super) fn chips(&self) -> Chips<'_> {
        Chips::new(self.fleet, self.deployment)
    }

    pub(super) fn rollout(&self) -> Option<&RolloutStatus> {
        Some(&self.deployment.status.as_ref()?.rollout)
    }
}

pub(super) fn admission_annotation(object: &impl ResourceExt) -> Option<&str> {
    object.annotations().get(ADMISSION_ANNOTATION).map(String::as_str)
}
