//! `Record`, the stored value of a key, and `Event`, one change of it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use super::{Key, ParseValue, Revision};

/// Value of one key at revision `modified`. Immutable; shared by state, history and readers.
pub struct Record {
    pub key: Key,
    /// JSON text; `parse` rejects everything else.
    pub value: Bytes,
    pub created: Revision,
    pub modified: Revision,
    parsed: OnceLock<Value>,
    parser: ParseValue,
}

impl Record {
    /// Creates a record from the file, which contains only values that `parse` accepted.
    pub(super) fn load(
        key: Key,
        value: Bytes,
        created: Revision,
        modified: Revision,
        parser: ParseValue,
    ) -> Arc<Self> {
        let parsed = OnceLock::new();
        Arc::new(Self {
            key,
            value,
            created,
            modified,
            parsed,
            parser,
        })
    }

    /// Parses a new value once for all readers.
    pub(super) fn parse(
        key: Key,
        value: Bytes,
        created: Revision,
        modified: Revision,
        parser: ParseValue,
    ) -> serde_json::Result<Arc<Self>> {
        let parsed = OnceLock::from(parser(&value)?);
        Ok(Arc::new(Self {
            key,
            value,
            created,
            modified,
            parsed,
            parser,
        }))
    }

    pub fn for_tests(key: Key, value: Bytes) -> Arc<Self> {
        Self::load(key, value, Revision::INITIAL, Revision::INITIAL, |bytes| {
            serde_json::from_slice(bytes)
        })
    }

    /// Returns the parsed value.
    pub fn json(&self) -> &Value {
        self.parsed
            .get_or_init(|| (self.parser)(&self.value).expect("committed values are valid JSON"))
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be Secrets, so they must not appear in logs and panic messages.
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

/// Change of one key, as delivered to watchers.
#[derive(Debug)]
pub struct Event {
    pub revision: Revision,
    pub kind: EventKind,
    /// New record. For a deletion, the last record as the delete encoder wrote it.
    pub record: Arc<Record>,
    /// Record before the change.
    pub previous: Option<Arc<Record>>,
}

impl Event {
    pub fn key(&self) -> &Key {
        &self.record.key
    }

    /// Returns the key's record after the change.
    pub(super) fn outcome(&self) -> Option<&Arc<Record>> {
        match self.kind {
            EventKind::Created | EventKind::Modified => Some(&self.record),
            EventKind::Deleted => None,
        }
    }
}
