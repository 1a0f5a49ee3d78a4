//! Fleet model of the scheduler, updated incrementally from the node and replica caches.
//!
//! [`FollowedFleet`] holds the model. [`SharedFleet`] is the handle that the reconcilers use.

use std::sync::Arc;

use kube::{Resource, ResourceExt};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard, watch};

use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_base::latest::Latest;
use rooflet_client::{Cache, Changes};
use rooflet_scheduler::{Fleet, ReplicaKey};

/// Objects of one kind at the last update, ordered by namespace and name.
#[derive(Debug)]
struct LastList<K>(Vec<Arc<K>>);

impl<K: Resource> LastList<K> {
    /// Replaces the list by `now`. Calls `removed` for objects that are absent from `now`, and
    /// `changed` for new objects and new versions.
    fn follow(&mut self, now: Vec<Arc<K>>, mut removed: impl FnMut(&K), mut changed: impl FnMut(&K)) {
        let mut before = std::mem::take(&mut self.0).into_iter().peekable();
        for object in &now {
            if before.next_if(|old| Arc::ptr_eq(old, object)).is_some() {
                continue;
            }
            while let Some(old) = before.next_if(|old| name(old.as_ref()) < name(object.as_ref())) {
                removed(&old);
            }
            match before.next_if(|old| name(old.as_ref()) == name(object.as_ref())) {
                Some(old) if Arc::ptr_eq(&old, object) => {}
                Some(_) | None => changed(object),
            }
        }
        before.for_each(|old| removed(&old));
        self.0 = now;
    }
}

/// Returns the sort key of the caches' lists.
pub(super) fn name<K: Resource>(object: &K) -> (Option<&str>, Option<&str>) {
    let meta = object.meta();
    (meta.namespace.as_deref(), meta.name.as_deref())
}

/// Fleet model and the objects from which it was built. Between two calls, both agree.
#[derive(Debug)]
pub struct FollowedFleet {
    fleet: Fleet,
    nodes: LastList<FleetNode>,
    replicas: LastList<ModelReplica>,
}

impl Default for FollowedFleet {
    fn default() -> Self {
        Self::new(0)
    }
}

impl FollowedFleet {
    /// Creates an empty fleet that reserves capacity for `reserve_node_failures` failed nodes.
    pub fn new(reserve_node_failures: usize) -> Self {
        Self {
            fleet: Fleet::default().with_reserve(reserve_node_failures),
            nodes: LastList(Vec::new()),
            replicas: LastList(Vec::new()),
        }
    }

    /// Applies the differences to the last lists. Both lists are ordered by namespace and name.
    pub fn follow(&mut self, nodes: Vec<Arc<FleetNode>>, replicas: Vec<Arc<ModelReplica>>) {
        let Self {
            fleet,
            nodes: last_nodes,
            replicas: last_replicas,
        } = self;
        let mut removed = Vec::new();
        let mut changed = Vec::new();
        last_nodes.follow(
            nodes,
            |node| removed.push(node.name_any()),
            |node| changed.push(node.clone()),
        );
        removed.iter().for_each(|node| fleet.remove_node(node));
        changed.iter().for_each(|node| fleet.set_node(node));
        let mut removed = Vec::new();
        let mut changed = Vec::new();
        last_replicas.follow(
            replicas,
            |replica| removed.push(ReplicaKey::of(replica)),
            |replica| changed.push(replica.clone()),
        );
        removed.iter().for_each(|key| fleet.remove_replica(key));
        changed.iter().for_each(|replica| fleet.set_replica(replica));
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub fn replicas(&self) -> &[Arc<ModelReplica>] {
        &self.replicas.0
    }

    /// Runs `act` on the fleet and reverts its placements. The caches contain a placement only
    /// after the write of the binding succeeded.
    pub fn trial<T>(&mut self, act: impl FnOnce(&mut Fleet) -> T) -> T {
        let (outcome, moved) = self.fleet.recording_moves(act);
        for key in &moved {
            let sort_key = (Some(key.namespace.as_str()), Some(key.name.as_str()));
            let found = self
                .replicas
                .0
                .binary_search_by(|replica| name(replica.as_ref()).cmp(&sort_key));
            match found {
                Ok(at) => self.fleet.set_replica(&self.replicas.0[at]),
                Err(_) => self.fleet.remove_replica(key),
            }
        }
        outcome
    }
}

/// Handle of the reconcilers. Clones share the fleet.
#[derive(Clone)]
pub(super) struct SharedFleet {
    followed: Arc<Mutex<(FollowedFleet, Option<u64>)>>,
    nodes: Cache<FleetNode>,
    replicas: Cache<ModelReplica>,
    changes: watch::Receiver<u64>,
}

impl SharedFleet {
    pub(super) fn new(
        nodes: Cache<FleetNode>,
        replicas: Cache<ModelReplica>,
        changes: &Changes,
        reserve_node_failures: usize,
    ) -> Self {
        Self {
            followed: Arc::new(Mutex::new((FollowedFleet::new(reserve_node_failures), None))),
            nodes,
            replicas,
            changes: changes.subscribe(),
        }
    }

