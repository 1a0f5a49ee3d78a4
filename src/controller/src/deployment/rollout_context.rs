//! State of a rollout at the start of a pass: its target revision, its extent, and the reason for a
//! pause.

pub(super) mod analysis;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use self::analysis::{Analysis, Baseline, Side, analyse, lags};
use super::bounds::{Bounds, progress_deadline};
use super::idle::Idleness;
use super::maintenance::Maintenance;
use super::pause_reason::PauseReason;
use super::reasons::DEADLINE_EXCEEDED;
use super::replica::{condition, is_of, is_ready};
use super::rollout::Extent;
use rooflet_api::conditions::{GOLDEN_PROMPT_FAILED, condition_type, whole_seconds};
use rooflet_api::meta::{ABORT_ANNOTATION, PROMOTE_ANNOTATION};
use rooflet_api::v1alpha1::{
    AnalysisStep, CanaryStep, Inconclusive, ModelDeployment, ModelReplica, RolloutAbort, RolloutStatus,
    StrategyType,
};
use rooflet_base::clock::since;
use rooflet_base::quantity;

/// Step of the promote annotation that skips all remaining steps.
const FULL: &str = "full";

/// Rollout context: the input of [`RolloutContext::assess`].
#[derive(Clone, Copy)]
pub(super) struct RolloutContext<'a> {
    pub(super) deployment: &'a ModelDeployment,
    /// Revision of the current template, if it exists or is created in this pass.
    pub(super) target: Option<&'a str>,
    /// Revision of the last complete rollout, if it still exists.
    pub(super) stable: Option<&'a str>,
    /// Replicas that are neither terminating nor refused.
    pub(super) active: &'a [&'a ModelReplica],
    /// Time of the last progress of a revision or a replica.
    pub(super) progressed_at: Option<Timestamp>,
    /// Pause that prevents the start of the rollout.
    pub(super) refusal: Option<&'a PauseReason>,
    /// Reason to abort the rollout of a refused template, which has no revision object.
    pub(super) refused_past_deadline: Option<&'a str>,
    /// True if a replica has another revision than the target, or runs on a node that its placement
    /// excludes.
    pub(super) is_replacing: bool,
    /// Returns the baseline for a replica of the target revision on the named node.
    pub(super) baseline: &'a dyn Fn(&str) -> Option<Baseline>,
    pub(super) now: Timestamp,
}

/// Rollout state of this pass.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RolloutState {
    pub(super) status: RolloutStatus,
    pub(super) extent: Extent,
    pub(super) pause_reason: Option<PauseReason>,
    /// Share of the requests for the new revision while a canary is in progress, in percent.
    pub(super) weight: Option<u8>,
    /// If set, only idle replicas are replaced.
    pub(super) idleness: Option<Idleness>,
    /// True if nodes download the new model before their replicas are replaced.
    pub(super) prepares: bool,
    /// Time until the rollout may continue without any other change.
    pub(super) requeue_after: Option<Duration>,
}

impl RolloutState {
    fn new(status: RolloutStatus, extent: Extent) -> Self {
        Self {
            status,
            extent,
            pause_reason: None,
            weight: None,
            idleness: None,
            prepares: false,
            requeue_after: None,
        }
    }

    fn paused(status: RolloutStatus, pause_reason: PauseReason, weight: Option<u8>) -> Self {
        Self {
            pause_reason: Some(pause_reason),
            weight,
            ..Self::new(status, Extent::Held)
        }
    }

