//! Fleet model of the scheduler, updated incrementally from nodes and replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::{Resource, ResourceExt};

use crate::binder::candidate::{Unplaced, is_candidate};
use crate::deployment::refusal;
use crate::node_lifecycle::moves_to;
use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_client::ObjectKey;
use rooflet_scheduler::{Fleet, ReplicaKey, ReplicaRequest, UnschedulableQueue, is_overridden};

/// Objects of one kind at the last update.
#[derive(Debug)]
pub(super) struct Objects<K>(BTreeMap<ObjectKey, Arc<K>>);

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Resource> Objects<K> {
    /// Adds, replaces or, with `None`, removes an object. Returns the earlier version, or `None`
    /// within `Some` if there was none; returns `None` if nothing changed.
    pub(super) fn set(&mut self, key: &ObjectKey, object: Option<&Arc<K>>) -> Option<Option<Arc<K>>> {
        let known = self.0.get(key);
        match (known, object) {
            (None, None) => None,
            (Some(known), Some(object)) if Arc::ptr_eq(known, object) => None,
            (_, Some(object)) => Some(self.0.insert(key.clone(), object.clone())),
            (Some(_), None) => Some(self.0.remove(key)),
        }
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.0.get(key)
    }

    /// Returns the differences to `now`: the keys that are absent from it, and the new objects and
    /// versions.
    fn differences(&self, now: &[Arc<K>]) -> Vec<(ObjectKey, Option<Arc<K>>)> {
        let mut before = self.0.iter().peekable();
        let mut differences = Vec::new();
        for object in now {
            let order = |key: &ObjectKey| {
                (key.namespace.as_deref(), Some(key.name.as_str())).cmp(&name(object.as_ref()))
            };
            while let Some((gone, _)) = before.next_if(|(key, _)| order(key).is_lt()) {
                differences.push((gone.clone(), None));
            }
            match before.next_if(|(key, _)| order(key).is_eq()) {
                Some((_, known)) if Arc::ptr_eq(known, object) => {}
                Some(_) | None => {
                    differences.push((ObjectKey::of(object.as_ref()), Some(object.clone())));
                }
            }
        }
        differences.extend(before.map(|(gone, _)| (gone.clone(), None)));
        differences
    }
}

/// Returns the sort key of the caches' lists.
pub(super) fn name<K: Resource>(object: &K) -> (Option<&str>, Option<&str>) {
    let meta = object.meta();
    (meta.namespace.as_deref(), meta.name.as_deref())
}

/// Returns the facts about a replica on which its placement and the placement of other replicas
/// depend.
pub(super) fn placement(replica: &ModelReplica) -> impl PartialEq {
    let status = replica.status.as_ref();
    (
        &replica.spec,
        replica.metadata.uid.as_deref(),
        replica.metadata.deletion_timestamp.is_some(),
        replica.labels(),
        is_overridden(replica),
        status.and_then(|status| status.nominated_node_name.as_deref()),
        advice(replica),
    )
}

/// Returns the facts about a replica that determine the nodes of replicas of the same revision, if
/// there are any.
fn advice(replica: &ModelReplica) -> Option<impl PartialEq> {
    let (refusal, target) = (refusal(replica), moves_to(replica));
    let is_any = refusal.is_some() || target.is_some();
    is_any.then_some((refusal, target, replica.spec.node_name.as_deref()))
}

/// Fleet model and the objects from which it was built. Between two calls, both agree.
#[derive(Debug, Default)]
pub struct FollowedFleet {
    fleet: Fleet,
    nodes: Objects<FleetNode>,
    replicas: Objects<ModelReplica>,
    /// Replicas that the next pass of the binder processes.
    candidates: BTreeSet<ObjectKey>,
    /// Replicas that no node accepted, and that no change has helped since.
    unschedulable: UnschedulableQueue,
}

