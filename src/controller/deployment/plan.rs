//! What has to be done for one deployment, as a value.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};

use super::admission::{HubAnswer, Template, admit, named};
use super::analysis::Yardstick;
use super::conditions::View;
use super::counts::counts;
use super::course::{Hold, Situation, Standing};
use super::events::events;
use super::figures::figures;
use super::preparation::{Preparation, asked};
use super::replica::{REFUSAL_STANDS, is_ending, is_leaving, is_of, is_ready, refusal, refused_recently};
use super::revision::{Current, RevisionStep};
use super::rollout::{Bounds, Course, DeleteReason, Extent, scale};
use super::start::last_start;
use super::throughput::{Chips, Floor, Throughput, rounded};
use super::trial::{Outcome, Trial};
use crate::api::conditions::{condition_type, whole_seconds};
use crate::api::meta::{ADMISSION_ANNOTATION, PREPARE_ANNOTATION};
use crate::api::v1alpha1::{
    ModelDeployment, ModelDeploymentStatus, ModelReplica, ModelReplicaSpec, ModelRevision, RolloutStatus,
    TrafficShare,
};
use crate::client::{EventType, merge_diff};
use crate::clock::since;
use crate::scheduler::{Fleet, NodeState, ReplicaKey, ReplicaRequest};

