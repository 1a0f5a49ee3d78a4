//! Replicas of a deployment that one pass deletes, creates and patches.

use serde_json::{Map, Value, json};

use super::admission::admission_annotation;
use super::bounds::Bounds;
use super::idle::InUse;
use super::observed::Observed;
use super::pause_reason::PauseReason;
use super::preparation::{Preparation, requested_model};
use super::replica::{is_leaving, is_of, is_terminating, refusal, refused_recently};
use super::revision::Current;
use super::rollout::{DeleteReason, RolloutLimits, scale};
use super::selection::Selection;
use rooflet_api::meta::{ADMISSION_ANNOTATION, PREPARE_ANNOTATION};
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaSpec, ModelSpec};
use rooflet_client::merge_diff;

/// Replicas that are not being deleted.
pub(super) struct Present<'a> {
    pub(super) active: Vec<&'a ModelReplica>,
    /// Replicas that the agent of their node refused.
    pub(super) refused: Vec<&'a ModelReplica>,
}

impl<'a> Present<'a> {
    pub(super) fn of(observed: &Observed<'a, '_>) -> Self {
        let is_present = |replica: &&&ModelReplica| !is_terminating(replica);
        let (refused, active) = observed
            .replicas
            .iter()
            .filter(is_present)
            .copied()
            .partition(|replica| refusal(replica).is_some());
        Self { active, refused }
    }
}

/// Returns whether the replica serves this model, in any notation of the source.
fn has_model(replica: &ModelReplica, model: &ModelSpec) -> bool {
    replica.spec.model == *model || replica.spec.model.text() == model.text()
}

/// Replicas that the pass deletes, creates and patches, and the remaining ones.
pub(super) struct Replacement<'a> {
    pub(super) delete: Vec<(&'a ModelReplica, DeleteReason)>,
    pub(super) create: Vec<ModelReplica>,
    /// Replicas to patch, with the merge patches.
    pub(super) amend: Vec<(&'a ModelReplica, Value)>,
    /// Number of created replicas of the current revision.
    pub(super) created: usize,
    /// Number of created replicas of the stable revision.
    pub(super) created_stable: usize,
    /// Remaining replicas that match the current revision and placement.
    pub(super) updated: Vec<&'a ModelReplica>,
    /// Remaining replicas that do not match.
    pub(super) old: Vec<&'a ModelReplica>,
    /// Remaining replicas that the agent of their node refused.
    pub(super) refused: Vec<&'a ModelReplica>,
    /// Number of replicas beyond the desired count that leave their nodes when their replacements
    /// are Ready.
    pub(super) leaving: usize,
    /// Replicas that must become idle before the next replacement.
    pub(super) in_use: Option<InUse>,
    /// Other reason why no further replica is replaced.
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
        // A replica that was restored after the control plane was rebuilt has the name of the revision.
        // Its commit differs if the hub's branch has moved since.
        let is_updated = |replica: &ModelReplica| {
            current.as_ref().is_some_and(|current| {
                is_of(replica, &current.name) && has_model(replica, &current.spec.model)
            }) && !observed.is_misplaced(replica)
        };
        let ending_old = observed
            .replicas
            .iter()
            .filter(|replica| is_terminating(replica) && !is_updated(replica))
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
            weight: rollout_state.weight,
        };
        let scaling = scale(&deployment.spec, limits, &is_updated, &remaining, ending_old);
        let mut delete = scaling.delete;
        let created = scaling.create + scaling.create_stable;
        delete.extend(
            observed
                .expired_refusals(refused, active, created)
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

        let stays = |replica: &&&ModelReplica| {
            !delete
                .iter()
                .any(|(deleted, _)| std::ptr::eq(*deleted, **replica))
        };
        let (updated, old): (Vec<_>, Vec<_>) = active
            .iter()
            .filter(stays)
            .copied()
            .partition(|replica| is_updated(replica));
        let next = |replica: &ModelReplica| preparation?.model_for(replica, &scaling.unprepared);
        let amend = observed.amendments(updated.iter().chain(&old).copied(), &next);
        let refused: Vec<_> = refused.iter().filter(stays).copied().collect();
        let preparing = || {
            let preparation = preparation.filter(|_| scaling.awaits_preparation)?;
            Some(PauseReason::Preparing(preparation.message(&scaling.unprepared)))
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

    /// Returns the remaining replicas that were not refused.
    pub(super) fn staying(&self) -> Vec<&'a ModelReplica> {
        [self.updated.as_slice(), &self.old].concat()
    }

    pub(super) fn has_replaced(&self) -> bool {
        self.delete.iter().any(|(_, why)| *why == DeleteReason::Outdated)
    }

    /// Returns whether no replica of another revision remains.
    pub(super) fn is_all_new(&self) -> bool {
        self.old.is_empty() && self.created_stable == 0
    }
}

impl<'a> Observed<'a, '_> {
    /// Returns whether the placement was changed and excludes the replica's node. A node whose
    /// labels were changed keeps its replicas, as in Kubernetes.
    pub(super) fn is_misplaced(&self, replica: &ModelReplica) -> bool {
        let placement = &self.deployment.spec.placement;
        let node = replica.spec.node_name.as_deref();
        replica.spec.placement != *placement
            && node
                .and_then(|name| self.fleet.node(name))
                .is_some_and(|node| !node.is_selected(placement))
    }

    /// Returns the patches for changes without a restart. Objectives, placement, priority and the
    /// admission override are not part of the template, so running replicas follow them.
    ///
    /// A misplaced replica keeps its placement, because [`Self::is_misplaced`] depends on it.
    /// `next` returns the model that the replica's agent must download for the replacement.
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
                let mut desired = ModelReplicaSpec {
                    objectives: deployment.spec.objectives.clone(),
                    priority: deployment.spec.priority,
                    ..replica.spec.clone()
                };
                if !self.is_misplaced(replica) {
                    desired.placement = deployment.spec.placement.clone();
                }
                let mut patch = Map::new();
                if let Some(change) = merge_diff(&value(&replica.spec), &value(&desired)) {
                    patch.insert("spec".to_owned(), change);
                }
                // In a merge patch, null removes the field.
                let mut annotations = Map::new();
                let annotation = admission_annotation(deployment);
                if admission_annotation(replica) != annotation {
                    annotations.insert(ADMISSION_ANNOTATION.to_owned(), json!(annotation));
                }
                if requested_model(replica) != next(replica) {
                    annotations.insert(PREPARE_ANNOTATION.to_owned(), json!(next(replica)));
                }
                if !annotations.is_empty() {
                    patch.insert("metadata".to_owned(), json!({ "annotations": annotations }));
                }
                (!patch.is_empty()).then_some((replica, Value::Object(patch)))
            })
            .collect()
    }

    /// Returns the refused replicas to delete. A refused replica keeps the scheduler from its node
    /// until all others are placed or the refusal expires.
    fn expired_refusals(
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

/// Returns the replicas without those that leave their nodes after a replacement is Ready, up to
/// `surge` of them. The node lifecycle deletes the leaving replicas.
fn without_leaving<'a>(active: &[&'a ModelReplica], surge: usize) -> Vec<&'a ModelReplica> {
    let mut left = surge;
    active
        .iter()
        .copied()
        .filter(|replica| {
            let is_excluded = left > 0 && is_leaving(replica);
            left -= usize::from(is_excluded);
            !is_excluded
        })
        .collect()
}
