//! `Record`, the stored value of one key, and `Event`, one step of the log.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use super::{Key, Revision};

/// One key's value as of `modified`. Immutable; shared between state, history and readers.
pub struct Record {
    pub key: Key,
    /// JSON text: only what parsed gets into the store.
    pub value: Bytes,
    pub created: Revision,
    pub modified: Revision,
    parsed: OnceLock<Value>,
}

impl Record {
    /// As read back from the file, which holds only what `parse` let in.
    pub(super) fn load(key: Key, value: Bytes, created: Revision, modified: Revision) -> Arc<Self> {
        let parsed = OnceLock::new();
        Arc::new(Self {
            key,
            value,
            created,
            modified,
            parsed,
        })
    }

    /// Parses a new value, once for everybody who will read it.
    pub(super) fn parse(
        key: Key,
        value: Bytes,
        created: Revision,
        modified: Revision,
    ) -> serde_json::Result<Arc<Self>> {
        let parsed = OnceLock::from(serde_json::from_slice::<Value>(&value)?);
        Ok(Arc::new(Self {
            key,
            value,
            created,
            modified,
            parsed,
        }))
    }

    pub fn for_tests(key: Key, value: Bytes) -> Arc<Self> {
        Self::load(key, value, Revision::INITIAL, Revision::INITIAL)
    }

    /// The value parsed.
    pub fn json(&self) -> &Value {
        self.parsed
            .get_or_init(|| serde_json::from_slice(&self.value).expect("it parsed when it was committed"))
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be Secrets: they stay out of logs and panic messages.
        f.debug_struct("Record")
            .field("key", &self.key)
            .field("created", &self.created)
            .field("modified", &self.modified)
            .field("bytes", &self.value.len())
            .finish()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Created,
    Modified,
    Deleted,
}

/// One step of the log, as watchers see it.
#[derive(Debug)]
pub struct Event {
    pub revision: Revision,
    pub kind: EventKind,
    /// The new value; for a deletion the last value as the deleter encoded it.
    pub record: Arc<Record>,
    /// What the key held before.
    pub previous: Option<Arc<Record>>,
}

impl Event {
    pub fn key(&self) -> &Key {
        &self.record.key
    }

    /// What the key holds after this step.
    pub(super) fn outcome(&self) -> Option<&Arc<Record>> {
        match self.kind {
            EventKind::Created | EventKind::Modified => Some(&self.record),
            EventKind::Deleted => None,
        }
    }
}
