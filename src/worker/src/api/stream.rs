//! Answers as server-sent events, whatever their shape: what the engine tells goes to [`Frames`],
//! comments while nothing else comes, so that no proxy takes a long prefill for a dead connection.

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
use crate::engine::place::Place;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::response::Usage;

/// Silence after which something is sent. Common proxies give up after 30 to 60 seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// More than most tokens need.
const OBFUSCATED_BYTES: usize = 128;

/// One API's way to tell an answer.
pub(crate) trait Frames: Send + 'static {
    /// At once, before anything is computed.
    fn begin(&mut self, out: &mut VecDeque<Bytes>);
    /// More of the completion at `index`.
    fn piece(&mut self, index: usize, piece: Piece, out: &mut VecDeque<Bytes>);
    /// Its end; `usage` is that of all that have ended.
    fn end(&mut self, index: usize, done: Done, usage: Usage, out: &mut VecDeque<Bytes>);
    /// All have ended.
    fn close(&mut self, _usage: Usage, _out: &mut VecDeque<Bytes>) {}
    /// Nothing more comes.
    fn failed(&mut self, err: &ApiError, out: &mut VecDeque<Bytes>);
    /// In a long silence.
    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(b": keepalive\n\n")
    }
}

/// The response, whose body lives as long as the client reads it: dropped, it cancels its
/// completions. `obfuscated`: events are filled up, see [`filled_up`].
pub(crate) fn response(frames: impl Frames, submitted: Submitted, obfuscated: bool) -> Response {
    let writer = Writer::new(frames, submitted);
    let body = stream::unfold(writer, move |mut writer| async move {
        let mut frame = writer.next().await?;
        if obfuscated {
            frame = filled_up(&frame);
        }
        Some((Ok::<_, std::convert::Infallible>(frame), writer))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
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
    /// Places in the queue, freed as each completion ends.
    places: Vec<Option<Place>>,
    /// Which completions are over.
    over: Vec<bool>,
    open: usize,
    out: VecDeque<Bytes>,
}

impl<F: Frames> Writer<F> {
    fn new(mut frames: F, submitted: Submitted) -> Self {
        let Submitted {
            completions,
            prompt_tokens,
            choices_per_prompt,
        } = submitted;
        let open = completions.len();
        let mut events = SelectAll::new();
        let mut places = Vec::new();
        for (index, completion) in completions.into_iter().enumerate() {
            let ended = stream::once(async { Event::Failed(ENGINE_ENDED.to_owned()) });
            let numbered = ReceiverStream::new(completion.events)
                .chain(ended)
                .map(move |event| (index, event));
            events.push(numbered.boxed());
            places.push(Some(completion.place));
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
            places,
            over: vec![false; open],
            open,
            out,
        }
    }

    /// The next frame, `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.out.pop_front() {
                return Some(frame);
            }
            if self.open == 0 {
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
            // None is asked for.
            Event::Embedding(_) => {}
            Event::Done(done) => self.end(index, done),
            // The engine's message of a completion that is over comes from the chain above: nothing
            // to say.
            Event::Failed(_) if self.over[index] => {}
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
        self.places[index] = None;
        self.over[index] = true;
        self.open -= 1;
        if self.open == 0 {
            self.frames.close(usage, &mut self.out);
            self.close_all();
        }
    }

    /// Drops what is left, which cancels it.
    fn close_all(&mut self) {
        self.events.clear();
        self.places.iter_mut().for_each(|place| *place = None);
        self.over.fill(true);
        self.open = 0;
    }
}

/// The event with a member `obfuscation` that makes its length a multiple of [`OBFUSCATED_BYTES`],
/// as OpenAI has it: who sees encrypted events pass does not see the lengths of tokens. Random, so
/// that no compression takes it out.
fn filled_up(frame: &Bytes) -> Bytes {
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

/// An event without a name, as chat completions have them.
pub(crate) fn data_frame(value: &impl Serialize) -> Bytes {
    Bytes::from([b"data: ", &json(value)[..], b"\n\n"].concat())
}

/// An event that is named after its `type`, its first member.
pub(crate) fn event_frame(event: &impl Serialize) -> Bytes {
    let data = json(event);
    let behind = data.strip_prefix(br#"{"type":""#).unwrap_or_default();
    let name = behind.split(|byte| *byte == b'"').next().unwrap_or_default();
    debug_assert!(!name.is_empty(), "an event without a name");
    named_frame(name, &data)
}

/// An error, as Anthropic's streams tell it.
pub(crate) fn error_frame(body: &impl Serialize) -> Bytes {
    named_frame(b"error", &json(body))
}

fn named_frame(name: &[u8], data: &[u8]) -> Bytes {
    Bytes::from([b"event: ", name, b"\ndata: ", data, b"\n\n"].concat())
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("our own types have string keys")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Semaphore, mpsc};

    use super::chunks::{ChunkFrames, ChunkUsage, Chunks};
    use super::*;
    use crate::engine::Completion;
    use rooflet_inference_api::openai::response::Envelope;
    use rooflet_text::answer::{AnswerParser, AnswerShape};
    use rooflet_text::tool_calls::ToolFormat;

    /// A stream of one chat, and the engine's end of it.
    fn chat() -> (mpsc::Sender<Event>, Writer<ChunkFrames>) {
        let (events_tx, events) = mpsc::channel(1);
        let places = Arc::new(Semaphore::new(1));
        let completion = Completion {
            events,
            place: Place::shared(places.try_acquire_owned().ok()).1,
        };
        let submitted = Submitted {
            completions: vec![completion],
            prompt_tokens: 9,
            choices_per_prompt: 1,
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
            Chunks::Chat(Box::new(answer)),
            1,
            envelope,
            ChunkUsage::Never,
            None,
        );
        (events_tx, Writer::new(frames, submitted))
    }

    #[test]
    fn lengths_of_events_tell_nothing_of_their_tokens() {
        for text in ["a", "ab", &"long ".repeat(40)] {
            let filled = filled_up(&data_frame(&serde_json::json!({"text": text})));
            assert_eq!(filled.len() % OBFUSCATED_BYTES, 0);
            let json = filled.strip_prefix(b"data: ").expect("an event");
            let json: serde_json::Value = serde_json::from_slice(json).expect("JSON");
            assert_eq!(json["text"], text);
        }
        let done = Bytes::from_static(b"data: [DONE]\n\n");
        assert_eq!(filled_up(&done), done);
    }

    #[tokio::test]
    async fn a_stream_that_fails_says_so_and_ends() {
        let (events_tx, mut writer) = chat();
        let failed = Event::Failed("out of memory".to_owned());
        events_tx.send(failed).await.expect("read");
        let mut frames = Vec::new();
        while let Some(frame) = writer.next().await {
            frames.push(String::from_utf8(frame.to_vec()).expect("text"));
        }
        let [_head, error, done] = &frames[..] else {
            panic!("{frames:?}");
        };
        assert!(error.starts_with(r#"data: {"error":{"#) && error.contains("out of memory"));
        assert_eq!(done, "data: [DONE]\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_silence_is_filled_with_comments() {
        let (events_tx, mut writer) = chat();
        let mut next = async || {
            let frame = writer.next().await.expect("a frame");
            String::from_utf8(frame.to_vec()).expect("text")
        };
        assert!(
            next().await.contains(r#""role":"assistant""#),
            "the head comes at once"
        );
        for _ in 0..3 {
            let early = tokio::time::timeout(KEEP_ALIVE - Duration::from_secs(1), next()).await;
            assert!(early.is_err(), "{early:?}");
            let comment = tokio::time::timeout(Duration::from_secs(20), next()).await;
            assert_eq!(comment.expect("in time"), ": keepalive\n\n");
        }
        events_tx
            .send(Event::Piece(Piece {
                text: "hello".to_owned(),
                tokens: 1,
                scores: Vec::new(),
            }))
            .await
            .expect("read");
        assert!(next().await.contains("hello"));
    }
}
