//! Completions as server-sent events: `data: {json}` for each chunk, `data: [DONE]` at the end, comments while nothing
//! else comes, so that no proxy takes a long prefill for a dead connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use http::{HeaderValue, header};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio_stream::wrappers::ReceiverStream;

use super::answers::StreamedAnswer;
use super::completions::{ENGINE_ENDED, Submitted};
use super::event::{Done, Event, Score};
use super::prompt::Prompter;
use super::scores;
use crate::openai::ApiError;
use crate::openai::response::logprobs::{ChatLogprobs, TextLogprobs};
use crate::openai::response::{
    ChatChunk, ChatChunkChoice, Delta, Envelope, FinishReason, StopReason, TextChoice, TextChunk, Usage,
};
use crate::text::answer::AnswerParser;

/// Silence after which a comment is sent. Common proxies give up after 30 to 60 seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Whose chunks.
#[derive(Debug)]
pub(crate) enum Chunks {
    /// Each answer is taken apart.
    Chat(AnswerParser),
    Text,
}

/// The response, whose body lives as long as the client reads it: dropped, it cancels its completions.
pub(crate) fn response(
    chunks: Chunks,
    envelope: Envelope,
    include_usage: bool,
    logprobs_by: Option<Arc<Prompter>>,
    submitted: Submitted,
) -> Response {
    let writer = Writer::new(chunks, envelope, include_usage, logprobs_by, submitted);
    let body = stream::unfold(writer, |mut writer| async move {
        let frame = writer.next().await?;
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

struct Writer {
    /// Of a chat, one for each choice.
    answers: Option<Vec<StreamedAnswer>>,
    envelope: Envelope,
    include_usage: bool,
    /// Spells tokens, where logprobs are asked for.
    logprobs_by: Option<Arc<Prompter>>,
    /// Scores of each choice of a chat that no chunk has had yet.
    scores: Vec<Vec<Score>>,
    prompt_tokens: usize,
    choices_per_prompt: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    events: SelectAll<BoxStream<'static, (usize, Event)>>,
    /// Places in the queue, freed as each completion ends, however slow its reader is.
    places: Vec<Option<OwnedSemaphorePermit>>,
    open: usize,
    frames: VecDeque<Bytes>,
}

impl Writer {
    fn new(
        chunks: Chunks,
        envelope: Envelope,
        include_usage: bool,
        logprobs_by: Option<Arc<Prompter>>,
        submitted: Submitted,
    ) -> Self {
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
        let mut writer = Self {
            answers: match chunks {
                Chunks::Chat(parser) => {
                    Some((0..open).map(|_| StreamedAnswer::new(parser.clone())).collect())
                }
                Chunks::Text => None,
            },
            envelope,
            include_usage,
            logprobs_by,
            scores: vec![Vec::new(); open],
            prompt_tokens,
            choices_per_prompt,
            cached_tokens: 0,
            completion_tokens: 0,
            events,
            places,
            open,
            frames: VecDeque::new(),
        };
        if writer.answers.is_some() {
            for index in 0..open {
                let delta = Delta {
                    role: Some("assistant"),
                    content: Some(String::new()),
                    ..Delta::default()
                };
                writer.write_deltas(index, vec![delta]);
            }
        }
        writer
    }

    /// The next frame, `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            if self.open == 0 {
                return None;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.events.next()).await {
                Err(_elapsed) => return Some(Bytes::from_static(b": keepalive\n\n")),
                Ok(Some((index, event))) => self.write(index, event),
                Ok(None) => return None,
            }
        }
    }

    fn write(&mut self, index: usize, event: Event) {
        match event {
            Event::Piece(piece) => match &mut self.answers {
                Some(answers) => {
                    let deltas = answers[index].push(&piece);
                    self.scores[index].extend(piece.scores);
                    self.write_deltas(index, deltas);
                }
                None => {
                    let logprobs = self.text_logprobs(&piece.scores);
                    let frame = self.text_frame(index, piece.text, logprobs, None, None);
                    self.frames.push_back(frame);
                }
            },
            // None is asked for.
            Event::Embedding(_) => {}
            Event::Done(done) => self.write_end(index, done),
            // The engine's message of a completion that is over comes from the chain above: nothing to say.
            Event::Failed(_) if self.places[index].is_none() => {}
            Event::Failed(message) => {
                self.frames
                    .push_back(data(&ApiError::server_error(message).body()));
                self.close_all();
            }
        }
    }

    fn write_end(
        &mut self,
        index: usize,
        Done {
            reason,
            stopped_by,
            completion_tokens,
            cached_tokens,
        }: Done,
    ) {
        match &mut self.answers {
            Some(answers) => {
                let deltas = answers[index].finish();
                let reason = answers[index].finish_reason(reason);
                self.write_deltas(index, deltas);
                self.write_delta(index, Delta::default(), Some(reason), stopped_by);
            }
            None => {
                let frame = self.text_frame(index, String::new(), None, Some(reason), stopped_by);
                self.frames.push_back(frame);
            }
        }
        self.completion_tokens += completion_tokens;
        if index.is_multiple_of(self.choices_per_prompt) {
            self.cached_tokens += cached_tokens;
        }
        self.places[index] = None;
        self.open -= 1;
        if self.open > 0 {
            return;
        }
        if self.include_usage {
            let answers = self.answers.iter().flatten();
            let reasoning_tokens = answers.map(StreamedAnswer::reasoning_tokens).sum();
            let usage = Usage::new(self.prompt_tokens, self.completion_tokens)
                .with_cached_tokens(self.cached_tokens)
                .with_reasoning_tokens(reasoning_tokens);
            let usage = Some(Some(usage));
            let frame = match self.answers {
                Some(_) => data(&ChatChunk {
                    envelope: &self.envelope,
                    choices: Vec::new(),
                    usage,
                }),
                None => data(&TextChunk {
                    envelope: &self.envelope,
                    choices: Vec::new(),
                    usage,
                }),
            };
            self.frames.push_back(frame);
        }
        self.frames.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.close_all();
    }

    /// Drops what is left, which cancels it.
    fn close_all(&mut self) {
        self.events.clear();
        self.places.iter_mut().for_each(|place| *place = None);
        self.open = 0;
    }

    /// Of the tokens since the choice's last chunk; they may be more than its text, where some of that is held back.
    fn chat_logprobs(&mut self, index: usize) -> Option<ChatLogprobs> {
        let prompter = self.logprobs_by.as_ref()?;
        let logprobs = scores::of_chat(
            prompter.tokenizer(),
            self.scores[index].drain(..).as_slice().iter(),
        );
        (!logprobs.content.is_empty()).then_some(logprobs)
    }

    fn text_logprobs(&self, scores: &[Score]) -> Option<TextLogprobs> {
        let prompter = self.logprobs_by.as_ref()?;
        Some(scores::of_text(prompter.tokenizer(), scores.iter()))
    }

    /// Null in every chunk but the last, where the client asked for usage.
    fn no_usage(&self) -> Option<Option<Usage>> {
        self.include_usage.then_some(None)
    }

    /// A chunk for each.
    fn write_deltas(&mut self, index: usize, deltas: Vec<Delta>) {
        for delta in deltas {
            self.write_delta(index, delta, None, None);
        }
    }

    fn write_delta(
        &mut self,
        index: usize,
        delta: Delta,
        finish_reason: Option<FinishReason>,
        stop_reason: Option<StopReason>,
    ) {
        let choice = ChatChunkChoice {
            index,
            delta,
            logprobs: self.chat_logprobs(index),
            finish_reason,
            stop_reason,
        };
        let frame = data(&ChatChunk {
            envelope: &self.envelope,
            choices: vec![choice],
            usage: self.no_usage(),
        });
        self.frames.push_back(frame);
    }

    fn text_frame(
        &self,
        index: usize,
        text: String,
        logprobs: Option<TextLogprobs>,
        finish_reason: Option<FinishReason>,
        stop_reason: Option<StopReason>,
    ) -> Bytes {
        let choice = TextChoice {
            index,
            text,
            logprobs,
            finish_reason,
            stop_reason,
        };
        data(&TextChunk {
            envelope: &self.envelope,
            choices: vec![choice],
            usage: self.no_usage(),
        })
    }
}

fn data(value: &impl Serialize) -> Bytes {
    let mut frame = b"data: ".to_vec();
    serde_json::to_writer(&mut frame, value).expect("our own types have string keys and write to memory");
    frame.extend_from_slice(b"\n\n");
    Bytes::from(frame)
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Semaphore, mpsc};

    use super::*;
    use crate::text::answer::AnswerShape;
    use crate::text::tool_calls::ToolFormat;
    use crate::worker::engine::Completion;
    use crate::worker::event::Piece;

    #[tokio::test(start_paused = true)]
    async fn a_long_silence_is_filled_with_comments() {
        let (events_tx, events) = mpsc::channel(1);
        let places = Arc::new(Semaphore::new(1));
        let completion = Completion {
            events,
            place: places.try_acquire_owned().expect("free"),
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
        let mut writer = Writer::new(Chunks::Chat(answer), envelope, false, None, submitted);
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
