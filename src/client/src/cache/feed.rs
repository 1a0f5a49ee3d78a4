//! Changed objects of a cache, for consumers that keep their own index of the objects. The cost of
//! taking a feed depends only on the number of changed objects, not on the size of the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::copy::ObjectKey;
use super::{Cache, CachedKind};

/// Change of one object since the consumer last took the feed.
#[derive(Debug, Clone)]
pub struct Change<K> {
    pub key: ObjectKey,
    /// Current version; `None` if the object does not exist.
    pub object: Option<Arc<K>>,
}

/// Changes of a cache that one consumer has not taken. Several changes of an object count as one.
/// A new feed contains all objects.
pub struct Feed<K: CachedKind> {
    cache: Cache<K>,
    id: u64,
}

/// Keys of changed objects, by feed.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    changed: BTreeMap<u64, BTreeSet<ObjectKey>>,
    last: u64,
}

impl Feeds {
    pub(super) fn record(&mut self, keys: impl IntoIterator<Item = ObjectKey>) {
        for key in keys {
            for changed in self.changed.values_mut() {
                if !changed.contains(&key) {
                    changed.insert(key.clone());
                }
            }
        }
    }
}

impl<K: CachedKind> Cache<K> {
    /// Returns a new feed of the changes of this cache.
    pub fn feed(&self) -> Feed<K> {
        let mut state = self.lock();
        let all = state.copy.keys().collect();
        state.feeds.last += 1;
        let id = state.feeds.last;
        state.feeds.changed.insert(id, all);
        drop(state);
        Feed {
            cache: self.clone(),
            id,
        }
    }
}

impl<K: CachedKind> Feed<K> {
    /// Returns the changes since the last call, ordered by namespace and name.
    pub fn take(&self) -> Vec<Change<K>> {
        let mut state = self.cache.lock();
        let changed = state.feeds.changed.get_mut(&self.id);
        let changed = changed.map(std::mem::take).unwrap_or_default();
        let change = |key: ObjectKey| Change {
            object: state.copy.get(&key).cloned(),
            key,
        };
        changed.into_iter().map(change).collect()
    }
}

impl<K: CachedKind> Drop for Feed<K> {
    fn drop(&mut self) {
        self.cache.lock().feeds.changed.remove(&self.id);
    }
}
