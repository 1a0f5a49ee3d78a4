//! Work queue of object keys.
//!
//! Each key is queued once, however often it changes, and no two workers process the same key at
//! the same time. A key that changes meanwhile is queued again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Instant;

use rooflet_client::ObjectKey;

/// Number of taken keys after which the queue serves the lower priorities first, so that a storm of
/// user changes never stops other work.
const TURN: u64 = 4;
const PRIORITIES: usize = 5;

/// Order in which keys are taken; the first one is the most urgent. Keys of one priority are taken
/// in the order in which they were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// A user changed the spec of an existing object.
    Changed,
    /// A user created the object.
    Created,
    /// An object that belongs to the key changed.
    Dependent,
    /// A replica of the key came closer to being ready, which changes messages only.
    Progress,
    /// Nothing that belongs to the key changed.
    Resync,
}

impl Priority {
    const ALL: [Self; PRIORITIES] = [
        Self::Changed,
        Self::Created,
        Self::Dependent,
        Self::Progress,
        Self::Resync,
    ];
    /// Order of every [`TURN`]th taken key.
    const LOW_FIRST: [Self; PRIORITIES] = [
        Self::Dependent,
        Self::Progress,
        Self::Resync,
        Self::Changed,
        Self::Created,
    ];
}

/// Queue of keys; see the module documentation.
#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    /// Queued keys of each priority, by the sequence number at which they were added.
    lanes: [BTreeMap<u64, ObjectKey>; PRIORITIES],
    queued: HashMap<ObjectKey, (Priority, u64)>,
    /// Keys that a worker processes.
    active: HashSet<ObjectKey>,
    /// Keys that changed while a worker processes them.
    again: HashMap<ObjectKey, Priority>,
    /// Keys to queue at a later time.
    delayed: BTreeSet<(Instant, ObjectKey)>,
    due: HashMap<ObjectKey, Instant>,
    added: u64,
    taken: u64,
}

impl WorkQueue {
    /// Queues the key. If it is queued, the more urgent priority counts.
    pub(crate) fn add(&mut self, key: ObjectKey, priority: Priority) {
        if self.active.contains(&key) {
            let known = self.again.entry(key).or_insert(priority);
            *known = priority.min(*known);
            return;
        }
        if let Some((known, number)) = self.queued.get(&key).copied() {
            if known <= priority {
                return;
            }
            self.lanes[known as usize].remove(&number);
        }
        self.added += 1;
        self.lanes[priority as usize].insert(self.added, key.clone());
        self.queued.insert(key, (priority, self.added));
    }

    /// Queues the key at `at`, unless it is due earlier.
    pub(crate) fn add_at(&mut self, key: ObjectKey, at: Instant) {
        if let Some(known) = self.due.get(&key).copied() {
            if known <= at {
                return;
            }
            self.delayed.remove(&(known, key.clone()));
        }
        self.due.insert(key.clone(), at);
        self.delayed.insert((at, key));
    }

    /// Returns the time at which the next delayed key is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Returns the first key that a user changed, for workers that are reserved for user changes. The
    /// caller processes it and calls [`WorkQueue::finish`].
    pub(crate) fn take_changed(&mut self) -> Option<ObjectKey> {
        let (_, key) = self.lanes[Priority::Changed as usize].pop_first()?;
        Some(self.activate(key))
    }

    /// Returns the most urgent key. The caller processes it and calls [`WorkQueue::finish`].
    pub(crate) fn take(&mut self, now: Instant) -> Option<ObjectKey> {
        while let Some((at, _)) = self.delayed.first()
            && *at <= now
            && let Some((_, key)) = self.delayed.pop_first()
        {
            self.due.remove(&key);
            self.add(key, Priority::Resync);
        }
        let order = match self.taken % TURN == TURN - 1 {
            true => Priority::LOW_FIRST,
            false => Priority::ALL,
        };
        let (_, key) = order
            .into_iter()
            .find_map(|priority| self.lanes[priority as usize].pop_first())?;
        self.taken += 1;
        Some(self.activate(key))
    }

    /// Moves a key from its lane to the active keys.
    fn activate(&mut self, key: ObjectKey) -> ObjectKey {
        self.queued.remove(&key);
        // The pass covers all changes up to now, including the delayed ones.
        if let Some(at) = self.due.remove(&key) {
            self.delayed.remove(&(at, key.clone()));
        }
        self.active.insert(key.clone());
        key
    }

