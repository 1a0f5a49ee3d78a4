//! The modelled API server: objects, one global revision, preconditions, finalizers, ownership.
//! What every write changed is left in [`Store::take_changes`], in order, for the watches.
//!
//! It keeps the rules of the real one that plans rest on, and nothing of its protocol.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

use crate::random::Random;
use crate::world::view::version;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};
use rooflet_controller::intent::Version;

/// Namespace and name.
pub(crate) type Key = (Option<String>, String);
pub(crate) type Shelf<K> = BTreeMap<Key, Arc<K>>;

/// The kinds that are modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Node,
    Deployment,
    Revision,
    Replica,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Node, Self::Deployment, Self::Revision, Self::Replica];
}

/// Any object.
#[derive(Debug, Clone)]
pub(crate) enum Object {
    Node(Arc<FleetNode>),
    Deployment(Arc<ModelDeployment>),
    Revision(Arc<ModelRevision>),
    Replica(Arc<ModelReplica>),
}

impl Object {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Node(_) => Kind::Node,
            Self::Deployment(_) => Kind::Deployment,
            Self::Revision(_) => Kind::Revision,
            Self::Replica(_) => Kind::Replica,
        }
    }

    /// The revision of the write that made it.
    pub(crate) fn version(&self) -> u64 {
        match self {
            Self::Node(node) => version(node.as_ref()),
            Self::Deployment(deployment) => version(deployment.as_ref()),
            Self::Revision(revision) => version(revision.as_ref()),
            Self::Replica(replica) => version(replica.as_ref()),
        }
    }
}

/// What one write did.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) object: Object,
    /// What it was before; `None` for a new one.
    pub(crate) before: Option<Object>,
    /// The object is no longer there.
    pub(crate) gone: bool,
}

impl Change {
    /// What takes it back.
    fn undone(self) -> Self {
        Self {
            before: Some(self.object.clone()),
            gone: self.before.is_none(),
            object: self.before.unwrap_or(self.object),
        }
    }
}

/// Why a write was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    Conflict,
    AlreadyExists,
}

/// A kind of the store.
pub(crate) trait Stored: Resource<DynamicType = ()> + Clone + PartialEq + 'static {
    fn shelf(store: &Store) -> &Shelf<Self>;
    fn shelf_mut(store: &mut Store) -> &mut Shelf<Self>;
    fn same_spec(&self, other: &Self) -> bool;
    fn object(this: Arc<Self>) -> Object;
}

macro_rules! stored {
    ($kind:ident, $field:ident, $variant:ident) => {
        impl Stored for $kind {
            fn shelf(store: &Store) -> &Shelf<Self> {
                &store.$field
            }
            fn shelf_mut(store: &mut Store) -> &mut Shelf<Self> {
                &mut store.$field
            }
            fn same_spec(&self, other: &Self) -> bool {
                self.spec == other.spec
            }
            fn object(this: Arc<Self>) -> Object {
                Object::$variant(this)
            }
        }
    };
}

stored!(FleetNode, nodes, Node);
stored!(ModelDeployment, deployments, Deployment);
stored!(ModelRevision, revisions, Revision);
stored!(ModelReplica, replicas, Replica);

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) nodes: Shelf<FleetNode>,
    pub(crate) deployments: Shelf<ModelDeployment>,
    pub(crate) revisions: Shelf<ModelRevision>,
    pub(crate) replicas: Shelf<ModelReplica>,
    revision: u64,
    uids: u64,
    /// Of generated names.
    names: Random,
    changes: Vec<Change>,
    /// The last writes, which may not be on disk yet.
    unsynced: VecDeque<Change>,
    on_disk: u64,
    pub(crate) writes: u64,
}

pub(crate) fn key<K: Resource>(object: &K) -> Key {
    (object.meta().namespace.clone(), object.name_any())
}

/// Deleted, and nothing holds it any more.
pub(crate) fn is_gone(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some() && meta.finalizers.as_deref().unwrap_or_default().is_empty()
}

fn key_of(version: &Version) -> Key {
    (version.namespace.clone(), version.name.clone())
}

