//! Steps of a canary: weights, pauses, analyses and promotion.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::super::bounds::Bounds;
use super::super::pause_reason::PauseReason;
use super::super::replica::{is_of, is_ready};
use super::super::rollout::Extent;
use super::analysis::{Analysis, Baseline, Side, analyse};
use super::{RolloutContext, RolloutState};
use rooflet_api::conditions::whole_seconds;
use rooflet_api::meta::PROMOTE_ANNOTATION;
use rooflet_api::v1alpha1::{AnalysisStep, CanaryStep, Inconclusive, RolloutAbort, RolloutStatus};
use rooflet_base::clock::since;
use rooflet_base::quantity;

/// Step of the promote annotation that skips all remaining steps.
const FULL: &str = "full";

/// Result of a canary step.
enum Next {
    /// The step is complete. Contains the result of its analysis.
    Done(Option<String>),
    /// The step waits. Contains the reason to report and the requeue time.
    Pause(Option<PauseReason>, Option<Duration>),
    /// The analysis failed, for this reason.
    Abort(String),
}

impl RolloutContext<'_> {
    /// Advances through all complete steps.
    pub(super) fn canary(
        &self,
        steps: &[CanaryStep],
        target: &str,
        mut status: RolloutStatus,
    ) -> RolloutState {
        let (mut index, mut began) = self.step(target).unwrap_or((0, self.now));
        let promoted = self.promoted(&status);
        if self.has_no_replicas() {
            let restart = restart(steps, index, promoted);
            if restart != index {
                (index, began) = (restart, self.now);
            }
        }
        let (mut pause_reason, mut requeue_after) = (None, None);
        while let Some(step) = steps.get(index) {
            let is_promoted = promoted.is_some_and(|until| index <= until);
            let next = match is_promoted {
                true => Next::Done(None),
                false => self.next(step, target, began, (index, steps.len())),
            };
            match next {
                Next::Done(analysis) => status.analysis = analysis.or(status.analysis.take()),
                Next::Pause(why, after) => {
                    (pause_reason, requeue_after) = (why, after);
                    break;
                }
                Next::Abort(why) => return self.failed(why, status),
            }
            index += 1;
            began = self.now;
        }
        let weight = weight_at(steps, index);
        status.step = i32::try_from(index).ok();
        status.step_started_at = Some(Time(whole_seconds(began)));
        let is_under_way = index < steps.len();
        RolloutState {
            status,
            extent: match is_under_way {
                true if self.has_no_replicas() => Extent::Held,
                true => Extent::Canary(weight),
                false => Extent::All,
            },
            pause_reason,
            weight: is_under_way.then_some(weight),
            idleness: None,
            prepares: false,
            requeue_after,
        }
    }

    /// Returns the result of the step at `index` of `steps`, which began at `began`.
    fn next(
        &self,
        step: &CanaryStep,
        target: &str,
        began: Timestamp,
        (index, steps): (usize, usize),
    ) -> Next {
        if self.has_no_replicas() {
            return Next::Pause(Some(PauseReason::NoReplicas { step: index, steps }), None);
        }
        if let Some(weight) = step.set_weight
            && !self.carries(target, weight)
        {
            return Next::Pause(None, None);
        }
        if let Some(pause) = &step.pause {
            let duration = pause.duration.as_deref().and_then(quantity::parse_duration);
            let left = duration.map(|duration| duration.saturating_sub(since(self.now, began)));
            if left != Some(Duration::ZERO) {
                let paused = PauseReason::CanaryPaused {
                    step: index,
                    steps,
                    seconds: duration.map(|duration| duration.as_secs()),
                };
                return Next::Pause(Some(paused), left);
            }
        }
        let Some(analysis) = &step.analysis else {
            return Next::Done(None);
        };
        let missing = match self.analyse(analysis, target) {
            Analysis::Passed(figures) => return Next::Done(Some(figures)),
            Analysis::Failed(why) => return Next::Abort(why),
            Analysis::Waiting(missing) => missing,
        };
        let step = index;
        let duration = quantity::parse_duration(&analysis.inconclusive_after);
        let until = began
            .checked_add(duration.unwrap_or_default())
            .unwrap_or(Timestamp::MAX);
        if self.now < until {
            let analysing = PauseReason::Analysing {
                step,
                steps,
                missing,
                until,
            };
            return Next::Pause(Some(analysing), Some(since(until, self.now)));
        }
        match analysis.if_inconclusive {
            Inconclusive::Promote if self.answers_golden_prompts(target) => Next::Done(Some(format!(
                "inconclusive: {missing}; all golden prompts passed"
            ))),
            Inconclusive::Promote | Inconclusive::Pause => {
                Next::Pause(Some(PauseReason::Inconclusive { step, steps, missing }), None)
            }
        }
    }

    /// Returns the state after a failed analysis.
    fn failed(&self, why: String, mut status: RolloutStatus) -> RolloutState {
        status.analysis = Some(why.clone());
        status.step = None;
        status.step_started_at = None;
        status.aborted = Some(RolloutAbort {
            reason: "AnalysisFailed".to_owned(),
            message: why,
            at: Time(whole_seconds(self.now)),
        });
        RolloutState {
            weight: Some(0),
            ..RolloutState::new(status, Extent::All)
        }
    }

    fn step(&self, target: &str) -> Option<(usize, Timestamp)> {
        let before = &self.deployment.status.as_ref()?.rollout;
        let step = usize::try_from(before.step?).ok()?;
        let since = before.step_started_at.as_ref()?.0;
        (before.revision.as_deref() == Some(target)).then_some((step, since))
    }

    pub(super) fn is_pausing(&self, target: &str) -> bool {
        let canary = self.deployment.spec.strategy.canary.as_ref();
        let step = self.step(target).and_then(|(step, _)| canary?.steps.get(step));
        step.is_some_and(|step| step.set_weight.is_none())
    }

    fn analyse(&self, step: &AnalysisStep, target: &str) -> Analysis {
        let of = |revision| self.of(revision);
        let canary = Side::of(&of(target), |replica| {
            let node = replica.spec.node_name.as_deref()?;
            (self.baseline)(node)
        });
        let stable = Side::of(&of(self.stable.unwrap_or_default()), |_| Some(Baseline::OWN));
        analyse(step, canary, stable)
    }

    /// Returns whether every replica of the revision has passed golden prompts.
    fn answers_golden_prompts(&self, target: &str) -> bool {
        let replicas = || self.active.iter().filter(|replica| is_of(replica, target));
        replicas().next().is_some()
            && replicas().all(|replica| is_ready(replica) && !replica.spec.golden_prompts.is_empty())
    }

    /// Returns whether enough replicas of the revision are Ready for the weight.
    fn carries(&self, target: &str, weight: u8) -> bool {
        let ready = self
            .active
            .iter()
            .filter(|replica| is_of(replica, target) && is_ready(replica));
        ready.count() >= Bounds::of(&self.deployment.spec).canaries(weight)
    }

    /// Returns whether a canary cannot advance because no replica serves requests.
    pub(super) fn has_no_replicas(&self) -> bool {
        self.deployment.spec.replicas <= 0
    }

    /// Returns the last step of this rollout that the promote annotation skips.
    pub(super) fn promoted(&self, status: &RolloutStatus) -> Option<usize> {
        let promotion = self.deployment.annotations().get(PROMOTE_ANNOTATION)?;
        let (rollout, step) = promotion.rsplit_once('/')?;
        if status.id().as_deref() != Some(rollout) {
            return None;
        }
        match step {
            FULL => Some(usize::MAX),
            step => step.parse().ok(),
        }
    }
}

/// Returns the step from which a canary at `index` continues after a time without replicas. Its current
/// weight, and the pauses and analyses after it, apply again to the new replicas. Promoted steps do not.
fn restart(steps: &[CanaryStep], index: usize, promoted: Option<usize>) -> usize {
    if index >= steps.len() {
        return index;
    }
    let weight = steps
        .iter()
        .take(index + 1)
        .rposition(|step| step.set_weight.is_some());
    let skipped = promoted.map_or(0, |until| until.saturating_add(1));
    weight.unwrap_or(index).max(skipped.min(index))
}

/// Returns the weight at a step: the last weight set up to it.
pub(super) fn weight_at(steps: &[CanaryStep], index: usize) -> u8 {
    let until = steps.iter().take(index.saturating_add(1));
    until.rev().find_map(|step| step.set_weight).unwrap_or(0)
}
