//! The file's layout and nothing else: an append log of revisions in one redb table, after kine's
//! model. Only this file knows it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::state::{Garbage, State};
use super::{Event, EventKind, Key, Record, Revision};

pub(super) const FORMAT: u64 = 1;

/// (flags, created, previous, key, value): one row for each step, by revision. `created` and
/// `previous` are revisions, `previous` 0 where the key held nothing.
type Row<'a> = (u8, u64, u64, &'a str, &'a [u8]);
const LOG: TableDefinition<u64, Row<'static>> = TableDefinition::new("log");
const DELETED: u8 = 1;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const META_FORMAT: &str = "format";
/// History is complete after this revision; rows up to it are only what the present needs.
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

/// Reads the whole log into memory. Checks what it relies on: the format, and that each step
/// follows from the one before.
pub(super) fn load(db: &Database, now: Instant) -> Result<State, LoadError> {
    let txn = db.begin_read()?;
    let meta = txn.open_table(META)?;
    let read = |name: &str| -> Result<u64, LoadError> {
        meta.get(name)?
            .map(|value| value.value())
            .ok_or_else(|| LoadError::Corrupt(format!("it has no `{name}` entry")))
    };
    let format = read(META_FORMAT)?;
    if format > FORMAT {
        return Err(LoadError::NewerFormat(format));
    }
    let mut state = State::new(Revision(read(META_COMPACTED)?));
    for row in txn.open_table(LOG)?.iter()? {
        let (revision, row) = row?;
        let event = decode(&state, Revision(revision.value()), row.value())?;
        state.apply(Arc::new(event), now);
    }
    Ok(state)
}

fn decode(state: &State, revision: Revision, row: Row<'_>) -> Result<Event, LoadError> {
    let (flags, created, previous_revision, key, value) = row;
    let corrupt = |what: &str| LoadError::Corrupt(format!("revision {revision}: {what}"));
    if revision <= Revision::INITIAL {
        return Err(corrupt("it cannot hold a record"));
    }
    let previous = state.get(key).map(Arc::clone);
    let key = Key::new(key);
    // Rows that history no longer covers have lost their predecessors to compaction.
    if revision > state.compacted()
        && previous.as_ref().map_or(0, |record| record.modified.0) != previous_revision
    {
        return Err(corrupt("the step before it is missing"));
    }
    let kind = match (flags & DELETED != 0, created == revision.0) {
        (true, _) => EventKind::Deleted,
        (false, true) => EventKind::Created,
        (false, false) => EventKind::Modified,
    };
    let record = Record::load(key, Bytes::copy_from_slice(value), Revision(created), revision);
    Ok(Event {
        revision,
        kind,
        record,
        previous,
    })
}

/// Appends one batch, durable when this returns. Rows after `durable` are the remains of a batch
/// that was reported as failed: they go first.
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

/// Deletes rows that neither the present nor kept history needs, and says so in the file.
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
        // Never backwards: a smaller figure would promise steps that are gone.
        let compacted = meta
            .get(META_COMPACTED)?
            .map_or(0, |value| value.value())
            .max(newest.0);
        meta.insert(META_COMPACTED, compacted)?;
        Ok(())
    })
}

/// Fills an empty database with a whole state.
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

/// The newest revision in the file.
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

/// One transaction, synced before it returns.
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
