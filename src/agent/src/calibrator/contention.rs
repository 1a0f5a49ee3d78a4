//! Detection of requests that shared the chip with requests of another worker. Their speed does not
//! describe the chip.
//!
//! A worker sees only its own engine. At each sync pass the agent sees all workers: the requests
//! that run, and the requests completed since the previous pass.

use std::collections::BTreeMap;

use crate::replica::ReplicaKey;
use rooflet_api::wire::RequestCounts;

/// Tracker of requests that ran while another worker was busy.
#[derive(Debug, Default)]
pub(crate) struct ContentionTracker {
    workers: BTreeMap<ReplicaKey, WorkerLoad>,
}

#[derive(Debug, Clone, Copy, Default)]
struct WorkerLoad {
    completed: u64,
    /// Value of `completed` once the last disturbed request has completed.
    shared_until: u64,
}

impl ContentionTracker {
    /// Records the current counts of all workers. Workers missing from `now` are removed.
    pub(crate) fn update(&mut self, now: &BTreeMap<ReplicaKey, RequestCounts>) {
        let is_busy = |key: &ReplicaKey, counts: &RequestCounts| {
            let before = self.workers.get(key).map_or(0, |load| load.completed);
            counts.running > 0 || counts.completed != before
        };
        let busy: Vec<&ReplicaKey> = now
            .iter()
            .filter(|(key, counts)| is_busy(key, counts))
            .map(|(key, _)| key)
            .collect();
        let next = now
            .iter()
            .map(|(key, counts)| {
                let before = self.workers.get(key).copied().unwrap_or_default();
                // A lower count than before belongs to a new process.
                let previous = if counts.completed < before.completed {
                    0
                } else {
                    before.shared_until
                };
                let is_disturbed = busy.contains(&key) && busy.len() > 1;
                let shared_until = if is_disturbed {
                    counts.completed + counts.running
                } else {
                    previous
                };
                let load = WorkerLoad {
                    completed: counts.completed,
                    shared_until,
                };
                (key.clone(), load)
            })
            .collect();
        self.workers = next;
    }

    /// Returns true if the last `requests` requests that this worker completed ran without
    /// concurrent requests of another worker.
    pub(crate) fn ran_alone(&self, key: &ReplicaKey, requests: u64) -> bool {
        self.workers.get(key).is_none_or(|load| {
            load.shared_until == 0 || load.completed.saturating_sub(load.shared_until) >= requests
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(running: u64, completed: u64) -> RequestCounts {
        RequestCounts {
            running,
            completed,
            ..RequestCounts::default()
        }
    }

    #[test]
    fn requests_are_disturbed_if_two_workers_are_busy_at_once() {
        let (a, b) = (ReplicaKey::new("default", "a"), ReplicaKey::new("default", "b"));
        let mut company = ContentionTracker::default();
        let mut update = |of_a, of_b| {
            company.update(&[(a.clone(), of_a), (b.clone(), of_b)].into());
            (company.ran_alone(&a, 10), company.ran_alone(&b, 10))
        };
        assert_eq!(update(counts(1, 0), counts(0, 0)), (true, true));
        assert_eq!(update(counts(1, 20), counts(0, 0)), (true, true), "b is idle");
        // Both run: one of a's requests has not finished yet, and ten more have to follow.
        assert_eq!(update(counts(1, 21), counts(2, 0)), (false, false));
        assert_eq!(
            update(counts(0, 22), counts(0, 2)),
            (false, false),
            "the concurrent requests have not completed"
        );
        assert_eq!(update(counts(1, 31), counts(0, 2)), (false, false));
        assert_eq!(update(counts(1, 32), counts(0, 2)), (true, false));
        // Both answered between two updates.
        assert_eq!(update(counts(0, 33), counts(0, 3)), (false, false));
        // A new process replaced a.
        assert_eq!(update(counts(0, 0), counts(0, 3)), (true, false));
        company.update(&BTreeMap::new());
        assert!(company.ran_alone(&b, 10), "the worker was removed");
    }
}
