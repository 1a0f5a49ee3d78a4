//! The thread that reads and writes block files, so that no request waits for a disk while another could be computed. It
//! makes no MLX call: it is handed bytes, and hands bytes back.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use super::block_file::{BlockName, RawBlock};
use super::files::{BlockFiles, FoundFile};
use super::key::BlockKey;
use crate::error::Chain;

/// Blocks that were read and wait for the engine.
const MAX_READ_AHEAD: usize = 2;

/// What the thread is asked.
#[derive(Debug)]
enum Order {
    Read(BlockKey),
    Write(BlockName, RawBlock),
    Remove(BlockKey),
}

/// What it says.
#[derive(Debug)]
pub(super) enum Report {
    /// At the start: what is there, the least recently used first.
    Found(Vec<FoundFile>),
    /// `None`: it cannot be read, and is not there any more.
    Read(BlockKey, Option<RawBlock>),
    /// With the file's size; `None`: it was not written.
    Written(BlockKey, Option<u64>),
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
        let (reports_tx, reports_rx) = sync_channel(MAX_READ_AHEAD);
        let thread = std::thread::Builder::new()
            .name("prefix-files".to_owned())
            .spawn(move || work(&files, &orders_rx, &reports_tx, wake))?;
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
        self.order(Order::Write(name, block));
    }

    pub(super) fn remove(&self, key: BlockKey) {
        self.order(Order::Remove(key));
    }

    /// The next report, if there is one.
    pub(super) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// Waits for the next report; `None`: there will be none.
    pub(super) fn wait(&self) -> Option<Report> {
        self.reports.recv().ok()
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // It only ends with this, or by a panic, which leaves the cache without files.
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
    let (mut reads, mut others) = (VecDeque::new(), VecDeque::new());
    // The disk's state is told once, not for every block.
    let mut writes_fail = false;
    loop {
        if reads.is_empty() && others.is_empty() {
            match orders.recv() {
                Ok(order) => sort(order, &mut reads, &mut others),
                Err(_ended) => return,
            }
        }
        while let Ok(order) = orders.try_recv() {
            sort(order, &mut reads, &mut others);
        }
        // A request waits for what is read, nobody for what is written.
        match reads.pop_front().or_else(|| others.pop_front()) {
            Some(Order::Read(key)) => {
                let block = files.read(key);
                if let Err(err) = &block {
                    tracing::warn!(error = %Chain(err), "a kept prefix cannot be read and is computed");
                }
                report(Report::Read(key, block.ok()));
            }
            Some(Order::Write(name, block)) => {
                let key = name.key();
                let written = files.write(name, &block);
                if let (Err(err), false) = (&written, writes_fail) {
                    tracing::warn!(error = %Chain(err), "prefixes are not stored");
                }
                writes_fail = written.is_err();
                report(Report::Written(key, written.ok()));
            }
            Some(Order::Remove(key)) => files.remove(key),
            None => {}
        }
    }
}

fn sort(order: Order, reads: &mut VecDeque<Order>, others: &mut VecDeque<Order>) {
    match order {
        Order::Read(_) => reads.push_back(order),
        Order::Write(..) | Order::Remove(_) => others.push_back(order),
    }
}
