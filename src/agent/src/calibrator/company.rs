//! Which requests shared the chip with those of another worker: their speed says nothing of the chip's own.
//!
//! A worker knows of its own engine alone. The agent sees all of them, at each of its passes: requests that run then, and
//! those completed since the pass before.

use std::collections::BTreeMap;

use crate::replica::ReplicaKey;
use rooflet_api::wire::RequestCounts;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Company {
    workers: BTreeMap<ReplicaKey, Seen>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    completed: u64,
    /// Requests that will have been completed when the last one that had company is.
    shared_until: u64,
}

impl Company {
    /// All workers as they are now. Those that are not named are gone.
    pub(crate) fn look(&mut self, now: &BTreeMap<ReplicaKey, RequestCounts>) {
        let is_busy = |key: &ReplicaKey, counts: &RequestCounts| {
            let before = self.workers.get(key).map_or(0, |seen| seen.completed);
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
                // Fewer than before: another process has this worker's place.
                let known = if counts.completed < before.completed {
                    0
                } else {
                    before.shared_until
                };
                let has_company = busy.contains(&key) && busy.len() > 1;
                let shared_until = if has_company {
                    counts.completed + counts.running
                } else {
                    known
                };
                let seen = Seen {
                    completed: counts.completed,
                    shared_until,
                };
                (key.clone(), seen)
            })
            .collect();
        self.workers = next;
    }

    /// Whether the last `requests` that this worker completed had the chip to themselves.
    pub(crate) fn spared(&self, key: &ReplicaKey, requests: u64) -> bool {
        self.workers.get(key).is_none_or(|seen| {
            seen.shared_until == 0 || seen.completed.saturating_sub(seen.shared_until) >= requests
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
    fn requests_have_company_where_two_workers_are_busy_at_once() {
        let (a, b) = (ReplicaKey::new("default", "a"), ReplicaKey::new("default", "b"));
        let mut company = Company::default();
        let mut look = |of_a, of_b| {
            company.look(&[(a.clone(), of_a), (b.clone(), of_b)].into());
            (company.spared(&a, 10), company.spared(&b, 10))
        };
        assert_eq!(look(counts(1, 0), counts(0, 0)), (true, true));
        assert_eq!(look(counts(1, 20), counts(0, 0)), (true, true), "b rests");
        // Both run: one of a's is still to end, and ten more have to follow.
        assert_eq!(look(counts(1, 21), counts(2, 0)), (false, false));
        assert_eq!(look(counts(0, 22), counts(0, 2)), (false, false), "until then");
        assert_eq!(look(counts(1, 31), counts(0, 2)), (false, false));
        assert_eq!(look(counts(1, 32), counts(0, 2)), (true, false));
        // Between two looks both have answered.
        assert_eq!(look(counts(0, 33), counts(0, 3)), (false, false));
        // A new process in a's place.
        assert_eq!(look(counts(0, 0), counts(0, 3)), (true, false));
        company.look(&BTreeMap::new());
        assert!(company.spared(&b, 10), "gone");
    }
}
