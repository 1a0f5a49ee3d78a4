//! Opening of a store. The file is first verified through a view that writes nothing, and opened
//! for writing only if it is valid. A rejected file is left unchanged.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use redb::Database;

use super::damaged::{self, ReadableRows};
use super::disk::{self, LoadError};
use super::error::{OpenStoreError, is_disk_full};
use super::medium::{Medium, OpenError};
use super::parser::Parser;
use super::state::State;
use super::writer::Writer;
use super::{Revision, StoreConfig};
use rooflet_base::clock::Clock;

pub(super) fn writer(
    medium: Box<dyn Medium>,
    config: &StoreConfig,
    clock: Clock,
) -> Result<Writer, OpenStoreError> {
    let parser = Parser::new(config.parse, config.locate_excerpt);
    let (database, state) = catching_panics(&*medium, || open_or_create(&*medium, config, &parser, &clock))?;
    Ok(Writer::new(medium, database, state, parser, config, clock))
}

fn open_or_create(
    medium: &dyn Medium,
    config: &StoreConfig,
    parser: &Arc<Parser>,
    clock: &Clock,
) -> Result<(Option<Database>, State), OpenFailure> {
    if let Some(loaded) = load(medium, config, parser, clock)? {
        let disk::Loaded { state, is_outdated } = loaded;
        if is_outdated {
            let database = replace(medium, &state, config).during("encrypting store file")?;
            tracing::info!(path = %medium.path().display(), "store file encrypted with the current key");
            return Ok((Some(database), state));
        }
        // An earlier process may have ended before the file was durable at its path.
        medium.sync_directory().during("syncing the directory of")?;
        match medium.open() {
            Ok(Some(database)) => return Ok((Some(database), state)),
            Ok(None) => {}
            // The first write opens the file. Until the disk has free space, the store is read-only.
            Err(OpenError::Database(err)) if is_disk_full(&err) => return Ok((None, state)),
            Err(err) => return Err(err).during("opening store file"),
        }
    }
    // The file of a new store appears atomically, too.
    let state = State::new(Revision(0));
    let database = replace(medium, &state, config).during("creating store file")?;
    Ok((Some(database), state))
}

/// Reads and verifies a whole file, without changing it. Returns `None` if it does not exist.
fn load(
    medium: &dyn Medium,
    config: &StoreConfig,
    parser: &Arc<Parser>,
    clock: &Clock,
) -> Result<Option<disk::Loaded>, OpenFailure> {
    let Some(mut copy) = medium.inspect().during("reading store file")? else {
        return Ok(None);
    };
    // Reads the whole file and verifies all checksums. Opening the copy has already rolled it back
    // to the last valid commit, so a mismatch here is damage.
    if !copy.check_integrity().during("reading store file")? {
        return Err(OpenFailure::Corrupt("checksums do not match".to_owned()));
    }
    let seal = config.seal.as_deref();
    let loaded = disk::load(&copy, clock.instant(), parser, seal).map_err(|err| match err {
        LoadError::Sealed(err) => OpenFailure::Sealed(err.to_string()),
        LoadError::NewerFormat(found) => OpenFailure::NewerFormat(found),
        LoadError::Corrupt(detail) => OpenFailure::Corrupt(detail),
        LoadError::Storage(err) => OpenFailure::database("reading store file", *err),
    })?;
    Ok(Some(loaded))
}

/// Reads and verifies a whole file, without changing it. Returns `None` if it does not exist.
pub(super) fn read(
    medium: &dyn Medium,
    config: &StoreConfig,
    clock: &Clock,
) -> Result<Option<State>, OpenStoreError> {
    let parser = Parser::new(config.parse, config.locate_excerpt);
    let loaded = catching_panics(medium, || load(medium, config, &parser, clock))?;
    Ok(loaded.map(|loaded| loaded.state))
}

/// Reads the readable rows of a file.
pub(super) fn read_damaged(medium: &dyn Medium) -> Result<ReadableRows, OpenStoreError> {
    let read = || {
        let copy = medium.inspect().during("reading store file")?;
        let copy =
            copy.ok_or_else(|| OpenFailure::Io("reading store file", io::ErrorKind::NotFound.into()))?;
        damaged::readable_rows(&copy).map_err(|err| OpenFailure::database("reading store file", err))
    };
    // The library may not be able to open the file.
    catching_panics(medium, read).or_else(|_| {
        damaged::search(medium.path()).map_err(|err| OpenFailure::Io("reading store file", err).at(medium))
    })
}

/// Reports a panic of the database library as damage.
fn catching_panics<T>(
    medium: &dyn Medium,
    read: impl FnOnce() -> Result<T, OpenFailure>,
) -> Result<T, OpenStoreError> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| {
            Err(OpenFailure::Corrupt(
                "the database library panicked while reading it".to_owned(),
            ))
        })
        .map_err(|failure| failure.at(medium))
}

/// Writes the state to a new file, and replaces the file by it atomically. If it fails, removes the new file.
fn replace(medium: &dyn Medium, state: &State, config: &StoreConfig) -> Result<Database, OpenError> {
    let published = catch_unwind(AssertUnwindSafe(|| publish(medium, state, config)));
    if !matches!(published, Ok(Ok(_))) {
        // The file may not exist.
        let _ = medium.discard_replacement();
    }
    let database = published.unwrap_or_else(|panic| resume_unwind(panic))?;
    medium.sync_directory()?;
    Ok(database)
}

fn publish(medium: &dyn Medium, state: &State, config: &StoreConfig) -> Result<Database, OpenError> {
    let database = medium.create_replacement()?;
    disk::fill(&database, state, config.seal.as_deref())?;
    medium.publish_replacement()?;
    Ok(database)
}

/// [`OpenStoreError`] without the path.
enum OpenFailure {
    NotAStore,
    NewerFormat(u64),
    Corrupt(String),
    Sealed(String),
    Io(&'static str, io::Error),
}

impl OpenFailure {
    fn database(action: &'static str, err: redb::Error) -> Self {
        if let redb::Error::Io(err) = err {
            // A truncated file.
            return match err.kind() == io::ErrorKind::UnexpectedEof
                || err.kind() == io::ErrorKind::InvalidData
            {
                true => Self::Corrupt(err.to_string()),
                false => Self::Io(action, err),
            };
        }
        match matches!(
            err,
            redb::Error::TableDoesNotExist(_) | redb::Error::TableTypeMismatch { .. }
        ) {
            true => Self::NotAStore,
            false => Self::Corrupt(err.to_string()),
        }
    }

    fn at(self, medium: &dyn Medium) -> OpenStoreError {
        let path = medium.path().to_owned();
        match self {
            Self::NotAStore => OpenStoreError::NotAStore { path },
            Self::NewerFormat(found) => OpenStoreError::NewerFormat {
                path,
                found,
                supported: disk::FORMAT,
            },
            Self::Corrupt(detail) => OpenStoreError::Corrupt { path, detail },
            Self::Sealed(detail) => OpenStoreError::Sealed { path, detail },
            Self::Io(action, source) => OpenStoreError::Io { action, path, source },
        }
    }
}

trait During<T> {
    /// Adds the failed action to an error.
    fn during(self, action: &'static str) -> Result<T, OpenFailure>;
}

impl<T, E: Into<OpenError>> During<T> for Result<T, E> {
    fn during(self, action: &'static str) -> Result<T, OpenFailure> {
        self.map_err(|err| match err.into() {
            OpenError::NotADatabase => OpenFailure::NotAStore,
            OpenError::Io(err) => OpenFailure::Io(action, err),
            OpenError::Database(err) => OpenFailure::database(action, err),
        })
    }
}
