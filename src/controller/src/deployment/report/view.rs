//! State of a deployment's replicas after the plan's writes: the input of its conditions and
//! counts.

use jiff::Timestamp;

use super::figures::Figures;
use crate::deployment::admission::Admission;
use crate::deployment::bounds::Bounds;
use crate::deployment::pause_reason::PauseReason;
use crate::deployment::replica::{Problem, is_ready, problem};
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, RolloutAbort};

/// State of a deployment after the plan's writes.
pub(super) struct View<'a> {
    pub(super) deployment: &'a ModelDeployment,
    pub(super) admission: &'a Admission,
    /// Target revision and its number.
    pub(super) current: Option<(&'a str, i64)>,
    /// True if `current` is the revision of the current template.
    pub(super) matches_spec: bool,
    /// Start of the template's refusal, if the refusal has a deadline.
    pub(super) refused_since: Option<Timestamp>,
    /// Older deployment with the same served name.
    pub(super) namesake: Option<&'a str>,
    /// Reason why the rollout pauses.
    pub(super) pause_reason: Option<&'a PauseReason>,
    /// True if a canary is between its first and its last step.
    pub(super) is_canary: bool,
    /// Reason why the rollout was aborted. `current` is then the previous revision.
    pub(super) aborted: Option<&'a RolloutAbort>,
    /// Remaining replicas of `current`.
    pub(super) updated: &'a [&'a ModelReplica],
    /// Remaining replicas of other revisions.
    pub(super) old: &'a [&'a ModelReplica],
    /// Number of replicas beyond the desired count that leave once their replacements are Ready.
    pub(super) leaving: usize,
    /// Number of replicas of `current` that the plan creates.
    pub(super) created: usize,
    /// Number of replicas of the stable revision that the plan creates.
    pub(super) created_stable: usize,
    /// Replicas that the agent of their node refused.
    pub(super) refused: &'a [&'a ModelReplica],
    pub(super) figures: Figures,
    /// Ready replica on a node with a simulated chip.
    pub(super) on_simulated: Option<&'a ModelReplica>,
    /// Time of the last progress.
    pub(super) progressed_at: Option<Timestamp>,
    pub(super) now: Timestamp,
}

impl View<'_> {
    pub(super) fn bounds(&self) -> Bounds {
        Bounds::of(&self.deployment.spec)
    }

    pub(super) fn staying(&self) -> impl Iterator<Item = &ModelReplica> {
        self.updated.iter().chain(self.old).copied()
    }

    pub(super) fn total(&self) -> usize {
        self.updated.len() + self.old.len() + self.created + self.created_stable
    }

    pub(super) fn of_others(&self) -> usize {
        self.old.len() + self.created_stable
    }

    pub(super) fn ready(&self) -> usize {
        self.staying().filter(|replica| is_ready(replica)).count()
    }

    pub(super) fn rollout_is_complete(&self) -> bool {
        self.matches_spec && !self.is_canary && self.is_all_current()
    }

    /// Returns whether the desired number of replicas has the target revision and is Ready, and no other
    /// replica remains.
    pub(super) fn is_all_current(&self) -> bool {
        let desired = self.bounds().desired;
        let ready = self.updated.iter().filter(|replica| is_ready(replica)).count();
        self.old.is_empty()
            // The replacement of a leaving replica is not a rollout.
            && self.created + self.created_stable <= self.leaving
            && (desired..=desired + self.leaving).contains(&self.total())
            && ready >= desired
    }

    /// Returns the replicas that are not Ready with their problems, faults first.
    pub(super) fn problems(&self) -> Vec<(&ModelReplica, Problem)> {
        let mut problems: Vec<_> = self
            .staying()
            .chain(self.refused.iter().copied())
            .filter_map(|replica| Some((replica, problem(replica)?)))
            .collect();
        problems.sort_by_key(|(_, problem)| !problem.is_fault);
        problems
    }
}
