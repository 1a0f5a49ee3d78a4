//! What one process knows of the store: a copy per kind, fed by watches that lag, with its own writes over it.
//!
//! The same rule as the client's cache: what the server answered to a write stands until the watch has passed it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;

use super::store::{Key, Kind, Object, Shelf, Stored, is_gone, key};
use crate::api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};
use crate::controller::intent::{Snapshot, Version};

/// A copy of one kind.
#[derive(Debug, Clone)]
struct Copy<K> {
    watched: Shelf<K>,
    /// By uid: answers to own writes; `None` for what an own write has removed.
    written: BTreeMap<String, (Key, u64, Option<Arc<K>>)>,
}

impl<K> Default for Copy<K> {
    fn default() -> Self {
        Self {
            watched: Shelf::new(),
            written: BTreeMap::new(),
        }
    }
}

fn version<K: Resource>(object: &K) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl<K: Stored> Copy<K> {
    fn watch(&mut self, object: Arc<K>, gone: bool) {
        let seen = version(object.as_ref());
        self.written.retain(|_, (_, version, _)| *version > seen);
        if gone {
            self.written
                .remove(object.meta().uid.as_deref().unwrap_or_default());
            self.watched.remove(&key(object.as_ref()));
        } else {
            self.watched.insert(key(object.as_ref()), object);
        }
    }

    fn wrote(&mut self, object: Arc<K>) {
        let key = key(object.as_ref());
        let known = self.watched.get(&key).map_or(0, |known| version(known.as_ref()));
        let written = version(object.as_ref());
        // The watch may have been faster than the answer.
        if written > known {
            let uid = object.meta().uid.clone().unwrap_or_default();
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
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    nodes: Copy<FleetNode>,
    deployments: Copy<ModelDeployment>,
    revisions: Copy<ModelRevision>,
    replicas: Copy<ModelReplica>,
    lines: BTreeMap<Kind, Line>,
}

impl View {
    /// Puts a change on its way. Returns when it arrives.
    pub(super) fn send(&mut self, object: Object, gone: bool, arrives: Duration) -> Duration {
        let line = self.lines.entry(object.kind()).or_default();
        line.last = line.last.max(arrives);
        line.waiting.push_back((line.last, object, gone));
        line.last
    }

    /// Takes in what has arrived of a kind. Whether that was anything.
    pub(super) fn deliver(&mut self, kind: Kind, now: Duration) -> bool {
        let mut any = false;
        while let Some((at, ..)) = self.lines.get(&kind).and_then(|line| line.waiting.front()) {
            if *at > now {
                break;
            }
            let line = self.lines.get_mut(&kind).expect("its front was just looked at");
            let Some((_, object, gone)) = line.waiting.pop_front() else {
                break;
            };
            self.apply(object, gone);
            any = true;
        }
        any
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
    pub(super) fn wrote(&mut self, object: Object) {
        match object {
            Object::Node(node) => self.nodes.wrote(node),
            Object::Deployment(deployment) => self.deployments.wrote(deployment),
            Object::Revision(revision) => self.revisions.wrote(revision),
            Object::Replica(replica) => self.replicas.wrote(replica),
        }
    }

    /// Begins anew with a list: what is on its way and what was written before is in it.
    pub(super) fn list_anew(&mut self, objects: impl IntoIterator<Item = Object>) {
        *self = Self::default();
        for object in objects {
            self.apply(object, false);
        }
    }

    /// An own delete has found nothing any more.
    pub(super) fn forget(&mut self, of: &Version) {
        self.replicas.forget(of);
        self.revisions.forget(of);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            nodes: self.nodes.list(),
            deployments: self.deployments.list(),
            revisions: self.revisions.list(),
            replicas: self.replicas.list(),
        }
    }

    pub(super) fn node(&self, name: &str) -> Option<Arc<FleetNode>> {
        self.nodes.get(&(None, name.to_owned()))
    }

    pub(super) fn replica(&self, key: &Key) -> Option<Arc<ModelReplica>> {
        self.replicas.get(key)
    }

    pub(super) fn replicas(&self) -> Vec<Arc<ModelReplica>> {
        self.replicas.list()
    }
}
