//! Execution of planned writes through the API server. The list contains the order, the conditions
//! and the events of the writes, so the executor makes no decisions.

use std::sync::Arc;

use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::binder::binding::bound_status;
use super::fleet::name;
use super::intent::{
    Deletion, EmitOn, FailedBatches, Intent, PlannedEvent, PlannedWrite, Regarding, Snapshot, Version,
};
use super::owner::controller;
use super::world::World;
use rooflet_api::meta::{CHANGE_CAUSE_ANNOTATION, REPLICA_FINALIZER};
use rooflet_api::v1alpha1::{ModelReplica, ModelRevision, ModelSource};
use rooflet_client::ApiError;

/// Maximum number of repeated writes of the condition Scheduled after conflicts.
const MAX_CONFIRM_RETRIES: usize = 3;

/// Executor of the writes of one pass. The writes refer to objects of `snapshot`.
pub(super) struct Executor<'a> {
    world: &'a World,
    snapshot: &'a Snapshot,
    failed: FailedBatches,
}

/// Result of a successful write.
enum Outcome {
    Changed,
    Unchanged,
    /// The write created an object with this name.
    Created(String),
    /// The object that the batch depends on does not exist.
    Absent,
}

impl Outcome {
    fn changed(is_changed: bool) -> Self {
        match is_changed {
            true => Self::Changed,
            false => Self::Unchanged,
        }
    }
}

impl<'a> Executor<'a> {
    pub(super) fn new(world: &'a World, snapshot: &'a Snapshot) -> Self {
        Self {
            world,
            snapshot,
            failed: FailedBatches::default(),
        }
    }

    /// Executes the writes in order and returns the failures. A failure skips only the writes that
    /// depend on it.
    pub(super) async fn run(&mut self, writes: impl IntoIterator<Item = PlannedWrite>) -> Vec<ApiError> {
        let mut failures = Vec::new();
        for write in writes {
            if self.failed.skip(&write.dependency) {
                continue;
            }
            match self.execute(&write.intent).await {
                Ok(Outcome::Absent) => self.failed.record(&write.dependency),
                Ok(outcome) => {
                    for event in &write.events {
                        self.emit(event, &outcome);
                    }
                }
                Err(err) => {
                    self.failed.record(&write.dependency);
                    failures.push(err);
                }
            }
        }
        failures
    }

    async fn execute(&self, intent: &Intent) -> Result<Outcome, ApiError> {
        let (world, snapshot) = (self.world, self.snapshot);
        match intent {
            Intent::DeleteRevision(of) => {
                if let Some(revision) = find(&snapshot.revisions, of) {
                    world.delete(&world.revisions, revision).await?;
                }
                Ok(Outcome::Changed)
            }
            Intent::CreateRevision(revision) => {
                let created = world.create(&world.revisions, revision.as_ref()).await?;
                self.invalidate_hub_answer(revision);
                Ok(Outcome::Created(created.name_any()))
            }
            Intent::RenumberRevision { of, revision } => {
                let patch = json!({ "spec": { "revision": revision } });
                self.patch_revision(of, patch).await
            }
            Intent::SetChangeCause { of, cause } => {
                let patch = json!({ "metadata": { "annotations": { CHANGE_CAUSE_ANNOTATION: cause } } });
                self.patch_revision(of, patch).await
            }
            Intent::ConfirmDeployment { of } => match find(&snapshot.deployments, of) {
                Some(deployment) if world.exists(deployment).await? => Ok(Outcome::Unchanged),
                Some(_) | None => Ok(Outcome::Absent),
            },
            Intent::AdoptRevision { of, patch } => {
                if let Some(revision) = find(&snapshot.revisions, of) {
                    world.patch(&world.revisions, revision, patch).await?;
                }
                Ok(Outcome::Changed)
            }
            Intent::AdoptReplica { of, patch } | Intent::AmendReplica { of, patch } => {
                if let Some(replica) = find(&snapshot.replicas, of) {
                    world.patch(&world.replicas, replica, patch).await?;
                }
                Ok(Outcome::Changed)
            }
            Intent::DeleteReplica { of, why } => {
                if let Some(replica) = find(&snapshot.replicas, of) {
                    match why {
                        // The node may have sent a heartbeat since the plan was computed.
                        Deletion::Eviction => world.delete_unchanged(&world.replicas, replica).await?,
                        Deletion::Deployment | Deletion::Preemption => {
                            world.delete(&world.replicas, replica).await?;
                        }
                    }
                }
                Ok(Outcome::Changed)
            }
            Intent::CreateReplica(replica) => {
                let created = world.create(&world.replicas, replica.as_ref()).await?;
                Ok(Outcome::Created(created.name_any()))
            }
            Intent::DeploymentStatus { of, status } => match find(&snapshot.deployments, of) {
                Some(deployment) => {
                    let changed = world.status(&world.deployments, deployment, status).await?;
                    Ok(Outcome::changed(changed))
                }
                None => Ok(Outcome::Unchanged),
            },
            Intent::Scale { of, replicas } => self.scale(of, *replicas).await,
            Intent::Bind { of, node } => {
                if let Some(replica) = find(&snapshot.replicas, of) {
                    world
                        .patch(&world.replicas, replica, &binding(replica, node))
                        .await?;
                }
                Ok(Outcome::Changed)
            }
            Intent::ConfirmBinding { of, node } => self.confirm_binding(of, node).await,
            Intent::ReplicaStatus { of, status } => match find(&snapshot.replicas, of) {
                Some(replica) => {
                    let changed = world.status(&world.replicas, replica, status).await?;
                    Ok(Outcome::changed(changed))
                }
                None => Ok(Outcome::Unchanged),
            },
            Intent::NodeStatus { of, status } => match find(&snapshot.nodes, of) {
                Some(node) => Ok(Outcome::changed(world.node_status(node, status).await?)),
                None => Ok(Outcome::Unchanged),
            },
            Intent::CapacityPlanStatus { of, status } => match find(&snapshot.plans, of) {
                Some(plan) => {
                    let changed = world.status(&world.plans, plan, status).await?;
                    Ok(Outcome::changed(changed))
                }
                None => Ok(Outcome::Unchanged),
            },
            Intent::ClaimStatus { of, status } => match find(&snapshot.claims, of) {
                Some(claim) => {
                    let changed = world.status(&world.claims, claim, status).await?;
                    Ok(Outcome::changed(changed))
                }
                None => Ok(Outcome::Unchanged),
            },
            Intent::ReleaseReplica { of } => match find(&snapshot.replicas, of) {
                Some(replica) => self.release(replica).await,
                None => Ok(Outcome::Absent),
            },
        }
    }

