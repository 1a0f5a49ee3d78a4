//! Eviction order of the prefix cache: least recently used first; among entries with equal use, the
//! deepest first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Entries in the order in which they are evicted.
#[derive(Debug)]
pub(in crate::cache) struct EvictionOrder<K> {
    entries: BTreeSet<(u64, Reverse<usize>, K)>,
}

impl<K> Default for EvictionOrder<K> {
    fn default() -> Self {
        Self {
            entries: BTreeSet::new(),
        }
    }
}

impl<K: Copy + Ord> EvictionOrder<K> {
    /// Adds an entry that was last used at `used` and follows `depth` tokens.
    pub(in crate::cache) fn insert(&mut self, used: u64, depth: usize, key: K) {
        self.entries.insert((used, Reverse(depth), key));
    }

    pub(in crate::cache) fn remove(&mut self, used: u64, depth: usize, key: K) {
        self.entries.remove(&(used, Reverse(depth), key));
    }

    /// Returns the entry that is evicted next, and its last use.
    pub(in crate::cache) fn first(&self) -> Option<(u64, K)> {
        self.entries.first().map(|(used, _, key)| (*used, *key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_least_recently_used_then_deepest() {
        let mut order = EvictionOrder::default();
        for (used, depth, key) in [(2, 0, 'd'), (1, 0, 'c'), (1, 256, 'b'), (0, 0, 'a')] {
            order.insert(used, depth, key);
        }
        order.remove(0, 0, 'a');
        assert_eq!(order.first(), Some((1, 'b')));
        order.remove(1, 256, 'b');
        assert_eq!(order.first(), Some((1, 'c')));
    }
}
