//! Opening: look first, at a view that writes nothing, and use the file only once all of it is
//! known to be sound. What is refused is left exactly as it was.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::Database;

use super::disk::{self, LoadError};
use super::error::OpenStoreError;
use super::medium::{Medium, OpenError};
use super::state::State;
use super::writer::Writer;
use super::{Revision, StoreConfig};
use rooflet_base::clock::Clock;

pub(super) fn writer(
    medium: Box<dyn Medium>,
    config: &StoreConfig,
    clock: Clock,
) -> Result<Writer, OpenStoreError> {
    // The database library may stumble over damage it does not expect; a panic is damage too.
    let opened = catch_unwind(AssertUnwindSafe(|| open_or_create(&*medium, &clock)));
    let (database, state) = opened
        .unwrap_or_else(|_| Err(Refusal::Corrupt("it cannot be read".to_owned())))
        .map_err(|refusal| refusal.at(&*medium))?;
    Ok(Writer::new(medium, database, state, config, clock))
}

fn open_or_create(medium: &dyn Medium, clock: &Clock) -> Result<(Database, State), Refusal> {
    if let Some(mut copy) = medium.inspect().during("reading store file")? {
        // Reads everything and compares it with its checksums. After a crash the last sound commit
        // counts, found when the copy was opened; whatever is unsound beyond that is damage.
        if !copy.check_integrity().during("reading store file")? {
            return Err(Refusal::Corrupt("checksums do not match".to_owned()));
        }
        let state = disk::load(&copy, clock.instant()).map_err(|err| match err {
            LoadError::NewerFormat(found) => Refusal::NewerFormat(found),
            LoadError::Corrupt(detail) => Refusal::Corrupt(detail),
            LoadError::Storage(err) => Refusal::database("reading store file", *err),
        })?;
        drop(copy);
        if let Some(database) = medium.open().during("opening store file")? {
            return Ok((database, state));
        }
    }
    // A new store, too, appears whole or not at all.
    let state = State::new(Revision(0));
    let database = medium.create_replacement().during("creating store file")?;
    disk::fill(&database, &state).during("creating store file")?;
    medium.publish_replacement().during("creating store file")?;
    Ok((database, state))
}

/// An `OpenStoreError` that does not know its file yet.
enum Refusal {
    NotAStore,
    NewerFormat(u64),
    Corrupt(String),
    Io(&'static str, io::Error),
}

impl Refusal {
    fn database(action: &'static str, err: redb::Error) -> Self {
        if let redb::Error::Io(err) = err {
            // A file cut short.
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
            Self::Io(action, source) => OpenStoreError::Io { action, path, source },
        }
    }
}

trait During<T> {
    /// Names what was being done.
    fn during(self, action: &'static str) -> Result<T, Refusal>;
}

impl<T, E: Into<OpenError>> During<T> for Result<T, E> {
    fn during(self, action: &'static str) -> Result<T, Refusal> {
        self.map_err(|err| match err.into() {
            OpenError::NotADatabase => Refusal::NotAStore,
            OpenError::Io(err) => Refusal::Io(action, err),
            OpenError::Database(err) => Refusal::database(action, err),
        })
    }
}
