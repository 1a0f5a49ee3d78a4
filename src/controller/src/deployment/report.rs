//! Status, events and requeue time that a pass reports for a deployment.

mod condition_writer;
mod conditions;
mod counts;
mod events;
mod figures;
mod start;
mod view;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use self::counts::counts;
use self::events::events;
use self::figures::figures;
use self::start::last_start;
use self::view::View;
use super::bounds::Bounds;
use super::idle::InUse;
use super::observed::Observed;
use super::pause_reason::PauseReason;
use super::progress::advanced;
use super::reasons::ROLLOUT_COMPLETE;
use super::replacement::Replacement;
use super::replica::{REFUSAL_PERIOD, is_of, is_ready, refused_recently};
use super::rollout::Extent;
use super::rollout_context::RolloutState;
use super::selection::Selection;
use super::throughput::{Throughput, rounded};
use rooflet_api::conditions::{condition_type, whole_seconds};
use rooflet_api::v1alpha1::{ModelDeploymentStatus, ModelReplica, RolloutAbort, RolloutStatus, TrafficShare};
use rooflet_base::clock::since;
use rooflet_client::EventType;
use rooflet_scheduler::NodeState;

/// Report of one pass; see the module documentation.
pub(super) struct Report {
    pub(super) status: ModelDeploymentStatus,
    pub(super) events: Vec<(EventType, String, String)>,
    /// Time until the plan may change without any other change.
    pub(super) requeue_after: Option<Duration>,
}

impl Report {
    pub(super) fn new<'a>(
        observed: &Observed<'a, '_>,
        selection: &Selection<'a>,
        replacement: &Replacement<'a>,
    ) -> Self {
        let (deployment, now) = (observed.deployment, observed.now);
        let rollout_state = &selection.rollout_state;
        let staying = replacement.staying();
        let wait = IdleWait::new(rollout_state, replacement, now);
        let pause_reason = pause_reason(rollout_state, replacement, &wait);
        // The creation of a replica is the first step of its start.
        let start_steps = selection.start_steps + replacement.created;
        let progress = rollout_state.status.progress.clone();
        let progress =
            progress.map(|before| advanced(Some(before), start_steps, deployment.spec.replicas, now));
        let increased_at = progress.as_ref().map(|progress| progress.at.0);
        let view = View {
            deployment,
            admission: &selection.admission,
            current: selection
                .current
                .as_ref()
                .map(|current| (current.name.as_str(), current.number)),
            matches_spec: selection.matches_spec,
            namesake: observed.namesake,
            refused_since: selection.refused_template.as_ref().map(|refused| refused.since.0),
            pause_reason: pause_reason.as_ref(),
            is_canary: rollout_state.weight.is_some(),
            aborted: aborted(selection),
            updated: &replacement.updated,
            old: &replacement.old,
            leaving: replacement.leaving,
            created: replacement.created,
            created_stable: replacement.created_stable,
            refused: &replacement.refused,
            figures: figures(&staying),
            on_simulated: observed.on_simulated(&staying),
            progressed_at: rollout_state.progressed_at(selection.progressed_at.max(increased_at)),
            now,
        };
        let outcome = view.conditions();

        let before = deployment.status.as_ref();
        let known = before.map_or(&[][..], |status| &status.conditions);
        let events = events(known, &outcome.conditions);
        let is_complete = |condition: &Condition| {
            condition.type_ == condition_type::PROGRESSING && condition.reason == ROLLOUT_COMPLETE
        };
        // After a complete rollout, the condition may have the reason of a pause or of a refused template.
        let has_finished = view.is_all_current() || outcome.conditions.iter().any(is_complete);
        let rollout = RolloutStatus {
            // Later replacements, such as those after a change of placement, have a new deadline.
            progress: progress.filter(|_| !has_finished),
            ..rollout(observed, selection, replacement, &wait, &view)
        };
        let last_known = before.and_then(|status| status.last_start.clone());
        let status = ModelDeploymentStatus {
            conditions: outcome.conditions,
            last_start: last_start(last_known, &deployment.spec.model.source, &staying),
            traffic: observed.traffic(rollout_state, &staying),
            rollout,
            ..counts(&view, &replacement.updated, &replacement.old)
        };
        let expirations = replacement.refused.iter().filter_map(|replica| {
            let refusal = refused_recently(replica, now)?;
            Some(REFUSAL_PERIOD.saturating_sub(since(now, refusal.last_transition_time.0)))
        });
        let requeue_after = expirations
            .chain(outcome.requeue_after)
            .chain(rollout_state.requeue_after)
            .chain(wait.requeue_after(now))
            .min();
        Self {
            status,
            events,
            requeue_after,
        }
    }
}

/// Wait for replicas that are in use.
struct IdleWait {
    in_use: Option<InUse>,
    /// Start of the wait. Kept from pass to pass until a replica is replaced.
    began: Option<Time>,
}

