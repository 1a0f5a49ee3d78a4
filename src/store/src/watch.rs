//! Watchers: history first, then live events, without gaps. Each watcher has a bounded queue. A
//! watcher that does not keep up is closed and its client lists again; other watchers are not
//! affected.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use tokio::sync::Notify;

use super::{Event, Revision, Shared, StoreMetrics};
use rooflet_base::mutex::lock;

/// Maximum backlog of a watcher. Deleting a namespace or a rollout causes some thousand events.
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

/// All open watchers. Shares the lock of the state, so that live events start exactly where the
/// replay ends.
#[derive(Default)]
pub(super) struct Watchers {
    open: Vec<Weak<Mailbox>>,
}

/// Function that returns whether a watcher receives an event. It must be fast: the store calls it
/// for each event and each watcher before further writes.
pub type EventFilter = Box<dyn Fn(&Event) -> bool + Send + Sync>;

struct Mailbox {
    prefix: Box<str>,
    filter: Option<EventFilter>,
    /// Events up to this revision are skipped. May be ahead of the store's revision.
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
    /// Delivers new events to all watchers and closes watchers that lag too far behind.
    pub(super) fn dispatch(&mut self, events: &[Arc<Event>], metrics: &StoreMetrics) {
        self.open.retain(|mailbox| {
            let Some(mailbox) = mailbox.upgrade() else {
                return false;
            };
            let kept = mailbox.accept(events);
            if !kept {
                metrics.watchers_lagged.inc();
                tracing::debug!(prefix = %mailbox.prefix, "closed lagging watcher");
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
        // No panic can leave the queue inconsistent.
        lock(&self.queue)
    }

    fn selects(&self, event: &Event) -> bool {
        let is_below = event.key().as_str().starts_with(&*self.prefix);
        is_below && self.filter.as_ref().is_none_or(|filter| filter(event))
    }

    /// Returns false if the queue would overflow. The watcher is then closed instead of skipping
    /// events.
    fn accept(&self, events: &[Arc<Event>]) -> bool {
        let mut matching = events
            .iter()
            .filter(|event| event.revision > self.after && self.selects(event))
            .peekable();
        if matching.peek().is_none() {
            return true;
        }
        let mut queue = self.lock();
        for event in matching {
            queue.bytes += event.record.value.len();
            queue.events.push_back(Arc::clone(event));
        }
        if queue.events.len() > self.limits.events_max || queue.bytes > self.limits.bytes_max {
            // The client reads these events again from its next watch.
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

/// Receiver of the events under a prefix, in revision order, each exactly once.
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
        Self::start_selected(shared, prefix, None, after, limits)
    }

    pub(super) fn start_selected(
        shared: &Arc<RwLock<Shared>>,
        prefix: &str,
        filter: Option<EventFilter>,
        after: Revision,
        limits: WatchLimits,
    ) -> Result<Self, super::Compacted> {
        let mailbox = Arc::new(Mailbox {
            prefix: prefix.into(),
            filter,
            after,
            limits,
            queue: Mutex::default(),
            arrived: Notify::new(),
        });
        // Replay and registration share one write lock, so that no event is missed or repeated.
        let mut guard = shared.write().unwrap_or_else(PoisonError::into_inner);
        let replay = guard
            .state
            .events_after(after)?
            .filter(|event| mailbox.selects(event))
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

    /// Returns the next event, or `None` if the watcher lagged too far behind or the store closed.
    /// Resume with a new watch after the last received revision. Cancel-safe.
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

    /// Returns the next event if it is available without waiting.
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

    /// Returns the revision of a bookmark: a client that has received all delivered events may
    /// resume from it.
    pub fn progress(&self) -> Revision {
        // Events are added under the write lock, so the queue stays empty under the read lock.
        let guard = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        let queue = self.mailbox.lock();
        if self.replay.is_empty() && queue.events.is_empty() && !queue.closed {
            self.delivered.max(guard.state.revision())
        } else {
            self.delivered
        }
    }
}