/// What one pass does for one deployment. Empty, but for a status equal to the present one, when all is as it should.
#[derive(Debug, PartialEq)]
pub(crate) struct DeploymentPlan<'a> {
    pub(super) revision: RevisionStep,
    /// Old revisions beyond the history limit.
    pub(super) prune: Vec<&'a ModelRevision>,
    pub(super) delete: Vec<(&'a ModelReplica, DeleteReason)>,
    pub(super) create: Vec<ModelReplica>,
    /// Replicas that follow what may change without a restart, each with its merge patch.
    pub(super) amend: Vec<(&'a ModelReplica, Value)>,
    pub(super) status: ModelDeploymentStatus,
    pub(super) events: Vec<(EventType, String, String)>,
    /// When the plan may change although nothing else does.
    pub(super) look_again_after: Option<Duration>,
}

/// What a plan is made from. Revisions and replicas are those the deployment controls.
pub(crate) struct Observed<'a, 'f> {
    pub(crate) deployment: &'a ModelDeployment,
    pub(crate) revisions: Vec<&'a ModelRevision>,
    pub(crate) replicas: Vec<&'a ModelReplica>,
    /// Revisions in its namespace that no deployment controls, nor may.
    pub(crate) strangers: Vec<&'a ModelRevision>,
    /// An older deployment in its namespace that is served under the same name.
    pub(crate) namesake: Option<&'a str>,
    pub(crate) fleet: &'f Fleet,
    /// What the hub says of a template that has no revision yet; `None` where it was not asked.
    pub(crate) hub: Option<HubAnswer>,
    pub(crate) now: Timestamp,
}

impl<'a> DeploymentPlan<'a> {
    /// `None` for a deployment that is being deleted: garbage collection does the rest.
    pub(crate) fn new(observed: &Observed<'a, '_>) -> Option<Self> {
        let Observed { deployment, now, .. } = *observed;
        if deployment.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let template = Template::of(deployment);
        let hub = observed.hub_answer(&template);
        let admission = admit(&template, observed.fleet, hub.as_ref());
        let (revision, wanted, is_template) = observed.revision(&template, &admission, hub.as_ref());

        let here = |replica: &&&ModelReplica| !is_ending(replica);
        let (refused, active): (Vec<_>, Vec<_>) = observed
            .replicas
            .iter()
            .filter(here)
            .copied()
            .partition(|replica| refusal(replica).is_some());
        let stable = observed.stable();
        let refused_template = observed.refused(&template, &admission, is_template);
        let given_up = stable
            .as_ref()
            .and_then(|_| observed.given_up(refused_template.as_ref()?, &admission));
        // Then it is the one that is gone back from, not what was made before it.
        let wanted = wanted.filter(|_| given_up.is_none());
        let chips = Chips::new(observed.fleet, deployment);
        let now_predicted = Throughput::of(chips, active.iter().copied());
        let floor = Floor::of(deployment, &now_predicted);
        let refusal = wanted
            .as_ref()
            .filter(|wanted| stable.as_ref().is_some_and(|stable| stable.name != wanted.name))
            .and_then(|wanted| {
                let stable = stable.as_ref().map(|stable| stable.name.as_str());
                match Floor::is_blind(deployment, &now_predicted, &active) {
                    true => Some(wanted.blind()),
                    false => observed.out_of_reach(wanted, stable, floor, &active),
                }
            });
        let progressed_at = observed.progressed_at(wanted.as_ref().and_then(|wanted| wanted.existing));
        let is_new =
            |replica: &ModelReplica| wanted.as_ref().is_none_or(|wanted| is_of(replica, &wanted.name));
        let is_change =
            stable.as_ref().map(|stable| &stable.name) != wanted.as_ref().map(|wanted| &wanted.name);
        let is_outdated =
            |replica: &ModelReplica| is_change && !is_new(replica) || observed.is_misplaced(replica);
        let yardstick = |node: &str| observed.yardstick(stable.as_ref()?, wanted.as_ref()?, node);
        let standing = Situation {
            deployment,
            wanted: wanted
                .as_ref()
                .map(|wanted| wanted.name.as_str())
                .or_else(|| Some(refused_template.as_ref()?.revision.as_str())),
            stable: stable.as_ref().map(|stable| stable.name.as_str()),
            active: &active,
            progressed_at,
            refusal: refusal.as_ref(),
            given_up: given_up.as_deref(),
            is_replacing: stable.is_some() && active.iter().any(|replica| is_outdated(replica)),
            yardstick: &yardstick,
            now,
        }
        .assess();
        // Where the wanted revision was given up, the stable one is what replicas should be of.
        let (current, is_current_wanted) = match standing.status.aborted {
            Some(_) => (stable.clone(), false),
            None => (wanted, is_template),
        };
        let stable =
            stable.filter(|stable| current.as_ref().is_none_or(|current| current.name != stable.name));

        let current_name = current.as_ref().map(|current| current.name.as_str());
        let is_updated = |replica: &ModelReplica| {
            current_name.is_some_and(|name| is_of(replica, name)) && !observed.is_misplaced(replica)
        };
        let ending_old = observed
            .replicas
            .iter()
            .filter(|replica| is_ending(replica) && !is_updated(replica))
            .count();
        let remaining = without_leaving(&active, Bounds::of(&deployment.spec).surge());
        let preparation = current
            .as_ref()
            .filter(|_| standing.prepares)
            .and_then(|current| Preparation::of(current, observed.fleet));
        let course = Course {
            has_target: current.is_some(),
            stable: stable.as_ref().map(|stable| stable.name.as_str()),
            extent: standing.extent,
            floor,
            chips,
            idleness: standing.idleness,
            preparation,
            leaving: active.len() - remaining.len(),
        };
        let scaling = scale(&deployment.spec, course, &is_updated, &remaining, ending_old);
        let mut delete = scaling.delete;
        let created = scaling.create + scaling.create_stable;
        delete.extend(
            observed
                .settled_refusals(&refused, &active, created)
                .into_iter()
                .map(|replica| (replica, DeleteReason::Refused)),
        );
        let copies = |revision: &Option<Current<'_>>, count: usize| {
            let replica = revision.as_ref().map(|revision| revision.replica(deployment));
            std::iter::repeat_n(replica, count).flatten()
        };
        let create: Vec<_> = copies(&current, scaling.create)
            .chain(copies(&stable, scaling.create_stable))
            .collect();

        let stays = |replica: &&&ModelReplica| !delete.iter().any(|(gone, _)| std::ptr::eq(*gone, **replica));
        let (updated, old): (Vec<_>, Vec<_>) = active
            .iter()
            .filter(stays)
            .copied()
            .partition(|replica| is_updated(replica));
        let next = |replica: &ModelReplica| preparation?.wanted_by(replica, &scaling.unprepared);
        let amend = observed.amendments(updated.iter().chain(&old).copied(), &next);
        let refused: Vec<_> = refused.iter().filter(stays).copied().collect();
        let has_replaced = delete.iter().any(|(_, why)| *why == DeleteReason::Outdated);
        let waited_since = standing
            .status
            .idle_wait_started_at
            .clone()
            .filter(|_| !has_replaced);
        let in_use = scaling.in_use.map(|in_use| {
            let began = waited_since.clone().unwrap_or_else(|| Time(whole_seconds(now)));
            (in_use, began)
        });
        let soon_idle = in_use
            .as_ref()
            .map(|(in_use, began)| in_use.look_again_after(began.0, now));
        let idle_wait_started_at = in_use.as_ref().map(|(_, began)| began.clone()).or(waited_since);
        // What goes because it is not wanted any more waits for no window.
        let is_all_new = old.is_empty() && scaling.create_stable == 0;
        let hold = standing
            .hold
            .clone()
            .filter(|hold| !(is_all_new && matches!(hold, Hold::OutsideMaintenanceWindow(_))))
            .or_else(|| in_use.map(|(in_use, began)| Hold::WaitingForIdle(in_use, began.0)))
            .or_else(|| {
                let waits = preparation.filter(|_| scaling.awaits_preparation)?;
                Some(Hold::Preparing(waits.message(&scaling.unprepared)))
            })
            .or_else(|| Some(Hold::at_floor(scaling.at_floor?, floor)));
        let on_simulated = |replica: &&&ModelReplica| {
            let node = replica.spec.node_name.as_deref();
            let node = node.and_then(|node| observed.fleet.node(node));
            is_ready(replica) && node.is_some_and(NodeState::is_simulated)
        };
        let view = View {
            deployment,
            admission: &admission,
            current: current
                .as_ref()
                .map(|current| (current.name.as_str(), current.number)),
            is_current_wanted,
            namesake: observed.namesake,
            refused_since: refused_template.as_ref().map(|refused| refused.since.0),
            hold: hold.as_ref(),
            is_canary: standing.weight.is_some(),
            aborted: standing
                .status
                .aborted
                .as_ref()
                .filter(|_| refused_template.is_none() || given_up.is_some()),
            updated: &updated,
            old: &old,
            leaving: course.leaving,
            created: scaling.create,
            created_stable: scaling.create_stable,
            refused: &refused,
            figures: figures(&[updated.as_slice(), &old].concat()),
            on_simulated: updated.iter().chain(&old).find(on_simulated).copied(),
            progressed_at: standing.progressed_at(progressed_at),
            now,
        };
        let outcome = view.conditions();
        let before = deployment
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        let events = events(before, &outcome.conditions);
        let mut status = counts(&view, &updated, &old);
        status.conditions = outcome.conditions;
        let staying = [updated.as_slice(), &old].concat();
        let known = deployment.status.as_ref();
        let known = known.and_then(|status| status.last_start.clone());
        status.last_start = last_start(known, &deployment.spec.model.source, &staying);
        status.traffic = observed.traffic(&standing, &staying);
        let throughput = rounded(Throughput::of(chips, staying.iter().copied()).total());
        let mut rollout = standing.status.clone();
        rollout.idle_wait_started_at = idle_wait_started_at;
        rollout.refused = refused_template;
        rollout.predicted_tokens_per_second = (throughput > 0.0).then_some(throughput);
        if view.rollout_is_complete() {
            rollout.stable_revision = current_name.map(str::to_owned);
            rollout.step = None;
            rollout.step_started_at = None;
            rollout.idle_wait_started_at = None;
            rollout.reference_tokens_per_second =
                Throughput::of(chips, updated.iter().copied()).mean().map(rounded);
        }
        let keep: Vec<_> = [&rollout.stable_revision, &rollout.revision]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .chain(current_name)
            .collect();
        let prune = observed.prunable(&keep);
        status.rollout = rollout;
        let asked_again = refused.iter().filter_map(|replica| {
            let refusal = refused_recently(replica, now)?;
            Some(REFUSAL_STANDS.saturating_sub(since(now, refusal.last_transition_time.0)))
        });
        let look_again_after = asked_again
            .chain(outcome.look_again_after)
            .chain(standing.look_again_after)
            .chain(soon_idle)
            .min();
        Some(Self {
            revision,
            prune,
            delete,
            create,
            amend,
            status,
            events,
            look_again_after,
        })
    }
}

