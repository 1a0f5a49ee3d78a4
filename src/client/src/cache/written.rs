//! Overlay of a local copy: own writes that the watch has not delivered, and objects that cannot be
//! parsed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use tracing::warn;

use super::CachedKind;

/// Number of deleted objects to remember, so that a late event does not restore one.
const MAX_GONE: usize = 1024;

/// Existing object that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
}

impl Unreadable {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
        }
    }

    pub(super) fn key(&self) -> (Option<String>, String) {
        (self.namespace.clone(), self.name.clone())
    }
}

/// Own writes that the watch has not delivered, by UID.
pub(super) struct Written<K> {
    objects: HashMap<String, Write<K>>,
    /// Newest resourceVersion of the last list.
    listed: u64,
    /// UID and last resourceVersion of deleted objects, newest last.
    gone: VecDeque<(String, u64)>,
    /// Number of lists, so that a new list removes writes from before its start.
    epoch: u64,
    pub(super) synced: bool,
    /// Objects that cannot be parsed, by namespace and name.
    pub(super) unreadable: BTreeMap<(Option<String>, String), Unreadable>,
    /// Objects that cannot be parsed in the current list.
    pub(super) listed_unreadable: BTreeMap<(Option<String>, String), Unreadable>,
}

struct Write<K> {
    /// `None` if the object was deleted.
    object: Option<Arc<K>>,
    epoch: u64,
}

impl<K: Resource> Write<K> {
    /// Whether a delivered version of the object contains the write.
    fn is_delivered(&self, delivered: u64) -> bool {
        self.object
            .as_ref()
            .is_some_and(|object| version(object.as_ref()) <= delivered)
    }
}

impl<K> Default for Written<K> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            listed: 0,
            gone: VecDeque::new(),
            epoch: 0,
            synced: false,
            unreadable: BTreeMap::new(),
            listed_unreadable: BTreeMap::new(),
        }
    }
}

/// Compares resourceVersions, which increase within a kind (KEP-5504). A text that is not a number
/// counts as zero.
pub(super) fn version<K: Resource>(object: &K) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

impl<K: CachedKind> Written<K> {
    /// Logs once that an object cannot be parsed.
    pub(super) fn note(&self, meta: &ObjectMeta, error: &str) -> Unreadable {
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

    pub(super) fn put(&mut self, object: K) {
        let Some(uid) = object.uid() else { return };
        let epoch = self.epoch;
        let object = Some(Arc::new(object));
        self.objects.insert(uid, Write { object, epoch });
    }

    /// Returns whether the watch has delivered the deletion after this version of the object.
    pub(super) fn is_gone(&self, object: &K) -> bool {
        let uid = object.meta().uid.as_deref();
        let mut gone = self.gone.iter();
        gone.any(|(known, last)| Some(known.as_str()) == uid && version(object) <= *last)
    }

    pub(super) fn remove(&mut self, uid: String, is_cached: bool) {
        let epoch = self.epoch;
        if is_cached {
            self.objects.insert(uid, Write { object: None, epoch });
        } else {
            self.objects.remove(&uid);
        }
    }

    pub(super) fn observe(&mut self, event: &watcher::Event<K>) {
        match event {
            watcher::Event::Init => {
                self.epoch += 1;
                self.listed = 0;
            }
            watcher::Event::InitApply(object) => self.listed = self.listed.max(version(object)),
            watcher::Event::InitDone => {
                self.synced = true;
                let (epoch, listed) = (self.epoch, self.listed);
                self.objects
                    .retain(|_, write| write.epoch >= epoch && !write.is_delivered(listed));
            }
            watcher::Event::Apply(object) => {
                let delivered = version(object);
                if let Some(uid) = object.uid()
                    && self
                        .objects
                        .get(&uid)
                        .is_some_and(|write| write.is_delivered(delivered))
                {
                    self.objects.remove(&uid);
                }
            }
            watcher::Event::Delete(object) => {
                if let Some(uid) = object.uid() {
                    self.objects.remove(&uid);
                    self.gone.push_back((uid, version(object)));
                    if self.gone.len() > MAX_GONE {
                        self.gone.pop_front();
                    }
                }
            }
        }
    }

    pub(super) fn over(&self, cached: Vec<Arc<K>>) -> Vec<Arc<K>> {
        if self.objects.is_empty() {
            return cached;
        }
        let mut objects: Vec<_> = cached
            .into_iter()
            .filter(|object| object.uid().is_none_or(|uid| !self.objects.contains_key(&uid)))
            .collect();
        objects.extend(self.objects.values().filter_map(|write| write.object.clone()));
        objects
    }
}
