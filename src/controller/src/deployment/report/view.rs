//! State of a deployment's replicas after the plan's writes: the input of its conditions and counts.

use jiff::Timestamp;

use super::figures::Figures;
use crate::deployment::admission::Admission;
use crate::deployment::bounds::Bounds;
use crate::deployment::pause_reason::PauseReason;
use crate::deployment::replica::{Trouble, is_ready, trouble};
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, RolloutAbort};

/// See the module.
pub(super) struct View<'a> {
    pub(super) deployment: &'a ModelDeployment,
    pub(super) admission: &'a Admission,
    /// Target revision and its number.
    pub(super) current: Option<(&'a str, i64)>,
    /// Whether `current` is the revision of the current template.
    pub(super) is_current_wanted: bool,
    /// Start of the template's refusal, if the refusal has a deadline.
    pub(super) refused_since: Option<Timestamp>,
    /// Older deployment with the same served name.
    pub(super) namesake: Option<&'a str>,
    /// Reason why the rollout pauses.
    pub(super) pause_reason: Option<&'a PauseReason>,
    /// A canary is between its first and its last step.
    pub(super) is_canary: bool,
    /// Reason why the rollout was aborted. `current` is then the previous revision.
    pub(super) aborted: Option<&'a RolloutAbort>,
    /// Remaining replicas of `current`.
    pub(super) updated: &'a [&'a ModelReplica],
    /// Remaining replicas of other revisions.
    pub(super) old: &'a [&'a ModelReplica],
    /// Number of replicas beyond the wanted number that leave once their replacements are ready.
    pub(super) leaving: usize,
    /// Replicas of `current` that are created now.
    pub(super) created: usize,
    /// Replicas of the revision before that are created now.
    pub(super) created_stable: usize,
    /// Replicas that their node refused.
    pub(super) refused: &'a [&'a ModelReplica],
    pub(super) figures: Figures,
    /// A ready replica on a node with a simulated chip.
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
        let wanted = self.bounds().wanted;
        let ready = self.updated.iter().filter(|replica| is_ready(replica)).count();
        self.is_current_wanted
            && !self.is_canary
            && self.old.is_empty()
            // A replacement that comes before its replica goes is no rollout.
            && self.created + self.created_stable <= self.leaving
            && (wanted..=wanted + self.leaving).contains(&self.total())
            && ready >= wanted
    }

    /// What keeps replicas from answering, the worst first.
    pub(super) fn troubles(&self) -> Vec<(&ModelReplica, Trouble)> {
        let mut troubles: Vec<_> = self
            .staying()
            .chain(self.refused.iter().copied())
            .filter_map(|replica| Some((replica, trouble(replica)?)))
            .collect();
        troubles.sort_by_key(|(_, trouble)| !trouble.is_fault);
        troubles
    }
}
