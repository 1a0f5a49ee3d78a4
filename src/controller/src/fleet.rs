//! Fleet model of the scheduler, updated incrementally from nodes and replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource;

use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_client::ObjectKey;
use rooflet_scheduler::{Fleet, ReplicaKey};

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

/// Fleet model and the objects from which it was built. Between two calls, both agree.
#[derive(Debug, Default)]
pub struct FollowedFleet {
    fleet: Fleet,
    nodes: Objects<FleetNode>,
    replicas: Objects<ModelReplica>,
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
        Some(before)
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
