//! Target revision of a deployment, and the state of its rollout in this pass.

mod dry_run;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use self::dry_run::{DryRun, Outcome};
use super::admission::{Admission, Template, admit, named};
use super::observed::Observed;
use super::pause_reason::PauseReason;
use super::progress::start_steps;
use super::replica::is_of;
use super::revision::{Current, RevisionStep};
use super::rollout_context::analysis::Baseline;
use super::rollout_context::{RolloutContext, RolloutState};
use super::throughput::{Floor, Throughput};
use rooflet_api::conditions::condition_type;
use rooflet_api::v1alpha1::{ModelReplica, ModelRevision, RefusedTemplate, RolloutStatus};
use rooflet_scheduler::{ReplicaKey, ReplicaRequest};

/// Revisions and rollout state of one pass.
pub(super) struct Selection<'a> {
    pub(super) admission: Admission,
    /// Write of the template's revision.
    pub(super) step: RevisionStep,
    /// Revision that all replicas should have.
    pub(super) current: Option<Current<'a>>,
    /// True if the current revision has the deployment's template.
    pub(super) matches_spec: bool,
    /// Revision of the last complete rollout, if it is not the current one.
    pub(super) stable: Option<Current<'a>>,
    /// Template that no node can serve.
    pub(super) refused_template: Option<RefusedTemplate>,
    /// Reason to abort the rollout of the refused template.
    pub(super) refused_past_deadline: Option<String>,
    pub(super) rollout_state: RolloutState,
    pub(super) floor: Floor,
    /// Start steps that the replicas of the target revision have completed together.
    pub(super) start_steps: usize,
    /// Time of the last progress that the rollout status does not contain.
    pub(super) progressed_at: Option<Timestamp>,
}

impl<'a> Selection<'a> {
    /// Selects the revisions of a pass. `active` are the replicas that are neither terminating nor
    /// refused.
    pub(super) fn new(observed: &Observed<'a, '_>, active: &[&'a ModelReplica]) -> Self {
        let deployment = observed.deployment;
        let template = Template::of(deployment);
        let hub = observed.hub_answer(&template);
        let admission = admit(&template, observed.fleet, hub.as_ref());
        let (step, target, is_template) = observed.revision(&template, &admission, hub.as_ref());
        let stable = observed.stable();
        let refused_template = observed.refused(&template, &admission, is_template);
        let refused_past_deadline = stable
            .as_ref()
            .and_then(|_| observed.refused_past_deadline(refused_template.as_ref()?, &admission));
        // A refused template past its deadline is the target of the aborted rollout, not the
        // revision before it.
        let target = target.filter(|_| refused_past_deadline.is_none());

        let predicted = Throughput::of(observed.chips(), active.iter().copied());
        let floor = Floor::of(deployment, &predicted);
        let target_name = target.as_ref().map(|target| target.name.as_str());
        let stable_name = stable.as_ref().map(|stable| stable.name.as_str());
        let refusal = target
            .as_ref()
            .filter(|target| stable_name.is_some_and(|stable| stable != target.name))
            .and_then(
                |target| match Floor::is_unpredictable(deployment, &predicted, active) {
                    true => Some(target.unpredictable()),
                    false => observed.predicted_stop(target, stable_name, floor, active),
                },
            );
        let revision = target.as_ref().and_then(|target| target.existing);
        let progressed_at = observed.progressed_at(revision, active);
        let is_new = |replica: &ModelReplica| target_name.is_none_or(|target| is_of(replica, target));
        let is_change = stable_name != target_name;
        let is_outdated =
            |replica: &ModelReplica| is_change && !is_new(replica) || observed.is_misplaced(replica);
        let baseline = |node: &str| observed.baseline(stable.as_ref()?, target.as_ref()?, node);
        let started = active
            .iter()
            .filter(|replica| is_new(replica) && !observed.is_misplaced(replica));
        let start_steps = started.map(|replica| start_steps(replica)).sum();
        let rollout_state = RolloutContext {
            deployment,
            target: target_name.or_else(|| Some(refused_template.as_ref()?.revision.as_str())),
            stable: stable_name,
            active,
            start_steps,
            progressed_at,
            refusal: refusal.as_ref(),
            refused_past_deadline: refused_past_deadline.as_deref(),
            is_replacing: stable.is_some() && active.iter().any(|replica| is_outdated(replica)),
            baseline: &baseline,
            now: observed.now,
        }
        .assess();

        // After an abort, the replicas return to the stable revision.
        let (current, matches_spec) = match rollout_state.status.aborted {
            Some(_) => (stable.clone(), false),
            None => (target, is_template),
        };
        let stable =
            stable.filter(|stable| current.as_ref().is_none_or(|current| current.name != stable.name));
        Self {
            admission,
            step,
            current,
            matches_spec,
            stable,
            refused_template,
            refused_past_deadline,
            rollout_state,
            floor,
            start_steps,
            progressed_at,
        }
    }

    pub(super) fn current_name(&self) -> Option<&str> {
        self.current.as_ref().map(|current| current.name.as_str())
    }

    /// Returns the revisions that the history keeps regardless of its limit.
    pub(super) fn revisions_in_use<'n>(&'n self, rollout: &'n RolloutStatus) -> Vec<&'n str> {
        [&rollout.stable_revision, &rollout.revision]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .chain(self.current_name())
            .collect()
    }
}

impl Observed<'_, '_> {
    /// Returns the pause for a rollout that would stop at the throughput floor, according to a dry
    /// run on the current fleet.
    fn predicted_stop(
        &self,
        target: &Current<'_>,
        stable: Option<&str>,
        floor: Floor,
        active: &[&ModelReplica],
    ) -> Option<PauseReason> {
        let is_begun = active.iter().any(|replica| is_of(replica, &target.name));
        if floor == Floor::default() || is_begun {
            return None;
        }
        let mut fleet = self.fleet.clone();
        let is_active = |replica: &ModelReplica| active.iter().any(|other| std::ptr::eq(*other, replica));
        for replica in self.replicas.iter().filter(|replica| !is_active(replica)) {
            fleet.remove_replica(&ReplicaKey::of(*replica));
        }
        let outcome = DryRun {
            deployment: self.deployment,
            stable,
            target: &target.name,
            template: target.replica(self.deployment),
            floor,
            fleet,
            replicas: active.iter().map(|replica| (*replica).clone()).collect(),
            outcome: Outcome::default(),
        }
        .run();
        let at = outcome.at_floor?;
        let mut why = match outcome.placed {
            0 => "before any replica is replaced".to_owned(),
            placed => {
                let nodes = named(outcome.nodes.into_iter().collect());
                format!("with {placed} of the new replicas on {nodes}, as the scheduler would place them now")
            }
        };
        if outcome.unknown > 0 {
            why.push_str(&format!(
                " ({} of unknown speed, counted with the highest known speed)",
                outcome.unknown
            ));
        }
        why.push_str(&format!(", {:.1} tokens/s would be predicted", at.now));
        if at.would_leave < at.now {
            why.push_str(&format!(" and {:.1} without the next replica", at.would_leave));
        }
        if let Some((unplaced, reason)) = outcome.unplaced {
            why.push_str(&format!("; {unplaced} of them would find no node: {reason}"));
        }
        Some(PauseReason::ThroughputFloor(format!(
            "revision {} ({}) is not rolled out: {why}; spec.strategy.rollingUpdate.minThroughput requires {:.1}; to continue, permit a surge on a node with room for one more replica, or lower the floor",
            target.number,
            target.name,
            floor.tokens_per_second()
        )))
    }