    /// Records that a worker has processed the key.
    pub(crate) fn finish(&mut self, key: &ObjectKey) {
        self.active.remove(key);
        if let Some(priority) = self.again.remove(key) {
            self.add(key.clone(), priority);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use rooflet_base::clock::Clock;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(Some("default"), name)
    }

    fn drain(queue: &mut WorkQueue, now: Instant) -> String {
        let taken = std::iter::from_fn(|| {
            let key = queue.take(now)?;
            queue.finish(&key);
            Some(key.name)
        });
        taken.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn takes_user_changes_before_creations_before_the_rest() {
        let now = Clock::System.instant();
        let mut queue = WorkQueue::default();
        for (name, priority) in [
            ("resynced", Priority::Resync),
            ("created", Priority::Created),
            ("changed", Priority::Changed),
        ] {
            queue.add(key(name), priority);
        }
        assert_eq!(drain(&mut queue, now), "changed created resynced");
    }

    #[test]
    fn storm_of_user_changes_does_not_stop_other_work() {
        let now = Clock::System.instant();
        let mut queue = WorkQueue::default();
        queue.add(key("dependent"), Priority::Dependent);
        for number in 0..100 {
            queue.add(key(&format!("storm-{number}")), Priority::Changed);
        }
        let first: Vec<_> = (0..TURN).filter_map(|_| queue.take(now)).collect();
        assert!(first.contains(&key("dependent")), "{first:?}");
    }

    #[test]
    fn reserved_workers_take_user_changes_only() {
        let now = Clock::System.instant();
        let mut queue = WorkQueue::default();
        queue.add(key("created"), Priority::Created);
        queue.add(key("changed"), Priority::Changed);
        assert_eq!(queue.take_changed(), Some(key("changed")));
        assert_eq!(queue.take_changed(), None);
        queue.add(key("changed"), Priority::Changed);
        assert_eq!(queue.take_changed(), None, "no two workers process one key");
        queue.finish(&key("changed"));
        assert_eq!(queue.take_changed(), Some(key("changed")));
        assert_eq!(drain(&mut queue, now), "created");
    }

    #[test]
    fn queues_each_key_once_with_its_most_urgent_priority() {
        let now = Clock::System.instant();
        let mut queue = WorkQueue::default();
        queue.add(key("a"), Priority::Resync);
        queue.add(key("b"), Priority::Dependent);
        queue.add(key("a"), Priority::Changed);
        queue.add(key("a"), Priority::Resync);
        assert_eq!(drain(&mut queue, now), "a b");
    }

    #[test]
    fn processes_a_key_again_that_changed_meanwhile() {
        let now = Clock::System.instant();
        let mut queue = WorkQueue::default();
        queue.add(key("a"), Priority::Created);
        assert_eq!(queue.take(now), Some(key("a")));
        queue.add(key("a"), Priority::Resync);
        queue.add(key("a"), Priority::Changed);
        assert_eq!(queue.take(now), None, "no two workers process one key");
        queue.add(key("b"), Priority::Created);
        queue.finish(&key("a"));
        assert_eq!(drain(&mut queue, now), "a b");
    }

    #[test]
    fn queues_a_delayed_key_when_it_is_due() {
        let now = Clock::System.instant();
        let second = Duration::from_secs(1);
        let mut queue = WorkQueue::default();
        queue.add_at(key("a"), now + 5 * second);
        queue.add_at(key("a"), now + 2 * second);
        queue.add_at(key("a"), now + 9 * second);
        queue.add_at(key("b"), now + 3 * second);
        assert_eq!(queue.next_due(), Some(now + 2 * second));
        assert_eq!(drain(&mut queue, now + second), "");
        queue.add(key("b"), Priority::Created);
        assert_eq!(drain(&mut queue, now + 2 * second), "b a");
        assert_eq!(queue.next_due(), None, "the pass of b replaced its delay");
    }

    proptest! {
        #[test]
        fn every_added_key_is_processed_after_its_last_change(
            events in proptest::collection::vec((0u8..5, 0usize..PRIORITIES, 0u8..3), 0..80),
        ) {
            let now = Clock::System.instant();
            let mut queue = WorkQueue::default();
            let mut active = Vec::new();
            let mut outdated = BTreeSet::new();
            for (number, priority, event) in events {
                match event {
                    0 => {
                        queue.add(key(&number.to_string()), Priority::ALL[priority]);
                        outdated.insert(key(&number.to_string()));
                    }
                    1 => {
                        if let Some(taken) = queue.take(now) {
                            prop_assert!(!active.contains(&taken), "{taken:?} is processed twice");
                            outdated.remove(&taken);
                            active.push(taken);
                        }
                    }
                    _ => {
                        if let Some(finished) = active.pop() {
                            queue.finish(&finished);
                        }
                    }
                }
            }
            active.iter().for_each(|key| queue.finish(key));
            while let Some(taken) = queue.take(now) {
                outdated.remove(&taken);
                queue.finish(&taken);
            }
            prop_assert_eq!(outdated, BTreeSet::new());
        }
    }
}