impl IdleWait {
    fn new(rollout_state: &RolloutState, replacement: &Replacement<'_>, now: Timestamp) -> Self {
        let in_use = replacement.in_use.clone();
        let before = rollout_state.status.idle_wait_started_at.clone();
        let before = before.filter(|_| !replacement.has_replaced());
        let begins = || in_use.as_ref().map(|_| Time(whole_seconds(now)));
        Self {
            began: before.or_else(begins),
            in_use,
        }
    }

    fn pause_reason(&self) -> Option<PauseReason> {
        let (in_use, began) = (self.in_use.clone()?, self.began.as_ref()?);
        Some(PauseReason::WaitingForIdle(in_use, began.0))
    }

    fn requeue_after(&self, now: Timestamp) -> Option<Duration> {
        let (in_use, began) = (self.in_use.as_ref()?, self.began.as_ref()?);
        Some(in_use.requeue_after(began.0, now))
    }
}

/// Returns the reason why the rollout pauses.
fn pause_reason(
    rollout_state: &RolloutState,
    replacement: &Replacement<'_>,
    wait: &IdleWait,
) -> Option<PauseReason> {
    // Deletions of surplus replicas do not wait for a maintenance window.
    let is_moot = |pause_reason: &PauseReason| {
        replacement.is_all_new() && matches!(pause_reason, PauseReason::OutsideMaintenanceWindow(_))
    };
    rollout_state
        .pause_reason
        .clone()
        .filter(|reason| !is_moot(reason))
        .or_else(|| wait.pause_reason())
        .or_else(|| replacement.stopped_by.clone())
}

/// Returns the abort to report. An abort is not reported while a later template is refused.
fn aborted<'s>(selection: &'s Selection<'_>) -> Option<&'s RolloutAbort> {
    let is_reported = selection.refused_template.is_none() || selection.refused_past_deadline.is_some();
    selection
        .rollout_state
        .status
        .aborted
        .as_ref()
        .filter(|_| is_reported)
}

/// Returns the rollout status after the pass.
fn rollout(
    observed: &Observed<'_, '_>,
    selection: &Selection<'_>,
    replacement: &Replacement<'_>,
    wait: &IdleWait,
    view: &View<'_>,
) -> RolloutStatus {
    let all = Throughput::of(observed.chips(), replacement.staying());
    let throughput = rounded(all.total());
    let mut rollout = RolloutStatus {
        idle_wait_started_at: wait.began.clone(),
        refused: selection.refused_template.clone(),
        predicted_tokens_per_second: (throughput > 0.0).then_some(throughput),
        ..selection.rollout_state.status.clone()
    };
    if view.rollout_is_complete() {
        rollout.stable_revision = selection.current_name().map(str::to_owned);
        rollout.step = None;
        rollout.step_started_at = None;
        rollout.idle_wait_started_at = None;
        let updated = Throughput::of(observed.chips(), replacement.updated.iter().copied());
        rollout.reference_tokens_per_second = updated.mean().map(rounded);
    }
    rollout
}

impl<'a> Observed<'a, '_> {
    /// Returns a Ready replica on a node with a simulated chip.
    fn on_simulated(&self, staying: &[&'a ModelReplica]) -> Option<&'a ModelReplica> {
        let is_simulated = |replica: &ModelReplica| {
            let node = replica.spec.node_name.as_deref();
            let node = node.and_then(|node| self.fleet.node(node));
            node.is_some_and(NodeState::is_simulated)
        };
        let mut staying = staying.iter().copied();
        staying.find(|replica| is_ready(replica) && is_simulated(replica))
    }

    /// Returns the shares of the requests for canary and stable revision, empty without a canary.
    fn traffic(&self, rollout_state: &RolloutState, staying: &[&ModelReplica]) -> Vec<TrafficShare> {
        let RolloutStatus {
            stable_revision,
            revision,
            ..
        } = &rollout_state.status;
        let (Some(weight), Some(stable), Some(canary)) = (rollout_state.weight, stable_revision, revision)
        else {
            return Vec::new();
        };
        let canaries: Vec<_> = staying.iter().filter(|replica| is_of(replica, canary)).collect();
        if rollout_state.extent == Extent::All && canaries.is_empty() {
            return Vec::new();
        }
        let ready = canaries.iter().filter(|replica| is_ready(replica)).count();
        let before = self.deployment.status.iter().flat_map(|status| &status.traffic);
        let previous = before
            .filter(|share| share.revision == *canary)
            .map(|share| share.weight)
            .max()
            .unwrap_or(0);
        let weight = i32::from(weight.min(100));
        // While fewer canaries than required are Ready, the share does not rise.
        let current = match ready {
            0 => 0,
            _ if ready >= Bounds::of(&self.deployment.spec).canaries(weight.unsigned_abs() as u8) => weight,
            _ => previous.min(weight),
        };
        let share = |revision: &String, weight| TrafficShare {
            revision: revision.clone(),
            weight,
        };
        vec![share(stable, 100 - current), share(canary, current)]
    }
}
