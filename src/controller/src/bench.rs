//! Synthetic large fleet for benchmarks of the controllers: the plans of all reconcilers, without
//! an API server. The trial applies the planned writes to its own objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use kube::Resource;
use serde_json::json;

use super::binder::{binding_intents, bound_status};
use super::deployment::intents_for;
use super::index::{Effects, Index};
use super::intent::{Intent, PlannedWrite, Snapshot};
use super::node_lifecycle::{Timings, node_intents};
use super::queue::{Priority, WorkQueue};
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelReplicaStatus, ModelRevision};
use rooflet_base::clock::Clock;
use rooflet_client::{Change, ObjectKey};
use rooflet_scheduler::bench::{demand, macs};

/// Replicas of each deployment.
const PER_DEPLOYMENT: usize = 5;
/// Namespace of all objects.
const NAMESPACE: &str = "default";

/// Objects, as the caches hold them, and the index that follows them.
#[derive(Debug)]
pub struct ControlTrial {
    nodes: BTreeMap<ObjectKey, Arc<FleetNode>>,
    deployments: BTreeMap<ObjectKey, Arc<ModelDeployment>>,
    revisions: BTreeMap<ObjectKey, Arc<ModelRevision>>,
    replicas: BTreeMap<ObjectKey, Arc<ModelReplica>>,
    index: Index,
    /// Deployments whose plan may differ.
    queue: WorkQueue,
    began: Instant,
    /// Number of replicas that passes of the binder tried to place.
    tried: usize,
    /// Number of writes, which is also the resourceVersion of the last written object.
    writes: u64,
}

impl ControlTrial {
    /// Creates a fleet of `nodes` Macs and as many deployments of 5 replicas each. Nothing is
    /// placed.
    ///
    /// # Panics
    /// If a generated object is invalid.
    pub fn new(nodes: usize) -> Self {
        let mut trial = Self {
            nodes: BTreeMap::new(),
            deployments: BTreeMap::new(),
            revisions: BTreeMap::new(),
            replicas: BTreeMap::new(),
            index: Index::new(0),
            queue: WorkQueue::default(),
            began: Clock::System.instant(),
            tried: 0,
            writes: 0,
        };
        for node in macs(nodes) {
            trial.nodes.insert(ObjectKey::of(&node), Arc::new(node));
        }
        for number in 0..nodes {
            let deployment = trial.stamped(deployment(number));
            trial
                .deployments
                .insert(ObjectKey::of(&deployment), Arc::new(deployment));
        }
        trial
    }

    /// Builds the index of all objects and runs the passes of all reconcilers for all of them.
    /// Returns the number of writes.
    pub fn full_pass(&mut self) -> usize {
        self.index = Index::new(0);
        let mut effects = Effects::default();
        for (key, object) in &self.nodes {
            self.index.apply_node(&change(key, object), &mut effects);
        }
        for (key, object) in &self.deployments {
            self.index.apply_deployment(&change(key, object), &mut effects);
        }
        for (key, object) in &self.revisions {
            self.index.apply_revision(&change(key, object), &mut effects);
        }
        for (key, object) in &self.replicas {
            self.index.apply_replica(&change(key, object), &mut effects);
        }
        for key in self.deployments.keys() {
            self.queue.add(key.clone(), Priority::Resync);
        }
        let writes = self.writes;
        self.settle();
        let snapshot = Snapshot {
            nodes: self.nodes.values().cloned().collect(),
            deployments: self.deployments.values().cloned().collect(),
            replicas: self.replicas.values().cloned().collect(),
            ..Snapshot::default()
        };
        let planned = node_intents(&snapshot, Timings::default(), now()).writes;
        assert!(planned.is_empty(), "all nodes are Ready");
        usize::try_from(self.writes - writes).unwrap_or(usize::MAX)
    }

    /// Returns the number of bound replicas.
    pub fn bound(&self) -> usize {
        let is_bound = |replica: &&Arc<ModelReplica>| replica.spec.node_name.is_some();
        self.replicas.values().filter(is_bound).count()
    }

