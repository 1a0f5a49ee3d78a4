//! State of a rollout at the start of a pass: its target revision, its extent, and the reason for a
//! pause.

mod abort;
pub(super) mod analysis;
mod canary;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use self::analysis::{Baseline, Side, lags};
use self::canary::weight_at;
use super::idle::Idleness;
use super::maintenance::Maintenance;
use super::pause_reason::PauseReason;
use super::progress::advanced;
use super::replica::is_of;
use super::rollout::Extent;
use rooflet_api::conditions::whole_seconds;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, RolloutStatus, StrategyType};

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
    /// Start steps that the replicas of the target revision have completed together.
    pub(super) start_steps: usize,
    /// Time of the last progress that `start_steps` does not include.
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
            progress,
            ..
        } = &self.status;
        let increased_at = progress.as_ref().map(|progress| &progress.at);
        let aborted_at = aborted.as_ref().map(|aborted| &aborted.at);
        let times = [
            started_at.as_ref(),
            step_started_at.as_ref(),
            aborted_at,
            increased_at,
        ];
        times
            .into_iter()
            .flatten()
            .map(|time| time.0)
            .chain(replicas)
            .max()
    }
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
                progress: None,
                idle_wait_started_at: None,
                ..status
            };
        }
        status.progress = Some(advanced(
            status.progress,
            self.start_steps,
            spec.replicas,
            self.now,
        ));
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
            // A deployment without replicas starts no canary, but it keeps one that is in progress.
            (Some(canary), StrategyType::Canary) if spec.replicas > 0 || status.step.is_some() => {
                canary.steps.as_slice()
            }
            (_, StrategyType::RollingUpdate | StrategyType::Recreate | StrategyType::Canary) => &[],
        };
        if is_change && !steps.is_empty() && self.refusal.is_some() {
            self.begin_canary(&mut status);
        }
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
            Some(_) | None => match self
                .lag(target, &status)
                .filter(|_| is_change && self.is_replacing)
            {
                Some(why) => RolloutState::paused(status, PauseReason::SlowerThanPredicted(why), weight),
                None => RolloutState::new(status, Extent::All),
            },
        };
        // A rollback and a full promotion ignore maintenance windows and idle times.
        let is_promoted = is_change && self.promoted(&rollout_state.status) == Some(usize::MAX);
        if rollout_state.status.aborted.is_some() || is_promoted {
            return rollout_state;
        }
        self.when_convenient(rollout_state)
    }

    /// Sets the first step of a canary that its throughput floor stops before its first replica. Without
    /// a step, scaling to zero would complete the rollout.
    fn begin_canary(&self, status: &mut RolloutStatus) {
        if status.aborted.is_none() && status.step.is_none() {
            status.step = Some(0);
            status.step_started_at = Some(Time(whole_seconds(self.now)));
        }
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

    /// Returns the replicas of the revision.
    fn of(&self, revision: &str) -> Vec<&ModelReplica> {
        let replicas = self.active.iter().copied();
        replicas.filter(|replica| is_of(replica, revision)).collect()
    }

    /// Returns the reason to pause a rollout without a canary: the new replicas are much slower
    /// than predicted.
    fn lag(&self, target: &str, status: &RolloutStatus) -> Option<String> {
        if self.promoted(status) == Some(usize::MAX) {
            return None;
        }
        let side = |revision: &str| Side::of(&self.of(revision), |_| None);
        lags(side(target), side(self.stable?))
    }
}
