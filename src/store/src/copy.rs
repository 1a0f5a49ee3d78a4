//! Copies of a store: online backups, restored stores, and the readable part of a damaged file.
//!
//! A copy contains the current records without history. It is a store file like any other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::damaged::RawRow;
use super::disk;
use super::error::OpenStoreError;
use super::medium::{self, FileMedium};
use super::open;
use super::parser::Parser;
use super::state::State;
use super::{Revision, Seal, Store, StoreConfig};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;

/// Number of revisions that a restored store skips. The lost store may have assigned them after the
/// backup, to clients that still hold them. A store with 1,500 writes per second needs a week for as many.
const SKIPPED_REVISIONS: u64 = 1_000_000_000;

/// Summary of a store's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    pub revision: Revision,
    pub records: usize,
}

/// Result of [`salvage`].
#[derive(Debug)]
pub struct Salvaged {
    pub contents: Contents,
    /// Keys whose newest readable value is damaged or cannot be decrypted.
    pub lost: Vec<String>,
    /// True if a part of the file is not readable. Records may be missing, deleted ones may be present, and
    /// others may have an older value.
    pub is_incomplete: bool,
}

/// Failure to write a copy. The original is unchanged, and no copy exists.
#[derive(Debug, thiserror::Error)]
pub enum CopyStoreError {
    #[error("`{}` exists; choose another path", path.display())]
    Exists { path: PathBuf },
    #[error(transparent)]
    Open(#[from] OpenStoreError),
    #[error("writing `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        err: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Lock of a store file that is not open. Other processes cannot open it meanwhile.
#[derive(Debug)]
pub struct StoreLock(FileMedium);

impl StoreLock {
    /// Returns [`OpenStoreError::InUse`] if a process has the store open.
    pub fn acquire(path: &Path) -> Result<Self, OpenStoreError> {
        FileMedium::lock(path).map(Self)
    }

    /// Reads the locked file like [`contents`].
    pub fn contents(&self, config: &StoreConfig, clock: &Clock) -> Result<Contents, OpenStoreError> {
        contents_of(&self.0, config, clock).map(|state| state.contents())
    }
}

impl Store {
    /// Returns a copy of the store as an open file without a name. Blocks.
    pub fn snapshot(&self) -> Result<File, CopyStoreError> {
        let _copying = lock(&self.copying);
        let path = medium::with_suffix(&self.path, ".snapshot");
        // A killed process may have left the file.
        drop(fs::remove_file(&path));
        self.copy_to(&path)?;
        let file = File::open(&path).and_then(|file| fs::remove_file(&path).map(|()| file));
        file.map_err(|err| CopyStoreError::Write {
            path,
            err: err.into(),
        })
    }

    /// Writes the current records to a new store file. Writes continue meanwhile. Blocks.
    pub fn copy_to(&self, path: &Path) -> Result<Contents, CopyStoreError> {
        let state = self.read().state.without_history();
        create(path, &state, self.seal.as_deref())?;
        Ok(state.contents())
    }
}

/// Reads a store file that no process has open, and verifies all checksums and values. Changes nothing.
pub fn contents(config: &StoreConfig, clock: &Clock) -> Result<Contents, OpenStoreError> {
    let medium = FileMedium::read_only(&config.path)?;
    contents_of(&medium, config, clock).map(|state| state.contents())
}

/// Writes the records of a backup to a new store file. The revision of the new store is higher than any that
/// the original store has assigned, and watches of earlier revisions end, so that clients list again.
pub fn restore(backup: &StoreConfig, to: &Path, clock: &Clock) -> Result<Contents, CopyStoreError> {
    let medium = FileMedium::read_only(&backup.path)?;
    let state = contents_of(&medium, backup, clock)?.without_history();
    let state = state.skip(SKIPPED_REVISIONS);
    create(to, &state, backup.seal.as_deref())?;
    Ok(state.contents())
}

/// Writes the readable records of a damaged store file to a new one, which continues like a restored one.
/// Values that are not JSON or cannot be decrypted are left out.
pub fn salvage(lock: &StoreLock, config: &StoreConfig, to: &Path) -> Result<Salvaged, CopyStoreError> {
    let rows = open::read_damaged(&lock.0)?;
    let mut newest: BTreeMap<String, RawRow> = BTreeMap::new();
    for row in rows.rows {
        newest.insert(row.key.clone(), row);
    }
    let last = newest.values().map(|row| row.revision).max();
    let parser = Parser::new(config.parse, config.locate_excerpt);
    let (mut records, mut lost) = (Vec::new(), Vec::new());
    for row in newest.into_values().filter(|row| !row.is_deleted()) {
        let key = row.key.clone();
        match row.record(&parser, config.seal.as_deref()) {
            Some(record) => records.push(record),
            None => lost.push(key),
        }
    }
    let state = State::of(last.unwrap_or(Revision::INITIAL), records).skip(SKIPPED_REVISIONS);
    create(to, &state, config.seal.as_deref())?;
    Ok(Salvaged {
        contents: state.contents(),
        lost,
        is_incomplete: rows.is_incomplete,
    })
}

fn contents_of(medium: &FileMedium, config: &StoreConfig, clock: &Clock) -> Result<State, OpenStoreError> {
    open::read(medium, config, clock)?.ok_or_else(|| OpenStoreError::Io {
        action: "reading store file",
        path: config.path.clone(),
        source: io::ErrorKind::NotFound.into(),
    })
}

/// Writes `state` to a new file, which appears at `path` when it is complete and durable.
fn create(path: &Path, state: &State, seal: Option<&dyn Seal>) -> Result<(), CopyStoreError> {
    if path.exists() {
        return Err(CopyStoreError::Exists {
            path: path.to_owned(),
        });
    }
    let partial = medium::with_suffix(path, ".partial");
    let written = catch_unwind(AssertUnwindSafe(|| {
        let database = medium::create_file(&partial)?;
        disk::fill(&database, state, seal)?;
        drop(database);
        fs::rename(&partial, path)?;
        medium::sync_directory(path)?;
        Ok(())
    }));
    let written = written.unwrap_or_else(|_| Err("the database library panicked".into()));
    written.map_err(|err: Box<dyn std::error::Error + Send + Sync>| {
        // The file may not exist.
        drop(fs::remove_file(&partial));
        CopyStoreError::Write {
            path: path.to_owned(),
            err,
        }
    })
}

impl State {
    fn contents(&self) -> Contents {
        Contents {
            revision: self.revision(),
            records: self.len(),
        }
    }
}
