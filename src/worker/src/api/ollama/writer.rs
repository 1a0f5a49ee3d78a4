//! Conversion of an answer's parts to Ollama's responses: one object, or one per line of a stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use http::HeaderValue;

use crate::api::answers::{CALL_ID_PREFIX, call_id};
use crate::api::app::App;
use crate::api::scores::{self, TokenNames};
use crate::api::stream::{Frames, line_frame};
use crate::batch::event::{Done, Piece, Score};
use rooflet_inference_api::ollama::error;
use rooflet_inference_api::ollama::response::{
    Answer, CalledFunction, Content, DoneReason, Figures, Message, ToolCall,
};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::json::Json;
use rooflet_inference_api::openai::message::parsed_arguments;
use rooflet_inference_api::openai::preamble::JSON_LINES;
use rooflet_inference_api::openai::response::{FinishReason, Usage};
use rooflet_text::answer::{AnswerParser, Part};
use rooflet_text::tool_calls::CallPart;

/// White space between the lines of a stream. Clients parse each line as JSON, so that an empty line
/// would be an error.
const KEEP_ALIVE: &[u8] = b" ";

/// Endpoint that determines the format of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Chat,
    Generate,
}

/// Returns the response to a request that only loads or unloads the model.
pub(super) fn without_prompt(app: &App, format: Format, reason: DoneReason) -> Answer {
    Answer {
        done: true,
        done_reason: Some(reason),
        ..answer(app, format, Delta::default())
    }
}

fn answer(app: &App, format: Format, delta: Delta) -> Answer {
    let Delta {
        content,
        thinking,
        tool_calls,
    } = delta;
    Answer {
        model: app.name.clone(),
        created_at: app.clock.now().to_string(),
        content: match format {
            Format::Chat => Content::Chat {
                message: Message {
                    role: "assistant",
                    content,
                    thinking,
                    tool_calls,
                },
            },
            Format::Generate => Content::Generate {
                response: content,
                thinking,
            },
        },
        done: false,
        done_reason: None,
        figures: None,
        logprobs: Vec::new(),
    }
}

/// Builder of one answer and the lines of its stream.
pub(super) struct AnswerWriter {
    app: Arc<App>,
    format: Format,
    parser: AnswerParser,
    began: Instant,
    calls: usize,
    /// Call whose arguments are incomplete.
    open: Option<OpenCall>,
    has_logprobs: bool,
    /// Scores that are not sent yet.
    scores: Vec<Score>,
}

struct OpenCall {
    id: String,
    name: String,
    arguments: String,
}

/// Increment of an answer.
#[derive(Debug, Default)]
struct Delta {
    content: String,
    thinking: String,
    tool_calls: Vec<ToolCall>,
}

impl Delta {
    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.thinking.is_empty() && self.tool_calls.is_empty()
    }
}

impl AnswerWriter {
    pub(super) fn new(
        app: &Arc<App>,
        format: Format,
        parser: AnswerParser,
        began: Instant,
        has_logprobs: bool,
    ) -> Self {
        Self {
            app: Arc::clone(app),
            format,
            parser,
            began,
            calls: 0,
            open: None,
            has_logprobs,
            scores: Vec::new(),
        }
    }

    /// Returns the complete answer.
    pub(super) fn whole(&mut self, pieces: &[Piece], done: &Done, usage: Usage) -> Answer {
        let mut whole = Delta::default();
        for piece in pieces {
            self.read(piece, &mut whole);
        }
        self.finish(&mut whole);
        self.ended(whole, done, usage)
    }

    fn read(&mut self, piece: &Piece, delta: &mut Delta) {
        if self.has_logprobs {
            self.scores.extend(piece.scores.iter().cloned());
        }
        let parts = self.parser.push(&piece.text, piece.tokens);
        parts.into_iter().for_each(|part| self.part(part, delta));
    }

    fn finish(&mut self, delta: &mut Delta) {
        let parts = self.parser.finish();
        parts.into_iter().for_each(|part| self.part(part, delta));
        self.close_call(delta);
    }

    fn part(&mut self, part: Part, delta: &mut Delta) {
        match part {
            Part::Reasoning(text) => {
                self.close_call(delta);
                delta.thinking.push_str(&text);
            }
            Part::Content(text) => {
                self.close_call(delta);
                delta.content.push_str(&text);
            }
            Part::Call(CallPart::Begin { name }) => {
                self.close_call(delta);
                self.open = Some(OpenCall {
                    id: call_id(&self.parser, CALL_ID_PREFIX, &name, self.calls),
                    name,
                    arguments: String::new(),
                });
            }
            Part::Call(CallPart::Arguments(json)) => {
                if let Some(open) = &mut self.open {
                    open.arguments.push_str(&json);
                }
            }
        }
    }

    /// Adds the open call, unless its arguments are truncated: a client would run the call with
    /// other arguments.
    fn close_call(&mut self, delta: &mut Delta) {
        let Some(OpenCall { id, name, arguments }) = self.open.take() else {
            return;
        };
        if let arguments @ Json::Object(_) = parsed_arguments(&arguments) {
            let function = CalledFunction {
                index: self.calls,
                name,
                arguments,
            };
            self.calls += 1;
            delta.tool_calls.push(ToolCall { id, function });
        }
    }

    fn answer(&mut self, delta: Delta) -> Answer {
        let names = TokenNames {
            tokenizer: self.app.prompter.tokenizer(),
            by_id: false,
        };
        let scores = self.scores.drain(..);
        let logprobs = scores.filter_map(|score| scores::content_logprob(names, &score));
        Answer {
            logprobs: logprobs.collect(),
            ..answer(&self.app, self.format, delta)
        }
    }

    fn ended(&mut self, delta: Delta, done: &Done, usage: Usage) -> Answer {
        Answer {
            done: true,
            done_reason: Some(match done.reason {
                FinishReason::Stop | FinishReason::ToolCalls => DoneReason::Stop,
                FinishReason::Length => DoneReason::Length,
            }),
            figures: Some(Figures {
                total_duration: self.app.clock.instant() - self.began,
                load_duration: done.durations.loading,
                prompt_eval_count: usage.prompt_tokens,
                prompt_eval_duration: done.durations.prefill,
                eval_count: usage.completion_tokens,
                eval_duration: done.durations.decode,
            }),
            ..self.answer(delta)
        }
    }
}

impl Frames for AnswerWriter {
    fn begin(&mut self, _out: &mut VecDeque<Bytes>) {}

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut VecDeque<Bytes>) {
        let mut delta = Delta::default();
        self.read(&piece, &mut delta);
        if !delta.is_empty() {
            out.push_back(line_frame(&self.answer(delta)));
        }
    }

    fn end(&mut self, _index: usize, done: Done, usage: Usage, out: &mut VecDeque<Bytes>) {
        let mut rest = Delta::default();
        self.finish(&mut rest);
        // Some clients ignore the text of the last line.
        if !rest.is_empty() {
            out.push_back(line_frame(&self.answer(rest)));
        }
        out.push_back(line_frame(&self.ended(Delta::default(), &done, usage)));
    }

    fn failed(&mut self, err: &ApiError, out: &mut VecDeque<Bytes>) {
        out.push_back(line_frame(&error::body(err)));
    }

    fn content_type(&self) -> HeaderValue {
        HeaderValue::from_static(JSON_LINES)
    }

    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(KEEP_ALIVE)
    }
}
