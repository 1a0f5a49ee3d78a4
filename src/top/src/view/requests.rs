//! Requests of replicas.

use serde::Serialize;

use rooflet_api::v1alpha1::RequestsStatus;

/// Requests of one or more replicas, from their statuses. Agents report them at most every 10
/// seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Requests {
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    /// Since the start of the workers.
    pub(crate) completed: u64,
    pub(crate) failed: u64,
}

impl Requests {
    pub(super) fn new(status: &RequestsStatus) -> Self {
        Self {
            running: status.running,
            waiting: status.waiting,
            completed: status.completed,
            failed: status.failed,
        }
    }

    /// Returns the sum, or `None` if no replica reports requests.
    pub(super) fn sum(parts: impl IntoIterator<Item = Self>) -> Option<Self> {
        parts.into_iter().reduce(|sum, part| Self {
            running: sum.running.saturating_add(part.running),
            waiting: sum.waiting.saturating_add(part.waiting),
            completed: sum.completed.saturating_add(part.completed),
            failed: sum.failed.saturating_add(part.failed),
        })
    }
}