    /// Changes the replica count of one deployment by one, and runs the passes that this causes
    /// until nothing is left to write. Returns the number of writes.
    ///
    /// # Panics
    /// If the trial has no deployments.
    pub fn scale_one(&mut self, turn: usize) -> usize {
        let number = (turn * 7919) % self.deployments.len();
        let key = ObjectKey::new(Some(NAMESPACE), &name(number));
        let mut changed = self.deployments[&key].as_ref().clone();
        changed.spec.replicas += if turn.is_multiple_of(2) { 1 } else { -1 };
        changed.metadata.generation = changed.metadata.generation.map(|generation| generation + 1);
        let writes = self.writes;
        self.put_deployment(changed);
        self.settle();
        usize::try_from(self.writes - writes).unwrap_or(usize::MAX)
    }

    /// Cordons or uncordons one node, and runs the passes that this causes. Returns the number of
    /// writes.
    ///
    /// # Panics
    /// If the trial has no nodes.
    pub fn cordon_one(&mut self, turn: usize) -> usize {
        let number = (turn / 2 * 7919) % self.nodes.len();
        let writes = self.writes;
        if let Some((key, node)) = self.nodes.iter().nth(number) {
            let mut changed = node.as_ref().clone();
            changed.spec.unschedulable = turn.is_multiple_of(2);
            let (key, changed) = (key.clone(), Arc::new(changed));
            let mut effects = Effects::default();
            self.index.apply_node(&change(&key, &changed), &mut effects);
            self.nodes.insert(key, changed);
            self.enqueue(effects);
        }
        self.settle();
        usize::try_from(self.writes - writes).unwrap_or(usize::MAX)
    }

    /// Runs passes until no deployment is queued and the binder writes nothing.
    fn settle(&mut self) {
        loop {
            while let Some(key) = self.queue.take(self.began) {
                if let Some(snapshot) = self.index.deployments.snapshot(&key) {
                    let intents = intents_for(self.index.fleet.fleet(), &snapshot, &key, now());
                    self.apply(intents.writes);
                }
                self.queue.finish(&key);
            }
            let snapshot = Snapshot {
                replicas: self.index.fleet.candidates(now()),
                ..Snapshot::default()
            };
            self.tried += snapshot.replicas.len();
            let intents = binding_intents(&mut self.index.fleet, &snapshot, now());
            if intents.writes.is_empty() {
                return;
            }
            self.apply(intents.writes);
        }
    }

    fn apply(&mut self, writes: Vec<PlannedWrite>) {
        for write in writes {
            match write.intent {
                Intent::CreateRevision(revision) => self.put_revision(*revision),
                Intent::CreateReplica(replica) => {
                    let mut replica = *replica;
                    let prefix = replica.metadata.generate_name.take().unwrap_or_default();
                    replica.metadata.name = Some(format!("{prefix}{}", self.writes));
                    replica.metadata.uid = None;
                    self.put_replica(replica);
                }
                Intent::DeploymentStatus { of, status } => {
                    if let Some(known) = self.deployments.get(&key_of(&of.name)) {
                        let mut changed = known.as_ref().clone();
                        changed.status = Some(*status);
                        self.put_deployment(changed);
                    }
                }
                Intent::Bind { of, node } => {
                    if let Some(known) = self.replicas.get(&key_of(&of.name)) {
                        let mut changed = known.as_ref().clone();
                        changed.status = Some(ready(bound_status(known, &node, now())));
                        changed.spec.node_name = Some(node);
                        self.put_replica(changed);
                    }
                }
                Intent::ReplicaStatus { of, status } => {
                    if let Some(known) = self.replicas.get(&key_of(&of.name)) {
                        let mut changed = known.as_ref().clone();
                        changed.status = Some(*status);
                        self.put_replica(changed);
                    }
                }
                Intent::DeleteReplica { of, .. } => self.remove_replica(&key_of(&of.name)),
                // The status of a bound replica already contains the confirmation. No object of the
                // trial causes the other writes.
                Intent::ConfirmBinding { .. }
                | Intent::DeleteRevision(_)
                | Intent::RenumberRevision { .. }
                | Intent::SetChangeCause { .. }
                | Intent::ConfirmDeployment { .. }
                | Intent::AdoptRevision { .. }
                | Intent::AdoptReplica { .. }
                | Intent::AmendReplica { .. }
                | Intent::Scale { .. }
                | Intent::NodeStatus { .. }
                | Intent::CapacityPlanStatus { .. }
                | Intent::ClaimStatus { .. }
                | Intent::ReleaseReplica { .. } => {}
            }
        }
    }

