//! Plan of one pass for one deployment.

use std::time::Duration;

use serde_json::Value;

use super::observed::Observed;
use super::replacement::{Present, Replacement};
use super::report::Report;
use super::revision::RevisionStep;
use super::rollout::DeleteReason;
use super::selection::Selection;
use rooflet_api::v1alpha1::{ModelDeploymentStatus, ModelReplica, ModelRevision};
use rooflet_client::EventType;

/// Writes of one pass for one deployment. In a steady state, only the unchanged status is set.
#[derive(Debug, PartialEq)]
pub(crate) struct DeploymentPlan<'a> {
    pub(super) revision: RevisionStep,
    /// Old revisions beyond the history limit.
    pub(super) prune: Vec<&'a ModelRevision>,
    pub(super) delete: Vec<(&'a ModelReplica, DeleteReason)>,
    pub(super) create: Vec<ModelReplica>,
    /// Replicas whose spec or annotations change without a restart, with the merge patches.
    pub(super) amend: Vec<(&'a ModelReplica, Value)>,
    pub(super) status: ModelDeploymentStatus,
    pub(super) events: Vec<(EventType, String, String)>,
    /// Time after which the plan may change although no object changes.
    pub(super) requeue_after: Option<Duration>,
}

impl<'a> DeploymentPlan<'a> {
    /// Returns `None` for a deployment that is being deleted. Garbage collection deletes its
    /// objects.
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
            requeue_after: report.requeue_after,
        })
    }
}
