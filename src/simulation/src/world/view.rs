//! What one process knows of the store: a copy per kind, fed by watches that lag, with its own
//! writes over it.
//!
//! The same rules as the client's cache: what the server answered to a write stands until the watch
//! has shown it, and what is told again or too late undoes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;

use crate::world::store::Key;
use crate::world::store::Kind;
use crate::world::store::Object;
use crate::world::store::Shelf;
use crate::world::store::Stored;
use crate::world::store::is_gone;
use crate::world::store::key;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};
use rooflet_controller::intent::{Snapshot, Version};

/// A copy of one kind.
#[derive(Debug, Clone)]
struct Copy<K> {
    watched: Shelf<K>,
    /// By uid: answers to own writes; `None` for what an own write has removed.
    written: BTreeMap<String, (Key, u64, Option<Arc<K>>)>,
    /// Uids of what is known to be gone for good.
    gone: BTreeSet<String>,
}

impl<K> Default for Copy<K> {
    fn default() -> Self {
        Self {
            watched: Shelf::new(),
            written: BTreeMap::new(),
            gone: BTreeSet::new(),
        }
    }
}

pub(crate) fn version<K: Resource>(object: &K) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl<K: Stored> Copy<K> {
    /// Whether it is no news: told already, or overtaken by what was told.
    fn is_old(&self, object: &K) -> bool {
        let known = self.watched.get(&key(object));
        known.is_some_and(|known| version(known.as_ref()) >= version(object))
            || object
                .meta()
                .uid
                .as_ref()
                .is_some_and(|uid| self.gone.contains(uid))
    }

    fn watch(&mut self, object: Arc<K>, gone: bool) {
        let (uid, key) = (
            object.meta().uid.clone().unwrap_or_default(),
            key(object.as_ref()),
        );
        let seen = version(object.as_ref());
        let shown = self
            .written
            .get(&uid)
            .is_some_and(|(_, version, _)| *version <= seen);
        if shown || gone {
            self.written.remove(&uid);
        }
        if gone {
            self.gone.insert(uid);
            self.watched.remove(&key);
        } else {
            self.watched.insert(key, object);
        }
    }

    fn wrote(&mut self, object: Arc<K>) {
        let key = key(object.as_ref());
        let known = self.watched.get(&key).map_or(0, |known| version(known.as_ref()));
        let written = version(object.as_ref());
        let uid = object.meta().uid.clone().unwrap_or_default();
        // The watch may have been faster than the answer.
        if written > known && !self.gone.contains(&uid) {
            let left = (!is_gone(object.meta())).then_some(object);
            self.written.insert(uid, (key, written, left));
        }
    }

    fn forget(&mut self, of: &Version) {
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

/// What waits to be delivered of one kind, in the order of the store.
#[derive(Debug, Clone, Default)]
struct Line {
    waiting: VecDeque<(Duration, Object, bool)>,
    /// Nothing is delivered before what went before it.
    last: Duration,
    /// What comes out of order.
    apart: Vec<(Duration, Object, bool)>,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    nodes: Copy<FleetNode>,
    deployments: Copy<ModelDeployment>,
    revisions: Copy<ModelRevision>,
    replicas: Copy<ModelReplica>,
    lines: BTreeMap<Kind, Line>,
    /// Its watches have ended at this time. It hears nothing more before it has listed.
    pub(crate) ended: Option<Duration>,
}

impl View {
    /// The connections to the server are gone, with what was on its way.
    pub(crate) fn end(&mut self, now: Duration) {
        self.lines.clear();
        self.ended.get_or_insert(now);
    }

    /// Puts a change on its way. Returns when it arrives.
    pub(crate) fn send(&mut self, object: Object, gone: bool, arrives: Duration) -> Duration {
        let line = self.lines.entry(object.kind()).or_default();
        line.last = line.last.max(arrives);
        line.waiting.push_back((line.last, object, gone));
        line.last
    }

    /// Puts a change on its way that waits for none that went before it.
    pub(crate) fn send_apart(&mut self, object: Object, gone: bool, arrives: Duration) {
        let line = self.lines.entry(object.kind()).or_default();
        line.apart.push((arrives, object, gone));
    }

    /// Takes in what has arrived of a kind, by a planted bug also what is old. The newest version
    /// of that, if there was anything.
    pub(crate) fn deliver(&mut self, kind: Kind, now: Duration, old_too: bool) -> Option<u64> {
        let mut newest = None;
        for (object, gone) in self.arrived(kind, now) {
            newest = newest.max(Some(object.version()));
            if old_too || !self.is_old(&object) {
                self.apply(object, gone);
            }
        }
        newest
    }

    fn arrived(&mut self, kind: Kind, now: Duration) -> Vec<(Object, bool)> {
        let Some(line) = self.lines.get_mut(&kind) else {
            return Vec::new();
        };
        let mut arrived = Vec::new();
        while line.waiting.front().is_some_and(|(at, ..)| *at <= now) {
            arrived.extend(line.waiting.pop_front().map(|(_, object, gone)| (object, gone)));
        }
        let mut at = 0;
        while at < line.apart.len() {
            if line.apart[at].0 <= now {
                let (_, object, gone) = line.apart.remove(at);
                arrived.push((object, gone));
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

    fn apply(&mut self, object: Object, gone: bool) {
        match object {
            Object::Node(node) => self.nodes.watch(node, gone),
            Object::Deployment(deployment) => self.deployments.watch(deployment, gone),
            Object::Revision(revision) => self.revisions.watch(revision, gone),
            Object::Replica(replica) => self.replicas.watch(replica, gone),
        }
    }

    /// What the server answered to an own write.
    pub(crate) fn wrote(&mut self, object: Object) {
        match object {
            Object::Node(node) => self.nodes.wrote(node),
            Object::Deployment(deployment) => self.deployments.wrote(deployment),
            Object::Revision(revision) => self.revisions.wrote(revision),
            Object::Replica(replica) => self.replicas.wrote(replica),
        }
    }

    /// Begins anew with a list: what is on its way and what was written before is in it.
    pub(crate) fn list_anew(&mut self, objects: impl IntoIterator<Item = Object>) {
        *self = Self::default();
        for object in objects {
            self.apply(object, false);
        }
    }

    /// An own delete has found nothing any more.
    pub(crate) fn forget(&mut self, of: &Version) {
        self.replicas.forget(of);
        self.revisions.forget(of);
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
