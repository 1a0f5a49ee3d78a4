//! Tests of the store: against a reference model, with power cuts, and at its limits.

mod copies;
mod crashes;
mod edges;
mod failures;
mod model;
mod sealing;
mod space;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::power_cut::PowerCutDisk;
use super::writer::{Command, Writer};
use super::*;

fn config() -> StoreConfig {
    StoreConfig::at("simulated.redb")
}

fn put(key: &str, expect: Expect, text: impl Into<String>) -> Write {
    let text = text.into();
    let encode =
        move |revision: Revision| Bytes::from(format!(r#"{{"revision":{revision},"text":"{text}"}}"#));
    Write {
        key: Key::new(key),
        expect,
        change: Change::Put(Box::new(encode)),
    }
}

fn delete(key: &str, expect: Expect) -> Write {
    let encode = |revision: Revision, last: &Record| {
        Bytes::from(format!(r#"{{"revision":{revision},"text":"{}"}}"#, text(last)))
    };
    Write {
        key: Key::new(key),
        expect,
        change: Change::Delete(Box::new(encode)),
    }
}

fn text(record: &Record) -> String {
    assert_eq!(
        record.json()["revision"],
        record.modified.0,
        "the value carries its own revision"
    );
    record.json()["text"]
        .as_str()
        .expect("the test encoder writes a string")
        .to_owned()
}

/// Store without a writer thread, so that a test controls the batches.
struct Manual {
    writer: Writer,
}

impl Manual {
    fn open(disk: &PowerCutDisk, config: &StoreConfig) -> Result<Self, OpenStoreError> {
        open::writer(Box::new(disk.clone()), config, Clock::System).map(|writer| Self { writer })
    }

    /// Commits all writes as one batch.
    fn batch(&mut self, writes: impl IntoIterator<Item = Write>) -> Vec<Result<Arc<Record>, CommitError>> {
        self.guarded_batch(writes.into_iter().map(|write| (write, None)))
    }

    fn guarded_batch(
        &mut self,
        writes: impl IntoIterator<Item = (Write, Option<Guard>)>,
    ) -> Vec<Result<Arc<Record>, CommitError>> {
        let (commands_tx, mut commands_rx) = mpsc::channel(QUEUE_WRITES_MAX);
        let outcomes: Vec<_> = writes
            .into_iter()
            .map(|(write, guard)| {
                let (reply, outcome) = oneshot::channel();
                let guards = guard.into_iter().collect();
                let command = Command::Commit { write, guards, reply };
                commands_tx
                    .try_send(command)
                    .map_err(|_| "full")
                    .expect("the queue has room");
                outcome
            })
            .collect();
        drop(commands_tx);
        self.writer.run(&mut commands_rx);
        outcomes
            .into_iter()
            .map(|mut outcome| outcome.try_recv().expect("every write gets a reply"))
            .collect()
    }

    fn commit_one(&mut self, write: Write) -> Result<Arc<Record>, CommitError> {
        self.batch([write]).pop().expect("one write gets one reply")
    }

    /// Runs the maintenance.
    fn maintain(&mut self) {
        let (commands_tx, mut commands_rx) = mpsc::channel(1);
        let (done, _) = oneshot::channel();
        let queued = commands_tx.try_send(Command::Maintain { done });
        queued.map_err(|_| "full").expect("the queue has room");
        drop(commands_tx);
        self.writer.run(&mut commands_rx);
    }

    fn list(&self, prefix: &str) -> Vec<(String, String)> {
        let shared = self.writer.shared();
        let listing = shared
            .read()
            .unwrap()
            .state
            .list(prefix, &ListOptions::default())
            .unwrap();
        listing
            .records
            .iter()
            .map(|record| (record.key.to_string(), text(record)))
            .collect()
    }

    fn revision(&self) -> Revision {
        self.writer.shared().read().unwrap().state.revision()
    }

    fn compacted(&self) -> Revision {
        self.writer.shared().read().unwrap().state.compacted()
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Watcher, Compacted> {
        Watcher::start(&self.writer.shared(), prefix, after, WatchLimits::default())
    }
}

fn drain(watcher: &mut Watcher) -> Vec<Arc<Event>> {
    std::iter::from_fn(|| watcher.ready()).collect()
}

fn open_file(path: &Path) -> Result<Store, OpenStoreError> {
    Store::open(StoreConfig::at(path), Clock::System)
}
