//! Errors of the store, one type per operation.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::medium::OpenError;
use super::{Key, Record, Revision};

/// Failure to open the store. The file is left unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OpenStoreError {
    #[error(
        "store file `{}` is in use by {holder}; stop that process or choose another data directory",
        path.display()
    )]
    InUse { path: PathBuf, holder: String },
    #[error(
        "`{}` is not a store file; nothing was changed; move it away or choose another data directory",
        path.display()
    )]
    NotAStore { path: PathBuf },
    #[error(
        "store file `{}` has format {found}, this version reads up to format {supported}; \
         nothing was changed; run the newer version that wrote it",
        path.display()
    )]
    NewerFormat {
        path: PathBuf,
        found: u64,
        supported: u64,
    },
    #[error(
        "store file `{}` is damaged ({detail}); it was left in place; \
         restore it from a backup, or move it away to start with an empty store",
        path.display()
    )]
    Corrupt { path: PathBuf, detail: String },
    #[error("reading store file `{}`: {detail}; nothing was changed", path.display())]
    Sealed { path: PathBuf, detail: String },
    #[error("{action} `{}`", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// Rejected or failed write. The store is unchanged.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// The key does not match [`super::Expect`]. `current` is its present record.
    #[error("key is not at the expected revision")]
    Conflict { current: Option<Arc<Record>> },
    #[error("precondition on `{key}` is not met")]
    GuardFailed { key: Key },
    #[error("value of `{key}` is {bytes} bytes, the limit is {limit}")]
    TooLarge { key: Key, bytes: usize, limit: usize },
    #[error("value of `{key}` is not JSON")]
    NotJson { key: Key },
    /// The encoder panicked. The panic message is in the log.
    #[error("encoding the value of `{key}` failed")]
    Encoder { key: Key },
    #[error(
        "the disk is full: free space on the disk of `{}`, or delete objects; deletions use reserved space",
        path.display()
    )]
    Full { path: PathBuf },
    #[error("the write could not be made durable")]
    Io(#[source] Arc<StorageFailure>),
    #[error("the store is closed")]
    Closed,
}

/// Storage error that failed a batch. All writes of the batch share it.
#[derive(Debug, thiserror::Error)]
#[error("{action} `{}`", path.display())]
pub struct StorageFailure {
    pub(super) action: &'static str,
    pub(super) path: PathBuf,
    pub(super) source: Box<dyn std::error::Error + Send + Sync>,
}

impl StorageFailure {
    /// Returns true if the disk, or the quota of the user, has no space left.
    pub(super) fn is_disk_full(&self) -> bool {
        let source: &(dyn std::error::Error + 'static) = &*self.source;
        is_disk_full(source)
    }
}

/// Returns true for the error of a disk without free space.
pub(super) fn is_disk_full(err: &(dyn std::error::Error + 'static)) -> bool {
    let database = match err.downcast_ref::<OpenError>() {
        Some(OpenError::Database(err)) => Some(err),
        Some(OpenError::NotADatabase | OpenError::Io(_)) | None => err.downcast_ref::<redb::Error>(),
    };
    let io = match (database, err.downcast_ref::<OpenError>()) {
        (Some(redb::Error::Io(io)), _) | (None, Some(OpenError::Io(io))) => Some(io),
        _ => err.downcast_ref::<io::Error>(),
    };
    io.is_some_and(|io| {
        matches!(
            io.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    })
}

/// Error of a list at a revision outside of the kept history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error("revision {requested} is compacted, the oldest kept is {compacted}")]
    Compacted {
        requested: Revision,
        compacted: Revision,
    },
    #[error("revision {requested} is in the future, the newest is {current}")]
    Future { requested: Revision, current: Revision },
}

/// Error of a watch that starts before the oldest kept revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("revision {requested} is compacted, the oldest kept is {compacted}")]
pub struct Compacted {
    pub requested: Revision,
    pub compacted: Revision,
}
