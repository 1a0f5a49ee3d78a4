//! What can go wrong, one enum per operation.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Key, Record, Revision};

/// The store could not be opened. The file is left as it was.
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
         restore it from a backup, or move it away to start empty",
        path.display()
    )]
    Corrupt { path: PathBuf, detail: String },
    #[error("{action} `{}`", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// A write was refused or failed; the store holds what it held before.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// The key is not as the write expects; `current` is what it holds.
    #[error("key is not at the expected revision")]
    Conflict { current: Option<Arc<Record>> },
    #[error("what the write requires of `{key}` does not hold")]
    Unguarded { key: Key },
    #[error("value of `{key}` is {bytes} bytes, the limit is {limit}")]
    TooLarge { key: Key, bytes: usize, limit: usize },
    #[error("value of `{key}` is not JSON")]
    NotJson { key: Key },
    /// The encoder panicked; the panic itself is in the log.
    #[error("encoding the value of `{key}` failed")]
    Encoder { key: Key },
    #[error("the write could not be made durable")]
    Io(#[source] Arc<StorageFailure>),
    #[error("the store is closed")]
    Closed,
}

/// Why the disk refused a batch. Shared by all writes of the batch.
#[derive(Debug, thiserror::Error)]
#[error("{action} `{}`", path.display())]
pub struct StorageFailure {
    pub(super) action: &'static str,
    pub(super) path: PathBuf,
    pub(super) source: Box<dyn std::error::Error + Send + Sync>,
}

/// A list at a revision that the store cannot show.
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

/// A watch from a revision whose following events are no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("revision {requested} is compacted, the oldest kept is {compacted}")]
pub struct Compacted {
    pub requested: Revision,
    pub compacted: Revision,
}
