//! File layout: an append-only log of revisions in one redb table, modelled on kine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::state::{Garbage, State};
use super::{Event, EventKind, Key, ParseValue, Record, Revision};

pub(super) const FORMAT: u64 = 1;

/// Log row: (flags, created, previous, key, value), indexed by its revision. `created` and
/// `previous` are revisions; `previous` is 0 if the key did not exist before.
type Row<'a> = (u8, u64, u64, &'a str, &'a [u8]);
const LOG: TableDefinition<u64, Row<'static>> = TableDefinition::new("log");
const DELETED: u8 = 1;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const META_FORMAT: &str = "format";
/// Compacted revision. History is complete after it; older rows hold only values that are still
/// current or that kept history refers to.
const META_COMPACTED: &str = "compacted";

#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("format {0} is newer than {FORMAT}")]
    NewerFormat(u64),
    #[error("{0}")]
    Corrupt(String),
    #[error(transparent)]
    Storage(Box<redb::Error>),
}

impl<E: Into<redb::Error>> From<E> for LoadError {
    fn from(err: E) -> Self {
        Self::Storage(Box::new(err.into()))
    }
}

/// Loads the whole log into memory.
///
/// Returns an error if the format is newer than [`FORMAT`] or a revision does not follow from its
/// predecessor.
pub(super) fn load(db: &Database, now: Instant, parser: ParseValue) -> Result<State, LoadError> {
    let txn = db.begin_read()?;
    let meta = txn.open_table(META)?;
    let read = |name: &str| -> Result<u64, LoadError> {
        meta.get(name)?
            .map(|value| value.value())
            .ok_or_else(|| LoadError::Corrupt(format!("the meta table has no `{name}` entry")))
    };
    let format = read(META_FORMAT)?;
    if format > FORMAT {
        return Err(LoadError::NewerFormat(format));
    }
    let mut state = State::new(Revision(read(META_COMPACTED)?));
    for row in txn.open_table(LOG)?.iter()? {
        let (revision, row) = row?;
        let event = decode(&state, Revision(revision.value()), row.value(), parser)?;
        state.apply(Arc::new(event), now);
    }
    Ok(state)
}

fn decode(state: &State, revision: Revision, row: Row<'_>, parser: ParseValue) -> Result<Event, LoadError> {
    let (flags, created, previous_revision, key, value) = row;
    let corrupt = |reason: &str| LoadError::Corrupt(format!("revision {revision}: {reason}"));
    if revision <= Revision::INITIAL {
        return Err(corrupt("reserved for the empty store"));
    }
    let previous = state.get(key).map(Arc::clone);
    let key = Key::new(key);
    // Compaction has deleted the predecessors of rows at or before the compacted revision.
    if revision > state.compacted()
        && previous.as_ref().map_or(0, |record| record.modified.0) != previous_revision
    {
        return Err(corrupt("the previous revision of its key is missing"));
    }
    let kind = match (flags & DELETED != 0, created == revision.0) {
        (true, _) => EventKind::Deleted,
        (false, true) => EventKind::Created,
        (false, false) => EventKind::Modified,
    };
    let value = Bytes::copy_from_slice(value);
    let record = Record::load(key, value, Revision(created), revision, parser);
    Ok(Event {
        revision,
        kind,
        record,
        previous,
    })
}

/// Appends one batch durably. First deletes rows after `durable`: they belong to a batch that was
/// reported as failed.
pub(super) fn append(db: &Database, durable: Revision, batch: &[Arc<Event>]) -> Result<(), redb::Error> {
    write(db, |txn| {
        let mut log = txn.open_table(LOG)?;
        if log.last()?.is_some_and(|(last, _)| last.value() > durable.0) {
            log.retain_in(durable.0 + 1.., |_, _| false)?;
        }
        batch.iter().try_for_each(|event| {
            let previous = event.previous.as_ref().map_or(0, |record| record.modified.0);
            insert(&mut log, event.kind, &event.record, previous)
        })
    })
}

/// Deletes rows that neither current records nor history need, and stores the compacted revision.
pub(super) fn compact(db: &Database, garbage: &VecDeque<Garbage>) -> Result<(), redb::Error> {
    let Some(newest) = garbage.iter().map(|row| row.superseded).max() else {
        return Ok(());
    };
    write(db, |txn| {
        let mut log = txn.open_table(LOG)?;
        for row in garbage {
            log.remove(row.row.0)?;
        }
        let mut meta = txn.open_table(META)?;
        // The compacted revision never decreases: deleted history does not return.
        let compacted = meta
            .get(META_COMPACTED)?
            .map_or(0, |value| value.value())
            .max(newest.0);
        meta.insert(META_COMPACTED, compacted)?;
        Ok(())
    })
}

/// Writes a complete state to an empty database.
pub(super) fn fill(db: &Database, state: &State) -> Result<(), redb::Error> {
    write(db, |txn| {
        let mut meta = txn.open_table(META)?;
        meta.insert(META_FORMAT, FORMAT)?;
        meta.insert(META_COMPACTED, state.compacted().0)?;
        let mut log = txn.open_table(LOG)?;
        let (base, history) = state.rows();
        for record in &base {
            insert(&mut log, EventKind::Modified, record, 0)?;
        }
        history.iter().try_for_each(|event| {
            let previous = event.previous.as_ref().map_or(0, |record| record.modified.0);
            insert(&mut log, event.kind, &event.record, previous)
        })
    })
}

/// Returns the newest revision in the file.
pub(super) fn newest(db: &Database) -> Result<Revision, redb::Error> {
    let txn = db.begin_read()?;
    let newest = txn
        .open_table(LOG)?
        .last()?
        .map(|(revision, _)| Revision(revision.value()));
    Ok(newest.unwrap_or(Revision::INITIAL))
}

fn insert(
    log: &mut redb::Table<'_, u64, Row<'static>>,
    kind: EventKind,
    record: &Record,
    previous: u64,
) -> Result<(), redb::Error> {
    let flags = match kind {
        EventKind::Created | EventKind::Modified => 0,
        EventKind::Deleted => DELETED,
    };
    let row = (
        flags,
        record.created.0,
        previous,
        record.key.as_str(),
        &*record.value,
    );
    log.insert(record.modified.0, row)?;
    Ok(())
}

/// Runs one transaction and syncs it to disk.
fn write(
    db: &Database,
    change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let mut txn = db.begin_write()?;
    txn.set_durability(Durability::Immediate)?;
    change(&txn)?;
    txn.commit()?;
    Ok(())
}
