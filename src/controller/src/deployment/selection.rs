//! Which revision a deployment's replicas should be of, and how far they may be replaced in this pass.

mod dry_run;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ObjectMeta;

use self::dry_run::{DryRun, Outcome};
use super::admission::{Admission, Template, admit, named};
use super::observed::Observed;
use super::pause_reason::PauseReason;
use super::replica::is_of;
use super::revision::{Current, RevisionStep};
use super::rollout_context::analysis::Baseline;
use super::rollout_context::{RolloutContext, RolloutState};
use super::throughput::{Floor, Throughput};
use rooflet_api::conditions::condition_type;
use rooflet_api::v1alpha1::{ModelReplica, ModelRevision, RefusedTemplate, RolloutStatus};
use rooflet_scheduler::{ReplicaKey, ReplicaRequest};

/// See the module.
pub(super) struct Selection<'a> {
    pub(super) admission: Admission,
    /// What happens to the template's revision.
    pub(super) step: RevisionStep,
    /// The revision that replicas should be of.
    pub(super) current: Option<Current<'a>>,
    /// Whether that is what the spec asks for now.
    pub(super) is_current_wanted: bool,
    /// The revision that was last rolled out, if it is another.
    pub(super) stable: Option<Current<'a>>,
    /// The template, while no node can serve it.
    pub(super) refused_template: Option<RefusedTemplate>,
    /// Why that is waited for no longer.
    pub(super) given_up: Option<String>,
    pub(super) rollout_state: RolloutState,
    pub(super) floor: Floor,
    /// When a revision or a replica last came forward.
    pub(super) progressed_at: Option<Timestamp>,
}

impl<'a> Selection<'a> {
    /// `active` are the replicas that are neither ending nor refused.
    pub(super) fn new(observed: &Observed<'a, '_>, active: &[&'a ModelReplica]) -> Self {
        let deployment = observed.deployment;
        let template = Template::of(deployment);
        let hub = observed.hub_answer(&template);
        let admission = admit(&template, observed.fleet, hub.as_ref());
        let (step, wanted, is_template) = observed.revision(&template, &admission, hub.as_ref());
        let stable = observed.stable();
        let refused_template = observed.refused(&template, &admission, is_template);
        let given_up = stable
            .as_ref()
            .and_then(|_| observed.given_up(refused_template.as_ref()?, &admission));
        // Then it is the one that is gone back from, not what was made before it.
        let wanted = wanted.filter(|_| given_up.is_none());

        let predicted = Throughput::of(observed.chips(), active.iter().copied());
        let floor = Floor::of(deployment, &predicted);
        let wanted_name = wanted.as_ref().map(|wanted| wanted.name.as_str());
        let stable_name = stable.as_ref().map(|stable| stable.name.as_str());
        let refusal = wanted
            .as_ref()
            .filter(|wanted| stable_name.is_some_and(|stable| stable != wanted.name))
            .and_then(|wanted| match Floor::is_blind(deployment, &predicted, active) {
                true => Some(wanted.blind()),
                false => observed.out_of_reach(wanted, stable_name, floor, active),
            });
        let progressed_at = observed.progressed_at(wanted.as_ref().and_then(|wanted| wanted.existing));
        let is_new = |replica: &ModelReplica| wanted_name.is_none_or(|wanted| is_of(replica, wanted));
        let is_change = stable_name != wanted_name;
        let is_outdated =
            |replica: &ModelReplica| is_change && !is_new(replica) || observed.is_misplaced(replica);
        let baseline = |node: &str| observed.baseline(stable.as_ref()?, wanted.as_ref()?, node);
        let rollout_state = RolloutContext {
            deployment,
            wanted: wanted_name.or_else(|| Some(refused_template.as_ref()?.revision.as_str())),
            stable: stable_name,
            active,
            progressed_at,
            refusal: refusal.as_ref(),
            given_up: given_up.as_deref(),
            is_replacing: stable.is_some() && active.iter().any(|replica| is_outdated(replica)),
            baseline: &baseline,
            now: observed.now,
        }
        .assess();

        // Where the wanted revision was given up, the stable one is what replicas should be of.
        let (current, is_current_wanted) = match rollout_state.status.aborted {
            Some(_) => (stable.clone(), false),
            None => (wanted, is_template),
        };
        let stable =
            stable.filter(|stable| current.as_ref().is_none_or(|current| current.name != stable.name));
        Self {
            admission,
            step,
            current,
            is_current_wanted,
            stable,
            refused_template,
            given_up,
            rollout_state,
            floor,
            progressed_at,
        }
    }

    pub(super) fn current_name(&self) -> Option<&str> {
        self.current.as_ref().map(|current| current.name.as_str())
    }

    /// Those that history keeps, whatever its limit, as the rollout stands.
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
    /// Why the wanted revision must not be begun with: played on the fleet as it is, the rollout would come to where the
    /// floor forbids to go on.
    fn out_of_reach(
        &self,
        wanted: &Current<'_>,
        stable: Option<&str>,
        floor: Floor,
        active: &[&ModelReplica],
    ) -> Option<PauseReason> {
        let is_begun = active.iter().any(|replica| is_of(replica, &wanted.name));
        if floor == Floor::default() || is_begun {
            return None;
        }
        let mut fleet = self.fleet.clone();
        let is_tried = |replica: &ModelReplica| active.iter().any(|one| std::ptr::eq(*one, replica));
        for replica in self.replicas.iter().filter(|replica| !is_tried(replica)) {
            fleet.remove_replica(&ReplicaKey::of(*replica));
        }
        let outcome = DryRun {
            deployment: self.deployment,
            stable,
            wanted: &wanted.name,
            template: wanted.replica(self.deployment),
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
                format!(
                    "with {placed} of its replicas made, on {nodes}, where the scheduler would put them now"
                )
            }
        };
        if outcome.unknown > 0 {
            why.push_str(&format!(
                " ({} where nobody can tell the speed, counted as the fastest known)",
                outcome.unknown
            ));
        }
        why.push_str(&format!(", {:.1} tokens/s would be predicted", at.now));
        if at.would_leave < at.now {
            why.push_str(&format!(" and without the next one to go {:.1}", at.would_leave));
        }
        if let Some((unplaced, reason)) = outcome.unplaced {
            why.push_str(&format!("; {unplaced} would find no node: {reason}"));
        }
        Some(PauseReason::ThroughputFloor(format!(
            "revision {} ({}) is not begun: {why}; spec.strategy.rollingUpdate.minThroughput holds {:.1}; a maxSurge with a node that has room for one replica more, or a lower floor, would let it go on",
            wanted.number,
            wanted.name,
            floor.tokens_per_second()
        )))
    }

