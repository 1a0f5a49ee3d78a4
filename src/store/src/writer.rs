//! Writer: one thread that evaluates writes in order, makes each batch durable with one sync, and
//! then publishes it to readers and watchers and acknowledges it.
//!
//! Memory is authoritative while the process runs. If the disk fails, the batch fails and memory
//! stays unchanged. The next batch first restores the file from memory.

mod space;

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use redb::Database;
use tokio::sync::{mpsc, oneshot, watch};

use super::error::{CommitError, StorageFailure};
use super::location::{Location, MisplacedFiles};
use super::medium::Medium;
use super::parser::Parser;
use super::state::{Garbage, HistoryLimits, State};
use super::watch::Watchers;
use super::{
    Change, Event, EventKind, Expect, Guard, Key, Record, Revision, Seal, Shared, StoreConfig, StoreMetrics,
    Write, disk,
};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use space::Space;

/// Capacity of the writer's queue. Further callers wait.
pub(super) const QUEUE_WRITES_MAX: usize = 1_024;
/// Maximum writes per batch. Beyond a few hundred writes the cost of the sync is negligible, and
/// smaller batches reduce latency.
const BATCH_WRITES_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Size of a batch that must fit into the disk space that is reserved for deletions.
const LOW_SPACE_BATCH_BYTES_MAX: usize = 1 << 20;
/// Limit of a value, larger than the largest request body of the API server (3 MiB).
pub(crate) const VALUE_BYTES_MAX: usize = 4 << 20;

pub(super) enum Command {
    Commit {
        write: Write,
        guards: Vec<Guard>,
        reply: Reply,
    },
    Maintain {
        done: oneshot::Sender<()>,
    },
    Close {
        done: oneshot::Sender<()>,
    },
}

type Outcome = Result<Arc<Record>, CommitError>;
type Reply = oneshot::Sender<Outcome>;

pub(super) struct Writer {
    shared: Arc<RwLock<Shared>>,
    medium: Box<dyn Medium>,
    /// `None` after a failure, until the next batch restores it.
    database: Option<Database>,
    /// True after a failed sync, until the file is replaced.
    suspect: bool,
    /// Last failure in the log.
    last_failure: Option<String>,
    garbage: VecDeque<Garbage>,
    history: HistoryLimits,
    metrics: StoreMetrics,
    parser: Arc<Parser>,
    seal: Option<Arc<dyn Seal>>,
    clock: Clock,
    durable_tx: watch::Sender<Revision>,
    space: Space,
    /// Reason why writes fail.
    failure: Arc<Mutex<Option<String>>>,
}

/// Writes that are evaluated but not durable.
#[derive(Default)]
struct Batch {
    events: Vec<Arc<Event>>,
    /// Record of each key after the batch.
    pending: HashMap<Key, Option<Arc<Record>>>,
    /// Replies to send once the batch is durable.
    replies: Vec<(Reply, Outcome)>,
    bytes: usize,
    /// True if the batch contains deletions, which may use reserved disk space.
    has_deletions: bool,
}

impl Writer {
    /// Creates a writer for the state that was loaded from `medium`.
    pub(super) fn new(
        medium: Box<dyn Medium>,
        database: Option<Database>,
        mut state: State,
        parser: Arc<Parser>,
        config: &StoreConfig,
        clock: Clock,
    ) -> Self {
        let StoreConfig {
            history,
            ref metrics,
            ref seal,
            ..
        } = *config;
        let mut garbage = VecDeque::new();
        state.trim(&history, clock.instant(), &mut garbage);
        let durable_tx = watch::Sender::new(state.revision());
        let shared = Arc::new(RwLock::new(Shared {
            state,
            watchers: Watchers::default(),
            closed: false,
        }));
        Self {
            shared,
            medium,
            database,
            suspect: false,
            last_failure: None,
            garbage,
            history,
            metrics: metrics.clone(),
            parser,
            seal: seal.clone(),
            clock,
            durable_tx,
            space: Space::default(),
            failure: Arc::default(),
        }
    }

    pub(super) fn shared(&self) -> Arc<RwLock<Shared>> {
        Arc::clone(&self.shared)
    }

