//! What is known of a deployment's replicas once the plan is carried out: what its conditions and numbers are told from.

use jiff::Timestamp;

use super::admission::Admission;
use super::course::Hold;
use super::figures::Figures;
use super::replica::{Trouble, is_ready, trouble};
use super::rollout::Bounds;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, RolloutAbort};

/// See the module.
pub(super) struct View<'a> {
    pub(super) deployment: &'a ModelDeployment,
    pub(super) admission: &'a Admission,
    /// The revision that replicas should be of, and its number; `None` while there is none.
    pub(super) current: Option<(&'a str, i64)>,
    /// Whether `current` is what the spec asks for now.
    pub(super) is_current_wanted: bool,
    /// Since when the template is refused, where that is to come to an end.
    pub(super) refused_since: Option<Timestamp>,
    /// The older deployment that is served under the same name.
    pub(super) namesake: Option<&'a str>,
    /// Why nothing is replaced for now.
    pub(super) hold: Option<&'a Hold>,
    /// A canary is between its first and its last step.
    pub(super) is_canary: bool,
    /// Why the template's revision was given up; `current` is then the one before.
    pub(super) aborted: Option<&'a RolloutAbort>,
    /// Replicas that stay and are of `current`.
    pub(super) updated: &'a [&'a ModelReplica],
    /// Replicas that stay and are not.
    pub(super) old: &'a [&'a ModelReplica],
    /// Replicas that are there beyond the wanted number until their replacements have come.
    pub(super) leaving: usize,
    /// Replicas of `current` that are created now.
    pub(super) created: usize,
    /// Replicas of the revision before that are created now.
    pub(super) created_stable: usize,
    /// Replicas that their node refused.
    pub(super) refused: &'a [&'a ModelReplica],
    pub(super) figures: Figures,
    /// One that answers from a node whose chip is simulated.
    pub(super) on_simulated: Option<&'a ModelReplica>,
    /// When something last came forward.
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
