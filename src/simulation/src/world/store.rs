//! Modelled API server: objects, one global revision, preconditions, finalizers, ownership.
//! [`Store::take_changes`] returns the changes of all writes in order, for the watches.
//!
//! The model has the semantics of the API server that plans depend on, and not its protocol.

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
/// Objects of a kind, by key.
pub(crate) type Objects<K> = BTreeMap<Key, Arc<K>>;

/// Modelled kind.
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

/// Object of any kind.
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

    /// Returns the revision of the last write.
    pub(crate) fn version(&self) -> u64 {
        match self {
            Self::Node(node) => version(node.as_ref()),
            Self::Deployment(deployment) => version(deployment.as_ref()),
            Self::Revision(revision) => version(revision.as_ref()),
            Self::Replica(replica) => version(replica.as_ref()),
        }
    }
}

/// Change of an object by a write.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) object: Object,
    /// Previous version; `None` for a new object.
    pub(crate) before: Option<Object>,
    /// True if the object no longer exists.
    pub(crate) deleted: bool,
}

impl Change {
    /// Returns the change that reverts this one.
    fn reverted(self) -> Self {
        Self {
            before: Some(self.object.clone()),
            deleted: self.before.is_none(),
            object: self.before.unwrap_or(self.object),
        }
    }
}

/// Reason for a rejected write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteError {
    NotFound,
    Conflict,
    AlreadyExists,
}

/// Kind that the store holds.
pub(crate) trait Stored: Resource<DynamicType = ()> + Clone + PartialEq + 'static {
    fn objects(store: &Store) -> &Objects<Self>;
    fn objects_mut(store: &mut Store) -> &mut Objects<Self>;
    fn same_spec(&self, other: &Self) -> bool;
    fn object(this: Arc<Self>) -> Object;
}

