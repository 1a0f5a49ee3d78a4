//! The thread that reads and writes block files, so that no request waits for a disk while another
//! could be computed. It writes the bytes that it is handed, and what it reads is in MLX's memory
//! when it hands it over: it fills arrays and computes nothing. Several blocks are read at the same
//! time, since a disk answers many requests faster than one after the other, and a copy into memory
//! that is new takes as long as the reading. If it panics, the engine goes on without files.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;

use super::block_file::{BlockName, RawBlock};
use super::files::{BlockFiles, FoundFile, WriteBlockError};
use super::key::BlockKey;
use super::raw::{self, BlockArrays};
use rooflet_base::error::Chain;

/// Blocks that are read at the same time, and that may wait for the engine. Of a model with 144 KiB
/// of cache per token (Qwen3-8B) they have 150 MB together.
const READERS: usize = 4;

/// What the thread is asked.
#[derive(Debug)]
enum Order {
    Read(BlockKey),
    Change(Change),
}

/// What it says.
#[derive(Debug)]
pub(super) enum Report {
    /// At the start: what is there, the least recently used first.
    Found(Vec<FoundFile>),
    /// `None`: it cannot be read, and is not there any more.
    Read(BlockKey, Option<BlockArrays>),
    /// With the file's size; `None`: it was not written.
    Written(BlockKey, Option<u64>),
    /// It was not written: the disk is full.
    Full(BlockKey),
}

/// What there is to hear of the thread.
#[derive(Debug)]
pub(super) enum News {
    None,
    Report(Report),
    /// It is gone, and answers nothing any more.
    Failed,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Disk {
    orders: Option<Sender<Order>>,
    reports: Receiver<Report>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// Starts the thread; `wake` is called after each report.
    pub(crate) fn spawn(files: BlockFiles, wake: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        // Few: blocks read, or written and waiting, are bounded by whoever asks.
        let (orders_tx, orders_rx) = channel();
        let (reports_tx, reports_rx) = sync_channel(READERS);
        let thread = std::thread::Builder::new()
            .name("prefix-files".to_owned())
            .spawn(move || {
                let work = AssertUnwindSafe(|| work(&files, &orders_rx, &reports_tx, &wake));
                let failed = catch_unwind(work).is_err();
                // First, so that whoever is woken finds out.
                drop((orders_rx, reports_tx));
                if failed {
                    wake();
                }
            })?;
        Ok(Self {
            orders: Some(orders_tx),
            reports: reports_rx,
            thread: Some(thread),
        })
    }

    pub(super) fn read(&self, key: BlockKey) {
        self.order(Order::Read(key));
    }

    pub(super) fn write(&self, name: BlockName, block: RawBlock) {
        self.order(Order::Change(Change::Write(name, block)));
    }

    pub(super) fn remove(&self, key: BlockKey) {
        self.order(Order::Change(Change::Remove(key)));
    }

    /// The next report, if there is one.
    pub(super) fn news(&self) -> News {
        match self.reports.try_recv() {
            Ok(report) => News::Report(report),
            Err(TryRecvError::Empty) => News::None,
            Err(TryRecvError::Disconnected) => News::Failed,
        }
    }

    /// Waits for the next report; `None`: there will be none.
    pub(super) fn wait(&self) -> Option<Report> {
        self.reports.recv().ok()
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // It only ends with this, or by a panic, which the next look for news finds.
            drop(orders.send(order));
        }
    }
}

/// What was handed over is written.
impl Drop for Disk {
    fn drop(&mut self) {
        self.orders = None;
        // The thread must not wait for somebody to take its reports.
        while self.reports.recv().is_ok() {}
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn work(files: &BlockFiles, orders: &Receiver<Order>, reports: &SyncSender<Report>, wake: impl Fn()) {
    let report = |report| {
        // The receiver takes everything until this thread has ended.
        drop(reports.send(report));
        wake();
    };
    report(Report::Found(files.scan()));
    let mut todo = Todo::default();
    // The disk's state is told once, not for every block.
    let mut writes_fail = false;
    loop {
        if todo.is_empty() {
            match orders.recv() {
                Ok(order) => todo.add(order),
                Err(_ended) => return,
            }
        }
        orders.try_iter().for_each(|order| todo.add(order));
        // A request waits for what is read, nobody for what is written.
        if !todo.reads.is_empty() {
            read(files, &mut todo, orders, report);
            continue;
        }
        match todo.changes.pop_front() {
            Some(Change::Write(name, block)) => {
                let key = name.key();
                let written = files.write(name, &block);
                if let (Err(err), false) = (&written, writes_fail) {
                    tracing::warn!(error = %Chain(err), "prefixes are not stored");
                }
                writes_fail = written.is_err();
                report(match written {
                    Err(WriteBlockError::DiskFull) => Report::Full(key),
                    written => Report::Written(key, written.ok()),
                });
            }
            Some(Change::Remove(key)) => files.remove(key),
            None => {}
        }
    }
}

/// All that are to be read, some at the same time, reported in order, each as soon as it is there.
fn read(files: &BlockFiles, todo: &mut Todo, orders: &Receiver<Order>, report: impl Fn(Report)) {
    std::thread::scope(|scope| {
        let mut readers = VecDeque::with_capacity(READERS);
        // Of a reader that has ended, for the next one: memory that was written to before is
        // faster.
        let mut buffer = Vec::new();
        loop {
            while readers.len() < READERS
                && let Some(key) = todo.reads.pop_front()
            {
                let mut buffer = std::mem::take(&mut buffer);
                readers.push_back(scope.spawn(move || (key, read_one(files, key, &mut buffer), buffer)));
            }
            let Some(reader) = readers.pop_front() else { return };
            match reader.join() {
                Ok((key, block, used)) => {
                    buffer = used;
                    report(Report::Read(key, block));
                }
                Err(panic) => resume_unwind(panic),
            }
            orders.try_iter().for_each(|order| todo.add(order));
        }
    });
}

fn read_one(files: &BlockFiles, key: BlockKey, buffer: &mut Vec<u8>) -> Option<BlockArrays> {
    let block = files.read(key, std::mem::take(buffer));
    let block = block.inspect_err(|err| unusable(&Chain(err))).ok()?;
    let arrays = raw::arrays(&block);
    *buffer = block.data;
    arrays.inspect_err(|err| unusable(err)).ok()
}

fn unusable(err: &dyn std::fmt::Display) {
    tracing::warn!(error = %err, "a kept prefix cannot be read and is computed");
}

/// Orders that are not carried out yet.
#[derive(Debug, Default)]
struct Todo {
    reads: VecDeque<BlockKey>,
    changes: VecDeque<Change>,
}

/// Of the files, to be made in order.
#[derive(Debug)]
enum Change {
    Write(BlockName, RawBlock),
    Remove(BlockKey),
}

impl Todo {
    fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.changes.is_empty()
    }

    fn add(&mut self, order: Order) {
        match order {
            Order::Read(key) => self.reads.push_back(key),
            Order::Change(change) => self.changes.push_back(change),
        }
    }
}
