//! Sequential writes of one actor.

use std::collections::VecDeque;
use std::time::Duration;

use crate::world::event::Write;
use rooflet_client::wait_after;

/// Effect of a response on the remaining writes of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteResult {
    Done,
    /// Not a failure, but the dependent writes are skipped.
    Absent,
    Failed,
}

/// State of an actor's passes and writes.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) queue: VecDeque<Write>,
    /// True from the start of a pass until the response to its last write.
    pub(crate) busy: bool,
    /// True if the inputs have changed since the start of the pass.
    pub(crate) dirty: bool,
    pub(crate) failed: bool,
    /// True if the pass removes replicas and disruption budgets apply.
    pub(crate) disrupts: bool,
    /// Time of the snapshot that the writes are based on.
    pub(crate) observed_until: Duration,
    /// Number of consecutive failed passes.
    pub(crate) failures: u32,
    /// Time of the next pass.
    pub(crate) due_at: Option<Duration>,
}

impl Writer {
    /// Counts a failure and returns the backoff.
    pub(crate) fn backoff(&mut self) -> Duration {
        self.failures += 1;
        wait_after(self.failures)
    }
}
