//! `Record`, the stored value of a key, and `Event`, one change of it.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use super::parser::Parser;
use super::{Key, Revision};

/// Value of one key at revision `modified`. Immutable; shared by state, history and readers.
pub struct Record {
    pub key: Key,
    /// JSON text; `parse` rejects everything else.
    pub value: Bytes,
    pub created: Revision,
    pub modified: Revision,
    /// Place of the excerpt in `value`. Values are smaller than 4 GiB.
    excerpt: Range<u32>,
    parser: Arc<Parser>,
    field: OnceLock<Box<FieldValue>>,
}

/// Value of a field of a record.
struct FieldValue {
    name: Box<str>,
    value: Box<str>,
}

impl Record {
    /// Creates a record of a value that the parser accepts.
    pub(super) fn new(
        key: Key,
        value: Bytes,
        created: Revision,
        modified: Revision,
        parser: &Arc<Parser>,
    ) -> Arc<Self> {
        Arc::new(Self {
            excerpt: parser.excerpt(&value),
            key,
            value,
            created,
            modified,
            parser: Arc::clone(parser),
            field: OnceLock::new(),
        })
    }

    pub fn for_tests(key: Key, value: Bytes) -> Arc<Self> {
        let parser = Parser::new(|bytes| serde_json::from_slice(bytes), |_| None);
        Self::new(key, value, Revision::INITIAL, Revision::INITIAL, &parser)
    }

    /// Returns the part of the value that [`StoreConfig::locate_excerpt`](super::StoreConfig) has located.
    /// Empty if the value has no such part.
    pub fn excerpt(&self) -> &[u8] {
        let Range { start, end } = self.excerpt;
        self.value.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Returns the parsed value. Only values that were used recently stay parsed; others are parsed
    /// again.
    pub fn json(&self) -> Arc<Value> {
        let parsed = self.parser.parse(&self.value);
        parsed.expect("committed values are valid JSON")
    }

    /// Returns whether `read` returns `expected` for the parsed value. `name` identifies `read`. The
    /// record keeps the value of the first name: one of hundreds of watches by the same field parses
    /// the record.
    pub fn has_field(&self, name: &str, expected: &str, read: impl FnOnce(&Value) -> String) -> bool {
        if let Some(known) = self.field.get().filter(|known| *known.name == *name) {
            return *known.value == *expected;
        }
        let value = read(&self.json()).into_boxed_str();
        let is_equal = *value == *expected;
        let name = name.into();
        // The record keeps another field already, or another thread was faster.
        drop(self.field.set(Box::new(FieldValue { name, value })));
        is_equal
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn first_field_is_read_once() {
        let value = Bytes::from_static(br#"{"node": "a", "zone": "b"}"#);
        let record = Record::for_tests(Key::new("/k/1"), value);
        let reads = Cell::new(0);
        let has = |name: &str, expected: &str| {
            record.has_field(name, expected, |value| {
                reads.set(reads.get() + 1);
                value[name].as_str().unwrap_or_default().to_owned()
            })
        };
        assert!(has("node", "a"));
        assert!((0..200).all(|other| !has("node", &other.to_string())));
        assert_eq!(reads.get(), 1);
        assert!(has("zone", "b") && !has("zone", "a"));
        assert_eq!(reads.get(), 3, "only one field is kept");
        assert!(has("node", "a"));
    }
}
