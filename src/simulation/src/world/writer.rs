//! Sequential writes of one actor.

use std::collections::VecDeque;
use std::time::Duration;

use crate::world::event::Write;
use rooflet_client::wait_after;

/// Effect of an answer on the rest of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteResult {
    Done,
    /// Not a failure, but the dependent writes are skipped.
    Absent,
    Failed,
}

/// Writes of one actor, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) queue: VecDeque<Write>,
    /// A pass has begun, and its last write is not answered yet.
    pub(crate) busy: bool,
    /// What it decides by has changed since the pass began.
    pub(crate) dirty: bool,
    pub(crate) failed: bool,
    /// What it writes takes replicas away within a deployment's bounds.
    pub(crate) disrupts: bool,
    /// What its writes were decided on was known then.
    pub(crate) decided: Duration,
    pub(crate) failures: u32,
    /// When the next pass is due.
    pub(crate) wakes: Option<Duration>,
}

impl Writer {
    /// How long to wait after one more failure.
    pub(crate) fn backoff(&mut self) -> Duration {
        self.failures += 1;
        wait_after(self.failures)
    }
}
