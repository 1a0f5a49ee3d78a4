//! Objects of one kind as a watch delivered them, with own writes that the watch has not delivered
//! yet.
//!
//! Pure: every change returns the keys of the objects that changed for readers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use tracing::warn;

use super::CachedKind;

/// Number of deleted objects to remember, so that a late event does not restore one.
const MAX_GONE: usize = 1024;

/// Namespace and name of an object. Lists of a [`Cache`](super::Cache) have this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// `None` for cluster-scoped objects.
    pub namespace: Option<String>,
    pub name: String,
}

impl ObjectKey {
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        }
    }

    pub fn of<K: Resource>(object: &K) -> Self {
        Self::of_meta(object.meta())
    }

    fn of_meta(meta: &ObjectMeta) -> Self {
        Self::new(
            meta.namespace.as_deref(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }
}

/// Existing object that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
}

impl Unreadable {
    fn of(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
        }
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace.as_deref(), &self.name)
    }
}

/// Own write that the watch has not delivered.
struct Write<K> {
    uid: String,
    /// `None` if the object was deleted.
    object: Option<Arc<K>>,
    /// Number of lists before the write.
    epoch: u64,
}

impl<K: Resource> Write<K> {
    /// Returns whether a delivered version of the object contains the write.
    fn is_delivered(&self, delivered: u64) -> bool {
        self.object
            .as_ref()
            .is_some_and(|object| version(object.as_ref()) <= delivered)
    }
}

/// Local copy of one kind; see the module documentation.
pub(super) struct LocalCopy<K> {
    delivered: BTreeMap<ObjectKey, Arc<K>>,
    /// Objects of the list in progress.
    listing: BTreeMap<ObjectKey, Arc<K>>,
    writes: HashMap<ObjectKey, Write<K>>,
    /// Newest resourceVersion of the list in progress.
    listed: u64,
    /// UID and last resourceVersion of deleted objects.
    gone: HashMap<String, u64>,
    /// UIDs in `gone`, newest last.
    gone_order: VecDeque<String>,
    /// Number of lists, so that a new list removes writes from before its start.
    epoch: u64,
    is_synced: bool,
    /// Objects that cannot be parsed.
    unreadable: BTreeMap<ObjectKey, Unreadable>,
    /// Objects that cannot be parsed in the list in progress.
    listed_unreadable: BTreeMap<ObjectKey, Unreadable>,
}

impl<K> Default for LocalCopy<K> {
    fn default() -> Self {
        Self {
            delivered: BTreeMap::new(),
            listing: BTreeMap::new(),
            writes: HashMap::new(),
            listed: 0,
            gone: HashMap::new(),
            gone_order: VecDeque::new(),
            epoch: 0,
            is_synced: false,
            unreadable: BTreeMap::new(),
            listed_unreadable: BTreeMap::new(),
        }
    }
}

/// Returns the resourceVersion as a number for comparisons. ResourceVersions increase within a kind
/// (KEP-5504). A text that is not a number counts as zero.
pub(super) fn version<K: Resource>(object: &K) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

/// Shares an object without its managed fields. No reader uses them, and they may be larger than the
/// rest of the object.
fn shared<K: Resource>(mut object: K) -> Arc<K> {
    object.meta_mut().managed_fields = None;
    Arc::new(object)
}

fn has_uid<K: Resource>(object: &K, uid: &str) -> bool {
    object.meta().uid.as_deref() == Some(uid)
}

impl<K: CachedKind> LocalCopy<K> {
    /// Returns whether the first list has arrived.
    pub(super) fn is_synced(&self) -> bool {
        self.is_synced
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        match self.writes.get(key) {
            Some(write) => write.object.as_ref(),
            None => self.delivered.get(key),
        }
    }

    /// Returns all objects, ordered by namespace and name.
    pub(super) fn list(&self) -> Vec<Arc<K>> {
        if self.writes.is_empty() {
            return self.delivered.values().cloned().collect();
        }
        let unwritten = self
            .delivered
            .iter()
            .filter(|(key, _)| !self.writes.contains_key(*key));
        let written = self
            .writes
            .iter()
            .filter_map(|(key, write)| Some((key, write.object.as_ref()?)));
        let mut objects: Vec<_> = unwritten.chain(written).collect();
        // Writes are few, so nearly all objects are in order already.
        objects.sort_by_key(|(key, _)| *key);
        objects.into_iter().map(|(_, object)| object.clone()).collect()
    }

