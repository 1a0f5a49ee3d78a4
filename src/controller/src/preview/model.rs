//! Copy of the fleet's objects, with the reconcilers' plans and modelled agents.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::changed::patched;
use super::{Change, ChangedObject, MAX_NEW_REPLICAS, PreviewError, ProposedChange};
use crate::autoscaler::bounds_of;
use crate::binder::{binding_intents, bound_status};
use crate::deployment::{intents_for, refusal};
use crate::fleet::{FollowedFleet, name};
use crate::intent::{Intent, PlannedWrite, Snapshot, Version};
use crate::node_lifecycle::{MISSING_GRACE, Timings, drain_obstacles, node_intents_with_reserve};
use crate::owner::controller;
use rooflet_api::conditions::{Truth, condition_type, is_true, set_condition};
use rooflet_api::meta::{CHANGE_CAUSE_ANNOTATION, DEPLOYMENT_LABEL, MIRROR_ANNOTATION};
use rooflet_api::v1alpha1::{
    AdmissionStatus, FleetNode, ModelDeployment, ModelReplica, ModelReplicaStatus, ReplicaPhase, Taint,
    TaintEffect,
};
use rooflet_base::clock::since;
use rooflet_client::ObjectKey;
use rooflet_roofline::published::speed_working;
use rooflet_scheduler::{ReplicaKey, ReplicaRequest, TolerationPeriod, toleration_period};

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
    /// Time of the change.
    start: Timestamp,
    pub(super) now: Timestamp,
    /// Node with the NoExecute taints that the change adds to it.
    tainted: Option<(String, Vec<Taint>)>,
    /// Deleted node.
    missing: Option<String>,
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
            start: now,
            now,
            tainted: None,
            missing: None,
            queue: BTreeSet::new(),
            created: 0,
        }
    }

    /// Applies the change of the user.
    pub(super) fn change(&mut self, change: &ProposedChange) -> Result<(), PreviewError> {
        match (&change.object, &change.change) {
            (ChangedObject::Node(name), Change::Delete) => self.delete_node(name)?,
            (ChangedObject::Deployment(namespace, name), Change::Delete) => {
                self.delete_deployment(namespace, name)?;
            }
            (ChangedObject::Node(name), Change::Patch(patch)) => {
                let key = (None, Some(name.as_str()));
                let node = found(&mut self.snapshot.nodes, key, "FleetNode", name)?;
                let mut changed: FleetNode = patched(node.as_ref(), patch, "FleetNode", name)?;
                let added = changed.spec.taints.iter().filter(|taint| {
                    taint.effect == TaintEffect::NoExecute && !node.spec.taints.contains(taint)
                });
                self.tainted = Some((name.clone(), added.cloned().collect()));
                let is_new = changed.spec != node.spec;
                count_generation(&mut changed, is_new);
                *node = Arc::new(changed);
            }
            (ChangedObject::Deployment(namespace, name), Change::Patch(patch)) => {
                let key = (Some(namespace.as_str()), Some(name.as_str()));
                let deployments = &mut self.snapshot.deployments;
                let deployment = found(deployments, key, "ModelDeployment", name)?;
                let mut changed: ModelDeployment =
                    patched(deployment.as_ref(), patch, "ModelDeployment", name)?;
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

    fn delete_node(&mut self, name: &str) -> Result<(), PreviewError> {
        let nodes = &mut self.snapshot.nodes;
        found(nodes, (None, Some(name)), "FleetNode", name)?;
        nodes.retain(|node| node.metadata.name.as_deref() != Some(name));
        self.missing = Some(name.to_owned());
        Ok(())
    }

    /// Deletes the deployment and its revisions, and marks its replicas as deleted, as the garbage collector does.
    fn delete_deployment(&mut self, namespace: &str, name: &str) -> Result<(), PreviewError> {
        let deployments = &mut self.snapshot.deployments;
        let key = (Some(namespace), Some(name));
        let uid = found(deployments, key, "ModelDeployment", name)?.uid();
        let is_dependent =
            |meta: &ObjectMeta| controller(meta).is_some_and(|owner| Some(&owner.uid) == uid.as_ref());
        if let Ok(at) = position(deployments, key) {
            deployments.remove(at);
        }
        let revisions = &mut self.snapshot.revisions;
        revisions.retain(|revision| !is_dependent(&revision.metadata));
        let replicas = self.snapshot.replicas.iter();
        let dependents: Vec<_> = replicas
            .filter(|replica| is_dependent(&replica.metadata))
            .map(|replica| Version::of(replica.as_ref()))
            .collect();
        self.mark_deleted(dependents);
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
        self.mark_deleted(here);
    }

    fn mark_deleted(&mut self, replicas: Vec<Version>) {
        let now = self.now;
        for of in replicas {
            self.update_replica(&of, |found| {
                found.metadata.deletion_timestamp.get_or_insert(Time(now));
            });
        }
    }

    /// Sets the replica count of the deployment to the bounds of its autoscaler, which acts some seconds after the
    /// deployment's own plan. Returns whether the count changed.
    pub(super) fn autoscale(&mut self, namespace: &str, name: &str) -> bool {
        let key = (Some(namespace), Some(name));
        let Ok(at) = position(&self.snapshot.deployments, key) else {
            return false;
        };
        let deployment = self.snapshot.deployments[at].as_ref();
        let Some(bounds) = bounds_of(deployment, self.now) else {
            return false;
        };
        let of = Version::of(deployment);
        let replicas = deployment.spec.replicas.clamp(*bounds.start(), *bounds.end());
        self.apply(Intent::Scale { of, replicas })
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

    /// Returns the periods for which replicas tolerate the taints that the change adds.
    pub(super) fn toleration_periods(&self) -> BTreeSet<Duration> {
        let Some((node, taints)) = &self.tainted else {
            return BTreeSet::new();
        };
        let replicas = self.snapshot.replicas.iter();
        let here = replicas.filter(|replica| replica.spec.node_name.as_ref() == Some(node));
        let periods = here.flat_map(|replica| {
            let tolerations = &replica.spec.placement.tolerations;
            taints.iter().map(|taint| toleration_period(taint, tolerations))
        });
        periods
            .filter_map(|period| match period {
                TolerationPeriod::Limited(limit) => Some(limit),
                TolerationPeriod::None | TolerationPeriod::Unlimited => None,
            })
            .collect()
    }

    /// Sets the time since the change.
    pub(super) fn advance(&mut self, elapsed: Duration) {
        // A time beyond the range of timestamps changes no decision.
        self.now = self.start.checked_add(elapsed).unwrap_or(self.now);
    }

    pub(super) fn live_replicas(&self) -> BTreeSet<ReplicaKey> {
        let replicas = self.snapshot.replicas.iter();
        let live = replicas.filter(|replica| replica.metadata.deletion_timestamp.is_none());
        live.map(|replica| ReplicaKey::of(replica.as_ref())).collect()
    }

    /// Returns the times since the change. No heartbeat is late.
    fn timings(&self) -> Timings {
        let mut timings = Timings::default();
        let elapsed = since(self.now, self.start);
        if let Some((node, taints)) = &self.tainted {
            let taints = taints.iter().map(|taint| (taint.clone(), elapsed));
            timings.tainted.insert(node.clone(), taints.collect());
        }
        let missing = self.missing.iter();
        timings
            .missing
            .extend(missing.map(|node| (node.clone(), MISSING_GRACE)));
        timings
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
        let reserve = self.reserve_node_failures;
        let intents = node_intents_with_reserve(&self.snapshot, self.timings(), reserve, self.now);
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