impl FollowedFleet {
    /// Creates an empty fleet that reserves capacity for `reserve_node_failures` failed nodes.
    pub fn new(reserve_node_failures: usize) -> Self {
        Self {
            fleet: Fleet::default().with_reserve(reserve_node_failures),
            ..Self::default()
        }
    }

    /// Applies the differences to the last objects. Both lists are ordered by namespace and name.
    pub fn follow(&mut self, nodes: &[Arc<FleetNode>], replicas: &[Arc<ModelReplica>]) {
        for (key, node) in self.nodes.differences(nodes) {
            self.set_node(&key, node.as_ref());
        }
        for (key, replica) in self.replicas.differences(replicas) {
            self.set_replica(&key, replica.as_ref());
        }
    }

    /// Adds, updates or, with `None`, removes a node. Returns whether this changed the fleet model.
    pub(super) fn set_node(&mut self, key: &ObjectKey, node: Option<&Arc<FleetNode>>) -> bool {
        if self.nodes.set(key, node).is_none() {
            return false;
        }
        match node {
            Some(node) => self.fleet.set_node(node),
            None => {
                self.fleet.remove_node(&key.name);
                true
            }
        }
    }

    /// Adds, updates or, with `None`, removes a replica. Returns the earlier version as
    /// [`Objects::set`] does.
    pub(super) fn set_replica(
        &mut self,
        key: &ObjectKey,
        replica: Option<&Arc<ModelReplica>>,
    ) -> Option<Option<Arc<ModelReplica>>> {
        let before = self.replicas.set(key, replica)?;
        match replica {
            Some(replica) => self.fleet.set_replica(replica),
            None => self.fleet.remove_replica(&replica_key(key)),
        }
        self.requeue(key, before.as_deref(), replica.map(Arc::as_ref));
        Some(before)
    }

    /// Updates the candidates after a change of a replica from `old` to `new`.
    fn requeue(&mut self, key: &ObjectKey, old: Option<&ModelReplica>, new: Option<&ModelReplica>) {
        if old.and_then(advice) != new.and_then(advice) {
            for replica in [old, new].into_iter().flatten() {
                for sibling in self.unschedulable.take_revision(&ReplicaRequest::new(replica)) {
                    self.candidates.insert(object_key(&sibling));
                }
            }
        }
        if !new.is_some_and(is_candidate) {
            self.candidates.remove(key);
            self.unschedulable.remove(&replica_key(key));
        } else if old.map(placement) != new.map(placement) || !self.is_unschedulable(key) {
            self.retry(key);
        }
    }

    /// Returns whether no node accepted the replica and no change has helped it since.
    pub(super) fn is_unschedulable(&self, key: &ObjectKey) -> bool {
        self.unschedulable.contains(&replica_key(key))
    }

    /// Adds a replica to the next pass of the binder.
    fn retry(&mut self, key: &ObjectKey) {
        self.unschedulable.remove(&replica_key(key));
        self.candidates.insert(key.clone());
    }

    /// Adds an unschedulable replica to the next pass, because the write of its status failed.
    pub(super) fn report_again(&mut self, key: &ObjectKey) {
        if self.is_unschedulable(key) {
            self.retry(key);
        }
    }

    /// Records replicas that no node accepted at `now`.
    pub(super) fn set_unschedulable(&mut self, unplaced: Vec<Unplaced>, now: Timestamp) {
        for replica in unplaced {
            let Unplaced {
                request,
                created,
                retry_at,
            } = replica;
            self.candidates.remove(&object_key(&request.key));
            self.unschedulable
                .add(&request, created, retry_at, now, &mut self.fleet);
        }
    }

    /// Returns whether a change of the fleet may require a pass of the binder.
    pub(super) fn is_any_waiting(&self) -> bool {
        !self.candidates.is_empty() || !self.unschedulable.is_empty()
    }