    /// Returns the keys of all objects.
    pub(super) fn keys(&self) -> impl Iterator<Item = ObjectKey> {
        let all = self.delivered.keys().chain(self.writes.keys());
        all.filter(|key| self.get(key).is_some()).cloned()
    }

    pub(super) fn unreadable(&self) -> Vec<Unreadable> {
        self.unreadable.values().cloned().collect()
    }

    /// Records the server's response to an own write.
    pub(super) fn wrote(&mut self, object: K) -> Option<ObjectKey> {
        let (key, uid) = (ObjectKey::of(&object), object.uid()?);
        let is_deleted = |write: &Write<K>| write.object.is_none() && write.uid == uid;
        if self.writes.get(&key).is_some_and(is_deleted) {
            return None;
        }
        // The watch may have delivered the version before the response.
        let known = self.get(&key);
        let is_newer = known.is_none_or(|known| version(&object) > version(known.as_ref()));
        if !is_newer || self.is_gone(&object) {
            return None;
        }
        let write = Write {
            uid,
            object: Some(shared(object)),
            epoch: self.epoch,
        };
        self.writes.insert(key.clone(), write);
        Some(key)
    }

    /// Records that the server deleted the object immediately.
    pub(super) fn deleted(&mut self, object: &K) -> Option<ObjectKey> {
        let (key, uid) = (ObjectKey::of(object), object.uid()?);
        if self.writes.get(&key).is_some_and(|write| write.uid != uid) {
            return None;
        }
        let is_delivered = self
            .delivered
            .get(&key)
            .is_some_and(|delivered| has_uid(delivered.as_ref(), &uid));
        if is_delivered {
            let write = Write {
                uid,
                object: None,
                epoch: self.epoch,
            };
            self.writes.insert(key.clone(), write);
        } else {
            self.writes.remove(&key);
        }
        Some(key)
    }

    /// Applies an event of the watch. Returns the keys of the changed objects.
    pub(super) fn observe(&mut self, event: watcher::Event<DeserializeGuard<K>>) -> Vec<ObjectKey> {
        match self.readable(event) {
            Some(event) if !self.is_old(&event) => self.apply(event),
            Some(_) | None => Vec::new(),
        }
    }

    fn apply(&mut self, event: watcher::Event<K>) -> Vec<ObjectKey> {
        match event {
            watcher::Event::Init => {
                self.epoch += 1;
                self.listed = 0;
                self.listing.clear();
                Vec::new()
            }
            watcher::Event::InitApply(object) => {
                self.listed = self.listed.max(version(&object));
                self.listing.insert(ObjectKey::of(&object), shared(object));
                Vec::new()
            }
            watcher::Event::InitDone => self.finish_list(),
            watcher::Event::Apply(object) => {
                let (key, delivered) = (ObjectKey::of(&object), version(&object));
                let before = self.get(&key).cloned();
                let is_delivered = |write: &Write<K>| {
                    write.is_delivered(delivered) || write.object.is_none() && !has_uid(&object, &write.uid)
                };
                if self.writes.get(&key).is_some_and(is_delivered) {
                    self.writes.remove(&key);
                }
                // Readers have the delivered own write already, so its `Arc` stays.
                let own = before
                    .clone()
                    .filter(|own| is_same_version(own.as_ref(), &object));
                let object = own.unwrap_or_else(|| shared(object));
                self.delivered.insert(key.clone(), object);
                self.changed_since(before.as_ref(), key)
            }
            watcher::Event::Delete(object) => {
                let key = ObjectKey::of(&object);
                let before = self.get(&key).cloned();
                let uid = object.uid().unwrap_or_default();
                if self.writes.get(&key).is_some_and(|write| write.uid == uid) {
                    self.writes.remove(&key);
                }
                self.delivered.remove(&key);
                self.remember_gone(uid, version(&object));
                self.changed_since(before.as_ref(), key)
            }
        }
    }

    /// Returns the key if readers get another object than `before`.
    fn changed_since(&self, before: Option<&Arc<K>>, key: ObjectKey) -> Vec<ObjectKey> {
        let is_same = match (before, self.get(&key)) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if is_same { Vec::new() } else { vec![key] }
    }

