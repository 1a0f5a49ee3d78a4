//! Thread that reads and writes block files, so that no request waits for the disk while another
//! could be computed. The thread receives bytes to write, and returns the blocks that it reads as
//! MLX arrays. It only fills these arrays and computes nothing. Several blocks are read
//! concurrently, because disks serve concurrent requests faster, and because a copy into newly
//! allocated memory takes as long as the read. If the thread panics, the engine continues without
//! files.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;

use super::block_file::{BlockName, RawBlock};
use super::files::{BlockFiles, FoundFile, WriteBlockError};
use super::key::BlockKey;
use super::raw::{self, BlockArrays};
use rooflet_base::error::Chain;

/// Number of concurrent reads, and of read blocks that may wait for the engine. With 144 KiB of KV
/// cache per token (Qwen3-8B), these blocks have 150 MB in total.
const READERS: usize = 4;

/// Command to the thread.
#[derive(Debug)]
enum Command {
    Read(BlockKey),
    Change(Change),
}

/// Report of the thread.
#[derive(Debug)]
pub(super) enum Report {
    /// Files found at startup, the least recently used first.
    Found(Vec<FoundFile>),
    /// Block that was read. `None` if it is unreadable; its file is removed.
    Read(BlockKey, Option<BlockArrays>),
    /// Block that was written, with the size of its file. `None` if the write failed.
    Written(BlockKey, Option<u64>),
    /// Block that was not written because the disk is full.
    Full(BlockKey),
}

/// Result of polling the thread.
#[derive(Debug)]
pub(super) enum PollResult {
    Empty,
    Report(Report),
    /// The thread has ended.
    Failed,
}

/// Handle of the thread.
#[derive(Debug)]
pub(crate) struct Disk {
    commands: Option<Sender<Command>>,
    reports: Receiver<Report>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// Starts the thread. `wake` is called after each report.
    pub(crate) fn spawn(files: BlockFiles, wake: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        // The channel needs no bound: the callers limit the number of blocks.
        let (commands_tx, commands_rx) = channel();
        let (reports_tx, reports_rx) = sync_channel(READERS);
        let thread = std::thread::Builder::new()
            .name("prefix-files".to_owned())
            .spawn(move || {
                let work = AssertUnwindSafe(|| work(&files, &commands_rx, &reports_tx, &wake));
                let failed = catch_unwind(work).is_err();
                // The channels are closed first, so that the woken engine notices the failure.
                drop((commands_rx, reports_tx));
                if failed {
                    wake();
                }
            })?;
        Ok(Self {
            commands: Some(commands_tx),
            reports: reports_rx,
            thread: Some(thread),
        })
    }

    pub(super) fn read(&self, key: BlockKey) {
        self.send(Command::Read(key));
    }

    pub(super) fn write(&self, name: BlockName, block: RawBlock) {
        self.send(Command::Change(Change::Write(name, block)));
    }

    pub(super) fn remove(&self, key: BlockKey) {
        self.send(Command::Change(Change::Remove(key)));
    }

    /// Returns the next report, if any.
    pub(super) fn poll(&self) -> PollResult {
        match self.reports.try_recv() {
            Ok(report) => PollResult::Report(report),
            Err(TryRecvError::Empty) => PollResult::Empty,
            Err(TryRecvError::Disconnected) => PollResult::Failed,
        }
    }

    /// Waits for the next report. `None` if the thread has ended.
    pub(super) fn wait(&self) -> Option<Report> {
        self.reports.recv().ok()
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // Sending fails only after a panic of the thread, which the next poll reports.
            drop(commands.send(command));
        }
    }
}

/// Waits until all submitted blocks are written.
impl Drop for Disk {
    fn drop(&mut self) {
        self.commands = None;
        // The thread must not block on a full report channel.
        while self.reports.recv().is_ok() {}
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn work(files: &BlockFiles, commands: &Receiver<Command>, reports: &SyncSender<Report>, wake: impl Fn()) {
    let report = |report| {
        // The engine receives all reports until this thread ends.
        drop(reports.send(report));
        wake();
    };
    report(Report::Found(files.scan()));
    let mut queue = CommandQueue::default();
    // Log a write failure once, not for every block.
    let mut writes_fail = false;
    loop {
        if queue.is_empty() {
            match commands.recv() {
                Ok(command) => queue.add(command),
                Err(_ended) => return,
            }
        }
        commands.try_iter().for_each(|command| queue.add(command));
        // Reads precede writes, because requests wait for reads only.
        if !queue.reads.is_empty() {
            read(files, &mut queue, commands, report);
            continue;
        }
        match queue.changes.pop_front() {
            Some(Change::Write(name, block)) => {
                let key = name.key();
                let written = files.write(name, &block);
                if let (Err(err), false) = (&written, writes_fail) {
                    tracing::warn!(error = %Chain(err), "failed to write prefix block");
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

/// Reads all queued blocks, several at a time, and reports them in order, each as soon as it is
/// read.
fn read(files: &BlockFiles, queue: &mut CommandQueue, commands: &Receiver<Command>, report: impl Fn(Report)) {
    std::thread::scope(|scope| {
        let mut readers = VecDeque::with_capacity(READERS);
        // Buffer of a finished reader, for the next one: memory that was already written to is
        // faster.
        let mut buffer = Vec::new();
        loop {
            while readers.len() < READERS
                && let Some(key) = queue.reads.pop_front()
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
            commands.try_iter().for_each(|command| queue.add(command));
        }
    });
}

fn read_one(files: &BlockFiles, key: BlockKey, buffer: &mut Vec<u8>) -> Option<BlockArrays> {
    let block = files.read(key, std::mem::take(buffer));
    let block = block.inspect_err(|err| log_unreadable(&Chain(err))).ok()?;
    let arrays = raw::arrays(&block);
    *buffer = block.data;
    arrays.inspect_err(|err| log_unreadable(err)).ok()
}

fn log_unreadable(err: &dyn std::fmt::Display) {
    tracing::warn!(error = %err, "failed to read prefix block, computing it instead");
}

/// Commands that are not executed yet.
#[derive(Debug, Default)]
struct CommandQueue {
    reads: VecDeque<BlockKey>,
    changes: VecDeque<Change>,
}

/// Changes of files, executed in order.
#[derive(Debug)]
enum Change {
    Write(BlockName, RawBlock),
    Remove(BlockKey),
}

impl CommandQueue {
    fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.changes.is_empty()
    }

    fn add(&mut self, command: Command) {
        match command {
            Command::Read(key) => self.reads.push_back(key),
            Command::Change(change) => self.changes.push_back(change),
        }
    }
}