    /// Returns the fleet in the current state of the caches. Other reconcilers wait for the lock,
    /// so the holder must not write to the API server.
    pub(super) async fn lock(&self) -> MappedMutexGuard<'_, FollowedFleet> {
        let mut guard = self.followed.lock().await;
        let (followed, seen) = &mut *guard;
        // The counter is read before the caches: a cache is updated before the counter increments.
        let count = self.changes.latest();
        if *seen != Some(count) {
            followed.follow(self.nodes.list(), self.replicas.list());
            *seen = Some(count);
        }
        MutexGuard::map(guard, |(followed, _)| followed)
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
    fn follow_reports_each_change_once() {
        let object = |name: &str| Arc::new(replica(name));
        let reported = |last: &mut LastList<ModelReplica>, now: Vec<Arc<ModelReplica>>| {
            let words = std::cell::RefCell::new(Vec::new());
            last.follow(
                now,
                |removed| words.borrow_mut().push(format!("-{}", removed.name_any())),
                |changed| words.borrow_mut().push(format!("~{}", changed.name_any())),
            );
            words.into_inner().join(" ")
        };
        let mut last = LastList(Vec::new());
        let (b, c, d) = (object("b"), object("c"), object("d"));
        assert_eq!(reported(&mut last, vec![b.clone(), d.clone()]), "~b ~d");
        assert_eq!(reported(&mut last, vec![b.clone(), c.clone(), d.clone()]), "~c");
        assert_eq!(
            reported(&mut last, vec![object("a"), c.clone(), object("d")]),
            "~a -b ~d"
        );
        assert_eq!(reported(&mut last, vec![c.clone()]), "-a -d");
        assert_eq!(reported(&mut last, vec![c]), "");
        assert_eq!(reported(&mut last, Vec::new()), "-c");
    }

    #[test]
    fn trial_reverts_placements() {
        let mut bound = replica("bound");
        bound.spec.node_name = Some("a".to_owned());
        let waiting = replica("waiting");
        let mut followed = FollowedFleet::new(0);
        let objects = [bound.clone(), waiting.clone()].map(Arc::new).to_vec();
        followed.follow([node("a", 2), node("b", 8)].map(Arc::new).to_vec(), objects);
        let free = |followed: &FollowedFleet| {
            let free = followed.fleet().nodes.iter().map(|node| node.free());
            free.collect::<Vec<_>>()
        };
        let before = free(&followed);
        let requests = [&bound, &waiting].map(ReplicaRequest::new);
        let during = followed.trial(|fleet| {
            let decisions = bind_all(&requests, fleet);
            assert!(decisions.iter().all(|decision| decision.outcome.is_ok()));
            fleet.nodes.iter().map(|node| node.free()).collect::<Vec<_>>()
        });
        assert_ne!(during, before);
        assert_eq!(free(&followed), before);
    }
}
