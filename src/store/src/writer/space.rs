//! Disk space: the reserve for deletions, smaller files after deletions, and the check whether writes
//! succeed again after a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use redb::Database;

use super::{DiskError, Panicked, Writer, catch_panic};
use crate::error::StorageFailure;
use crate::location::Location;
use crate::state::HistoryLimits;
use crate::{CommitError, Event, disk};
use rooflet_base::mutex::lock;

/// Size below which a file is not rewritten.
const SHRUNK_FILE_BYTES_MIN: u64 = 16 << 20;
/// Ratio of the file to its content above which the file is rewritten. A new file has up to twice
/// the size of its content, because the database library doubles files that grow.
const SHRUNK_FILE_RATIO: u64 = 4;
/// Pages that a write of any size changes, in bytes.
const WRITE_PAGES_BYTES: usize = 64 << 10;
/// Interval of attempts to allocate the reserve.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Disk space of a writer.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// True while the disk has no room for the reserve. Only deletions, and writes for which deletions
    /// have made room in the file, are accepted.
    is_low: bool,
    /// Space in the file that deletions have freed since then, in bytes.
    freed: usize,
    /// Time from which the reserve may be allocated again.
    retry_at: Option<Instant>,
    /// The file after it was last rewritten. Zero before.
    rewritten: Size,
    /// Size of the content when rewriting the file last failed.
    failed_bytes: Option<u64>,
}

/// Size of a store file, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    file: u64,
    content: u64,
}

impl Size {
    /// Returns whether a file with this size is worth rewriting, after it was last rewritten with `rewritten`.
    /// The rewritten file may still be larger than the ratio requires, so it must have doubled, or its content
    /// halved.
    fn is_oversized(self, rewritten: Self) -> bool {
        self.file >= SHRUNK_FILE_BYTES_MIN
            && self.file / SHRUNK_FILE_RATIO >= self.content
            && (self.file / 2 >= rewritten.file || self.content <= rewritten.content / 2)
    }
}

impl Writer {
    /// Checks that the disk has room for a write that frees no space. `pending` is the size of the
    /// values before it in its batch.
    pub(super) fn check_room(&self, event: &Event, pending: usize) -> Result<(), CommitError> {
        if !self.space.is_low || self.space.freed >= room_for(pending + event.record.value.len()) {
            return Ok(());
        }
        let err = CommitError::Full {
            path: self.medium.path().to_owned(),
        };
        self.set_failure(Some(err.to_string()));
        Err(err)
    }

    /// Records the reason why writes fail, or that they succeed.
    pub(super) fn set_failure(&self, reason: Option<String>) {
        *lock(&self.failure) = reason;
    }

    /// Writes a batch with deletions that failed on a full disk again, with the reserved space.
    pub(super) fn retry_with_reserve(
        &mut self,
        failure: StorageFailure,
        write: impl FnOnce(&mut Self) -> Result<(), StorageFailure>,
    ) -> Result<(), StorageFailure> {
        if !failure.is_disk_full() || !matches!(self.medium.release_reserve(), Ok(true)) {
            return Err(failure);
        }
        tracing::warn!(
            path = %self.medium.path().display(),
            "disk is full; only deletions are accepted until it has free space"
        );
        self.space.is_low = true;
        self.space.freed = 0;
        write(self)
    }

    /// Updates the space after a durable batch of values with `bytes`.
    pub(super) fn record_written(&mut self, bytes: usize, has_deletions: bool) {
        match (self.space.is_low, has_deletions) {
            (false, _) => {}
            (true, true) => self.reclaim(),
            (true, false) => self.space.freed = self.space.freed.saturating_sub(room_for(bytes)),
        }
    }

    /// Allocates the reserve, if the disk has room for it.
    pub(super) fn hold_reserve(&mut self) {
        let now = self.clock.instant();
        if self.space.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.space.retry_at = Some(now + RETRY_INTERVAL);
        match self.medium.hold_reserve() {
            Ok(()) => {
                if self.space.is_low {
                    tracing::info!(path = %self.medium.path().display(), "disk has free space again");
                }
                self.space.is_low = false;
            }
            Err(err) => tracing::debug!(error = %err, "the disk has no room for the reserve"),
        }
    }

    pub(super) fn is_low_on_space(&self) -> bool {
        self.space.is_low
    }

    /// Frees the space of deleted objects. Watches cannot resume from earlier revisions afterwards,
    /// and clients list again.
    fn reclaim(&mut self) {
        let limits = HistoryLimits {
            events_max: 1,
            ..self.history
        };
        let freed = self.trim(&limits);
        self.compact_all();
        if self.garbage.is_empty() {
            self.space.freed += freed;
        }
        self.shrink();
        self.hold_reserve();
    }

