//! Requests in the engine's queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::batch::event::Event;
use crate::engine::queue_slot::QueueSlot;
use crate::engine::schedule::{RequestId, Waiting};
use crate::prompt::ValidRequest;
use rooflet_telemetry::trace::OpenSpan;

/// Request with the channel of its events.
#[derive(Debug)]
pub(crate) struct Job {
    pub request: ValidRequest,
    /// Queue slot, released when the job is dropped.
    #[expect(dead_code, reason = "held until the job ends")]
    pub slot: QueueSlot,
    /// Channel with capacity for all events of the request, so that the engine never waits for a
    /// reader. A closed channel cancels the request.
    pub events: mpsc::Sender<Event>,
    pub submitted: Instant,
    pub span: Option<Arc<OpenSpan>>,
}

impl Job {
    /// Returns the maximum number of events of a request: one per token, two with results of the
    /// prompt, the rest of the text at the end, and the end itself.
    pub(crate) fn event_capacity(request: &ValidRequest) -> usize {
        request.max_tokens + 4
    }

    pub(crate) fn send(&self, event: Event) {
        // The channel has capacity for all events: this fails only if the client has disconnected.
        drop(self.events.try_send(event));
    }
}

/// Job in the queue with its scheduling state.
#[derive(Debug)]
pub(crate) struct Queued {
    pub id: RequestId,
    pub job: Job,
    /// Maximum size of its KV cache.
    pub bytes: u64,
    /// Number of plans that preferred a later request.
    pub overtaken: u32,
    /// Time in which the request waited until the model was loaded again.
    pub loading: Duration,
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