    /// Replaces the objects by those of the finished list.
    fn finish_list(&mut self) -> Vec<ObjectKey> {
        self.is_synced = true;
        let before = std::mem::replace(&mut self.delivered, std::mem::take(&mut self.listing));
        let (epoch, listed) = (self.epoch, self.listed);
        let mut changed = Vec::new();
        self.writes.retain(|key, write| {
            let is_kept = write.epoch >= epoch && !write.is_delivered(listed);
            if !is_kept {
                changed.push(key.clone());
            }
            is_kept
        });
        changed.extend(
            before
                .keys()
                .filter(|key| !self.delivered.contains_key(*key))
                .cloned(),
        );
        for (key, object) in &mut self.delivered {
            match before.get(key) {
                // If the version is unchanged, keep the earlier `Arc`, which readers may hold.
                Some(known) if is_same_version(known.as_ref(), object.as_ref()) => *object = known.clone(),
                Some(_) | None => changed.push(key.clone()),
            }
        }
        changed
    }

    fn remember_gone(&mut self, uid: String, last: u64) {
        if self.gone.insert(uid.clone(), last).is_none() {
            self.gone_order.push_back(uid);
        }
        if self.gone_order.len() > MAX_GONE
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    /// Returns whether the watch has delivered the deletion after this version of the object.
    fn is_gone(&self, object: &K) -> bool {
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        self.gone.get(uid).is_some_and(|last| version(object) <= *last)
    }

    /// Returns whether the event is a duplicate or older than the known version.
    fn is_old(&self, event: &watcher::Event<K>) -> bool {
        let known = |object: &K| self.delivered.get(&ObjectKey::of(object));
        match event {
            watcher::Event::Init | watcher::Event::InitApply(_) | watcher::Event::InitDone => false,
            watcher::Event::Apply(object) => {
                known(object).is_some_and(|known| version(known.as_ref()) >= version(object))
                    || self.is_gone(object)
            }
            watcher::Event::Delete(object) => {
                known(object).is_some_and(|known| version(known.as_ref()) > version(object))
            }
        }
    }

    /// Maps the event to known objects: an object that cannot be parsed keeps its last version.
    fn readable(&mut self, event: watcher::Event<DeserializeGuard<K>>) -> Option<watcher::Event<K>> {
        use watcher::Event;
        match event {
            Event::Init => {
                self.listed_unreadable.clear();
                Some(Event::Init)
            }
            Event::InitApply(DeserializeGuard(Ok(object))) => Some(Event::InitApply(object)),
            Event::InitApply(DeserializeGuard(Err(invalid))) => {
                let unreadable = self.note(&invalid.metadata, &invalid.error);
                let known = self.last_readable(&unreadable);
                self.listed_unreadable.insert(unreadable.key(), unreadable);
                known.map(Event::InitApply)
            }
            Event::InitDone => {
                self.unreadable = std::mem::take(&mut self.listed_unreadable);
                Some(Event::InitDone)
            }
            Event::Apply(DeserializeGuard(Ok(object))) => {
                self.unreadable.remove(&ObjectKey::of(&object));
                Some(Event::Apply(object))
            }
            Event::Apply(DeserializeGuard(Err(invalid))) => {
                let unreadable = self.note(&invalid.metadata, &invalid.error);
                self.unreadable.insert(unreadable.key(), unreadable);
                None
            }
            Event::Delete(DeserializeGuard(Ok(object))) => {
                self.unreadable.remove(&ObjectKey::of(&object));
                Some(Event::Delete(object))
            }
            Event::Delete(DeserializeGuard(Err(invalid))) => {
                let gone = Unreadable::of(&invalid.metadata);
                self.unreadable.remove(&gone.key());
                self.last_readable(&gone).map(Event::Delete)
            }
        }
    }

    /// Logs once that an object cannot be parsed.
    fn note(&self, meta: &ObjectMeta, error: &str) -> Unreadable {
        let unreadable = Unreadable::of(meta);
        if self.unreadable.get(&unreadable.key()) != Some(&unreadable) {
            let Unreadable { namespace, name, .. } = &unreadable;
            warn!(
                kind = %K::kind(&()),
                namespace,
                name,
                error,
                "cannot parse object, perhaps written by a newer version; keeping its last known version"
            );
        }
        unreadable
    }

    /// Returns the last version of this object that could be parsed.
    fn last_readable(&self, object: &Unreadable) -> Option<K> {
        let known = self.delivered.get(&object.key())?;
        has_uid(known.as_ref(), &object.uid).then(|| known.as_ref().clone())
    }
}

fn is_same_version<K: Resource>(a: &K, b: &K) -> bool {
    let (a, b) = (a.meta(), b.meta());
    a.resource_version.is_some() && a.resource_version == b.resource_version && a.uid == b.uid
}
