//! A replica's answer on its way to the client: unchanged, watched for its first token and its end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::StreamExt;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

use crate::dispatch::Place;
use crate::metrics::Measure;
use crate::routing::health::Fault;
use crate::routing::length::Passed;
use rooflet_telemetry::trace::OpenSpan;

/// No preamble is as long.
const MAX_PREAMBLE_BYTES: usize = 64 << 10;

/// The answer's body broke before there was a token in it.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off before its first token")]
pub(crate) struct BrokenOff(#[source] axum::Error);

/// A body of which the beginning has been read.
pub(crate) struct Begun {
    read: VecDeque<Bytes>,
    rest: Body,
    is_stream: bool,
}

impl Begun {
    /// An answer that nobody has to watch.
    pub(crate) fn into_body(self) -> Body {
        if self.read.is_empty() {
            return self.rest;
        }
        let read = futures::stream::iter(self.read).map(Ok);
        Body::from_stream(read.chain(self.rest.into_data_stream()))
    }

    /// Whether all that a stream says is that it has failed.
    pub(crate) fn is_failure(&self) -> bool {
        self.is_stream && self.read.iter().any(|data| has_failed(data))
    }
}

/// Reads on until there is a token in a stream: from then on the answer cannot be given by anyone else any more.
pub(crate) async fn begin(response: Response) -> Result<(http::response::Parts, Begun), BrokenOff> {
    let (parts, mut rest) = response.into_parts();
    let kind = parts.headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    let is_stream = kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
    let mut read = VecDeque::new();
    if is_stream && parts.status.is_success() {
        read_preamble(&mut rest, &mut read).await?;
    }
    let begun = Begun {
        read,
        rest,
        is_stream,
    };
    Ok((parts, begun))
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

/// Whether server-sent events so far say only that an answer has begun: comments, who speaks, that it is being worked on.
fn is_preamble(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let tells_nothing = |event: &str| {
        let mut lines = event.lines();
        lines.all(|line| {
            let named = [
                "response.created",
                "response.in_progress",
                "message_start",
                "ping",
            ];
            match line.split_once(':') {
                Some(("event", name)) => named.contains(&name.trim()),
                Some(("data", data)) => {
                    let role = data.contains("\"role\":\"assistant\"") && data.contains("\"content\":\"\"");
                    let announces = |name: &&str| data.contains(&format!("\"type\":\"{name}\""));
                    role || named.iter().any(announces)
                }
                Some(("", _comment)) => true,
                Some(_) => false,
                None => line.is_empty(),
            }
        })
    };
    text.split("\n\n").all(tells_nothing)
}

/// Whether a stream says that it has failed.
fn has_failed(data: &[u8]) -> bool {
    let failures: [&[u8]; 3] = [
        b"data: {\"error\":",
        b"event: error\n",
        b"event: response.failed\n",
    ];
    let begins = |at: usize| failures.iter().any(|failure| data[at..].starts_with(failure));
    let mut events = data.windows(2).enumerate().filter(|(_, pair)| *pair == b"\n\n");
    begins(0) || events.any(|(at, _)| begins(at + 2))
}

/// An answer's body, unchanged, with what ends when it does.
pub(crate) struct Tracked {
    body: Begun,
    status: StatusCode,
    measure: Measure,
    place: Option<Place>,
    passed: Passed,
    has_failed: bool,
    /// Of asking the replica; ends here.
    _attempt: Option<OpenSpan>,
}

impl Tracked {
    pub(crate) fn new(
        body: Begun,
        status: StatusCode,
        measure: Measure,
        place: Place,
        attempt: Option<OpenSpan>,
    ) -> Self {
        Self {
            body,
            status,
            measure,
            place: Some(place),
            passed: Passed::default(),
            has_failed: false,
            _attempt: attempt,
        }
    }

    fn saw(&mut self, data: &Bytes) {
        self.measure.first_byte();
        // Whole answers come at once: their first byte says nothing of their first token.
        let is_first = self.body.is_stream && self.passed.is_nothing();
        if let Some(place) = self.place.as_ref().filter(|_| is_first) {
            place.first_token();
        }
        self.has_failed |= self.body.is_stream && has_failed(data);
        self.passed.saw(data);
    }

    fn ended(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        if self.has_failed {
            self.measure.failed(StatusCode::INTERNAL_SERVER_ERROR);
            return place.failed(Fault::Unable);
        }
        self.measure.ended(self.status);
        if self.status.is_success() {
            place.finished(self.passed.length(self.body.is_stream));
        } else {
            place.refused();
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        // Nobody asks a body for frames that has none.
        if self.place.is_some() && http_body::Body::is_end_stream(self) {
            self.ended();
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
            this.saw(&data);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let frame = ready!(Pin::new(&mut this.body.rest).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.saw(data);
                }
            }
            Some(Err(_)) => {
                this.measure.broke_off();
                if let Some(place) = this.place.take() {
                    place.failed(Fault::Unreachable);
                }
            }
            None => this.ended(),
        }
        if this.body.rest.is_end_stream() && this.body.read.is_empty() {
            this.ended();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.read.is_empty() && self.body.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read: u64 = self.body.read.iter().map(|data| data.len() as u64).sum();
        let rest = self.body.rest.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + read);
        }
        hint.set_lower(rest.lower() + read);
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preamble_ends_with_the_first_token() {
        let role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
        let token = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        let started = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n";
        let created = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n";
        for text in ["", role, ": keepalive\n\n", started, created] {
            assert!(is_preamble(text.as_bytes()), "{text}");
            assert!(is_preamble(format!("{role}{text}").as_bytes()), "{text}");
            assert!(!is_preamble(format!("{text}{token}").as_bytes()), "{text}");
        }
        for text in [
            "data: [DONE]\n\n",
            "data: {\"error\":{}}\n\n",
            "event: error\ndata: {}\n\n",
        ] {
            assert!(!is_preamble(text.as_bytes()), "{text}");
        }
    }
}
