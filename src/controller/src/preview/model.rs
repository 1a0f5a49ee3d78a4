//! Copy of the fleet's objects, with the reconcilers' plans and modelled agents.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::changed::patched;
use super::{ChangedObject, MAX_NEW_REPLICAS, PreviewError, ProposedChange};
use crate::binder::{binding_intents, bound_status};
use crate::deployment::{intents_for, refusal};
use crate::fleet::{FollowedFleet, name};
use crate::intent::{Intent, PlannedWrite, Snapshot, Version};
use crate::node_lifecycle::{drain_obstacles, node_intents_with_reserve};
use rooflet_api::conditions::{Truth, condition_type, is_true, set_condition};
use rooflet_api::meta::{CHANGE_CAUSE_ANNOTATION, DEPLOYMENT_LABEL, MIRROR_ANNOTATION};
use rooflet_api::v1alpha1::{
    AdmissionStatus, FleetNode, ModelDeployment, ModelReplica, ModelReplicaStatus, ReplicaPhase,
};
use rooflet_client::ObjectKey;
use rooflet_roofline::published::speed_working;
use rooflet_scheduler::{ReplicaKey, ReplicaRequest};

/// Maximum number of passes of a preview. A pass moves at least one replica one step further.
const MAX_PASSES: usize = 10_000;

/// Objects with the plans that write them.
pub(super) struct Model {
    /// Objects, ordered by namespace and name.
    pub(super) snapshot: Snapshot,
    /// Deployments that a pass has planned.
    pub(super) planned: BTreeSet<ObjectKey>,
    fleet: FollowedFleet,
    reserve_node_failures: usize,
    now: Timestamp,
    /// Deployments whose plan may differ.
    queue: BTreeSet<ObjectKey>,
    /// Number of created objects, for their names and UIDs.
    created: usize,
}

impl Model {
    pub(super) fn new(mut snapshot: Snapshot, reserve_node_failures: usize, now: Timestamp) -> Self {
        sort(&mut snapshot.nodes);
        sort(&mut snapshot.deployments);
        sort(&mut snapshot.revisions);
        sort(&mut snapshot.replicas);
        Self {
            snapshot,
            planned: BTreeSet::new(),
            fleet: FollowedFleet::new(reserve_node_failures),
            reserve_node_failures,
            now,
            queue: BTreeSet::new(),
            created: 0,
        }
    }

    /// Applies the change of the user.
    pub(super) fn change(&mut self, change: &ProposedChange) -> Result<(), PreviewError> {
        match &change.object {
            ChangedObject::Node(name) => {
                let key = (None, Some(name.as_str()));
                let node = found(&mut self.snapshot.nodes, key, "FleetNode", name)?;
                let mut changed: FleetNode = patched(node.as_ref(), &change.patch, "FleetNode", name)?;
                let is_new = changed.spec != node.spec;
                count_generation(&mut changed, is_new);
                *node = Arc::new(changed);
            }
            ChangedObject::Deployment(namespace, name) => {
                let key = (Some(namespace.as_str()), Some(name.as_str()));
                let deployments = &mut self.snapshot.deployments;
                let deployment = found(deployments, key, "ModelDeployment", name)?;
                let mut changed: ModelDeployment =
                    patched(deployment.as_ref(), &change.patch, "ModelDeployment", name)?;
                let existing = self.snapshot.replicas.iter();
                let existing = existing.filter(|replica| {
                    replica.metadata.namespace.as_deref() == Some(namespace)
                        && replica.labels().get(DEPLOYMENT_LABEL) == Some(name)
                });
                let replicas = changed.spec.replicas;
                if usize::try_from(replicas).unwrap_or(0) > existing.count() + MAX_NEW_REPLICAS {
                    return Err(PreviewError::TooManyReplicas { replicas });
                }
                let is_new = changed.spec != deployment.spec;
                count_generation(&mut changed, is_new);
                *deployment = Arc::new(changed);
                self.queue.insert(ObjectKey::new(Some(namespace), name));
            }
        }
        Ok(())
    }