    /// Writes the condition Scheduled of a bound replica. The node's agent often writes the status at
    /// the same time, so a conflict is repeated with the newest version.
    async fn confirm_binding(&self, of: &Version, node: &str) -> Result<Outcome, ApiError> {
        let (world, replicas) = (self.world, &self.world.replicas);
        let mut attempts = 0;
        loop {
            let bound = replicas.get(of.namespace.as_deref(), &of.name);
            let Some(bound) = bound.filter(|bound| bound.uid().as_deref() == Some(of.uid.as_str())) else {
                return Ok(Outcome::Unchanged);
            };
            let status = bound_status(&bound, node, world.clock.now());
            match world.status(replicas, bound.as_ref(), &status).await {
                Err(ApiError::Conflict(_)) if attempts < MAX_CONFIRM_RETRIES => {
                    attempts += 1;
                    world.refresh(replicas, of).await?;
                }
                written => return Ok(Outcome::changed(written?)),
            }
        }
    }

    /// Patches the newest known version of a revision. The server rejects the patch if the revision
    /// has changed since.
    async fn patch_revision(&self, of: &Version, mut patch: Value) -> Result<Outcome, ApiError> {
        let revisions = &self.world.revisions;
        let Some(found) = revisions.get(of.namespace.as_deref(), &of.name) else {
            return Ok(Outcome::Unchanged);
        };
        patch["metadata"]["resourceVersion"] = json!(found.resource_version());
        self.world.patch(revisions, found.as_ref(), &patch).await?;
        Ok(Outcome::Changed)
    }

    /// Patches the newest known version of the deployment, because the same pass may have written
    /// the status.
    async fn scale(&self, of: &Version, replicas: i32) -> Result<Outcome, ApiError> {
        let deployments = &self.world.deployments;
        let newest = deployments.get(of.namespace.as_deref(), &of.name);
        let Some(known) = newest.as_deref().or_else(|| find(&self.snapshot.deployments, of)) else {
            return Ok(Outcome::Unchanged);
        };
        let patch = json!({
            "metadata": { "resourceVersion": known.resource_version() },
            "spec": { "replicas": replicas },
        });
        self.world.patch(deployments, known, &patch).await?;
        Ok(Outcome::Changed)
    }

