//! Copy of the stored objects in one process: a cache per kind, updated by lagging watches and by
//! responses to the process's own writes.
//!
//! As in the client's cache, the response to a write overrides the watched version until the watch
//! delivers the write. Repeated and late events do not override newer versions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;

use crate::world::store::Key;
use crate::world::store::Kind;
use crate::world::store::Object;
use crate::world::store::Objects;
use crate::world::store::Stored;
use crate::world::store::is_deleted;
use crate::world::store::key;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};
use rooflet_controller::intent::{Snapshot, Version};

/// Cache of one kind.
#[derive(Debug, Clone)]
struct Cache<K> {
    watched: Objects<K>,
    /// Responses to own writes, by UID: key, version, and object; `None` for a deleted object.
    written: BTreeMap<String, (Key, u64, Option<Arc<K>>)>,
    /// UIDs of deleted objects.
    deleted: BTreeSet<String>,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self {
            watched: Objects::new(),
            written: BTreeMap::new(),
            deleted: BTreeSet::new(),
        }
    }
}

pub(crate) fn version<K: Resource>(object: &K) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl<K: Stored> Cache<K> {
    /// Returns true if the cache has this version or a newer one.
    fn is_old(&self, object: &K) -> bool {
        let known = self.watched.get(&key(object));
        known.is_some_and(|known| version(known.as_ref()) >= version(object))
            || object
                .meta()
                .uid
                .as_ref()
                .is_some_and(|uid| self.deleted.contains(uid))
    }

    fn watch(&mut self, object: Arc<K>, deleted: bool) {
        let (uid, key) = (
            object.meta().uid.clone().unwrap_or_default(),
            key(object.as_ref()),
        );
        let seen = version(object.as_ref());
        let shown = self
            .written
            .get(&uid)
            .is_some_and(|(_, version, _)| *version <= seen);
        if shown || deleted {
            self.written.remove(&uid);
        }
        if deleted {
            self.deleted.insert(uid);
            self.watched.remove(&key);
        } else {
            self.watched.insert(key, object);
        }
    }

    fn record_write(&mut self, object: Arc<K>) {
        let key = key(object.as_ref());
        let known = self.watched.get(&key).map_or(0, |known| version(known.as_ref()));
        let written = version(object.as_ref());
        let uid = object.meta().uid.clone().unwrap_or_default();
        // The watch may have delivered the write before the response.
        if written > known && !self.deleted.contains(&uid) {
            let left = (!is_deleted(object.meta())).then_some(object);
            self.written.insert(uid, (key, written, left));
        }
    }

    fn mark_deleted(&mut self, of: &Version) {
        let key = (of.namespace.clone(), of.name.clone());
        let known = self.watched.get(&key);
        if known.is_some_and(|known| known.meta().uid.as_deref() == Some(of.uid.as_str())) {
            self.written.insert(of.uid.clone(), (key, u64::MAX, None));
        }
    }

    fn get(&self, key: &Key) -> Option<Arc<K>> {
        let mut own = self.written.values().filter(|(written, ..)| written == key);
        match own.next() {
            Some((_, _, written)) => written.clone(),
            None => self.watched.get(key).cloned(),
        }
    }

    fn list(&self) -> Vec<Arc<K>> {
        if self.written.is_empty() {
            return self.watched.values().cloned().collect();
        }
        let own: BTreeMap<_, _> = self
            .written
            .values()
            .map(|(key, _, object)| (key, object))
            .collect();
        let mut own = own.into_iter().peekable();
        let mut all = Vec::with_capacity(self.watched.len() + own.len());
        for (key, watched) in &self.watched {
            while let Some((_, written)) = own.next_if(|(before, _)| *before < key) {
                all.extend(written.clone());
            }
            match own.next_if(|(same, _)| *same == key) {
                Some((_, written)) => all.extend(written.clone()),
                None => all.push(watched.clone()),
            }
        }
        all.extend(own.filter_map(|(_, written)| written.clone()));
        all
    }
}

/// Watch events of one kind that have not been delivered.
#[derive(Debug, Clone, Default)]
struct EventStream {
    /// Events in the order of the store, with their arrival times.
    waiting: VecDeque<(Duration, Object, bool)>,
    /// Arrival time of the last event. A later event does not arrive earlier.
    last: Duration,
    /// Events that are delivered out of order.
    unordered: Vec<(Duration, Object, bool)>,
}

/// Copy of the stored objects in one process.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    nodes: Cache<FleetNode>,
    deployments: Cache<ModelDeployment>,
    revisions: Cache<ModelRevision>,
    replicas: Cache<ModelReplica>,
    streams: BTreeMap<Kind, EventStream>,
    /// Time at which the watches ended; `None` while they run. A list restarts them.
    pub(crate) ended: Option<Duration>,
}