    /// Returns the predicted speed of the stable revision on the node relative to the target.
    fn baseline(&self, stable: &Current<'_>, target: &Current<'_>, node: &str) -> Option<Baseline> {
        let node = self.fleet.node(node)?;
        let speed = |revision: &Current<'_>| {
            let request = ReplicaRequest::new(&revision.replica(self.deployment));
            node.speed_alone(&request)
        };
        let (stable, target) = (speed(stable)?, speed(target)?);
        Some(Baseline {
            decode: stable.decode.p50 / target.decode.p50,
            first_token: stable.first_token.p50 / target.first_token.p50,
        })
    }

    /// Returns the time of the last progress that the rollout status does not contain: creation of the
    /// revision, the end of a pause, or an advancing download.
    fn progressed_at(&self, revision: Option<&ModelRevision>, active: &[&ModelReplica]) -> Option<Timestamp> {
        let created = |revision: &ModelRevision| Some(revision.metadata.creation_timestamp.as_ref()?.0);
        active
            .iter()
            .filter_map(|replica| Some(replica.status.as_ref()?.download.as_ref()?.updated_at.0))
            .chain(self.resumed_at())
            .chain(revision.and_then(created))
            .max()
    }

    /// Returns the end of the last pause. The progress deadline counts from then on.
    fn resumed_at(&self) -> Option<Timestamp> {
        let conditions = &self.deployment.status.as_ref()?.conditions;
        let is_progressing = |condition: &&Condition| condition.type_ == condition_type::PROGRESSING;
        let progressing = conditions.iter().find(is_progressing)?;
        if PauseReason::is_reason(&progressing.reason) {
            return Some(self.now);
        }
        (progressing.status == "True").then_some(progressing.last_transition_time.0)
    }
}