    /// Marks the replicas on the node as deleted, except those of its manifest directory.
    pub(super) fn delete_replicas_on(&mut self, node: &str) {
        let here: Vec<_> = self
            .snapshot
            .replicas
            .iter()
            .filter(|replica| replica.spec.node_name.as_deref() == Some(node))
            .filter(|replica| !replica.annotations().contains_key(MIRROR_ANNOTATION))
            .map(|replica| Version::of(replica.as_ref()))
            .collect();
        let now = self.now;
        for of in here {
            self.update_replica(&of, |found| {
                found.metadata.deletion_timestamp.get_or_insert(Time(now));
            });
        }
    }

    /// Repeats the passes until none writes. Returns the reason if the passes end earlier.
    pub(super) fn settle(&mut self, must_stop: &dyn Fn() -> bool) -> Result<(), String> {
        for _ in 0..MAX_PASSES {
            if must_stop() {
                return Err("the preview ended at its time limit".to_owned());
            }
            self.fleet.follow(&self.snapshot.nodes, &self.snapshot.replicas);
            if !(self.deployments() || self.binder() || self.agents() || self.node_lifecycle()) {
                return Ok(());
            }
        }
        Err(format!("the preview ended after {MAX_PASSES} passes"))
    }

    /// Returns the replicas that a drain leaves on the node, with the reasons.
    pub(super) fn drain_obstacles(&self, node: &str) -> Vec<(ReplicaKey, String)> {
        drain_obstacles(&self.snapshot, node, self.reserve_node_failures, self.now)
    }

    fn deployments(&mut self) -> bool {
        let queue = std::mem::take(&mut self.queue);
        let mut changed = false;
        for key in queue {
            let writes = intents_for(self.fleet.fleet(), &self.snapshot, &key, self.now).writes;
            changed |= self.apply_all(writes);
            self.planned.insert(key);
        }
        changed
    }

    fn binder(&mut self) -> bool {
        let writes = binding_intents(&mut self.fleet, &self.snapshot, self.now).writes;
        self.apply_all(writes)
    }

    fn node_lifecycle(&mut self) -> bool {
        let intents = node_intents_with_reserve(&self.snapshot, self.reserve_node_failures, self.now);
        self.apply_all(intents.writes)
    }

    /// Ends the workers of deleted replicas. If there are none, starts the bound replicas.
    fn agents(&mut self) -> bool {
        let is_deleted = |replica: &Arc<ModelReplica>| replica.metadata.deletion_timestamp.is_some();
        let deleted: Vec<_> = self
            .snapshot
            .replicas
            .extract_if(.., |replica| is_deleted(replica))
            .collect();
        for replica in &deleted {
            self.enqueue_owner(replica);
        }
        if !deleted.is_empty() {
            return true;
        }
        let replicas = self.snapshot.replicas.iter();
        let starting: Vec<_> = replicas
            .filter(|replica| self.is_starting(replica))
            .cloned()
            .collect();
        for replica in &starting {
            let status = self.serving(replica);
            self.update_replica(&Version::of(replica.as_ref()), |replica| {
                replica.status = Some(status)
            });
        }
        !starting.is_empty()
    }

    /// Returns whether the agent is expected to start the replica.
    fn is_starting(&self, replica: &ModelReplica) -> bool {
        let status = replica.status.as_ref();
        let can_start = match status.map(|status| status.phase).unwrap_or_default() {
            ReplicaPhase::Pending | ReplicaPhase::Pulling | ReplicaPhase::Loading | ReplicaPhase::Warming => {
                true
            }
            ReplicaPhase::Ready | ReplicaPhase::Draining | ReplicaPhase::Succeeded | ReplicaPhase::Failed => {
                false
            }
        };
        let serves = |node: &str| {
            let node = position(&self.snapshot.nodes, (None, Some(node))).ok();
            let status = node.and_then(|at| self.snapshot.nodes[at].status.as_ref());
            status.is_some_and(|status| is_true(&status.conditions, condition_type::READY))
        };
        can_start
            && refusal(replica).is_none()
            && status.is_none_or(|status| status.restarts == 0)
            && replica.spec.node_name.as_deref().is_some_and(serves)
    }