impl View {
    /// Ends the watches and drops events that have not arrived.
    pub(crate) fn end(&mut self, now: Duration) {
        self.streams.clear();
        self.ended.get_or_insert(now);
    }

    /// Adds an event. Returns its arrival time.
    pub(crate) fn send(&mut self, object: Object, deleted: bool, arrives: Duration) -> Duration {
        let stream = self.streams.entry(object.kind()).or_default();
        stream.last = stream.last.max(arrives);
        stream.waiting.push_back((stream.last, object, deleted));
        stream.last
    }

    /// Adds an event that does not wait for earlier ones.
    pub(crate) fn send_unordered(&mut self, object: Object, deleted: bool, arrives: Duration) {
        let stream = self.streams.entry(object.kind()).or_default();
        stream.unordered.push((arrives, object, deleted));
    }

    /// Applies the events of a kind that have arrived; outdated ones only with `old_too`, for a
    /// planted bug. Returns the newest version among the arrived events.
    pub(crate) fn deliver(&mut self, kind: Kind, now: Duration, old_too: bool) -> Option<u64> {
        let mut newest = None;
        for (object, deleted) in self.arrived(kind, now) {
            newest = newest.max(Some(object.version()));
            if old_too || !self.is_old(&object) {
                self.apply(object, deleted);
            }
        }
        newest
    }

    fn arrived(&mut self, kind: Kind, now: Duration) -> Vec<(Object, bool)> {
        let Some(stream) = self.streams.get_mut(&kind) else {
            return Vec::new();
        };
        let mut arrived = Vec::new();
        while stream.waiting.front().is_some_and(|(at, ..)| *at <= now) {
            arrived.extend(
                stream
                    .waiting
                    .pop_front()
                    .map(|(_, object, deleted)| (object, deleted)),
            );
        }
        let mut at = 0;
        while at < stream.unordered.len() {
            if stream.unordered[at].0 <= now {
                let (_, object, deleted) = stream.unordered.remove(at);
                arrived.push((object, deleted));
            } else {
                at += 1;
            }
        }
        arrived
    }

    fn is_old(&self, object: &Object) -> bool {
        match object {
            Object::Node(node) => self.nodes.is_old(node),
            Object::Deployment(deployment) => self.deployments.is_old(deployment),
            Object::Revision(revision) => self.revisions.is_old(revision),
            Object::Replica(replica) => self.replicas.is_old(replica),
        }
    }

    fn apply(&mut self, object: Object, deleted: bool) {
        match object {
            Object::Node(node) => self.nodes.watch(node, deleted),
            Object::Deployment(deployment) => self.deployments.watch(deployment, deleted),
            Object::Revision(revision) => self.revisions.watch(revision, deleted),
            Object::Replica(replica) => self.replicas.watch(replica, deleted),
        }
    }

    /// Applies the response to an own write.
    pub(crate) fn record_write(&mut self, object: Object) {
        match object {
            Object::Node(node) => self.nodes.record_write(node),
            Object::Deployment(deployment) => self.deployments.record_write(deployment),
            Object::Revision(revision) => self.revisions.record_write(revision),
            Object::Replica(replica) => self.replicas.record_write(replica),
        }
    }

    /// Replaces all objects by a list, which contains the effects of earlier events and writes.
    pub(crate) fn replace(&mut self, objects: impl IntoIterator<Item = Object>) {
        *self = Self::default();
        for object in objects {
            self.apply(object, false);
        }
    }

    /// Records that an own delete did not find the object.
    pub(crate) fn mark_deleted(&mut self, of: &Version) {
        self.replicas.mark_deleted(of);
        self.revisions.mark_deleted(of);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            nodes: self.nodes.list(),
            deployments: self.deployments.list(),
            revisions: self.revisions.list(),
            replicas: self.replicas.list(),
            ..Snapshot::default()
        }
    }

    pub(crate) fn node(&self, name: &str) -> Option<Arc<FleetNode>> {
        self.nodes.get(&(None, name.to_owned()))
    }

    pub(crate) fn replica(&self, key: &Key) -> Option<Arc<ModelReplica>> {
        self.replicas.get(key)
    }

    pub(crate) fn deployments(&self) -> Vec<Arc<ModelDeployment>> {
        self.deployments.list()
    }

    pub(crate) fn replicas(&self) -> Vec<Arc<ModelReplica>> {
        self.replicas.list()
    }
}