impl Store {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            nodes: Shelf::new(),
            deployments: Shelf::new(),
            revisions: Shelf::new(),
            replicas: Shelf::new(),
            revision: 0,
            uids: 0,
            names: Random::stream(seed, "names"),
            changes: Vec::new(),
            unsynced: VecDeque::new(),
            on_disk: 0,
            writes: 0,
        }
    }

    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        let changes = std::mem::take(&mut self.changes);
        let on_disk = self.on_disk;
        let unsynced = changes.iter().filter(|change| change.object.version() > on_disk);
        self.unsynced.extend(unsynced.cloned());
        changes
    }

    /// Somebody was told of this revision: it and all before it are on disk.
    pub(crate) fn told(&mut self, revision: u64) {
        self.on_disk = self.on_disk.max(revision);
        while self
            .unsynced
            .front()
            .is_some_and(|change| change.object.version() <= revision)
        {
            self.unsynced.pop_front();
        }
    }

    /// The process is gone, and with it some of the last writes that nobody was told of. What took
    /// them back.
    pub(crate) fn crash(&mut self, disk: &mut Random) -> Vec<Change> {
        let lost = disk.below(self.unsynced.len() + 1);
        self.lose(lost)
    }

    /// By a planted bug: what was told was not on disk.
    pub(crate) fn lose(&mut self, count: usize) -> Vec<Change> {
        let kept = self.unsynced.len().saturating_sub(count);
        let lost = self.unsynced.split_off(kept);
        self.unsynced.clear();
        let undone: Vec<_> = lost.into_iter().rev().map(Change::undone).collect();
        for change in &undone {
            match &change.object {
                Object::Node(node) => self.put_back(node, change.gone),
                Object::Deployment(deployment) => self.put_back(deployment, change.gone),
                Object::Revision(revision) => self.put_back(revision, change.gone),
                Object::Replica(replica) => self.put_back(replica, change.gone),
            }
        }
        undone
    }

    fn put_back<K: Stored>(&mut self, object: &Arc<K>, gone: bool) {
        let key = key(object.as_ref());
        match gone {
            true => drop(K::shelf_mut(self).remove(&key)),
            false => drop(K::shelf_mut(self).insert(key, object.clone())),
        }
    }

    /// The newest version of an object, if it is still that one.
    pub(crate) fn get<K: Stored>(&self, of: &Version) -> Option<Arc<K>> {
        let found = K::shelf(self).get(&key_of(of))?;
        (found.meta().uid.as_deref() == Some(of.uid.as_str())).then(|| found.clone())
    }

    /// Whether the node is there that the replica is bound to.
    pub(crate) fn has_node_of(&self, replica: &ModelReplica) -> bool {
        let node = replica.spec.node_name.clone();
        node.is_some_and(|node| self.nodes.contains_key(&(None, node)))
    }

    pub(crate) fn newest(&self) -> u64 {
        self.revision
    }

    fn next_revision(&mut self) -> String {
        self.revision += 1;
        self.writes += 1;
        self.revision.to_string()
    }

    pub(crate) fn create<K: Stored>(&mut self, mut object: K, now: Timestamp) -> Result<Arc<K>, Refusal> {
        if object.meta().name.as_deref().unwrap_or_default().is_empty() {
            let prefix = object.meta().generate_name.clone().unwrap_or_default();
            // Kubernetes' own alphabet of generated names.
            let letters = b"bcdfghjklmnpqrstvwxz2456789";
            let suffix: String = (0..5)
                .map(|_| char::from(letters[self.names.below(letters.len())]))
                .collect();
            object.meta_mut().name = Some(format!("{prefix}{suffix}"));
        }
        let key = key(&object);
        if K::shelf(self).contains_key(&key) {
            return Err(Refusal::AlreadyExists);
        }
        self.uids += 1;
        let uid = format!("uid-{:08}", self.uids);
        let resource_version = self.next_revision();
        let meta = object.meta_mut();
        meta.uid = Some(uid);
        meta.resource_version = Some(resource_version);
        meta.generation = Some(1);
        meta.creation_timestamp = Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now)));
        let object = Arc::new(object);
        K::shelf_mut(self).insert(key, object.clone());
        self.changes.push(Change {
            object: K::object(object.clone()),
            before: None,
            gone: false,
        });
        Ok(object)
    }

    /// Changes an object. With `exact` only the very version that `of` names, else whatever is
    /// there by its uid. A change of nothing is no write.
    pub(crate) fn update<K: Stored>(
        &mut self,
        of: &Version,
        exact: bool,
        change: impl FnOnce(&mut K),
    ) -> Result<Arc<K>, Refusal> {
        let Some(current) = K::shelf(self).get(&key_of(of)).cloned() else {
            return Err(Refusal::NotFound);
        };
        let meta = current.meta();
        if meta.uid.as_deref() != Some(of.uid.as_str())
            || (exact && meta.resource_version.as_deref() != Some(of.resource_version.as_str()))
        {
            return Err(Refusal::Conflict);
        }
        let mut next = current.as_ref().clone();
        change(&mut next);
        if next == *current {
            return Ok(current);
        }
        if !next.same_spec(&current) {
            let meta = next.meta_mut();
            meta.generation = meta.generation.map(|generation| generation + 1);
        }
        Ok(self.put(&current, next))
    }

    fn put<K: Stored>(&mut self, before: &Arc<K>, mut next: K) -> Arc<K> {
        next.meta_mut().resource_version = Some(self.next_revision());
        let gone = is_gone(next.meta());
        let next = Arc::new(next);
        if gone {
            K::shelf_mut(self).remove(&key(next.as_ref()));
        } else {
            K::shelf_mut(self).insert(key(next.as_ref()), next.clone());
        }
        self.changes.push(Change {
            object: K::object(next.clone()),
            before: Some(K::object(before.clone())),
            gone,
        });
        next
    }

    /// Another version of the object is there.
    pub(crate) fn has_changed<K: Stored>(&self, of: &Version) -> bool {
        let found = self.get::<K>(of);
        found.is_some_and(|found| found.meta().resource_version.as_ref() != Some(&of.resource_version))
    }

    /// Deletes it, or marks it while it has finalizers. Returns its last version.
    pub(crate) fn delete<K: Stored>(&mut self, of: &Version, now: Timestamp) -> Result<Arc<K>, Refusal> {
        let Some(current) = K::shelf(self).get(&key_of(of)).cloned() else {
            return Err(Refusal::NotFound);
        };
        if current.meta().uid.as_deref() != Some(of.uid.as_str()) {
            return Err(Refusal::Conflict);
        }
        let mut next = current.as_ref().clone();
        if current.meta().deletion_timestamp.is_some() {
            return Ok(current);
        }
        let meta = next.meta_mut();
        meta.deletion_timestamp = Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now)));
        meta.generation = meta.generation.map(|generation| generation + 1);
        Ok(self.put(&current, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::FleetNodeSpec;

    fn now() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    #[test]
    fn writes_keep_the_rules_of_the_api_server() {
        let mut store = Store::new(1);
        let mut node = FleetNode::new("a", FleetNodeSpec::default());
        node.metadata.finalizers = Some(vec!["held".to_owned()]);
        let first = store.create(node.clone(), now()).unwrap();
        assert_eq!(store.create(node, now()), Err(Refusal::AlreadyExists));
        let of = Version::of(first.as_ref());
        let cordoned = store
            .update::<FleetNode>(&of, true, |node| node.spec.unschedulable = true)
            .unwrap();
        assert_eq!(cordoned.metadata.generation, Some(2));
        // The version is not the newest any more.
        let stale = store.update::<FleetNode>(&of, true, |node| node.spec.unschedulable = false);
        assert_eq!(stale, Err(Refusal::Conflict));
        let same = store.update::<FleetNode>(&of, false, |_| {}).unwrap();
        assert_eq!(same, cordoned, "a change of nothing is no write");
        let left = store.delete::<FleetNode>(&of, now()).unwrap();
        assert!(left.metadata.deletion_timestamp.is_some() && !is_gone(&left.metadata));
        let last = store.update::<FleetNode>(&of, false, |node| node.metadata.finalizers = None);
        assert!(last.is_ok() && store.nodes.is_empty());
        let changes = store.take_changes();
        assert_eq!(changes.len(), 4);
        assert!(changes[3].gone && !changes[2].gone);
        assert_eq!(store.delete::<FleetNode>(&of, now()), Err(Refusal::NotFound));
    }
}
