//! A durable, revisioned key-value store for JSON bytes, after the model of kine.
//!
//! The store owns one file: an append log with a global revision. The current state and a bounded
//! history lie in memory and answer all reads. One writer thread decides writes in order, makes a
//! batch durable with one sync, and only then answers and notifies watchers.
//!
//! Invariants:
//! - An acknowledged write survives a kill and a power failure.
//! - A revision is never assigned twice. A watch never skips, repeats or reorders an event.
//! - The store does not interpret the JSON: names, namespaces and kinds are the caller's business.

mod disk;
mod error;
mod medium;
mod metrics;
mod open;
mod record;
mod revision;
mod state;
mod watch;
mod writer;

#[cfg(test)]
mod power_cut;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

pub use error::{CommitError, Compacted, ListError, OpenStoreError};
pub use metrics::StoreMetrics;
pub use record::{Event, EventKind, Record};
pub use revision::{Key, Revision};
pub use state::{HistoryLimits, ListOptions, Listing};
pub use watch::{WatchLimits, Watcher};

use medium::{FileMedium, Medium};
use rooflet_base::clock::Clock;
use state::State;
use watch::Watchers;
use writer::{Command, QUEUE_WRITES_MAX};

#[derive(Debug, Clone)]
pub struct StoreConfig {
    pub path: PathBuf,
    pub history: HistoryLimits,
    pub watch: WatchLimits,
    pub metrics: StoreMetrics,
}

impl StoreConfig {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            history: HistoryLimits::default(),
            watch: WatchLimits::default(),
            metrics: StoreMetrics::unregistered(),
        }
    }
}

/// A handle; clones share one store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<RwLock<Shared>>,
    commands_tx: mpsc::Sender<Command>,
    durable_rx: tokio::sync::watch::Receiver<Revision>,
    watch_limits: WatchLimits,
}

/// What readers see, and who is told of changes: under one lock, so that they agree.
struct Shared {
    state: State,
    watchers: Watchers,
    closed: bool,
}

/// One write to one key, decided by the writer against what the key then holds.
pub struct Write {
    pub key: Key,
    pub expect: Expect,
    pub change: Change,
}

/// Something about another key that must hold at the very moment of a write.
pub struct Guard {
    pub key: Key,
    /// Asked of what the key holds, on the writer thread; a key that holds nothing refuses the
    /// write.
    pub holds: Box<dyn Fn(&Record) -> bool + Send>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    At(Revision),
    /// Whatever it holds; a deletion still needs something to delete.
    Any,
}

/// What to do with the key. The value is encoded by the writer, once the write's revision is known,
/// so that the JSON can carry it. Encoders run on the writer thread: they only encode.
pub enum Change {
    Put(PutEncoder),
    /// Encodes the record's last value, for watchers and history.
    Delete(DeleteEncoder),
}

pub type PutEncoder = Box<dyn FnOnce(Revision) -> Bytes + Send>;
pub type DeleteEncoder = Box<dyn FnOnce(Revision, &Record) -> Bytes + Send>;

impl Store {
    /// Opens or creates the store. Blocks: reads the whole file, and repairs it after a crash.
    pub fn open(config: StoreConfig, clock: Clock) -> Result<Self, OpenStoreError> {
        let medium = FileMedium::lock(&config.path)?;
        Self::open_on(Box::new(medium), &config, clock)
    }

    fn open_on(medium: Box<dyn Medium>, config: &StoreConfig, clock: Clock) -> Result<Self, OpenStoreError> {
        let mut writer = open::writer(medium, config, clock)?;
        let (shared, durable_rx) = (writer.shared(), writer.durable());
        let (commands_tx, mut commands_rx) = mpsc::channel(QUEUE_WRITES_MAX);
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                let closing = writer.run(&mut commands_rx);
                writer.close();
                drop(commands_rx);
                if let Some(done) = closing {
                    // Who asked for it may have gone.
                    let _ = done.send(());
                }
            })
            .map_err(|source| OpenStoreError::Io {
                action: "starting the writer of",
                path: config.path.clone(),
                source,
            })?;
        Ok(Self {
            shared,
            commands_tx,
            durable_rx,
            watch_limits: config.watch,
        })
    }

    /// The newest durable revision.
    pub fn revision(&self) -> Revision {
        self.read().state.revision()
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Record>> {
        self.read().state.get(key.as_str()).map(Arc::clone)
    }

    /// The records whose keys begin with `prefix`, in key order, all as of one revision.
    pub fn list(&self, prefix: &str, options: &ListOptions) -> Result<Listing, ListError> {
        self.read().state.list(prefix, options)
    }

    /// Writes one key. Returns once the write survives a power cut and every reader sees it; on an
    /// error nothing has changed. If the caller stops waiting the write may still happen.
    pub async fn commit(&self, write: Write) -> Result<Arc<Record>, CommitError> {
        self.send(write, Vec::new()).await
    }

    /// Writes one key if all `guards` hold just then.
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

    /// Every event after `after` under `prefix`, first from history, then live.
    pub fn watch(&self, prefix: &str, after: Revision) -> Result<Watcher, Compacted> {
        Watcher::start(&self.shared, prefix, after, self.watch_limits)
    }

    /// Waits until the store has reached `revision`; false if it closed before.
    pub async fn reached(&self, revision: Revision) -> bool {
        self.durable_rx
            .clone()
            .wait_for(|durable| *durable >= revision)
            .await
            .is_ok()
    }

    /// Finishes the writes accepted so far, closes the file and frees its lock. Watchers end, later
    /// writes are refused, reads go on.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.commands_tx.send(Command::Close { done }).await.is_ok() {
            // An error only says that another call closed it first.
            let _ = closed.await;
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Shared> {
        // The writer changes the state in steps that do not panic; what a reader finds is whole.
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }
}