    /// Returns the status of the started replica.
    fn serving(&mut self, replica: &ModelReplica) -> ModelReplicaStatus {
        let node = replica.spec.node_name.clone().unwrap_or_default();
        let mut status = bound_status(replica, &node, self.now);
        status.phase = ReplicaPhase::Ready;
        if status.admission.is_none() {
            let request = ReplicaRequest::new(replica);
            let speed = self.fleet.trial(|fleet, _| fleet.speed_on(&node, &request));
            status.admission = Some(AdmissionStatus {
                admitted: true,
                speed: speed.as_ref().map(speed_working),
                ..AdmissionStatus::default()
            });
        }
        for kind in [
            condition_type::ADMITTED,
            condition_type::ARTIFACTS_READY,
            condition_type::LOADED,
            condition_type::READY,
        ] {
            let generation = replica.metadata.generation;
            set_condition(
                &mut status.conditions,
                kind,
                Truth::True,
                "Serving",
                "",
                generation,
                self.now,
            );
        }
        status
    }

    fn apply_all(&mut self, writes: Vec<PlannedWrite>) -> bool {
        let mut changed = false;
        for write in writes {
            changed |= self.apply(write.intent);
        }
        changed
    }

    /// Applies a write. Returns whether it changed an object.
    fn apply(&mut self, intent: Intent) -> bool {
        let now = self.now;
        match intent {
            Intent::CreateRevision(revision) => {
                let revision = self.created(*revision);
                insert(&mut self.snapshot.revisions, revision)
            }
            Intent::DeleteRevision(of) => remove(&mut self.snapshot.revisions, &of),
            Intent::RenumberRevision { of, revision } => update(&mut self.snapshot.revisions, &of, |found| {
                found.spec.revision = revision
            })
            .is_some(),
            Intent::SetChangeCause { of, cause } => update(&mut self.snapshot.revisions, &of, |found| {
                found
                    .annotations_mut()
                    .insert(CHANGE_CAUSE_ANNOTATION.to_owned(), cause);
            })
            .is_some(),
            Intent::AdoptRevision { of, patch } => {
                update(&mut self.snapshot.revisions, &of, |found| merge(found, &patch)).is_some()
            }
            Intent::CreateReplica(replica) => {
                let replica = self.created(*replica);
                self.enqueue_owner(&replica);
                insert(&mut self.snapshot.replicas, replica)
            }
            Intent::AdoptReplica { of, patch } | Intent::AmendReplica { of, patch } => {
                self.update_replica(&of, |found| merge(found, &patch))
            }
            Intent::DeleteReplica { of, .. } => self.update_replica(&of, |found| {
                found.metadata.deletion_timestamp.get_or_insert(Time(now));
            }),
            Intent::Bind { of, node } => self.update_replica(&of, |found| found.spec.node_name = Some(node)),
            Intent::ConfirmBinding { of, node } => {
                self.update_replica(&of, |found| found.status = Some(bound_status(found, &node, now)))
            }
            Intent::ReplicaStatus { of, status } => {
                self.update_replica(&of, |found| found.status = Some(*status))
            }
            Intent::ReleaseReplica { of } => {
                let marked = self.update_replica(&of, |found| {
                    found.metadata.deletion_timestamp.get_or_insert(Time(now));
                });
                marked | remove(&mut self.snapshot.replicas, &of)
            }
            Intent::DeploymentStatus { of, status } => {
                let written = update(&mut self.snapshot.deployments, &of, |found| {
                    found.status = Some(*status)
                });
                self.queue.extend(written.as_deref().map(ObjectKey::of));
                written.is_some()
            }
            Intent::Scale { of, replicas } => {
                let written = update(&mut self.snapshot.deployments, &of, |found| {
                    found.spec.replicas = replicas
                });
                self.queue.extend(written.as_deref().map(ObjectKey::of));
                written.is_some()
            }
            Intent::NodeStatus { of, status } => update(&mut self.snapshot.nodes, &of, |found| {
                found.status = Some(*status)
            })
            .is_some(),
            // These writes change nothing on which a plan of the preview depends.
            Intent::ConfirmDeployment { .. }
            | Intent::CapacityPlanStatus { .. }
            | Intent::ClaimStatus { .. } => false,
        }
    }

