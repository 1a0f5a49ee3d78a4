//! Answers as server-sent events, or as lines of JSON. [`Frames`] converts engine events to the frames of one API.
//!
//! During a long prefill, the stream sends keep-alive comments, so that proxies do not close the
//! connection.

pub(crate) mod chunks;

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use http::{HeaderValue, header};
use rand::Rng as _;
use rand::distr::Alphanumeric;
use serde::Serialize;
use tokio_stream::wrappers::ReceiverStream;

use crate::api::submission::{ENGINE_ENDED, Submitted};
use crate::batch::event::{Done, Event, Piece};
use crate::engine::queue_slot::QueueSlot;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::response::Usage;

/// Time without events before a keep-alive frame. Common proxies close idle connections after 30 to
/// 60 seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Block size of obfuscated events; larger than the event of a typical token.
const OBFUSCATED_BYTES: usize = 128;

/// Conversion of engine events to the frames of one API.
pub(crate) trait Frames: Send + 'static {
    /// Appends the frames that precede the first token.
    fn begin(&mut self, out: &mut VecDeque<Bytes>);
    /// Appends the frames of a piece of the completion at `index`.
    fn piece(&mut self, index: usize, piece: Piece, out: &mut VecDeque<Bytes>);
    /// Appends the frames for the end of the completion at `index`. `usage` is the usage of all
    /// finished completions.
    fn end(&mut self, index: usize, done: Done, usage: Usage, out: &mut VecDeque<Bytes>);
    /// Appends the frames after the last completion.
    fn close(&mut self, _usage: Usage, _out: &mut VecDeque<Bytes>) {}
    /// Appends the frames of an error that terminates the stream.
    fn failed(&mut self, err: &ApiError, out: &mut VecDeque<Bytes>);
    /// Returns the content type of the stream.
    fn content_type(&self) -> HeaderValue {
        HeaderValue::from_static("text/event-stream")
    }
    /// Returns the keep-alive frame.
    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(b": keepalive\n\n")
    }
}

/// Returns the streaming response. If the client disconnects, the dropped body cancels the
/// completions. If `obfuscated` is set, events are padded as described at [`pad_frame`].
pub(crate) fn response(frames: impl Frames, submitted: Submitted, obfuscated: bool) -> Response {
    let content_type = frames.content_type();
    let writer = Writer::new(frames, submitted);
    let body = stream::unfold(writer, move |mut writer| async move {
        let mut frame = writer.next().await?;
        if obfuscated {
            frame = pad_frame(&frame);
        }
        Some((Ok::<_, std::convert::Infallible>(frame), writer))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

struct Writer<F> {
    frames: F,
    prompt_tokens: usize,
    choices_per_prompt: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    events: SelectAll<BoxStream<'static, (usize, Event)>>,
    /// Queue slots of the completions, released as each completion ends.
    slots: Vec<Option<QueueSlot>>,
    /// Finished flag of each completion.
    finished: Vec<bool>,
    /// Number of unfinished completions.
    unfinished: usize,
    out: VecDeque<Bytes>,
}

impl<F: Frames> Writer<F> {
    fn new(mut frames: F, submitted: Submitted) -> Self {
        let Submitted {
            completions,
            prompt_tokens,
            choices_per_prompt,
            // The frames have these tokens.
            prompt_ids: _,
        } = submitted;
        let unfinished = completions.len();
        let mut events = SelectAll::new();
        let mut slots = Vec::new();
        for (index, completion) in completions.into_iter().enumerate() {
            let ended = stream::once(async { Event::Failed(ENGINE_ENDED.to_owned()) });
            let numbered = ReceiverStream::new(completion.events)
                .chain(ended)
                .map(move |event| (index, event));
            events.push(numbered.boxed());
            slots.push(Some(completion.slot));
        }
        let mut out = VecDeque::new();
        frames.begin(&mut out);
        Self {
            frames,
            prompt_tokens,
            choices_per_prompt,
            cached_tokens: 0,
            completion_tokens: 0,
            events,
            slots,
            finished: vec![false; unfinished],
            unfinished,
            out,
        }
    }

    /// Returns the next frame, or `None` at the end of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.out.pop_front() {
                return Some(frame);
            }
            if self.unfinished == 0 {
                return None;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.events.next()).await {
                Err(_elapsed) => return Some(self.frames.keep_alive()),
                Ok(Some((index, event))) => self.write(index, event),
                Ok(None) => return None,
            }
        }
    }

    fn write(&mut self, index: usize, event: Event) {
        match event {
            Event::Piece(piece) => self.frames.piece(index, piece, &mut self.out),
            // Completions do not request embeddings.
            Event::Embedding(_) => {}
            Event::Done(done) => self.end(index, done),
            // `new` appends a failure to every channel, for engines that terminate without a final
            // event. After a regular end, this failure is ignored.
            Event::Failed(_) if self.finished[index] => {}
            Event::Failed(message) => {
                self.frames
                    .failed(&ApiError::server_error(message), &mut self.out);
                self.close_all();
            }
        }
    }

    fn end(&mut self, index: usize, done: Done) {
        self.completion_tokens += done.completion_tokens;
        if index.is_multiple_of(self.choices_per_prompt) {
            self.cached_tokens += done.cached_tokens;
        }
        let usage =
            Usage::new(self.prompt_tokens, self.completion_tokens).with_cached_tokens(self.cached_tokens);
        self.frames.end(index, done, usage, &mut self.out);
        self.slots[index] = None;
        self.finished[index] = true;
        self.unfinished -= 1;
        if self.unfinished == 0 {
            self.frames.close(usage, &mut self.out);
            self.close_all();
        }
    }

    /// Drops the event channels and queue slots, which cancels unfinished completions.
    fn close_all(&mut self) {
        self.events.clear();
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.finished.fill(true);
        self.unfinished = 0;
    }
}

