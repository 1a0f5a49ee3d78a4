//! Invariants of single writes to objects.

use std::sync::Arc;

use kube::ResourceExt;

use crate::network::Network;
use crate::rules::Rules;
use crate::rules::bounds::is_serving;
use crate::rules::observed::observed_by;
use crate::world::World;
use crate::world::controller::is_silent;
use crate::world::event::Reconciler;
use crate::world::store::{Change, Object};
use rooflet_api::conditions::condition_type;
use rooflet_api::meta::{DEPLOYMENT_LABEL, REPLICA_FINALIZER, REVISION_LABEL, TEMPLATE_HASH_LABEL};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelDeploymentSpec, ModelReplica, ModelRevision};

/// Returns the largest number of replicas during a rolling update: desired plus surge.
pub(super) fn max_replicas(spec: &ModelDeploymentSpec) -> usize {
    let desired = usize::try_from(spec.replicas).unwrap_or(0);
    let strategy = serde_json::to_value(&spec.strategy).unwrap_or_default();
    let surge = &strategy["rollingUpdate"]["maxSurge"];
    let percent = surge
        .as_str()
        .and_then(|text| text.strip_suffix('%')?.parse::<usize>().ok());
    let surge = match percent {
        Some(percent) => (desired * percent).div_ceil(100),
        None => surge
            .as_u64()
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(0),
    };
    desired + surge
}

/// Returns true if the agent has rejected the replica. The deployment creates another one.
fn is_rejected(replica: &ModelReplica) -> bool {
    let conditions = replica.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == condition_type::ADMITTED && condition.status == "False")
}

fn observed_generation_of_deployment(deployment: &ModelDeployment) -> Option<i64> {
    let status = deployment.status.as_ref();
    status.and_then(|status| status.observed_generation)
}

fn observed_generation_of_replica(replica: &ModelReplica) -> Option<i64> {
    let status = replica.status.as_ref();
    status.and_then(|status| status.observed_generation)
}

impl Rules {
    /// Checks a write that changed an object.
    pub(crate) fn check_change(&mut self, world: &World<'_>, network: &Network<'_>, change: &Change) {
        match (&change.object, &change.before) {
            (Object::Replica(replica), before) => {
                let before = match before {
                    Some(Object::Replica(before)) => Some(before),
                    Some(_) | None => None,
                };
                self.note_serving(world, replica, before, change.deleted);
                self.check_replica(world, network, replica, before.map(AsRef::as_ref), change.deleted);
            }
            (Object::Deployment(deployment), Some(Object::Deployment(before))) => {
                let observed = observed_generation_of_deployment;
                self.check_generations(
                    world,
                    &deployment.name_any(),
                    observed(before),
                    observed(deployment),
                );
                self.note_bounds(world.now, before, deployment);
            }
            (Object::Revision(revision), None) if !change.deleted => self.check_revision(world, revision),
            (Object::Node(node), Some(Object::Node(before))) => self.check_node_change(world, node, before),
            (Object::Node(_) | Object::Deployment(_) | Object::Revision(_), _) => {}
        }
    }

    /// Checks a write that the API server lost when it crashed. `reverted` restores the state
    /// before the write.
    pub(crate) fn check_lost(&mut self, world: &World<'_>, reverted: &Change) {
        let observed = self.observed_revision;
        let Some(revision) = reverted.before.as_ref().map(Object::version) else {
            return;
        };
        if revision <= observed {
            let message =
                format!("revision {revision} is lost, and a process had received revision {observed}");
            self.report(world.now, "acknowledged writes are never lost", message);
        }
    }

    fn check_node_change(&mut self, world: &World<'_>, node: &FleetNode, before: &FleetNode) {
        let name = node.name_any();
        if is_silent(node) && !is_silent(before) {
            self.check_silence(world, &name);
        }
        if let Some(index) = world.by_name.get(&name) {
            self.note_evicting_node(world.now, *index, before);
        }
    }

    fn check_revision(&mut self, world: &World<'_>, revision: &ModelRevision) {
        let label = |name: &str| revision.labels().get(name);
        let mut twins = world.store.revisions.values().filter(|other| {
            other.name_any() != revision.name_any()
                && other.labels().get(DEPLOYMENT_LABEL) == label(DEPLOYMENT_LABEL)
                && (other.spec.revision == revision.spec.revision
                    || other.labels().get(TEMPLATE_HASH_LABEL) == label(TEMPLATE_HASH_LABEL))
        });
        if let Some(twin) = twins.next() {
            let message = format!(
                "{} has the number or the template of {}",
                revision.name_any(),
                twin.name_any()
            );
            self.report(world.now, "a revision is created once", message);
        }
    }

    fn check_generations(&mut self, world: &World<'_>, name: &str, before: Option<i64>, after: Option<i64>) {
        if after < before {
            let message = format!("the status of {name} changed from generation {before:?} to {after:?}");
            self.report(
                world.now,
                "a lower generation never overrides a higher one",
                message,
            );
        }
    }