    fn update_replica(&mut self, of: &Version, change: impl FnOnce(&mut ModelReplica)) -> bool {
        let written = update(&mut self.snapshot.replicas, of, change);
        if let Some(replica) = &written {
            self.enqueue_owner(replica);
        }
        written.is_some()
    }

    fn enqueue_owner(&mut self, replica: &ModelReplica) {
        let owner = replica.labels().get(DEPLOYMENT_LABEL);
        let key = owner.map(|owner| ObjectKey::new(replica.metadata.namespace.as_deref(), owner));
        self.queue.extend(key);
    }

    /// Sets the fields that the API server sets.
    fn created<K: Resource>(&mut self, mut object: K) -> K {
        self.created += 1;
        let uid = format!("preview-{}", self.created);
        let meta = object.meta_mut();
        if meta.name.as_deref().unwrap_or_default().is_empty() {
            let prefix = meta.generate_name.clone().unwrap_or_default();
            meta.name = Some(format!("{prefix}{uid}"));
        }
        meta.uid = Some(uid);
        meta.generation = Some(1);
        meta.creation_timestamp = Some(Time(self.now));
        object
    }
}

/// Namespace and name of an object.
type Name<'n> = (Option<&'n str>, Option<&'n str>);

fn sort<K: Resource>(objects: &mut [Arc<K>]) {
    objects.sort_by(|one, other| name(one.as_ref()).cmp(&name(other.as_ref())));
}

fn position<K: Resource>(objects: &[Arc<K>], key: Name<'_>) -> Result<usize, usize> {
    objects.binary_search_by(|object| name(object.as_ref()).cmp(&key))
}

fn name_of(of: &Version) -> Name<'_> {
    (of.namespace.as_deref(), Some(of.name.as_str()))
}

fn found<'o, K: Resource>(
    objects: &'o mut [Arc<K>],
    key: Name<'_>,
    kind: &'static str,
    name: &str,
) -> Result<&'o mut Arc<K>, PreviewError> {
    match position(objects, key) {
        Ok(at) => Ok(&mut objects[at]),
        Err(_) => Err(PreviewError::NotFound {
            kind,
            name: name.to_owned(),
        }),
    }
}

fn insert<K: Resource>(objects: &mut Vec<Arc<K>>, object: K) -> bool {
    match position(objects, name(&object)) {
        Ok(_) => false,
        Err(at) => {
            objects.insert(at, Arc::new(object));
            true
        }
    }
}

fn remove<K: Resource>(objects: &mut Vec<Arc<K>>, of: &Version) -> bool {
    let at = position(objects, name_of(of));
    at.map(|at| objects.remove(at)).is_ok()
}

/// Changes an object. Returns the new version, or `None` if nothing changed.
fn update<K: Resource + Clone + PartialEq>(
    objects: &mut [Arc<K>],
    of: &Version,
    change: impl FnOnce(&mut K),
) -> Option<Arc<K>> {
    let at = position(objects, name_of(of)).ok()?;
    let mut next = objects[at].as_ref().clone();
    change(&mut next);
    if next == *objects[at] {
        return None;
    }
    objects[at] = Arc::new(next);
    Some(objects[at].clone())
}

fn merge<K: Serialize + DeserializeOwned>(object: &mut K, patch: &Value) {
    let merged = serde_json::to_value(&*object).and_then(|mut value| {
        json_patch::merge(&mut value, patch);
        serde_json::from_value(value)
    });
    if let Ok(merged) = merged {
        *object = merged;
    }
}

/// Counts a new spec, as the API server does.
fn count_generation<K: Resource>(object: &mut K, is_new: bool) {
    if is_new {
        *object.meta_mut().generation.get_or_insert(0) += 1;
    }
}