/// Adds a member `obfuscation` that pads the event to a multiple of [`OBFUSCATED_BYTES`], as in
/// OpenAI's API. An observer of the encrypted connection cannot derive token lengths. The padding
/// is random, so that compression does not remove it.
fn pad_frame(frame: &Bytes) -> Bytes {
    const BEFORE: &[u8] = b",\"obfuscation\":\"";
    const AFTER: &[u8] = b"\"}\n\n";
    let Some(open) = frame.strip_suffix(b"}\n\n") else {
        return frame.clone();
    };
    let bare = open.len() + BEFORE.len() + AFTER.len();
    let missing = bare.next_multiple_of(OBFUSCATED_BYTES) - bare;
    let letters = rand::rng().sample_iter(Alphanumeric).take(missing);
    Bytes::from([open, BEFORE, &letters.collect::<Vec<u8>>(), AFTER].concat())
}

/// Returns an unnamed event, as used by chat completions.
pub(crate) fn data_frame(value: &impl Serialize) -> Bytes {
    Bytes::from([b"data: ", &json(value)[..], b"\n\n"].concat())
}

/// Returns an event that is named by `type`, which must be its first member.
pub(crate) fn event_frame(event: &impl Serialize) -> Bytes {
    let data = json(event);
    let rest = data.strip_prefix(br#"{"type":""#).unwrap_or_default();
    let name = rest.split(|byte| *byte == b'"').next().unwrap_or_default();
    debug_assert!(!name.is_empty(), "the first member of an event must be `type`");
    named_frame(name, &data)
}

/// Returns a line of JSON.
pub(crate) fn line_frame(value: &impl Serialize) -> Bytes {
    Bytes::from([&json(value)[..], b"\n"].concat())
}

/// Returns an error event of Anthropic's API.
pub(crate) fn error_frame(body: &impl Serialize) -> Bytes {
    named_frame(b"error", &json(body))
}

fn named_frame(name: &[u8], data: &[u8]) -> Bytes {
    Bytes::from([b"event: ", name, b"\ndata: ", data, b"\n\n"].concat())
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("response types have only string keys")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Semaphore, mpsc};

    use super::chunks::{ChunkFrames, ChunkKind, ChunkTokens, ChunkUsage};
    use super::*;
    use crate::engine::Completion;
    use rooflet_inference_api::openai::response::Envelope;
    use rooflet_text::answer::{AnswerParser, AnswerShape};
    use rooflet_text::tool_calls::ToolFormat;

    /// Returns the writer of a stream with one chat choice, and the sender of its engine events.
    fn chat() -> (mpsc::Sender<Event>, Writer<ChunkFrames>) {
        let (events_tx, events) = mpsc::channel(1);
        let slots = Arc::new(Semaphore::new(1));
        let completion = Completion {
            events,
            slot: QueueSlot::shared(slots.try_acquire_owned().ok()).1,
        };
        let submitted = Submitted {
            completions: vec![completion],
            prompt_tokens: 9,
            choices_per_prompt: 1,
            prompt_ids: None,
        };
        let answer = AnswerParser::new(&AnswerShape {
            reasoning: None,
            tool_format: ToolFormat::Tagged,
            tools: None,
        });
        let envelope = Envelope {
            id: "chatcmpl-1".to_owned(),
            object: "chat.completion.chunk",
            created: 0,
            model: "tiny".to_owned(),
            system_fingerprint: "mlx".to_owned(),
        };
        let frames = ChunkFrames::new(
            ChunkKind::Chat(Box::new(answer)),
            1,
            envelope,
            ChunkUsage::Never,
            ChunkTokens::default(),
        );
        (events_tx, Writer::new(frames, submitted))
    }

    #[test]
    fn obfuscated_events_have_length_independent_of_text() {
        for text in ["a", "ab", &"long ".repeat(40)] {
            let padded = pad_frame(&data_frame(&serde_json::json!({"text": text})));
            assert_eq!(padded.len() % OBFUSCATED_BYTES, 0);
            let json = padded.strip_prefix(b"data: ").expect("frame has a data field");
            let json: serde_json::Value = serde_json::from_slice(json).expect("data is JSON");
            assert_eq!(json["text"], text);
        }
        let done = Bytes::from_static(b"data: [DONE]\n\n");
        assert_eq!(pad_frame(&done), done);
    }

    #[tokio::test]
    async fn failed_stream_sends_error_and_ends() {
        let (events_tx, mut writer) = chat();
        let failed = Event::Failed("out of memory".to_owned());
        events_tx.send(failed).await.expect("writer holds the receiver");
        let mut frames = Vec::new();
        while let Some(frame) = writer.next().await {
            frames.push(String::from_utf8(frame.to_vec()).expect("frame is UTF-8"));
        }
        let [_head, error, done] = &frames[..] else {
            panic!("{frames:?}");
        };
        assert!(error.starts_with(r#"data: {"error":{"#) && error.contains("out of memory"));
        assert_eq!(done, "data: [DONE]\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_stream_sends_keep_alive_comments() {
        let (events_tx, mut writer) = chat();
        let mut next = async || {
            let frame = writer.next().await.expect("stream has not ended");
            String::from_utf8(frame.to_vec()).expect("frame is UTF-8")
        };
        assert!(
            next().await.contains(r#""role":"assistant""#),
            "the first frame does not wait for events"
        );
        for _ in 0..3 {
            let early = tokio::time::timeout(KEEP_ALIVE - Duration::from_secs(1), next()).await;
            assert!(early.is_err(), "{early:?}");
            let comment = tokio::time::timeout(Duration::from_secs(20), next()).await;
            assert_eq!(comment.expect("keep-alive is due"), ": keepalive\n\n");
        }
        events_tx
            .send(Event::Piece(Piece {
                text: "hello".to_owned(),
                tokens: 1,
                ..Piece::default()
            }))
            .await
            .expect("writer holds the receiver");
        assert!(next().await.contains("hello"));
    }
}
