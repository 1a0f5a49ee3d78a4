//! Which of a deployment's replicas go in this pass, which come, and which follow what may change without a restart.

use serde_json::{Map, Value, json};

use super::admission::admission_annotation;
use super::bounds::Bounds;
use super::idle::InUse;
use super::observed::Observed;
use super::pause_reason::PauseReason;
use super::preparation::{Preparation, asked};
use super::replica::{is_ending, is_leaving, is_of, refusal, refused_recently};
use super::revision::Current;
use super::rollout::{DeleteReason, RolloutLimits, scale};
use super::selection::Selection;
use rooflet_api::meta::{ADMISSION_ANNOTATION, PREPARE_ANNOTATION};
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaSpec};
use rooflet_client::merge_diff;

/// Replicas that are not ending.
pub(super) struct Present<'a> {
    pub(super) active: Vec<&'a ModelReplica>,
    /// Those that their node refused.
    pub(super) refused: Vec<&'a ModelReplica>,
}

impl<'a> Present<'a> {
    pub(super) fn of(observed: &Observed<'a, '_>) -> Self {
        let here = |replica: &&&ModelReplica| !is_ending(replica);
        let (refused, active) = observed
            .replicas
            .iter()
            .filter(here)
            .copied()
            .partition(|replica| refusal(replica).is_some());
        Self { active, refused }
    }
}

/// See the module.
pub(super) struct Replacement<'a> {
    pub(super) delete: Vec<(&'a ModelReplica, DeleteReason)>,
    pub(super) create: Vec<ModelReplica>,
    /// Each with its merge patch.
    pub(super) amend: Vec<(&'a ModelReplica, Value)>,
    /// Of `create`, those of the current revision.
    pub(super) created: usize,
    /// The others of `create`, which are of the stable one.
    pub(super) created_stable: usize,
    /// What stays and is as it should be.
    pub(super) updated: Vec<&'a ModelReplica>,
    /// What stays and is not.
    pub(super) old: Vec<&'a ModelReplica>,
    /// What stays although its node refused it.
    pub(super) refused: Vec<&'a ModelReplica>,
    /// How many are there beyond the wanted number until their replacements have come.
    pub(super) leaving: usize,
    /// Nothing more can be replaced before these are in use no more.
    pub(super) in_use: Option<InUse>,
    /// Why else nothing more can be replaced.
    pub(super) stopped_by: Option<PauseReason>,
}

impl<'a> Replacement<'a> {
    pub(super) fn new(observed: &Observed<'a, '_>, selection: &Selection<'a>, present: &Present<'a>) -> Self {
        let Present { active, refused } = present;
        let Selection {
            current,
            stable,
            rollout_state,
            floor,
            ..
        } = selection;
        let deployment = observed.deployment;
        let current_name = selection.current_name();
        let is_updated = |replica: &ModelReplica| {
            current_name.is_some_and(|name| is_of(replica, name)) && !observed.is_misplaced(replica)
        };
        let ending_old = observed
            .replicas
            .iter()
            .filter(|replica| is_ending(replica) && !is_updated(replica))
            .count();
        let remaining = without_leaving(active, Bounds::of(&deployment.spec).surge());
        let leaving = active.len() - remaining.len();
        let preparation = current
            .as_ref()
            .filter(|_| rollout_state.prepares)
            .and_then(|current| Preparation::of(current, observed.fleet));
        let limits = RolloutLimits {
            has_target: current.is_some(),
            stable: stable.as_ref().map(|stable| stable.name.as_str()),
            extent: rollout_state.extent,
            floor: *floor,
            chips: observed.chips(),
            idleness: rollout_state.idleness,
            preparation,
            leaving,
        };
        let scaling = scale(&deployment.spec, limits, &is_updated, &remaining, ending_old);
        let mut delete = scaling.delete;
        let created = scaling.create + scaling.create_stable;
        delete.extend(
            observed
                .settled_refusals(refused, active, created)
                .into_iter()
                .map(|replica| (replica, DeleteReason::Refused)),
        );
        let copies = |revision: &Option<Current<'_>>, count: usize| {
            let replica = revision.as_ref().map(|revision| revision.replica(deployment));
            std::iter::repeat_n(replica, count).flatten()
        };
        let create: Vec<_> = copies(current, scaling.create)
            .chain(copies(stable, scaling.create_stable))
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
        let preparing = || {
            let waits = preparation.filter(|_| scaling.awaits_preparation)?;
            Some(PauseReason::Preparing(waits.message(&scaling.unprepared)))
        };
        let stopped_by = preparing().or_else(|| Some(PauseReason::at_floor(scaling.at_floor?, *floor)));
        Self {
            delete,
            create,
            amend,
            created: scaling.create,
            created_stable: scaling.create_stable,
            updated,
            old,
            refused,
            leaving,
            in_use: scaling.in_use,
            stopped_by,
        }
    }

    /// All that stay and were not refused.
    pub(super) fn staying(&self) -> Vec<&'a ModelReplica> {
        [self.updated.as_slice(), &self.old].concat()
    }

    pub(super) fn has_replaced(&self) -> bool {
        self.delete.iter().any(|(_, why)| *why == DeleteReason::Outdated)
    }

    /// Nothing is left of another revision.
    pub(super) fn is_all_new(&self) -> bool {
        self.old.is_empty() && self.created_stable == 0
    }
}

impl<'a> Observed<'a, '_> {
    /// Whether the placement was changed so that the replica may not stay where it is. A node whose labels were
    /// changed keeps its replicas, as in Kubernetes.
    pub(super) fn is_misplaced(&self, replica: &ModelReplica) -> bool {
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