    /// Returns the time of the last progress, including the steps of the rollout itself.
    pub(super) fn progressed_at(&self, replicas: Option<Timestamp>) -> Option<Timestamp> {
        let RolloutStatus {
            started_at,
            step_started_at,
            aborted,
            ..
        } = &self.status;
        let aborted_at = aborted.as_ref().map(|aborted| &aborted.at);
        [started_at.as_ref(), step_started_at.as_ref(), aborted_at]
            .into_iter()
            .flatten()
            .map(|time| time.0)
            .chain(replicas)
            .max()
    }
}

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
    pub(super) fn assess(self) -> RolloutState {
        let spec = &self.deployment.spec;
        let mut status = self.deployment.status.clone().unwrap_or_default().rollout;
        status.stable_revision = self.stable.map(str::to_owned);
        let Some(target) = self.target else {
            return RolloutState::new(status, Extent::All);
        };
        if status.revision.as_deref() != Some(target) {
            status = RolloutStatus {
                revision: Some(target.to_owned()),
                started_at: Some(Time(whole_seconds(self.now))),
                step: None,
                step_started_at: None,
                analysis: None,
                aborted: None,
                idle_wait_started_at: None,
                ..status
            };
        }
        let is_change = self.stable.is_some_and(|stable| stable != target);
        if is_change && status.aborted.is_none() {
            status.aborted = self.abort(target, &status);
        }
        if !is_change || status.aborted.is_some() {
            status.step = None;
            status.step_started_at = None;
        }
        if !is_change {
            status.aborted = None;
        }
        let steps = match (&spec.strategy.canary, spec.strategy.kind) {
            // A deployment without replicas has no canary.
            (Some(canary), StrategyType::Canary) if spec.replicas > 0 => canary.steps.as_slice(),
            (_, StrategyType::RollingUpdate | StrategyType::Recreate | StrategyType::Canary) => &[],
        };
        let weight = status
            .step
            .and_then(|step| usize::try_from(step).ok())
            .filter(|step| *step < steps.len())
            .map(|step| weight_at(steps, step));
        if status.aborted.is_some() {
            return RolloutState {
                weight: Some(0),
                ..RolloutState::new(status, Extent::All)
            };
        }
        if spec.paused {
            return RolloutState::paused(status, PauseReason::Paused, weight);
        }
        let rollout_state = match self.refusal {
            Some(refusal) if is_change => RolloutState::paused(status, refusal.clone(), weight),
            _ if is_change && !steps.is_empty() => self.canary(steps, target, status),
            Some(_) | None => match self.lag(target).filter(|_| is_change && self.is_replacing) {
                Some(why) => RolloutState::paused(status, PauseReason::SlowerThanPredicted(why), weight),
                None => RolloutState::new(status, Extent::All),
            },
        };
        // A rollback and a full promotion ignore maintenance windows and idle times.
        if rollout_state.status.aborted.is_some() || self.promoted(target) == Some(usize::MAX) {
            return rollout_state;
        }
        self.when_convenient(rollout_state)
    }

    /// Pauses the rollout outside maintenance windows, and keeps replicas that are in use.
    fn when_convenient(&self, mut rollout_state: RolloutState) -> RolloutState {
        let strategy = &self.deployment.spec.strategy;
        if !self.is_replacing {
            return rollout_state;
        }
        rollout_state.prepares = true;
        let maintenance = Maintenance::at(&strategy.maintenance_windows, self.now);
        let changes = maintenance.changes_after(self.now);
        rollout_state.requeue_after = rollout_state.requeue_after.into_iter().chain(changes).min();
        if let Maintenance::Closed(closed) = maintenance {
            rollout_state.extent = Extent::Held;
            rollout_state
                .pause_reason
                .get_or_insert(PauseReason::OutsideMaintenanceWindow(closed));
        }
        let waited_since = rollout_state.status.idle_wait_started_at.as_ref();
        rollout_state.idleness = Idleness::of(strategy, self.now)
            .filter(|idleness| waited_since.is_none_or(|began| idleness.left(began.0).is_some()));
        rollout_state
    }

    /// Returns the reason to abort the rollout of the target revision.
    fn abort(&self, target: &str, status: &RolloutStatus) -> Option<RolloutAbort> {
        let spec = &self.deployment.spec;
        let abort = |reason: &str, message: String| {
            Some(RolloutAbort {
                reason: reason.to_owned(),
                message,
                at: Time(whole_seconds(self.now)),
            })
        };
        if self
            .deployment
            .annotations()
            .get(ABORT_ANNOTATION)
            .map(String::as_str)
            == Some(target)
        {
            return abort(
                "Aborted",
                format!("the annotation {ABORT_ANNOTATION} contains this revision"),
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
        let waits = spec.paused || self.refusal.is_some() || self.is_pausing(target) || is_closed();
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

    fn step(&self, target: &str) -> Option<(usize, Timestamp)> {
        let before = &self.deployment.status.as_ref()?.rollout;
        let step = usize::try_from(before.step?).ok()?;
        let since = before.step_started_at.as_ref()?.0;
        (before.revision.as_deref() == Some(target)).then_some((step, since))
    }

    fn is_pausing(&self, target: &str) -> bool {
        let canary = self.deployment.spec.strategy.canary.as_ref();
        let step = self.step(target).and_then(|(step, _)| canary?.steps.get(step));
        step.is_some_and(|step| step.set_weight.is_none())
    }

    /// Advances through all complete steps.
    fn canary(&self, steps: &[CanaryStep], target: &str, mut status: RolloutStatus) -> RolloutState {
        let (mut index, mut began) = self.step(target).unwrap_or((0, self.now));
        let promoted = self.promoted(target);
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
            extent: if is_under_way {
                Extent::Canary(weight)
            } else {
                Extent::All
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

    /// Returns the replicas of the revision.
    fn of(&self, revision: &str) -> Vec<&ModelReplica> {
        let replicas = self.active.iter().copied();
        replicas.filter(|replica| is_of(replica, revision)).collect()
    }

    /// Returns the reason to pause a rollout without a canary: the new replicas are much slower
    /// than predicted.
    fn lag(&self, target: &str) -> Option<String> {
        if self.promoted(target) == Some(usize::MAX) {
            return None;
        }
        let side = |revision: &str| Side::of(&self.of(revision), |_| None);
        lags(side(target), side(self.stable?))
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

    /// Returns the last step that the promote annotation skips.
    fn promoted(&self, target: &str) -> Option<usize> {
        let promotion = self.deployment.annotations().get(PROMOTE_ANNOTATION)?;
        let (revision, step) = promotion.rsplit_once('/')?;
        if revision != target {
            return None;
        }
        match step {
            FULL => Some(usize::MAX),
            step => step.parse().ok(),
        }
    }
}

/// Returns the weight at a step: the last weight set up to it.
fn weight_at(steps: &[CanaryStep], index: usize) -> u8 {
    let until = steps.iter().take(index.saturating_add(1));
    until.rev().find_map(|step| step.set_weight).unwrap_or(0)
}