    /// Returns the replicas that a pass of the binder processes at `now`, ordered by namespace and
    /// name.
    pub(super) fn candidates(&mut self, now: Timestamp) -> Vec<Arc<ModelReplica>> {
        let ready = self.unschedulable.take_ready(&mut self.fleet, now);
        self.candidates.extend(ready.iter().map(object_key));
        let candidates = self.candidates.iter();
        candidates
            .filter_map(|key| self.replicas.get(key))
            .cloned()
            .collect()
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub(super) fn replicas(&self) -> &Objects<ModelReplica> {
        &self.replicas
    }

    /// Runs `act` on the fleet and reverts its placements. The caches contain a placement only
    /// after the write of the binding succeeded.
    pub(super) fn trial<T>(&mut self, act: impl FnOnce(&mut Fleet, &Objects<ModelReplica>) -> T) -> T {
        let Self { fleet, replicas, .. } = self;
        let (outcome, moved) = fleet.recording_moves(|fleet| act(fleet, replicas));
        for key in &moved {
            match replicas.get(&object_key(key)) {
                Some(replica) => fleet.set_replica(replica),
                None => fleet.remove_replica(key),
            }
        }
        outcome
    }
}

/// Returns the key of a replica in the caches.
pub(super) fn object_key(key: &ReplicaKey) -> ObjectKey {
    ObjectKey::new(Some(&key.namespace), &key.name)
}

fn replica_key(key: &ObjectKey) -> ReplicaKey {
    ReplicaKey {
        namespace: key.namespace.clone().unwrap_or_default(),
        name: key.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::node;
    use rooflet_scheduler::{ReplicaRequest, bind_all};

    fn replica(name: &str) -> ModelReplica {
        ModelReplica::test(name, serde_json::json!({}))
    }

    #[test]
    fn differences_contain_each_change_once() {
        let object = |name: &str| Arc::new(replica(name));
        let follow = |last: &mut Objects<ModelReplica>, now: Vec<Arc<ModelReplica>>| {
            let differences = last.differences(&now);
            let words = differences.iter().map(|(key, object)| {
                last.set(key, object.as_ref());
                let sign = if object.is_some() { '~' } else { '-' };
                format!("{sign}{}", key.name)
            });
            words.collect::<Vec<_>>().join(" ")
        };
        let mut last = Objects::default();
        let (b, c, d) = (object("b"), object("c"), object("d"));
        assert_eq!(follow(&mut last, vec![b.clone(), d.clone()]), "~b ~d");
        assert_eq!(follow(&mut last, vec![b.clone(), c.clone(), d.clone()]), "~c");
        assert_eq!(
            follow(&mut last, vec![object("a"), c.clone(), object("d")]),
            "~a -b ~d"
        );
        assert_eq!(follow(&mut last, vec![c.clone()]), "-a -d");
        assert_eq!(follow(&mut last, vec![c]), "");
        assert_eq!(follow(&mut last, Vec::new()), "-c");
    }

    #[test]
    fn trial_reverts_placements() {
        let mut bound = replica("bound");
        bound.spec.node_name = Some("a".to_owned());
        let waiting = replica("waiting");
        let mut followed = FollowedFleet::new(0);
        let objects = [bound.clone(), waiting.clone()].map(Arc::new);
        followed.follow(&[node("a", 2), node("b", 8)].map(Arc::new), &objects);
        let free = |followed: &FollowedFleet| {
            let free = followed.fleet().nodes.iter().map(|node| node.free());
            free.collect::<Vec<_>>()
        };
        let before = free(&followed);
        let requests = [&bound, &waiting].map(ReplicaRequest::new);
        let during = followed.trial(|fleet, _| {
            let decisions = bind_all(&requests, fleet);
            assert!(decisions.iter().all(|decision| decision.outcome.is_ok()));
            fleet.nodes.iter().map(|node| node.free()).collect::<Vec<_>>()
        });
        assert_ne!(during, before);
        assert_eq!(free(&followed), before);
    }
}