    /// Sets the fields that an API server sets.
    fn stamped<K: Resource>(&mut self, mut object: K) -> K {
        self.writes += 1;
        let writes = self.writes;
        let meta = object.meta_mut();
        meta.namespace = Some(NAMESPACE.to_owned());
        meta.resource_version = Some(writes.to_string());
        meta.uid.get_or_insert_with(|| format!("uid-{writes}"));
        meta.generation.get_or_insert(1);
        object
    }

    fn put_deployment(&mut self, object: ModelDeployment) {
        let object = Arc::new(self.stamped(object));
        let key = ObjectKey::of(object.as_ref());
        let mut effects = Effects::default();
        self.index.apply_deployment(&change(&key, &object), &mut effects);
        self.deployments.insert(key, object);
        self.enqueue(effects);
    }

    fn put_revision(&mut self, object: ModelRevision) {
        let object = Arc::new(self.stamped(object));
        let key = ObjectKey::of(object.as_ref());
        let mut effects = Effects::default();
        self.index.apply_revision(&change(&key, &object), &mut effects);
        self.revisions.insert(key, object);
        self.enqueue(effects);
    }

    fn put_replica(&mut self, object: ModelReplica) {
        let object = Arc::new(self.stamped(object));
        let key = ObjectKey::of(object.as_ref());
        let mut effects = Effects::default();
        self.index.apply_replica(&change(&key, &object), &mut effects);
        self.replicas.insert(key, object);
        self.enqueue(effects);
    }

    fn remove_replica(&mut self, key: &ObjectKey) {
        self.writes += 1;
        let mut effects = Effects::default();
        let gone = Change {
            key: key.clone(),
            object: None,
        };
        self.index.apply_replica(&gone, &mut effects);
        self.replicas.remove(key);
        self.enqueue(effects);
    }

    fn enqueue(&mut self, effects: Effects) {
        for (key, priority) in effects.deployments {
            self.queue.add(key, priority);
        }
    }
}

fn change<K>(key: &ObjectKey, object: &Arc<K>) -> Change<K> {
    Change {
        key: key.clone(),
        object: Some(object.clone()),
    }
}

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

fn name(number: usize) -> String {
    format!("d{number:05}")
}

fn key_of(name: &str) -> ObjectKey {
    ObjectKey::new(Some(NAMESPACE), name)
}

fn deployment(number: usize) -> ModelDeployment {
    let (model, context_tokens, max_concurrency, decode) = demand(number);
    let spec = json!({
        "replicas": PER_DEPLOYMENT,
        "model": { "source": format!("local://{model}") },
        "serving": { "contextTokens": context_tokens, "maxConcurrency": max_concurrency },
        "objectives": { "decodeTokensPerSecond": decode },
    });
    let spec = serde_json::from_value(spec).expect("a valid spec");
    ModelDeployment::new(&name(number), spec)
}

/// Returns the status of a replica that serves requests.
fn ready(mut status: ModelReplicaStatus) -> ModelReplicaStatus {
    for kind in [condition_type::ADMITTED, condition_type::READY] {
        set_condition(
            &mut status.conditions,
            kind,
            Truth::True,
            "Serving",
            "",
            None,
            now(),
        );
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_tries_only_replicas_that_it_can_help() {
        const NODES: usize = 60;
        let mut trial = ControlTrial::new(NODES);
        trial.full_pass();
        let waiting = trial.replicas.len() - trial.bound();
        assert!(waiting > 30, "{waiting} replicas wait");
        trial.tried = 0;
        let changes = 40;
        for turn in 0..changes {
            trial.scale_one(turn);
        }
        let tried = trial.tried;
        assert!(
            tried < 8 * changes,
            "{changes} changes try {tried} replicas, {waiting} wait"
        );
        let bound = trial.bound();
        trial.full_pass();
        assert_eq!(
            trial.bound(),
            bound,
            "a pass over all replicas binds no other replica"
        );
    }
}