    pub(super) fn durable(&self) -> watch::Receiver<Revision> {
        self.durable_tx.subscribe()
    }

    pub(super) fn parser(&self) -> Arc<Parser> {
        Arc::clone(&self.parser)
    }

    /// Returns the reason why writes fail, if they do.
    pub(super) fn failure(&self) -> Arc<Mutex<Option<String>>> {
        Arc::clone(&self.failure)
    }

    /// Closes the file and releases its lock, then ends all watchers.
    pub(super) fn close(self) {
        let shared = self.shared();
        drop(self);
        let mut guard = shared.write().unwrap_or_else(PoisonError::into_inner);
        guard.closed = true;
        guard.watchers.close();
    }

    /// Runs until a close command, or until all senders are dropped.
    pub(super) fn run(&mut self, commands: &mut mpsc::Receiver<Command>) -> Option<oneshot::Sender<()>> {
        let mut next = commands.blocking_recv();
        while let Some(command) = next.take() {
            if self.is_low_on_space() {
                self.hold_reserve();
            }
            let mut batch = Batch::default();
            let mut closing = None;
            let mut maintaining = None;
            let mut current = Some(command);
            while let Some(command) = current.take() {
                match command {
                    Command::Commit { write, guards, reply } => {
                        let outcome = self.decide(&mut batch, write, guards);
                        batch.replies.push((reply, outcome));
                    }
                    Command::Maintain { done } => {
                        maintaining = Some(done);
                        break;
                    }
                    Command::Close { done } => {
                        closing = Some(done);
                        break;
                    }
                }
                if !self.is_full(&batch) {
                    current = commands.try_recv().ok();
                }
            }
            self.commit(batch);
            if let Some(done) = maintaining {
                self.maintain();
                // The caller may have stopped waiting.
                let _ = done.send(());
            }
            if closing.is_some() {
                return closing;
            }
            next = commands.blocking_recv();
        }
        None
    }

    fn is_full(&self, batch: &Batch) -> bool {
        let bytes_max = match self.is_low_on_space() {
            true => LOW_SPACE_BATCH_BYTES_MAX,
            false => BATCH_BYTES_MAX,
        };
        batch.replies.len() >= BATCH_WRITES_MAX || batch.bytes >= bytes_max
    }

