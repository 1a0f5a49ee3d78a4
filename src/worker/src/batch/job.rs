//! A request in the engine's queue.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;

use crate::batch::event::Event;
use crate::engine::place::Place;
use crate::engine::schedule::{RequestId, Waiting};
use crate::prompt::ValidRequest;
use rooflet_telemetry::trace::OpenSpan;

/// A request and where its events go.
#[derive(Debug)]
pub(crate) struct Job {
    pub request: ValidRequest,
    /// Free when this is dropped.
    #[expect(dead_code, reason = "it is held")]
    pub place: Place,
    /// Holds all events the request can have, so the engine never waits for a reader. Closed =
    /// cancelled.
    pub events: mpsc::Sender<Event>,
    pub submitted: Instant,
    pub span: Option<Arc<OpenSpan>>,
}

impl Job {
    /// Room for every event of a request: one per token, what is told of the prompt, what is
    /// flushed at the end, and the end.
    pub(crate) fn event_capacity(request: &ValidRequest) -> usize {
        request.max_tokens + 3
    }

    pub(crate) fn send(&self, event: Event) {
        // The channel has room for all events: this fails only if the client has disconnected.
        drop(self.events.try_send(event));
    }
}

/// A job in the queue, and what the schedule knows of it.
#[derive(Debug)]
pub(crate) struct Queued {
    pub id: RequestId,
    pub job: Job,
    /// The most its cache can take.
    pub bytes: u64,
    /// Plans that named it overtaken.
    pub overtaken: u32,
}

impl Queued {
    pub(crate) fn as_waiting(&self) -> Waiting {
        Waiting {
            id: self.id,
            priority: self.job.request.priority,
            overtaken: self.overtaken,
            bytes: self.bytes,
            prompt_tokens: self.job.request.prompt.len(),
        }
    }
}
