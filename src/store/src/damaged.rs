//! Readable rows of a damaged file: through the database library, or else by a search for their pages.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use redb::{AccessGuard, Database, ReadableDatabase, ReadableTable};

use super::disk::{DELETED, LOG, Row, SEALED};
use super::parser::Parser;
use super::{Key, Record, Revision, Seal};

type Entry<'a> = (AccessGuard<'a, u64>, AccessGuard<'a, Row<'static>>);

/// Row of a log that may be damaged.
pub(super) struct RawRow {
    pub(super) revision: Revision,
    pub(super) key: String,
    flags: u8,
    created: Revision,
    value: Vec<u8>,
}

impl RawRow {
    pub(super) fn is_deleted(&self) -> bool {
        self.flags & DELETED != 0
    }

    /// Returns the record, or `None` if its value is not JSON or cannot be decrypted.
    pub(super) fn record(self, parser: &Arc<Parser>, seal: Option<&dyn Seal>) -> Option<Arc<Record>> {
        let value = match self.flags & SEALED {
            0 => self.value,
            _ => seal?.open(&self.key, &self.value).ok()?.value,
        };
        let (key, value) = (Key::new(self.key), Bytes::from(value));
        parser.parse(&value).ok()?;
        Some(Record::new(key, value, self.created, self.revision, parser))
    }
}

/// Readable rows of a log, in the order of their revisions.
pub(super) struct ReadableRows {
    pub(super) rows: Vec<RawRow>,
    /// True if rows between the first and the last are not readable.
    pub(super) is_incomplete: bool,
}

/// Reads the rows of a damaged log: from the start to the first damage, and from the end to the last one.
pub(super) fn readable_rows(db: &Database) -> Result<ReadableRows, redb::Error> {
    let txn = db.begin_read()?;
    let log = txn.open_table(LOG)?;
    let raw = |found: Option<Result<Entry<'_>, redb::StorageError>>| {
        let (revision, row) = found?.ok()?;
        let (flags, created, _, key, value) = row.value();
        Some(RawRow {
            revision: Revision(revision.value()),
            key: key.to_owned(),
            flags,
            created: Revision(created),
            value: value.to_vec(),
        })
    };
    // The database library may panic on damage.
    let mut ends = false;
    let mut rows = Vec::new();
    let mut forward = log.iter()?;
    while let Ok(found) = catch_unwind(AssertUnwindSafe(|| {
        let next = forward.next();
        ends = next.is_none();
        raw(next)
    })) && let Some(row) = found
    {
        rows.push(row);
    }
    if ends {
        return Ok(ReadableRows {
            rows,
            is_incomplete: false,
        });
    }
    let last = rows.last().map(|row| row.revision);
    let mut later = Vec::new();
    let mut backward = log.iter()?;
    while let Ok(Some(row)) = catch_unwind(AssertUnwindSafe(|| raw(backward.next_back())))
        && last.is_none_or(|last| row.revision > last)
    {
        later.push(row);
    }
    rows.extend(later.into_iter().rev());
    Ok(ReadableRows {
        rows,
        is_incomplete: true,
    })
}

/// Smallest unit of pages in a redb file.
const PAGE_BYTES: usize = 4096;
/// First byte of a page with rows.
const LEAF: u8 = 1;
/// Type, padding and number of rows of a page.
const HEADER_BYTES: usize = 4;
const KEY_BYTES: usize = 8;
const END_BYTES: usize = 4;

/// Searches a file for pages of the log, without the database's own index. Also finds rows in pages that the
/// database no longer uses. File format: redb 4, "Layout" in `btree_base.rs`.
pub(super) fn search(path: &Path) -> std::io::Result<ReadableRows> {
    let file = std::fs::read(path)?;
    let pages = (0..file.len()).step_by(PAGE_BYTES);
    let mut rows: Vec<RawRow> = pages.flat_map(|at| page_rows(&file[at..])).collect();
    rows.sort_by_key(|row| row.revision);
    Ok(ReadableRows {
        rows,
        is_incomplete: true,
    })
}

/// Returns the rows of the page at the start of `bytes`, or none if it is not a valid page of the log.
fn page_rows(bytes: &[u8]) -> Vec<RawRow> {
    rows_of(bytes).unwrap_or_default()
}

fn rows_of(bytes: &[u8]) -> Option<Vec<RawRow>> {
    if *bytes.first()? != LEAF {
        return None;
    }
    let count = usize::from(u16::from_le_bytes(bytes.get(2..HEADER_BYTES)?.try_into().ok()?));
    let keys = HEADER_BYTES + count * END_BYTES;
    let mut begin = keys + count * KEY_BYTES;
    let mut rows: Vec<RawRow> = Vec::new();
    for index in 0..count {
        let at = HEADER_BYTES + index * END_BYTES;
        let end = u32::from_le_bytes(bytes.get(at..at + END_BYTES)?.try_into().ok()?) as usize;
        let at = keys + index * KEY_BYTES;
        let revision = Revision(u64::from_le_bytes(
            bytes.get(at..at + KEY_BYTES)?.try_into().ok()?,
        ));
        let row = decode(revision, bytes.get(begin..end)?)?;
        if rows.last().is_some_and(|last| last.revision >= revision) {
            return None;
        }
        rows.push(row);
        begin = end;
    }
    Some(rows)
}

/// Decodes a [`Row`]: the length of the key, the fixed fields, the key and the value.
fn decode(revision: Revision, bytes: &[u8]) -> Option<RawRow> {
    // redb's length: one byte, or 254 and two bytes. Keys are shorter than 64 KiB.
    let (length, rest) = match bytes.split_first()? {
        (length @ 0..254, rest) => (usize::from(*length), rest),
        (254, [low, high, rest @ ..]) => (usize::from(u16::from_le_bytes([*low, *high])), rest),
        _ => return None,
    };
    let (flags, rest) = rest.split_first()?;
    let (created, rest) = rest.split_first_chunk::<8>()?;
    let (_, rest) = rest.split_first_chunk::<8>()?;
    let (key, value) = rest.split_at_checked(length)?;
    let created = Revision(u64::from_le_bytes(*created));
    (*flags <= DELETED | SEALED && created <= revision).then_some(RawRow {
        revision,
        key: String::from_utf8(key.to_vec()).ok()?,
        flags: *flags,
        created,
        value: value.to_vec(),
    })
}
