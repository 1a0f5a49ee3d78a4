//! Response body of a replica, forwarded unchanged. Records the first token and the end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::StreamExt;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

use crate::dispatch::Slot;
use crate::metrics::Measure;
use crate::routing::health::Fault;
use crate::routing::length::ObservedBytes;
use rooflet_inference_api::openai::preamble::{MAX_PREAMBLE_BYTES, is_preamble, is_stream};
use rooflet_telemetry::trace::OpenSpan;

/// Response body that failed before its first token.
#[derive(Debug, thiserror::Error)]
#[error("response body failed before the first token")]
pub(crate) struct BrokenOff(#[source] axum::Error);

/// Response body with its start in memory.
pub(crate) struct BufferedBody {
    read: VecDeque<Bytes>,
    remaining: Body,
    is_stream: bool,
}

impl BufferedBody {
    /// Returns the complete body without tracking.
    pub(crate) fn into_body(self) -> Body {
        if self.read.is_empty() {
            return self.remaining;
        }
        let read = futures::stream::iter(self.read).map(Ok);
        Body::from_stream(read.chain(self.remaining.into_data_stream()))
    }

    /// Returns whether the start of the stream reports a failure.
    pub(crate) fn is_failure(&self) -> bool {
        self.is_stream && self.read.iter().any(|data| has_failed(data))
    }
}

/// Buffers a stream up to its first token. After that, the request cannot move to another replica.
///
/// Returns an error if the body fails before the first token.
pub(crate) async fn buffer_until_first_token(
    response: Response,
) -> Result<(http::response::Parts, BufferedBody), BrokenOff> {
    let (parts, mut remaining) = response.into_parts();
    let is_stream = is_stream(&parts.headers);
    let mut read = VecDeque::new();
    if is_stream && parts.status.is_success() {
        read_preamble(&mut remaining, &mut read).await?;
    }
    let buffered = BufferedBody {
        read,
        remaining,
        is_stream,
    };
    Ok((parts, buffered))
}

async fn read_preamble(body: &mut Body, read: &mut VecDeque<Bytes>) -> Result<(), BrokenOff> {
    let mut text = Vec::new();
    while text.len() < MAX_PREAMBLE_BYTES {
        let Some(frame) = body.frame().await else {
            return Ok(());
        };
        if let Ok(data) = frame.map_err(BrokenOff)?.into_data() {
            text.extend_from_slice(&data);
            read.push_back(data);
            if !is_preamble(&text) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns whether the data contain an error event, or a line with an error of Ollama's API.
fn has_failed(data: &[u8]) -> bool {
    const FAILED_LINE: &[u8] = b"{\"error\":";
    let mut lines = data.split(|byte| *byte == b'\n');
    if lines.any(|line| line.trim_ascii_start().starts_with(FAILED_LINE)) {
        return true;
    }
    let failures: [&[u8]; 3] = [
        b"data: {\"error\":",
        b"event: error\n",
        b"event: response.failed\n",
    ];
    let is_failure_at = |at: usize| failures.iter().any(|failure| data[at..].starts_with(failure));
    let mut events = data.windows(2).enumerate().filter(|(_, pair)| *pair == b"\n\n");
    is_failure_at(0) || events.any(|(at, _)| is_failure_at(at + 2))
}

/// Response body, forwarded unchanged, with the measurement and slot that end with it.
pub(crate) struct Tracked {
    body: BufferedBody,
    status: StatusCode,
    measure: Measure,
    slot: Option<Slot>,
    observed: ObservedBytes,
    has_failed: bool,
    /// True once the body has ended normally.
    is_complete: bool,
    /// Span of the attempt; ends with the body.
    _attempt_span: Option<OpenSpan>,
}

impl Tracked {
    pub(crate) fn new(
        body: BufferedBody,
        status: StatusCode,
        mut measure: Measure,
        slot: Slot,
        attempt_span: Option<OpenSpan>,
    ) -> Self {
        measure.response_started();
        Self {
            body,
            status,
            measure,
            slot: Some(slot),
            observed: ObservedBytes::default(),
            has_failed: false,
            is_complete: false,
            _attempt_span: attempt_span,
        }
    }

    fn record(&mut self, data: &Bytes) {
        self.measure.first_byte();
        // The first byte of a non-streamed response does not mark its first token.
        let is_first = self.body.is_stream && self.observed.is_empty();
        if let Some(slot) = self.slot.as_ref().filter(|_| is_first) {
            slot.first_token();
        }
        self.has_failed |= self.body.is_stream && has_failed(data);
        self.observed.record(data);
    }

    fn ended(&mut self) {
        let Some(slot) = self.slot.take() else {
            return;
        };
        if self.has_failed {
            self.measure.failed(StatusCode::INTERNAL_SERVER_ERROR);
            return slot.failed(Fault::Unable);
        }
        self.is_complete = true;
        self.measure.ended(self.status);
        if self.status.is_success() {
            let length = self.observed.length(self.body.is_stream);
            self.measure.length(length);
            slot.finished(length);
        } else {
            slot.rejected();
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        // The server does not poll a body without frames.
        if self.slot.is_some() && http_body::Body::is_end_stream(self) {
            self.ended();
        }
        if self.status.is_success() {
            let length = match self.is_complete {
                true => self.observed.length(self.body.is_stream),
                false => self.observed.interrupted_length(self.body.is_stream),
            };
            self.measure.charge(self.observed.prompt_tokens(), length);
        }
    }
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if let Some(data) = this.body.read.pop_front() {
            this.record(&data);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let frame = ready!(Pin::new(&mut this.body.remaining).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.record(data);
                }
            }
            Some(Err(_)) => {
                this.measure.broken_off();
                if let Some(slot) = this.slot.take() {
                    slot.failed(Fault::Unreachable);
                }
            }
            None => this.ended(),
        }
        if this.body.remaining.is_end_stream() && this.body.read.is_empty() {
            this.ended();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.read.is_empty() && self.body.remaining.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read: u64 = self.body.read.iter().map(|data| data.len() as u64).sum();
        let remaining = self.body.remaining.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = remaining.upper() {
            hint.set_upper(upper + read);
        }
        hint.set_lower(remaining.lower() + read);
        hint
    }
}
