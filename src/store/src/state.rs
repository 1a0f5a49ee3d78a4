//! In-memory state: current records and recent history. Pure; only the writer changes it, after an
//! event is durable.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::{Compacted, ListError};
use super::{Event, EventKind, Key, Record, Revision};

/// Limits of the history that watches resume from and lists page over.
///
/// Events older than `age_max` are compacted if more than `events_min` exist. Beyond `events_max`
/// or `bytes_max`, the oldest events are compacted at any age.
#[derive(Debug, Clone, Copy)]
pub struct HistoryLimits {
    pub events_min: usize,
    pub events_max: usize,
    pub bytes_max: usize,
    pub age_max: Duration,
    /// Number of obsolete rows in the file that triggers their deletion. Each deletion needs an
    /// extra sync, so rows are deleted in bulk.
    pub garbage_rows_max: usize,
}

impl Default for HistoryLimits {
    /// Keeps ten minutes of history, so that a client that reconnects within five minutes can
    /// resume. Fifty machines that together write twice per second need 1,200 events; a rollout
    /// needs thousands.
    fn default() -> Self {
        Self {
            events_min: 1_000,
            events_max: 200_000,
            bytes_max: 192 << 20,
            age_max: Duration::from_secs(600),
            garbage_rows_max: 1_024,
        }
    }
}

/// Estimated memory of an event besides values: record, counters and queue slots.
const EVENT_OVERHEAD_BYTES: usize = 256;

/// Page of records at one revision.
#[derive(Debug, Clone)]
pub struct Listing {
    pub records: Vec<Arc<Record>>,
    pub revision: Revision,
    /// Number of keys of the prefix after the last record.
    pub remaining: usize,
}

#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Last key of the previous page. Only later keys are listed.
    pub after: Option<Key>,
    pub limit: Option<usize>,
    /// Revision to list at. Default: the current one.
    pub at: Option<Revision>,
}

/// Row of the log that becomes obsolete once history starts after `superseded`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Garbage {
    pub(super) superseded: Revision,
    pub(super) row: Revision,
}

struct HistoryEntry {
    event: Arc<Event>,
    applied: Instant,
}

pub(super) struct State {
    revision: Revision,
    compacted: Revision,
    records: BTreeMap<Key, Arc<Record>>,
    history: VecDeque<HistoryEntry>,
    history_bytes: usize,
    /// Size of the current records.
    records_bytes: usize,
}

impl State {
    /// Creates an empty state whose history is complete after `compacted`.
    pub(super) fn new(compacted: Revision) -> Self {
        Self {
            revision: Revision::INITIAL,
            compacted,
            records: BTreeMap::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            records_bytes: 0,
        }
    }

    /// Creates a state of these records, without history.
    pub(super) fn of(revision: Revision, records: impl IntoIterator<Item = Arc<Record>>) -> Self {
        let mut state = Self::new(revision);
        state.revision = revision;
        for record in records {
            state.records_bytes += size(&record);
            state.records.insert(record.key.clone(), record);
        }
        state
    }

    /// Returns the current records without history.
    pub(super) fn without_history(&self) -> Self {
        Self::of(self.revision, self.records.values().map(Arc::clone))
    }

    /// Returns a state without history that continues `count` revisions later.
    pub(super) fn skip(self, count: u64) -> Self {
        let revision = Revision(self.revision.0 + count);
        Self::of(revision, self.records.into_values())
    }