macro_rules! stored {
    ($kind:ident, $field:ident, $variant:ident) => {
        impl Stored for $kind {
            fn objects(store: &Store) -> &Objects<Self> {
                &store.$field
            }
            fn objects_mut(store: &mut Store) -> &mut Objects<Self> {
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

/// Modelled API server.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) nodes: Objects<FleetNode>,
    pub(crate) deployments: Objects<ModelDeployment>,
    pub(crate) revisions: Objects<ModelRevision>,
    pub(crate) replicas: Objects<ModelReplica>,
    revision: u64,
    uids: u64,
    /// Random stream of generated names.
    names: Random,
    changes: Vec<Change>,
    /// Last writes, which may not be on disk yet.
    unsynced: VecDeque<Change>,
    /// Newest revision that is certainly on disk.
    on_disk: u64,
    pub(crate) writes: u64,
}

pub(crate) fn key<K: Resource>(object: &K) -> Key {
    (object.meta().namespace.clone(), object.name_any())
}

/// Returns true if the object has a deletion timestamp and no finalizers.
pub(crate) fn is_deleted(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some() && meta.finalizers.as_deref().unwrap_or_default().is_empty()
}

fn key_of(version: &Version) -> Key {
    (version.namespace.clone(), version.name.clone())
}

impl Store {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            nodes: Objects::new(),
            deployments: Objects::new(),
            revisions: Objects::new(),
            replicas: Objects::new(),
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

    /// Records that a revision and all earlier ones are on disk, because a client has received it.
    pub(crate) fn mark_durable(&mut self, revision: u64) {
        self.on_disk = self.on_disk.max(revision);
        while self
            .unsynced
            .front()
            .is_some_and(|change| change.object.version() <= revision)
        {
            self.unsynced.pop_front();
        }
    }

    /// Crashes the server, which loses some of the writes that no client has received. Returns the
    /// changes that reverted them.
    pub(crate) fn crash(&mut self, disk: &mut Random) -> Vec<Change> {
        let lost = disk.below(self.unsynced.len() + 1);
        self.discard_unsynced(lost)
    }

    /// Reverts the last `count` writes that may not be on disk. Returns the reverting changes.
    pub(crate) fn discard_unsynced(&mut self, count: usize) -> Vec<Change> {
        let kept = self.unsynced.len().saturating_sub(count);
        let lost = self.unsynced.split_off(kept);
        self.unsynced.clear();
        let reverted: Vec<_> = lost.into_iter().rev().map(Change::reverted).collect();
        for change in &reverted {
            match &change.object {
                Object::Node(node) => self.restore(node, change.deleted),
                Object::Deployment(deployment) => self.restore(deployment, change.deleted),
                Object::Revision(revision) => self.restore(revision, change.deleted),
                Object::Replica(replica) => self.restore(replica, change.deleted),
            }
        }
        reverted
    }

    fn restore<K: Stored>(&mut self, object: &Arc<K>, deleted: bool) {
        let key = key(object.as_ref());
        match deleted {
            true => drop(K::objects_mut(self).remove(&key)),
            false => drop(K::objects_mut(self).insert(key, object.clone())),
        }
    }

    /// Returns the current version of an object, if it has the same UID.
    pub(crate) fn get<K: Stored>(&self, of: &Version) -> Option<Arc<K>> {
        let found = K::objects(self).get(&key_of(of))?;
        (found.meta().uid.as_deref() == Some(of.uid.as_str())).then(|| found.clone())
    }

    /// Returns true if the node that the replica is bound to exists.
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

    pub(crate) fn create<K: Stored>(&mut self, mut object: K, now: Timestamp) -> Result<Arc<K>, WriteError> {
        if object.meta().name.as_deref().unwrap_or_default().is_empty() {
            let prefix = object.meta().generate_name.clone().unwrap_or_default();
            // Alphabet of generated names in Kubernetes.
            let letters = b"bcdfghjklmnpqrstvwxz2456789";
            let suffix: String = (0..5)
                .map(|_| char::from(letters[self.names.below(letters.len())]))
                .collect();
            object.meta_mut().name = Some(format!("{prefix}{suffix}"));
        }
        let key = key(&object);
        if K::objects(self).contains_key(&key) {
            return Err(WriteError::AlreadyExists);
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
        K::objects_mut(self).insert(key, object.clone());
        self.changes.push(Change {
            object: K::object(object.clone()),
            before: None,
            deleted: false,
        });
        Ok(object)
    }

    /// Changes an object. With `exact`, the current version must equal that of `of`; otherwise, only
    /// the UID must be equal. An update without a change is no write.
    pub(crate) fn update<K: Stored>(
        &mut self,
        of: &Version,
        exact: bool,
        change: impl FnOnce(&mut K),
    ) -> Result<Arc<K>, WriteError> {
        let Some(current) = K::objects(self).get(&key_of(of)).cloned() else {
            return Err(WriteError::NotFound);
        };
        let meta = current.meta();
        if meta.uid.as_deref() != Some(of.uid.as_str())
            || (exact && meta.resource_version.as_deref() != Some(of.resource_version.as_str()))
        {
            return Err(WriteError::Conflict);
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
        let deleted = is_deleted(next.meta());
        let next = Arc::new(next);
        if deleted {
            K::objects_mut(self).remove(&key(next.as_ref()));
        } else {
            K::objects_mut(self).insert(key(next.as_ref()), next.clone());
        }
        self.changes.push(Change {
            object: K::object(next.clone()),
            before: Some(K::object(before.clone())),
            deleted,
        });
        next
    }

    /// Returns true if the object has another version.
    pub(crate) fn has_changed<K: Stored>(&self, of: &Version) -> bool {
        let found = self.get::<K>(of);
        found.is_some_and(|found| found.meta().resource_version.as_ref() != Some(&of.resource_version))
    }

    /// Deletes an object, or sets its deletion timestamp if it has finalizers. Returns the last
    /// version.
    pub(crate) fn delete<K: Stored>(&mut self, of: &Version, now: Timestamp) -> Result<Arc<K>, WriteError> {
        let Some(current) = K::objects(self).get(&key_of(of)).cloned() else {
            return Err(WriteError::NotFound);
        };
        if current.meta().uid.as_deref() != Some(of.uid.as_str()) {
            return Err(WriteError::Conflict);
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
    fn writes_follow_the_semantics_of_the_api_server() {
        let mut store = Store::new(1);
        let mut node = FleetNode::new("a", FleetNodeSpec::default());
        node.metadata.finalizers = Some(vec!["held".to_owned()]);
        let first = store.create(node.clone(), now()).unwrap();
        assert_eq!(store.create(node, now()), Err(WriteError::AlreadyExists));
        let of = Version::of(first.as_ref());
        let cordoned = store
            .update::<FleetNode>(&of, true, |node| node.spec.unschedulable = true)
            .unwrap();
        assert_eq!(cordoned.metadata.generation, Some(2));
        // `of` has an outdated version.
        let stale = store.update::<FleetNode>(&of, true, |node| node.spec.unschedulable = false);
        assert_eq!(stale, Err(WriteError::Conflict));
        let same = store.update::<FleetNode>(&of, false, |_| {}).unwrap();
        assert_eq!(same, cordoned, "an update without a change is no write");
        let left = store.delete::<FleetNode>(&of, now()).unwrap();
        assert!(left.metadata.deletion_timestamp.is_some() && !is_deleted(&left.metadata));
        let last = store.update::<FleetNode>(&of, false, |node| node.metadata.finalizers = None);
        assert!(last.is_ok() && store.nodes.is_empty());
        let changes = store.take_changes();
        assert_eq!(changes.len(), 4);
        assert!(changes[3].deleted && !changes[2].deleted);
        assert_eq!(store.delete::<FleetNode>(&of, now()), Err(WriteError::NotFound));
    }
}