impl<'a> Observed<'a, '_> {
    /// Whether the placement was changed so that the replica may not stay where it is. A node whose labels were
    /// changed keeps its replicas, as in Kubernetes.
    fn is_misplaced(&self, replica: &ModelReplica) -> bool {
        let placement = &self.deployment.spec.placement;
        let node = replica.spec.node_name.as_deref();
        replica.spec.placement != *placement
            && node
                .and_then(|name| self.fleet.node(name))
                .is_some_and(|node| !node.is_selected(placement))
    }

    /// Objectives, placement, priority and the override of admission are no part of the template: replicas that run
    /// follow them. One that may not stay where it is keeps its placement, by which it is known.
    /// `next` is what a replica's agent is to download for the one that follows.
    fn amendments<'n>(
        &self,
        replicas: impl Iterator<Item = &'a ModelReplica>,
        next: &dyn Fn(&ModelReplica) -> Option<&'n str>,
    ) -> Vec<(&'a ModelReplica, Value)> {
        let deployment = self.deployment;
        let value =
            |spec: &ModelReplicaSpec| serde_json::to_value(spec).expect("a spec has only string keys");
        replicas
            .filter_map(|replica| {
                let mut wanted = ModelReplicaSpec {
                    objectives: deployment.spec.objectives.clone(),
                    priority: deployment.spec.priority,
                    ..replica.spec.clone()
                };
                if !self.is_misplaced(replica) {
                    wanted.placement = deployment.spec.placement.clone();
                }
                let mut patch = Map::new();
                if let Some(change) = merge_diff(&value(&replica.spec), &value(&wanted)) {
                    patch.insert("spec".to_owned(), change);
                }
                // In a merge patch null removes.
                let mut annotations = Map::new();
                let annotation = admission_annotation(deployment);
                if admission_annotation(replica) != annotation {
                    annotations.insert(ADMISSION_ANNOTATION.to_owned(), json!(annotation));
                }
                if asked(replica) != next(replica) {
                    annotations.insert(PREPARE_ANNOTATION.to_owned(), json!(next(replica)));
                }
                if !annotations.is_empty() {
                    patch.insert("metadata".to_owned(), json!({ "annotations": annotations }));
                }
                (!patch.is_empty()).then_some((replica, Value::Object(patch)))
            })
            .collect()
    }

    pub(super) fn rollout(&self) -> Option<&RolloutStatus> {
        Some(&self.deployment.status.as_ref()?.rollout)
    }

    /// Why the wanted revision must not be begun with: played on the fleet as it is, the rollout would come to where the
    /// floor forbids to go on.
    fn out_of_reach(
        &self,
        wanted: &Current<'_>,
        stable: Option<&str>,
        floor: Floor,
        active: &[&ModelReplica],
    ) -> Option<Hold> {
        let is_begun = active.iter().any(|replica| is_of(replica, &wanted.name));
        if floor == Floor::default() || is_begun {
            return None;
        }
        let mut fleet = self.fleet.clone();
        let is_tried = |replica: &ModelReplica| active.iter().any(|one| std::ptr::eq(*one, replica));
        for replica in self.replicas.iter().filter(|replica| !is_tried(replica)) {
            fleet.remove_replica(&ReplicaKey::of(*replica));
        }
        let outcome = Trial {
            deployment: self.deployment,
            stable,
            wanted: &wanted.name,
            template: wanted.replica(self.deployment),
            floor,
            fleet,
            replicas: active.iter().map(|replica| (*replica).clone()).collect(),
            outcome: Outcome::default(),
        }
        .play();
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
        Some(Hold::ThroughputFloor(format!(
            "revision {} ({}) is not begun: {why}; spec.strategy.rollingUpdate.minThroughput holds {:.1}; a maxSurge with a node that has room for one replica more, or a lower floor, would let it go on",
            wanted.number,
            wanted.name,
            floor.tokens_per_second()
        )))
    }

    /// How much faster than `wanted` the stable revision is predicted to be on the node.
    fn yardstick(&self, stable: &Current<'_>, wanted: &Current<'_>, node: &str) -> Option<Yardstick> {
        let node = self.fleet.node(node)?;
        let speed = |revision: &Current<'_>| {
            let request = ReplicaRequest::new(&revision.replica(self.deployment));
            node.speed_alone(&request)
        };
        let (theirs, ours) = (speed(stable)?, speed(wanted)?);
        Some(Yardstick {
            decode: theirs.decode.p50 / ours.decode.p50,
            first_token: theirs.first_token.p50 / ours.first_token.p50,
        })
    }

    /// Empty unless a canary is under way: then what the new revision gets, and the rest for the stable one.
    fn traffic(&self, standing: &Standing, staying: &[&ModelReplica]) -> Vec<TrafficShare> {
        let RolloutStatus {
            stable_revision,
            revision,
            ..
        } = &standing.status;
        let (Some(weight), Some(stable), Some(canary)) = (standing.weight, stable_revision, revision) else {
            return Vec::new();
        };
        let canaries: Vec<_> = staying.iter().filter(|replica| is_of(replica, canary)).collect();
        if standing.extent == Extent::All && canaries.is_empty() {
            return Vec::new();
        }
        let ready = canaries.iter().filter(|replica| is_ready(replica)).count();
        let before = self.deployment.status.iter().flat_map(|status| &status.traffic);
        let given = before
            .filter(|share| share.revision == *canary)
            .map(|share| share.weight)
            .max()
            .unwrap_or(0);
        let weight = i32::from(weight.min(100));
        // Fewer than the step asks for carry what they carried before.
        let carried = match ready {
            0 => 0,
            _ if ready >= Bounds::of(&self.deployment.spec).canaries(weight.unsigned_abs() as u8) => weight,
            _ => given.min(weight),
        };
        let share = |revision: &String, weight| TrafficShare {
            revision: revision.clone(),
            weight,
        };
        vec![share(stable, 100 - carried), share(canary, carried)]
    }

    /// Refused replicas that have served their purpose, to keep the scheduler off their node for a while.
    fn settled_refusals(
        &self,
        refused: &[&'a ModelReplica],
        active: &[&'a ModelReplica],
        created: usize,
    ) -> Vec<&'a ModelReplica> {
        let all_placed = created == 0 && active.iter().all(|replica| replica.spec.node_name.is_some());
        refused
            .iter()
            .filter(|replica| all_placed || refused_recently(replica, self.now).is_none())
            .copied()
            .collect()
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
        if Hold::is_told_by(&progressing.reason) {
            return Some(self.now);
        }
        (progressing.status == "True").then_some(progressing.last_transition_time.0)
    }
}

/// Without those that leave their nodes after their replacements have come, as many as a surge has room for. They are
/// nobody's to count on, and the node lifecycle deletes them.
fn without_leaving<'a>(active: &[&'a ModelReplica], surge: usize) -> Vec<&'a ModelReplica> {
    let mut room = surge;
    active
        .iter()
        .copied()
        .filter(|replica| {
            let is_left_out = room > 0 && is_leaving(replica);
            room -= usize::from(is_left_out);
            !is_left_out
        })
        .collect()
}

pub(super) fn admission_annotation(object: &impl ResourceExt) -> Option<&str> {
    object.annotations().get(ADMISSION_ANNOTATION).map(String::as_str)
}