    fn decide(&self, batch: &mut Batch, write: Write, guards: Vec<Guard>) -> Outcome {
        let Write { key, expect, change } = write;
        let (current, revision) = {
            let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner);
            let held = |key: &Key| match batch.pending.get(key) {
                Some(pending) => pending.clone(),
                None => shared.state.get(key.as_str()).map(Arc::clone),
            };
            for Guard { key, holds } in guards {
                if !held(&key).is_some_and(|record| holds(&record)) {
                    return Err(CommitError::GuardFailed { key });
                }
            }
            let newest = batch
                .events
                .last()
                .map_or(shared.state.revision(), |event| event.revision);
            (held(&key), newest.next())
        };
        let is_deletion = match &change {
            Change::Put(_) => false,
            Change::PutBeforeDeletion(_) | Change::Delete(_) => true,
        };
        let event = Arc::new(evaluate(key, &expect, change, current, revision, &self.parser)?);
        if !is_deletion {
            self.check_room(&event, batch.bytes)?;
        }
        batch.has_deletions |= is_deletion;
        let record = Arc::clone(&event.record);
        batch.bytes += record.value.len();
        batch
            .pending
            .insert(event.key().clone(), event.outcome().map(Arc::clone));
        batch.events.push(event);
        Ok(record)
    }

    fn commit(&mut self, batch: Batch) {
        let Batch {
            events,
            replies,
            bytes,
            has_deletions,
            ..
        } = batch;
        let conflicts = replies
            .iter()
            .filter(|(_, outcome)| matches!(outcome, Err(CommitError::Conflict { .. })));
        self.metrics.conflicts.inc_by(conflicts.count() as u64);
        let failure = if events.is_empty() {
            None
        } else {
            let start = self.clock.instant();
            let mut written = self.make_durable(&events);
            if has_deletions && let Err(failure) = written {
                written = self.retry_with_reserve(failure, |writer| writer.make_durable(&events));
            }
            let failure = written.err().map(Arc::new);
            match &failure {
                Some(failure) => self.set_failure(Some(Chain(&**failure).to_string())),
                // Deletions with reserved space do not show that other writes succeed.
                None if has_deletions && self.is_low_on_space() => {}
                None => self.set_failure(None),
            }
            self.metrics.batch_writes.observe(events.len() as f64);
            self.metrics
                .commit_seconds
                .observe((self.clock.instant() - start).as_secs_f64());
            failure
        };
        if failure.is_none() {
            self.publish(&events);
        }
        for (reply, outcome) in replies {
            // A rejection may depend on an earlier write of the same failed batch.
            let outcome = match &failure {
                Some(failure) => Err(CommitError::Io(Arc::clone(failure))),
                None => outcome,
            };
            // The caller may have stopped waiting.
            let _ = reply.send(outcome);
        }
        if failure.is_none() {
            self.compact();
            self.record_written(bytes, has_deletions);
        }
    }

    fn make_durable(&mut self, events: &[Arc<Event>]) -> Result<(), StorageFailure> {
        let durable = self
            .shared
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .state
            .revision();
        let seal = self.seal.clone();
        let database = self.database()?;
        catch_panic(|| disk::append(database, durable, events, seal.as_deref()))
            .map_err(|err| self.failed("writing store file", err))?;
        self.check_location(Location::check)
    }

    fn check_location(
        &mut self,
        check: impl Fn(&Location) -> Result<(), MisplacedFiles>,
    ) -> Result<(), StorageFailure> {
        let checked = self.medium.location().map_or(Ok(()), |location| check(&location));
        checked.map_err(|err| self.failed("checking store file", err))
    }

    /// Closes the database, so that the next write reopens or replaces the file.
    fn failed(&mut self, action: &'static str, source: impl Into<DiskError>) -> StorageFailure {
        let source = source.into();
        self.metrics.failures.inc();
        let closed = catch_unwind(AssertUnwindSafe(|| drop(self.database.take())));
        self.suspect |= closed.is_err() || self.medium.sync_failed() || source.is::<Panicked>();
        let path = self.medium.path().to_owned();
        let failure = StorageFailure { action, path, source };
        let text = Chain(&failure).to_string();
        // Clients repeat failed writes every few seconds.
        if self.last_failure.as_ref() != Some(&text) {
            tracing::error!(
                error = text,
                "store write failed; writes fail until the file is restored"
            );
            self.last_failure = Some(text);
        }
        failure
    }

    /// Returns the open database. After a failure, reopens and repairs the file. If acknowledged
    /// writes are missing, writes a new file from memory.
    fn database(&mut self) -> Result<&Database, StorageFailure> {
        if self.database.is_none() {
            let database = match self.reopen() {
                Some(database) => database,
                None => self.rebuild()?,
            };
            tracing::info!(path = %self.medium.path().display(), "store recovered");
            self.last_failure = None;
            self.database = Some(database);
        }
        Ok(self.database.as_ref().expect("set above if absent"))
    }

    fn reopen(&mut self) -> Option<Database> {
        let is_in_place = self
            .medium
            .location()
            .is_none_or(|location| location.check().is_ok());
        if self.suspect || !is_in_place {
            return None;
        }
        let database = self.medium.open().ok()??;
        let durable = self
            .shared
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .state
            .revision();
        (disk::newest(&database).ok()? >= durable).then_some(database)
    }

    fn rebuild(&mut self) -> Result<Database, StorageFailure> {
        self.check_location(Location::check_replaceable)?;
        let database = match self.replacement() {
            Ok(database) => database,
            Err(failure) => return Err(self.replacement_failed(failure)),
        };
        self.suspect = false;
        self.garbage.clear();
        Ok(database)
    }

    fn publish(&mut self, events: &[Arc<Event>]) {
        let Some(newest) = events.last().map(|event| event.revision) else {
            return;
        };
        let now = self.clock.instant();
        {
            let mut guard = self.shared.write().unwrap_or_else(PoisonError::into_inner);
            let shared = &mut *guard;
            for event in events {
                shared.state.apply(Arc::clone(event), now);
            }
            shared.state.trim(&self.history, now, &mut self.garbage);
            shared.watchers.dispatch(events, &self.metrics);
            self.metrics.records.set(shared.state.len() as i64);
            self.metrics.history_events.set(shared.state.history_len() as i64);
            self.metrics
                .history_bytes
                .set(shared.state.history_bytes() as i64);
        }
        self.durable_tx.send_replace(newest);
    }

    fn compact(&mut self) {
        if self.garbage.len() > self.history.garbage_rows_max {
            self.compact_all();
        }
    }

    fn compact_all(&mut self) {
        let Some(database) = &self.database else { return };
        match catch_panic(|| disk::compact(database, &self.garbage)) {
            Ok(()) => {
                self.metrics.compacted_rows.inc_by(self.garbage.len() as u64);
                self.garbage.clear();
            }
            // The rows stay in `garbage`, and the next batch restores the file.
            Err(err) => drop(self.failed("compacting store file", err)),
        }
    }
}