    /// How much faster than `wanted` the stable revision is predicted to be on the node.
    fn baseline(&self, stable: &Current<'_>, wanted: &Current<'_>, node: &str) -> Option<Baseline> {
        let node = self.fleet.node(node)?;
        let speed = |revision: &Current<'_>| {
            let request = ReplicaRequest::new(&revision.replica(self.deployment));
            node.speed_alone(&request)
        };
        let (theirs, ours) = (speed(stable)?, speed(wanted)?);
        Some(Baseline {
            decode: theirs.decode.p50 / ours.decode.p50,
            first_token: theirs.first_token.p50 / ours.first_token.p50,
        })
    }

    /// The last time anything came forward: a revision or a replica was made, a replica changed its condition, or more of its
    /// model came.
    fn progressed_at(&self, revision: Option<&ModelRevision>) -> Option<Timestamp> {
        let created = |meta: &ObjectMeta| meta.creation_timestamp.as_ref().map(|time| time.0);
        let conditions = self
            .replicas
            .iter()
            .filter_map(|replica| replica.status.as_ref())
            .flat_map(|status| &status.conditions)
            .filter(|condition| condition.status == "True")
            .map(|condition| condition.last_transition_time.0);
        let downloads = self
            .replicas
            .iter()
            .filter_map(|replica| Some(replica.status.as_ref()?.download.as_ref()?.updated_at.0));
        self.replicas
            .iter()
            .filter_map(|replica| created(&replica.metadata))
            .chain(downloads)
            .chain(self.resumed_at())
            .chain(revision.and_then(|revision| created(&revision.metadata)))
            .chain(conditions)
            .max()
    }

    /// Until when it was held up, as far as that is known: only since then may it be measured how long nothing moves.
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
