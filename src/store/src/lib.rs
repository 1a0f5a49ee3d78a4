//! Durable key-value store for JSON with a global revision, modelled on kine and etcd.
//!
//! The store owns one file: an append-only log of revisions. Current records and a bounded history
//! are in memory and serve all reads. A single writer thread orders all writes, makes each batch
//! durable with one sync, and then acknowledges it and notifies watchers.
//!
//! Invariants:
//! - An acknowledged write survives a killed process and a power failure.
//! - A write is acknowledged only while the store's files are at their paths.
//! - A revision is never assigned twice. A watch never skips, repeats or reorders an event.
//! - Values that [`Seal`] covers are never plain in the file.
//! - The store does not interpret the JSON. Names, namespaces and kinds are the caller's concern.

mod copy;
mod damaged;
mod disk;
mod error;
mod location;
mod medium;
mod metrics;
mod open;
mod parser;
mod record;
mod reserve;
mod revision;
mod seal;
mod state;
mod watch;
mod writer;

#[cfg(test)]
mod power_cut;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

pub use copy::{Contents, CopyStoreError, Salvaged, StoreLock, contents, restore, salvage};
pub use error::{CommitError, Compacted, ListError, OpenStoreError};
pub use location::MisplacedFiles;
pub use metrics::StoreMetrics;
pub use record::{Event, EventKind, Record};
pub use revision::{Key, Revision};
pub use seal::{OpenedValue, Seal, SealValueError};
pub use state::{HistoryLimits, ListOptions, Listing};
pub use watch::{EventFilter, WatchLimits, Watcher};

use location::Location;
use medium::{FileMedium, Medium};
use parser::Parser;
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use state::State;
use watch::Watchers;
use writer::{Command, QUEUE_WRITES_MAX};

#[derive(Debug, Clone)]
pub struct StoreConfig {
    pub path: PathBuf,
    pub history: HistoryLimits,
    pub watch: WatchLimits,
    pub metrics: StoreMetrics,
    /// Parser of values for [`Record::json`]. Must fail for a text that is not JSON.
    pub parse: ParseValue,
    /// Locates the part of a value that [`Record::excerpt`] returns without parsing the value.
    pub locate_excerpt: LocateExcerpt,
    /// Encryption of values in the file. `None`: all values are plain.
    pub seal: Option<Arc<dyn Seal>>,
}

/// Parser of a value. May keep parts of the value as text, to save memory.
pub type ParseValue = fn(&[u8]) -> serde_json::Result<serde_json::Value>;

/// Function that returns the place of a part of a value, if the value has it. The store calls the function
/// once per write, and when it opens the file.
pub type LocateExcerpt = fn(&[u8]) -> Option<Range<usize>>;

impl StoreConfig {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            history: HistoryLimits::default(),
            watch: WatchLimits::default(),
            metrics: StoreMetrics::unregistered(),
            parse: |bytes| serde_json::from_slice(bytes),
            locate_excerpt: |_| None,
            seal: None,
        }
    }
}

/// Handle of a store. Clones share the same store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<RwLock<Shared>>,
    commands_tx: mpsc::Sender<Command>,
    durable_rx: tokio::sync::watch::Receiver<Revision>,
    watch_limits: WatchLimits,
    seal: Option<Arc<dyn Seal>>,
    parser: Arc<Parser>,
    path: PathBuf,
    /// Reason why writes fail. `None` while they succeed.
    failure: Arc<Mutex<Option<String>>>,
    /// Held while a snapshot is written.
    copying: Arc<Mutex<()>>,
    /// `None` for a simulated disk.
    location: Option<Arc<Location>>,
}

/// State and watchers behind one lock, so that a watch starts exactly where its list ends.
struct Shared {
    state: State,
    watchers: Watchers,
    closed: bool,
}

/// Write of one key. The writer thread evaluates it against the key's current record.
pub struct Write {
    pub key: Key,
    pub expect: Expect,
    pub change: Change,
}

/// Precondition on another key, evaluated atomically with the write.
pub struct Guard {
    pub key: Key,
    /// Predicate on the key's current record, called on the writer thread. If the key does not
    /// exist, the write fails.
    pub holds: Box<dyn Fn(&Record) -> bool + Send>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    At(Revision),
    /// Any state. A deletion still requires an existing key.
    Any,
}

/// Modification of a key. The writer calls the encoder once the revision of the write is known, so
/// that the JSON can contain it. Encoders run on the writer thread and must not block.
pub enum Change {
    Put(PutEncoder),
    /// Like `Put`, for a record that is about to be deleted. On a full disk, it may use the space that
    /// is reserved for deletions.
    PutBeforeDeletion(PutEncoder),
    /// Encodes the last value of the record, for watchers and history.
    Delete(DeleteEncoder),
}