    fn check_replica(
        &mut self,
        world: &World<'_>,
        network: &Network<'_>,
        replica: &Arc<ModelReplica>,
        before: Option<&ModelReplica>,
        deleted: bool,
    ) {
        let name = replica.name_any();
        let node = replica.spec.node_name.as_deref();
        let Some(before) = before else {
            self.check_count(world, network, replica);
            return;
        };
        let previous = before.spec.node_name.as_deref();
        if previous.is_some() && previous != node {
            let message = format!(
                "the node of {name} changed from {} to {}",
                previous.unwrap_or("none"),
                node.unwrap_or("none")
            );
            self.report(world.now, "spec.nodeName is written once", message);
        }
        let observed = observed_generation_of_replica;
        self.check_generations(world, &name, observed(before), observed(replica));
        if is_rejected(before) && !is_rejected(replica) {
            self.readmitted.insert(name, world.now);
        }
        if previous.is_none() && node.is_some() {
            self.check_reservations(world, node.unwrap_or_default());
        }
        let held = |replica: &ModelReplica| replica.finalizers().iter().any(|name| name == REPLICA_FINALIZER);
        if (held(before) && !held(replica) || deleted)
            && let Some(node) = previous
        {
            self.check_release(world, replica, node);
        }
    }

    /// Checks the removal of a replica's finalizer: its worker has exited. Exception: a user has
    /// deleted the FleetNode.
    fn check_release(&mut self, world: &World<'_>, replica: &ModelReplica, node: &str) {
        let Some(index) = world.by_name.get(node) else {
            return;
        };
        let uid = replica.uid().unwrap_or_default();
        let runs = world.nodes[*index]
            .workers
            .values()
            .any(|worker| worker.uid == uid);
        let has_node = world.store.nodes.contains_key(&(None, node.to_owned()));
        if runs && has_node {
            let message = format!("the worker of {} still runs on {node}", replica.name_any());
            self.report(
                world.now,
                "a finalizer is removed only after the worker exits",
                message,
            );
        }
    }

    /// Checks the number of a deployment's replicas after a creation.
    fn check_count(&mut self, world: &World<'_>, network: &Network<'_>, replica: &ModelReplica) {
        let Some(name) = replica.labels().get(DEPLOYMENT_LABEL) else {
            return;
        };
        let key = (replica.namespace(), name.clone());
        let Some(deployment) = world.store.deployments.get(&key) else {
            return;
        };
        let observed = observed_by(world, network, Reconciler::Deployment);
        // The deployment may have replaced a rejected replica before it observed the admission.
        let was_rejected = |other: &ModelReplica| {
            let readmitted = self.readmitted.get(&other.name_any());
            is_rejected(other) || readmitted.is_some_and(|at| *at >= observed)
        };
        let active = world.store.replicas.values().filter(|other| {
            other.labels().get(DEPLOYMENT_LABEL) == Some(name)
                && other.metadata.deletion_timestamp.is_none()
                && !was_rejected(other)
        });
        let (count, max) = (active.count(), max_replicas(&deployment.spec));
        // The plan may be based on an earlier spec with more replicas.
        let is_outdated = deployment.metadata.generation != observed_generation_of_deployment(deployment);
        let is_stale = world.control.was_recently_stale(world.now);
        if count > max + self.unacknowledged_creations && !is_outdated && !is_stale {
            let message = format!("{name} has {count} replicas; the maximum is {max}");
            self.report(
                world.now,
                "there are never more replicas than desired plus surge",
                message,
            );
        }
    }

    /// Checks that the revision of a new replica exists. Exception: the deployment is deleted.
    pub(super) fn check_created(&mut self, world: &World<'_>, replica: &ModelReplica) {
        let label = |name: &str| replica.labels().get(name).cloned().unwrap_or_default();
        let namespace = replica.namespace();
        let revision = (namespace.clone(), label(REVISION_LABEL));
        let deployment = (namespace, label(DEPLOYMENT_LABEL));
        let is_orphaned = !world.store.deployments.contains_key(&deployment);
        if !world.store.revisions.contains_key(&revision) && !is_orphaned && !self.by_former_leader {
            let message = format!(
                "{} is created without its revision {}",
                replica.name_any(),
                revision.1
            );
            self.report(world.now, "a replica is created after its revision", message);
        }
    }

    /// Records the time at which a replica started or stopped serving.
    fn note_serving(
        &mut self,
        world: &World<'_>,
        replica: &ModelReplica,
        before: Option<&Arc<ModelReplica>>,
        deleted: bool,
    ) {
        let uid = replica.uid().unwrap_or_default();
        let served = before.filter(|before| is_serving(before));
        match served {
            None if is_serving(replica) => {
                self.serving_since.insert(uid, world.now);
            }
            Some(before) if (deleted || !is_serving(replica)) && !self.own_deletes.contains(&uid) => {
                self.note_lost_replica(world.now, before);
            }
            Some(_) | None => {}
        }
    }
}