    /// Continues after the compacted revision. In a file without history, it can be higher than the revision
    /// of each row.
    pub(super) fn pass_compacted(&mut self) {
        self.revision = self.revision.max(self.compacted);
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn compacted(&self) -> Revision {
        self.compacted
    }

    pub(super) fn history_len(&self) -> usize {
        self.history.len()
    }

    pub(super) fn history_bytes(&self) -> usize {
        self.history_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the size of an equivalent log, without the structure of its file.
    pub(super) fn bytes(&self) -> usize {
        self.records_bytes + self.history_bytes
    }

    pub(super) fn get(&self, key: &str) -> Option<&Arc<Record>> {
        self.records.get(key)
    }

    /// Applies the next event. Revisions must increase.
    pub(super) fn apply(&mut self, event: Arc<Event>, now: Instant) {
        debug_assert!(event.revision > self.revision);
        self.revision = event.revision;
        let replaced = match event.outcome() {
            Some(record) => {
                self.records_bytes += size(record);
                self.records.insert(record.key.clone(), Arc::clone(record))
            }
            None => self.records.remove(event.key()),
        };
        self.records_bytes -= replaced.map_or(0, |record| size(&record));
        if event.revision > self.compacted {
            self.history_bytes += cost(&event);
            self.history.push_back(HistoryEntry { event, applied: now });
        }
    }

    /// Compacts the oldest events beyond the limits and adds obsolete rows to `garbage`. Always
    /// keeps the newest event, which preserves the revision over a restart.
    pub(super) fn trim(&mut self, limits: &HistoryLimits, now: Instant, garbage: &mut VecDeque<Garbage>) {
        while self.history.len() > 1 {
            let full = self.history.len() > limits.events_max || self.history_bytes > limits.bytes_max;
            let aged = self.history.len() > limits.events_min
                && self
                    .history
                    .front()
                    .is_some_and(|oldest| now.saturating_duration_since(oldest.applied) > limits.age_max);
            if !(full || aged) {
                return;
            }
            let Some(HistoryEntry { event, .. }) = self.history.pop_front() else {
                return;
            };
            self.history_bytes -= cost(&event);
            self.compacted = event.revision;
            if let Some(previous) = &event.previous {
                garbage.push_back(Garbage {
                    superseded: event.revision,
                    row: previous.modified,
                });
            }
            if event.kind == EventKind::Deleted {
                garbage.push_back(Garbage {
                    superseded: event.revision,
                    row: event.revision,
                });
            }
        }
    }

    /// Returns all kept events after revision `after`, oldest first.
    pub(super) fn events_after(
        &self,
        after: Revision,
    ) -> Result<impl Iterator<Item = &Arc<Event>>, Compacted> {
        if after < self.compacted {
            return Err(Compacted {
                requested: after,
                compacted: self.compacted,
            });
        }
        let start = self
            .history
            .partition_point(|entry| entry.event.revision <= after);
        Ok(self.history.range(start..).map(|entry| &entry.event))
    }

    pub(super) fn list(&self, prefix: &str, options: &ListOptions) -> Result<Listing, ListError> {
        let revision = options.at.unwrap_or(self.revision);
        if revision > self.revision {
            return Err(ListError::Future {
                requested: revision,
                current: self.revision,
            });
        }
        let later = self
            .events_after(revision)
            .map_err(|Compacted { requested, compacted }| ListError::Compacted { requested, compacted })?;
        // Reconstruct the past by undoing later events. If several events changed a key, the oldest
        // one has the previous record.
        let mut undone: HashMap<&Key, Option<&Arc<Record>>> = HashMap::new();
        for event in later.filter(|event| event.key().as_str().starts_with(prefix)) {
            undone.entry(event.key()).or_insert(event.previous.as_ref());
        }
        let listing = if undone.is_empty() {
            page(self.with_prefix(prefix, options.after.as_ref()), options.limit)
        } else {
            let mut past: BTreeMap<&Key, &Arc<Record>> = self
                .with_prefix(prefix, options.after.as_ref())
                .map(|record| (&record.key, record))
                .collect();
            for (key, before) in undone {
                match before {
                    Some(record) if options.after.as_ref().is_none_or(|after| key > after) => {
                        past.insert(key, record)
                    }
                    Some(_) | None => past.remove(key),
                };
            }
            page(past.into_values(), options.limit)
        };
        Ok(Listing { revision, ..listing })
    }

    /// Returns the content of an equivalent new log in revision order: records not modified since
    /// `compacted`, then history.
    pub(super) fn rows(&self) -> (Vec<Arc<Record>>, Vec<Arc<Event>>) {
        let history: Vec<Arc<Event>> = self
            .history
            .iter()
            .map(|entry| Arc::clone(&entry.event))
            .collect();
        let mut base: Vec<Arc<Record>> = history
            .iter()
            .filter_map(|event| event.previous.as_ref())
            .chain(self.records.values())
            .filter(|record| record.modified <= self.compacted)
            .map(Arc::clone)
            .collect();
        base.sort_by_key(|record| record.modified);
        base.dedup_by_key(|record| record.modified);
        (base, history)
    }

    fn with_prefix<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
    ) -> impl Iterator<Item = &'a Arc<Record>> {
        let start = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            Some(_) | None => Bound::Included(prefix),
        };
        self.records
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(move |(key, _)| key.as_str().starts_with(prefix))
            .map(|(_, record)| record)
    }
}

fn page<'a>(mut records: impl Iterator<Item = &'a Arc<Record>>, limit: Option<usize>) -> Listing {
    let records_of_page = records
        .by_ref()
        .take(limit.unwrap_or(usize::MAX))
        .map(Arc::clone)
        .collect();
    Listing {
        records: records_of_page,
        revision: Revision::INITIAL,
        remaining: records.count(),
    }
}

/// Returns the size of a record in a log.
fn size(record: &Record) -> usize {
    record.key.as_str().len() + record.value.len()
}

/// Returns the memory that only the history needs for an event, in bytes. The current records are not part
/// of it, and consecutive events of a key share a record.
fn cost(event: &Event) -> usize {
    let previous = event.previous.as_ref().map_or(0, |record| record.value.len());
    let last = match event.kind {
        EventKind::Deleted => event.record.value.len() + event.key().as_str().len(),
        EventKind::Created | EventKind::Modified => 0,
    };
    previous + last + EVENT_OVERHEAD_BYTES
}
