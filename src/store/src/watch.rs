//! Watchers: replay from history, then live, without gap or reorder. Each has a bounded queue; one
//! that does not keep up is closed (its client lists and watches again) and slows nobody down.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use tokio::sync::Notify;

use super::{Event, Revision, Shared, StoreMetrics};
use rooflet_base::mutex::lock;

/// What one watcher may lag behind. A burst is a namespace deletion or a rollout, some thousand
/// events; who is further behind is stuck.
#[derive(Debug, Clone, Copy)]
pub struct WatchLimits {
    pub events_max: usize,
    pub bytes_max: usize,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self {
            events_max: 10_000,
            bytes_max: 32 << 20,
        }
    }
}

/// All open watchers. Lives under the same lock as the state, so that a watcher begins exactly
/// where its replay ends.
#[derive(Default)]
pub(super) struct Watchers {
    open: Vec<Weak<Mailbox>>,
}

struct Mailbox {
    prefix: Box<str>,
    /// Nothing up to here is wanted; ahead of the store's revision if the client asked so.
    after: Revision,
    limits: WatchLimits,
    queue: Mutex<Queue>,
    arrived: Notify,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    closed: bool,
}

impl Watchers {
    /// Hands each watcher its share of new events; closes those that lag too far behind.
    pub(super) fn dispatch(&mut self, events: &[Arc<Event>], metrics: &StoreMetrics) {
        self.open.retain(|mailbox| {
            let Some(mailbox) = mailbox.upgrade() else {
                return false;
            };
            let kept = mailbox.accept(events);
            if !kept {
                metrics.watchers_lagged.inc();
                tracing::debug!(prefix = %mailbox.prefix, "closed a watcher that lags too far behind");
            }
            kept
        });
        metrics.watchers.set(self.open.len() as i64);
    }

    pub(super) fn close(&mut self) {
        for mailbox in self.open.drain(..).filter_map(|mailbox| mailbox.upgrade()) {
            mailbox.lock().closed = true;
            mailbox.arrived.notify_one();
        }
    }

    fn register(&mut self, mailbox: &Arc<Mailbox>) {
        self.open.retain(|mailbox| mailbox.strong_count() > 0);
        self.open.push(Arc::downgrade(mailbox));
    }
}

impl Mailbox {
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        // A queue is consistent between any two statements that could panic.
        lock(&self.queue)
    }

    /// False if the queue would overflow: the watcher is closed, not given a gap.
    fn accept(&self, events: &[Arc<Event>]) -> bool {
        let mut wanted = events
            .iter()
            .filter(|event| event.revision > self.after && event.key().as_str().starts_with(&*self.prefix))
            .peekable();
        if wanted.peek().is_none() {
            return true;
        }
        let mut queue = self.lock();
        for event in wanted {
            queue.bytes += event.record.value.len();
            queue.events.push_back(Arc::clone(event));
        }
        if queue.events.len() > self.limits.events_max || queue.bytes > self.limits.bytes_max {
            // What it has not read it will read again after its new watch.
            *queue = Queue {
                closed: true,
                ..Queue::default()
            };
            self.arrived.notify_one();
            return false;
        }
        self.arrived.notify_one();
        true
    }
}

/// Receives the events under one prefix, in revision order, each once.
pub struct Watcher {
    shared: Arc<RwLock<Shared>>,
    mailbox: Arc<Mailbox>,
    replay: VecDeque<Arc<Event>>,
    delivered: Revision,
}

impl Watcher {
    pub(super) fn start(
        shared: &Arc<RwLock<Shared>>,
        prefix: &str,
        after: Revision,
        limits: WatchLimits,
    ) -> Result<Self, super::Compacted> {
        let mailbox = Arc::new(Mailbox {
            prefix: prefix.into(),
            after,
            limits,
            queue: Mutex::default(),
            arrived: Notify::new(),
        });
        // Replay and registration under one write lock: no event falls between, none comes twice.
        let mut guard = shared.write().unwrap_or_else(PoisonError::into_inner);
        let replay = guard
            .state
            .events_after(after)?
            .filter(|event| event.key().as_str().starts_with(prefix))
            .map(Arc::clone)
            .collect();
        if guard.closed {
            mailbox.lock().closed = true;
        } else {
            guard.watchers.register(&mailbox);
        }
        drop(guard);
        Ok(Self {
            shared: Arc::clone(shared),
            mailbox,
            replay,
            delivered: after,
        })
    }

    /// The next event. `None` when the watcher fell too far behind or the store closed: resume with
    /// a new watch after the last revision seen. Cancel-safe.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        loop {
            if let Some(event) = self.ready() {
                return Some(event);
            }
            if self.mailbox.lock().closed {
                return None;
            }
            self.mailbox.arrived.notified().await;
        }
    }

    /// The next event if one is there already.
    pub fn ready(&mut self) -> Option<Arc<Event>> {
        let event = self.replay.pop_front().or_else(|| {
            let mut queue = self.mailbox.lock();
            let event = queue.events.pop_front()?;
            queue.bytes -= event.record.value.len();
            Some(event)
        })?;
        self.delivered = event.revision;
        Some(event)
    }

    /// A revision from which a client that has seen everything delivered so far may resume:
    /// what a bookmark says.
    pub fn progress(&self) -> Revision {
        // Events arrive under the write lock, so under the read lock an empty queue stays empty.
        let guard = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        let queue = self.mailbox.lock();
        if self.replay.is_empty() && queue.events.is_empty() && !queue.closed {
            self.delivered.max(guard.state.revision())
        } else {
            self.delivered
        }
    }
}
