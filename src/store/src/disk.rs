//! File layout: an append-only log of revisions in one redb table, modelled on kine.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::parser::Parser;
use super::state::{Garbage, State};
use super::{Event, EventKind, Key, Record, Revision, Seal, SealValueError};

/// Format of a file with encrypted values, which older versions cannot read.
pub(super) const FORMAT: u64 = 2;
/// Format of a file without encrypted values.
const PLAIN_FORMAT: u64 = 1;

/// Log row: (flags, created, previous, key, value), indexed by its revision. `created` and
/// `previous` are revisions; `previous` is 0 if the key did not exist before.
pub(super) type Row<'a> = (u8, u64, u64, &'a str, &'a [u8]);
pub(super) const LOG: TableDefinition<u64, Row<'static>> = TableDefinition::new("log");
pub(super) const DELETED: u8 = 1;
pub(super) const SEALED: u8 = 2;

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
    Sealed(#[from] SealValueError),
    #[error(transparent)]
    Storage(Box<redb::Error>),
}

fn storage(err: impl Into<redb::Error>) -> LoadError {
    LoadError::Storage(Box::new(err.into()))
}

/// Content of a file.
pub(super) struct Loaded {
    pub(super) state: State,
    /// True if the file must be written again, because a value is plain that should be encrypted, or
    /// is encrypted with an old key.
    pub(super) is_outdated: bool,
}

/// Loads the whole log into memory.
///
/// Returns an error if the format is newer than [`FORMAT`], a revision does not follow from its
/// predecessor, or a value cannot be decrypted.
pub(super) fn load(
    db: &Database,
    now: Instant,
    parser: &Arc<Parser>,
    seal: Option<&dyn Seal>,
) -> Result<Loaded, LoadError> {
    let txn = db.begin_read().map_err(storage)?;
    let meta = txn.open_table(META).map_err(storage)?;
    let read = |name: &str| -> Result<u64, LoadError> {
        meta.get(name)
            .map_err(storage)?
            .map(|value| value.value())
            .ok_or_else(|| LoadError::Corrupt(format!("the meta table has no `{name}` entry")))
    };
    let format = read(META_FORMAT)?;
    if format > FORMAT {
        return Err(LoadError::NewerFormat(format));
    }
    let mut state = State::new(Revision(read(META_COMPACTED)?));
    let mut is_outdated = seal.is_some() && format < FORMAT;
    for row in txn.open_table(LOG).map_err(storage)?.iter().map_err(storage)? {
        let (revision, row) = row.map_err(storage)?;
        let (event, is_current) = decode(&state, Revision(revision.value()), row.value(), parser, seal)?;
        is_outdated |= !is_current;
        state.apply(Arc::new(event), now);
    }
    state.pass_compacted();
    Ok(Loaded { state, is_outdated })
}

/// Returns the event of a row, and whether its value is encrypted as it should be.
fn decode(
    state: &State,
    revision: Revision,
    row: Row<'_>,
    parser: &Arc<Parser>,
    seal: Option<&dyn Seal>,
) -> Result<(Event, bool), LoadError> {
    let (flags, created, previous_revision, key, value) = row;
    let corrupt = |reason: &str| LoadError::Corrupt(format!("revision {revision}: {reason}"));
    if revision <= Revision::INITIAL {
        return Err(corrupt("reserved for the empty store"));
    }
    let previous = state.get(key).map(Arc::clone);
    let key = previous
        .as_ref()
        .map_or_else(|| Key::new(key), |record| record.key.clone());
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
    let (value, is_current) = if flags & SEALED == 0 {
        let is_plain = seal.is_none_or(|seal| !seal.covers(key.as_str()));
        (Bytes::copy_from_slice(value), is_plain)
    } else {
        let seal = seal.ok_or_else(|| SealValueError {
            key: key.to_string(),
            reason: "it is encrypted, and no encryption key is configured".to_owned(),
        })?;
        let opened = seal.open(key.as_str(), value)?;
        (Bytes::from(opened.value), opened.is_current)
    };
    let record = Record::new(key, value, Revision(created), revision, parser);
    let event = Event {
        revision,
        kind,
        record,
        previous,
    };
    Ok((event, is_current))
}

/// Appends one batch durably. First deletes rows after `durable`: they belong to a batch that was
/// reported as failed.
pub(super) fn append(
    db: &Database,
    durable: Revision,
    batch: &[Arc<Event>],
    seal: Option<&dyn Seal>,
) -> Result<(), redb::Error> {
    write(db, |txn| {
        let mut log = txn.open_table(LOG)?;
        if log.last()?.is_some_and(|(last, _)| last.value() > durable.0) {
            log.retain_in(durable.0 + 1.., |_, _| false)?;
        }
        batch.iter().try_for_each(|event| {
            let previous = event.previous.as_ref().map_or(0, |record| record.modified.0);
            insert(&mut log, event.kind, &event.record, previous, seal)
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

/// Makes a transaction durable that changes nothing.
pub(super) fn touch(db: &Database) -> Result<(), redb::Error> {
    write(db, |txn| {
        let mut meta = txn.open_table(META)?;
        let compacted = meta.get(META_COMPACTED)?.map_or(0, |value| value.value());
        meta.insert(META_COMPACTED, compacted)?;
        Ok(())
    })
}

/// Writes a complete state to an empty database.
pub(super) fn fill(db: &Database, state: &State, seal: Option<&dyn Seal>) -> Result<(), redb::Error> {
    write(db, |txn| {
        let mut meta = txn.open_table(META)?;
        meta.insert(META_FORMAT, if seal.is_some() { FORMAT } else { PLAIN_FORMAT })?;
        meta.insert(META_COMPACTED, state.compacted().0)?;
        let mut log = txn.open_table(LOG)?;
        let (base, history) = state.rows();
        for record in &base {
            insert(&mut log, EventKind::Modified, record, 0, seal)?;
        }
        history.iter().try_for_each(|event| {
            let previous = event.previous.as_ref().map_or(0, |record| record.modified.0);
            insert(&mut log, event.kind, &event.record, previous, seal)
        })
    })
}

/// Returns the newest revision in the file.
pub(super) fn newest(db: &Database) -> Result<Revision, redb::Error> {
    let txn = db.begin_read()?;
    let log = txn.open_table(LOG)?;
    let newest = log.last()?.map(|(revision, _)| Revision(revision.value()));
    let meta = txn.open_table(META)?;
    let compacted = meta.get(META_COMPACTED)?.map(|value| Revision(value.value()));
    Ok(newest.max(compacted).unwrap_or(Revision::INITIAL))
}

fn insert(
    log: &mut redb::Table<'_, u64, Row<'static>>,
    kind: EventKind,
    record: &Record,
    previous: u64,
    seal: Option<&dyn Seal>,
) -> Result<(), redb::Error> {
    let flags = match kind {
        EventKind::Created | EventKind::Modified => 0,
        EventKind::Deleted => DELETED,
    };
    let key = record.key.as_str();
    let sealed = seal
        .filter(|seal| seal.covers(key))
        .map(|seal| seal.seal(key, &record.value));
    let sealed = sealed
        .transpose()
        .map_err(|err| redb::Error::Io(io::Error::other(err)))?;
    let (flags, value) = match &sealed {
        Some(sealed) => (flags | SEALED, sealed.as_slice()),
        None => (flags, &*record.value),
    };
    let row = (flags, record.created.0, previous, key, value);
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