    /// Deletes the replica and removes the agent's finalizer, unless the node exists on the server.
    async fn release(&self, replica: &ModelReplica) -> Result<Outcome, ApiError> {
        // If the node exists, its agent registered again and the worker may still run.
        if let Some(node) = &replica.spec.node_name
            && self.world.has_node(node).await?
        {
            return Ok(Outcome::Absent);
        }
        if replica.metadata.deletion_timestamp.is_none() {
            self.world.delete(&self.world.replicas, replica).await?;
        }
        self.remove_finalizer(replica).await?;
        Ok(Outcome::Changed)
    }

    /// Removes the finalizer from the newest known version of the replica.
    async fn remove_finalizer(&self, replica: &ModelReplica) -> Result<(), ApiError> {
        let replicas = &self.world.replicas;
        let Some(newest) = replicas.get(replica.namespace().as_deref(), &replica.name_any()) else {
            return Ok(());
        };
        let left: Vec<_> = newest
            .finalizers()
            .iter()
            .filter(|name| *name != REPLICA_FINALIZER)
            .collect();
        let patch = json!({
            "metadata": {
                "resourceVersion": newest.metadata.resource_version,
                "finalizers": left,
            },
        });
        match self.world.patch(replicas, newest.as_ref(), &patch).await {
            Ok(_) if left.is_empty() => {
                replicas.deleted(&newest);
                Ok(())
            }
            Ok(_) | Err(ApiError::NotFound(_)) => Ok(()),
            Err(err) => Err(err),
        }
    }

    /// Removes the hub's answer that the revision stores from the cache. A branch may resolve to
    /// another commit next time.
    fn invalidate_hub_answer(&self, revision: &ModelRevision) {
        let owner = controller(&revision.metadata).map(|owner| owner.uid.as_str());
        let mut deployments = self.snapshot.deployments.iter();
        let deployment = deployments.find(|deployment| deployment.metadata.uid.as_deref() == owner);
        if let Some(Ok(ModelSource::Hub(model))) = deployment.map(|deployment| deployment.spec.model.parse())
        {
            self.world.hub.invalidate(&model);
        }
    }

    fn emit(&self, event: &PlannedEvent, outcome: &Outcome) {
        let message = match (event.on, outcome) {
            (EmitOn::Creation, Outcome::Created(name)) => format!("{}{name}", event.message),
            (EmitOn::Success, _) | (EmitOn::Change, Outcome::Changed | Outcome::Created(_)) => {
                event.message.clone()
            }
            (EmitOn::Creation | EmitOn::Change, _) => return,
        };
        let (snapshot, recorder) = (self.snapshot, &self.world.recorder);
        let (kind, reason) = (event.kind, event.reason.as_str());
        match &event.regarding {
            Regarding::Node(of) => {
                if let Some(node) = find(&snapshot.nodes, of) {
                    recorder.publish(node, kind, reason, message);
                }
            }
            Regarding::Deployment(of) => {
                if let Some(deployment) = find(&snapshot.deployments, of) {
                    recorder.publish(deployment, kind, reason, message);
                }
            }
            Regarding::Replica(of) => {
                if let Some(replica) = find(&snapshot.replicas, of) {
                    recorder.publish(replica, kind, reason, message);
                }
            }
            Regarding::CapacityPlan(of) => {
                if let Some(plan) = find(&snapshot.plans, of) {
                    recorder.publish(plan, kind, reason, message);
                }
            }
            Regarding::Claim(of) => {
                if let Some(claim) = find(&snapshot.claims, of) {
                    recorder.publish(claim, kind, reason, message);
                }
            }
        }
    }
}

/// Returns the patch that binds the replica to the node. The patch adds the agent's finalizer: only
/// the agent can confirm that the worker has released its memory.
fn binding(replica: &ModelReplica, node: &str) -> Value {
    let mut finalizers = replica.finalizers().to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == REPLICA_FINALIZER) {
        finalizers.push(REPLICA_FINALIZER.to_owned());
    }
    json!({
        "metadata": {
            "resourceVersion": replica.metadata.resource_version,
            "finalizers": finalizers,
        },
        "spec": { "nodeName": node },
    })
}

/// Returns the object of this namespace, name and UID. `objects` are ordered by namespace and name.
pub(super) fn find<'s, K: Resource>(objects: &'s [Arc<K>], of: &Version) -> Option<&'s K> {
    let key = (of.namespace.as_deref(), Some(of.name.as_str()));
    let at = objects.binary_search_by(|object| name(object.as_ref()).cmp(&key));
    let found = objects.get(at.ok()?)?.as_ref();
    (found.meta().uid.as_deref() == Some(of.uid.as_str())).then_some(found)
}

#[cfg(test)]
mod tests;