    /// Compacts the history. Returns the size of its released values.
    fn trim(&mut self, limits: &HistoryLimits) -> usize {
        let mut guard = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        let before = guard.state.history_bytes();
        guard.state.trim(limits, self.clock.instant(), &mut self.garbage);
        before - guard.state.history_bytes()
    }

    /// Compacts old history, rewrites a file that has become too large for its content, and checks
    /// whether failed writes succeed again.
    pub(super) fn maintain(&mut self) {
        let limits = self.history;
        self.trim(&limits);
        self.space.failed_bytes = None;
        if self.is_oversized() {
            self.compact_all();
            self.shrink();
        }
        self.hold_reserve();
        let has_failed = lock(&self.failure).is_some();
        let has_room = !self.space.is_low || self.space.freed >= room_for(0);
        // A failure has been logged.
        if has_failed && has_room && self.touch().is_ok() {
            self.set_failure(None);
        }
    }

    /// Writes the file without changing its content.
    fn touch(&mut self) -> Result<(), StorageFailure> {
        let database = self.database()?;
        catch_panic(|| disk::touch(database)).map_err(|err| self.failed("writing store file", err))?;
        self.check_location(Location::check)
    }

    fn is_oversized(&self) -> bool {
        let Ok(file) = self.medium.file_bytes() else {
            return false;
        };
        let content = self.content_bytes();
        Size { file, content }.is_oversized(self.space.rewritten)
            // The disk may have room for less.
            && self.space.failed_bytes.is_none_or(|failed| content <= failed / 2)
    }

    /// Writes a new file if the file is much larger than its content. If that fails, for example
    /// because the disk is full, the file stays as it is.
    fn shrink(&mut self) {
        if self.database.is_none() || !self.is_oversized() {
            return;
        }
        let before = self.medium.file_bytes().unwrap_or_default();
        match self.replacement() {
            Ok(database) => {
                self.database = Some(database);
                self.garbage.clear();
                let after = self.medium.file_bytes().unwrap_or_default();
                self.space.rewritten = Size {
                    file: after,
                    content: self.content_bytes(),
                };
                tracing::info!(
                    path = %self.medium.path().display(),
                    before_bytes = before,
                    after_bytes = after,
                    "store file rewritten after deletions"
                );
            }
            Err(failure) => {
                self.space.failed_bytes = Some(self.content_bytes());
                match failure.has_replaced {
                    true => drop(self.replacement_failed(failure)),
                    false => tracing::debug!(error = %failure.source, "store file not rewritten"),
                }
            }
        }
    }

    fn content_bytes(&self) -> u64 {
        let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        shared.state.bytes() as u64
    }

    /// Writes the state in memory to a new file, and replaces the file by it. If it fails, removes the new
    /// file.
    pub(super) fn replacement(&self) -> Result<Database, ReplacementFailure> {
        let replaced = catch_unwind(AssertUnwindSafe(|| self.try_replacement()));
        let replaced = replaced
            .unwrap_or_else(|_| Err(ReplacementFailure::new("filling a new store file for", Panicked)));
        replaced.inspect_err(|_| {
            // The file may not exist.
            let _ = self.medium.discard_replacement();
        })
    }

    fn try_replacement(&self) -> Result<Database, ReplacementFailure> {
        let failed = |action: &'static str| move |err: DiskError| ReplacementFailure::new(action, err);
        let created = self.medium.create_replacement().map_err(DiskError::from);
        let database = created.map_err(failed("creating a new store file for"))?;
        let filled = {
            let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner);
            disk::fill(&database, &shared.state, self.seal.as_deref())
        };
        let filled = filled.map_err(DiskError::from);
        filled.map_err(failed("filling a new store file for"))?;
        let published = self.medium.publish_replacement().map_err(DiskError::from);
        published.map_err(failed("replacing store file"))?;
        self.medium.sync_directory().map_err(|err| ReplacementFailure {
            has_replaced: true,
            ..ReplacementFailure::new("syncing the directory of store file", err)
        })?;
        Ok(database)
    }

    /// Records that a new file was not written. If the path leads to the new file, but a power failure could
    /// restore the former one, the next write replaces the file again.
    pub(super) fn replacement_failed(&mut self, failure: ReplacementFailure) -> StorageFailure {
        self.suspect |= failure.has_replaced;
        self.failed(failure.action, failure.source)
    }
}

/// Failure to replace the file by a new one.
#[derive(Debug)]
pub(super) struct ReplacementFailure {
    action: &'static str,
    source: DiskError,
    /// True if the path leads to the new file.
    has_replaced: bool,
}

impl ReplacementFailure {
    fn new(action: &'static str, source: impl Into<DiskError>) -> Self {
        Self {
            action,
            source: source.into(),
            has_replaced: false,
        }
    }
}

/// Returns the space in the file for values of a size.
fn room_for(bytes: usize) -> usize {
    2 * bytes + WRITE_PAGES_BYTES
}
