//! The controller's one [`Fleet`]: it follows nodes and replicas as they change, so that no reconciler counts all of them
//! anew. [`SharedFleet`] is what reconcilers have of it, [`FollowedFleet`] the values behind it.

use std::sync::Arc;

use kube::{Resource, ResourceExt};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard, watch};

use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_base::latest::Latest;
use rooflet_client::{Cache, Changes};
use rooflet_scheduler::{Fleet, ReplicaKey};

/// The objects of one kind as they were seen last, ordered by namespace and name.
#[derive(Debug)]
struct Seen<K>(Vec<Arc<K>>);

impl<K: Resource> Seen<K> {
    /// Calls `gone` for what is not in `now` any more and `changed` for what is new there or another version.
    fn follow(&mut self, now: Vec<Arc<K>>, mut gone: impl FnMut(&K), mut changed: impl FnMut(&K)) {
        let mut before = std::mem::take(&mut self.0).into_iter().peekable();
        for object in &now {
            if before.next_if(|old| Arc::ptr_eq(old, object)).is_some() {
                continue;
            }
            while let Some(old) = before.next_if(|old| name(old.as_ref()) < name(object.as_ref())) {
                gone(&old);
            }
            match before.next_if(|old| name(old.as_ref()) == name(object.as_ref())) {
                Some(old) if Arc::ptr_eq(&old, object) => {}
                Some(_) | None => changed(object),
            }
        }
        before.for_each(|old| gone(&old));
        self.0 = now;
    }
}

/// Sort key of the caches' lists.
pub(super) fn name<K: Resource>(object: &K) -> (Option<&str>, Option<&str>) {
    let meta = object.meta();
    (meta.namespace.as_deref(), meta.name.as_deref())
}

/// A fleet, and the objects it was made from. Between two calls it is as the objects say.
#[derive(Debug)]
pub struct FollowedFleet {
    fleet: Fleet,
    nodes: Seen<FleetNode>,
    replicas: Seen<ModelReplica>,
}

impl Default for FollowedFleet {
    fn default() -> Self {
        Self::new(0)
    }
}

impl FollowedFleet {
    /// The replicas of any `reserve_node_failures` nodes are to find room on the others.
    pub fn new(reserve_node_failures: usize) -> Self {
        Self {
            fleet: Fleet::default().with_reserve(reserve_node_failures),
            nodes: Seen(Vec::new()),
            replicas: Seen(Vec::new()),
        }
    }

    /// Takes in what has changed. Both are ordered by namespace and name.
    pub fn follow(&mut self, nodes: Vec<Arc<FleetNode>>, replicas: Vec<Arc<ModelReplica>>) {
        let Self {
            fleet,
            nodes: seen_nodes,
            replicas: seen_replicas,
        } = self;
        let mut gone = Vec::new();
        let mut changed = Vec::new();
        seen_nodes.follow(
            nodes,
            |node| gone.push(node.name_any()),
            |node| changed.push(node.clone()),
        );
        gone.iter().for_each(|node| fleet.remove_node(node));
        changed.iter().for_each(|node| fleet.set_node(node));
        let mut gone = Vec::new();
        let mut changed = Vec::new();
        seen_replicas.follow(
            replicas,
            |replica| gone.push(ReplicaKey::of(replica)),
            |replica| changed.push(replica.clone()),
        );
        gone.iter().for_each(|key| fleet.remove_replica(key));
        changed.iter().for_each(|replica| fleet.set_replica(replica));
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub fn replicas(&self) -> &[Arc<ModelReplica>] {
        &self.replicas.0
    }

    /// What `act` decides is tried only. It is not done yet and may fail: the objects will tell.
    pub fn trial<T>(&mut self, act: impl FnOnce(&mut Fleet) -> T) -> T {
        let (outcome, moved) = self.fleet.noting_moves(act);
        for key in &moved {
            let wanted = (Some(key.namespace.as_str()), Some(key.name.as_str()));
            let found = self
                .replicas
                .0
                .binary_search_by(|replica| name(replica.as_ref()).cmp(&wanted));
            match found {
                Ok(at) => self.fleet.set_replica(&self.replicas.0[at]),
                Err(_) => self.fleet.remove_replica(key),
            }
        }
        outcome
    }
}

/// The reconcilers' handle. Clones are the same fleet.
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

    /// The fleet as the caches are now. The other reconcilers wait until it is dropped: nothing is written meanwhile.
    pub(super) async fn lock(&self) -> MappedMutexGuard<'_, FollowedFleet> {
        let mut guard = self.followed.lock().await;
        let (followed, seen) = &mut *guard;
        // Read before the caches: a change is marked after it can be seen in them.
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
    fn what_follows_a_list_sees_each_change_once() {
        let object = |name: &str| Arc::new(replica(name));
        let said = |seen: &mut Seen<ModelReplica>, now: Vec<Arc<ModelReplica>>| {
            let words = std::cell::RefCell::new(Vec::new());
            seen.follow(
                now,
                |gone| words.borrow_mut().push(format!("-{}", gone.name_any())),
                |changed| words.borrow_mut().push(format!("~{}", changed.name_any())),
            );
            words.into_inner().join(" ")
        };
        let mut seen = Seen(Vec::new());
        let (b, c, d) = (object("b"), object("c"), object("d"));
        assert_eq!(said(&mut seen, vec![b.clone(), d.clone()]), "~b ~d");
        assert_eq!(said(&mut seen, vec![b.clone(), c.clone(), d.clone()]), "~c");
        assert_eq!(
            said(&mut seen, vec![object("a"), c.clone(), object("d")]),
            "~a -b ~d"
        );
        assert_eq!(said(&mut seen, vec![c.clone()]), "-a -d");
        assert_eq!(said(&mut seen, vec![c]), "");
        assert_eq!(said(&mut seen, Vec::new()), "-c");
    }

    #[test]
    fn what_is_tried_leaves_no_trace() {
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
