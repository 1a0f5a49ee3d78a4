//! Abort of a rollout, which returns all replicas to the stable revision: by annotation, after the
//! progress deadline, or after a failed golden prompt. A failed analysis aborts in
//! [`canary`](super::canary).

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::super::bounds::progress_deadline;
use super::super::maintenance::Maintenance;
use super::super::reasons::DEADLINE_EXCEEDED;
use super::super::replica::{condition, is_of};
use super::super::rollout::Extent;
use super::{RolloutContext, RolloutState};
use rooflet_api::conditions::{GOLDEN_PROMPT_FAILED, condition_type, whole_seconds};
use rooflet_api::meta::ABORT_ANNOTATION;
use rooflet_api::v1alpha1::{RolloutAbort, RolloutStatus};
use rooflet_base::clock::since;

impl RolloutContext<'_> {
    /// Returns the reason to abort the rollout of the target revision.
    pub(super) fn abort(&self, target: &str, status: &RolloutStatus) -> Option<RolloutAbort> {
        let spec = &self.deployment.spec;
        let abort = |reason: &str, message: String| {
            Some(RolloutAbort {
                reason: reason.to_owned(),
                message,
                at: Time(whole_seconds(self.now)),
            })
        };
        let annotation = self.deployment.annotations().get(ABORT_ANNOTATION);
        if annotation.is_some() && annotation == status.id().as_ref() {
            return abort(
                "Aborted",
                format!("the annotation {ABORT_ANNOTATION} contains this rollout"),
            );
        }
        if let Some(why) = self.refused_past_deadline {
            return abort(DEADLINE_EXCEEDED, why.to_owned());
        }
        let deadline = progress_deadline(spec);
        let progressed_at = RolloutState::new(status.clone(), Extent::All).progressed_at(self.progressed_at);
        let is_closed = || {
            let windows = &spec.strategy.maintenance_windows;
            self.is_replacing && matches!(Maintenance::at(windows, self.now), Maintenance::Closed(_))
        };
        let waits = spec.paused
            || self.refusal.is_some()
            || self.has_no_replicas()
            || self.is_pausing(target)
            || is_closed();
        let idle = progressed_at.map_or(Duration::ZERO, |at| since(self.now, at));
        let golden = self
            .active
            .iter()
            .filter(|replica| spec.strategy.rolls_back() && is_of(replica, target))
            .filter_map(|replica| condition(replica, condition_type::READY))
            .find(|ready| ready.reason == GOLDEN_PROMPT_FAILED);
        if let Some(ready) = golden {
            // Golden prompts use greedy sampling, so a retry gives the same answer.
            return abort(GOLDEN_PROMPT_FAILED, ready.message.clone());
        }
        if spec.strategy.rolls_back() && !waits && idle >= deadline {
            return abort(
                DEADLINE_EXCEEDED,
                format!("no progress for {} s", deadline.as_secs()),
            );
        }
        None
    }
}