type DiskError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
#[error("the database library panicked; the log contains the panic message")]
struct Panicked;

/// Converts a panic into an error. Safe, because writing the disk does not change memory.
fn catch_panic(write: impl FnOnce() -> Result<(), redb::Error>) -> Result<(), DiskError> {
    match catch_unwind(AssertUnwindSafe(write)) {
        Ok(outcome) => outcome.map_err(DiskError::from),
        Err(_) => Err(DiskError::from(Panicked)),
    }
}

/// Evaluates one write against the current record of its key.
fn evaluate(
    key: Key,
    expect: &Expect,
    change: Change,
    current: Option<Arc<Record>>,
    revision: Revision,
    parser: &Arc<Parser>,
) -> Result<Event, CommitError> {
    let expected = match (expect, &current) {
        (Expect::Any, _) => true,
        (Expect::Absent, None) => true,
        (Expect::At(revision), Some(record)) => record.modified == *revision,
        (Expect::Absent, Some(_)) | (Expect::At(_), None) => false,
    };
    if !expected {
        return Err(CommitError::Conflict { current });
    }
    let (kind, created, value) = match (change, &current) {
        (Change::Put(put) | Change::PutBeforeDeletion(put), Some(record)) => (
            EventKind::Modified,
            record.created,
            encode(&key, || put(revision))?,
        ),
        (Change::Put(put) | Change::PutBeforeDeletion(put), None) => {
            (EventKind::Created, revision, encode(&key, || put(revision))?)
        }
        (Change::Delete(delete), Some(record)) => (
            EventKind::Deleted,
            record.created,
            encode(&key, || delete(revision, record))?,
        ),
        (Change::Delete(_), None) => return Err(CommitError::Conflict { current: None }),
    };
    if value.len() > VALUE_BYTES_MAX {
        return Err(CommitError::TooLarge {
            key,
            bytes: value.len(),
            limit: VALUE_BYTES_MAX,
        });
    }
    // Watchers read the parsed value next.
    if parser.parse(&value).is_err() {
        return Err(CommitError::NotJson { key });
    }
    let key = current.as_ref().map_or(key, |record| record.key.clone());
    let record = Record::new(key, value, created, revision, parser);
    Ok(Event {
        revision,
        kind,
        record,
        previous: current,
    })
}

/// Runs a caller's encoder. A panic fails only this write instead of ending the writer thread.
fn encode(key: &Key, encoder: impl FnOnce() -> Bytes) -> Result<Bytes, CommitError> {
    let encoded = catch_unwind(AssertUnwindSafe(encoder));
    let encoded = encoded.map_err(|_| CommitError::Encoder { key: key.clone() })?;
    // The state keeps values, and the buffer of an encoder is up to twice as large as its content.
    Ok(Bytes::copy_from_slice(&encoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_need_no_more_memory_than_their_length() {
        let mut grown = Vec::with_capacity(4096);
        grown.extend_from_slice(b"{}");
        let value = encode(&Key::new("/k/1"), || Bytes::from(grown)).expect("the encoder succeeds");
        let value = value.try_into_mut().expect("no other owner");
        assert_eq!(value.capacity(), 2);
    }
}