pub type PutEncoder = Box<dyn FnOnce(Revision) -> Bytes + Send>;
pub type DeleteEncoder = Box<dyn FnOnce(Revision, &Record) -> Bytes + Send>;

impl Store {
    /// Opens or creates the store. Blocks while it reads and, after a crash, repairs the file.
    pub fn open(config: StoreConfig, clock: Clock) -> Result<Self, OpenStoreError> {
        let medium = FileMedium::lock(&config.path)?;
        Self::open_on(Box::new(medium), &config, clock)
    }

    fn open_on(medium: Box<dyn Medium>, config: &StoreConfig, clock: Clock) -> Result<Self, OpenStoreError> {
        let location = medium.location();
        let mut writer = open::writer(medium, config, clock)?;
        let (shared, durable_rx) = (writer.shared(), writer.durable());
        let (failure, parser) = (writer.failure(), writer.parser());
        let (commands_tx, mut commands_rx) = mpsc::channel(QUEUE_WRITES_MAX);
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                let closing = writer.run(&mut commands_rx);
                writer.close();
                drop(commands_rx);
                if let Some(done) = closing {
                    // The caller may have stopped waiting.
                    let _ = done.send(());
                }
            })
            .map_err(|source| OpenStoreError::Io {
                action: "starting the writer thread of",
                path: config.path.clone(),
                source,
            })?;
        Ok(Self {
            shared,
            commands_tx,
            durable_rx,
            watch_limits: config.watch,
            seal: config.seal.clone(),
            parser,
            path: config.path.clone(),
            failure,
            copying: Arc::default(),
            location,
        })
    }

    /// Checks that the store's files are still at their paths.
    pub fn check_files(&self) -> Result<(), MisplacedFiles> {
        self.location.as_ref().map_or(Ok(()), |location| location.check())
    }

    /// Returns the reason why writes fail, for example a full disk. `None` after a successful write.
    pub fn write_failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// Reserves disk space for deletions, compacts old history, rewrites the file if it is much larger
    /// than its content, and checks whether writes succeed again after a failure. Frees the parsed form of
    /// values. Call it regularly.
    pub async fn maintain(&self) {
        let (done, finished) = oneshot::channel();
        if self.commands_tx.send(Command::Maintain { done }).await.is_ok() {
            // An error means that the store was closed meanwhile.
            let _ = finished.await;
        }
        self.parser.forget();
    }

    /// Returns the newest durable revision.
    pub fn revision(&self) -> Revision {
        self.read().state.revision()
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Record>> {
        self.read().state.get(key.as_str()).map(Arc::clone)
    }

    /// Returns the records whose keys start with `prefix`, in key order, at one revision.
    pub fn list(&self, prefix: &str, options: &ListOptions) -> Result<Listing, ListError> {
        self.read().state.list(prefix, options)
    }

    /// Writes one key. Returns once the write is durable and visible to readers. After an error,
    /// nothing has changed. If the caller cancels the future, the write may still happen.
    pub async fn commit(&self, write: Write) -> Result<Arc<Record>, CommitError> {
        self.send(write, Vec::new()).await
    }

    /// Writes one key if all `guards` hold at commit time.
    pub async fn commit_guarded(&self, write: Write, guards: Vec<Guard>) -> Result<Arc<Record>, CommitError> {
        self.send(write, guards).await
    }

    async fn send(&self, write: Write, guards: Vec<Guard>) -> Result<Arc<Record>, CommitError> {
        let (reply, outcome) = oneshot::channel();
        self.commands_tx
            .send(Command::Commit { write, guards, reply })
            .await
            .map_err(|_| CommitError::Closed)?;
        outcome.await.map_err(|_| CommitError::Closed)?
    }

    /// Watches events under `prefix` after revision `after`: first history, then live events.
    pub fn watch(&self, prefix: &str, after: Revision) -> Result<Watcher, Compacted> {
        Watcher::start(&self.shared, prefix, after, self.watch_limits)
    }

    /// Like [`Store::watch`], for the events that `filter` selects. Other events do not wake the
    /// watcher.
    pub fn watch_selected(
        &self,
        prefix: &str,
        filter: EventFilter,
        after: Revision,
    ) -> Result<Watcher, Compacted> {
        Watcher::start_selected(&self.shared, prefix, Some(filter), after, self.watch_limits)
    }

    /// Waits until the store has reached `revision`. Returns false if the store closes before.
    pub async fn wait_for(&self, revision: Revision) -> bool {
        self.durable_rx
            .clone()
            .wait_for(|durable| *durable >= revision)
            .await
            .is_ok()
    }

    /// Completes accepted writes, closes the file and releases its lock. Watchers end, later writes
    /// fail, reads still work.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.commands_tx.send(Command::Close { done }).await.is_ok() {
            // An error means that a concurrent call has already closed the store.
            let _ = closed.await;
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Shared> {
        // The writer never panics while it changes the state, so a poisoned lock guards valid data.
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }
}
