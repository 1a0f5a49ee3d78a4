//! Split of a chat answer into reasoning, content and tool calls, as a complete message or as the
//! deltas of a stream.

use uuid::Uuid;

use crate::batch::event::{Done, Piece};
use rooflet_inference_api::openai::response::logprobs::ChatLogprobs;
use rooflet_inference_api::openai::response::{
    AssistantMessage, CalledTool, ChatChoice, Delta, FinishReason, Reasoning,
};
use rooflet_text::answer::{AnswerParser, Part};
use rooflet_text::tool_calls::CallPart;

/// Prefix of tool call IDs in OpenAI's API.
pub(crate) const CALL_ID_PREFIX: &str = "call_";

/// Complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    content: String,
    reasoning: String,
    tool_calls: Vec<CalledTool>,
    has_complete_calls: bool,
    pub reasoning_tokens: usize,
}

impl Answer {
    pub(crate) fn parse(mut parser: AnswerParser, pieces: &[Piece]) -> Self {
        let (mut content, mut reasoning) = (String::new(), String::new());
        let mut tool_calls: Vec<CalledTool> = Vec::new();
        let mut parts: Vec<Part> = pieces
            .iter()
            .flat_map(|piece| parser.push(&piece.text, piece.tokens))
            .collect();
        parts.extend(parser.finish());
        for part in parts {
            match part {
                Part::Reasoning(text) => reasoning.push_str(&text),
                Part::Content(text) => content.push_str(&text),
                Part::Call(CallPart::Begin { name }) => {
                    let id = call_id(&parser, CALL_ID_PREFIX, &name, tool_calls.len());
                    tool_calls.push(CalledTool::begin(id, name));
                }
                Part::Call(CallPart::Arguments(json)) => {
                    if let Some(call) = tool_calls.last_mut() {
                        call.function.arguments.push_str(&json);
                    }
                }
            }
        }
        Self {
            content,
            reasoning,
            tool_calls,
            has_complete_calls: parser.has_whole_calls(),
            reasoning_tokens: parser.reasoning_tokens(),
        }
    }

    pub(crate) fn into_choice(self, index: usize, logprobs: Option<ChatLogprobs>, done: Done) -> ChatChoice {
        let reason = finish_reason(done.reason, self.has_complete_calls);
        let message = AssistantMessage::new(self.content, self.reasoning, self.tool_calls);
        ChatChoice::new(index, message, logprobs, reason, done.stopped_by)
    }
}

/// Answer of a stream.
#[derive(Debug)]
pub(crate) struct StreamedAnswer {
    parser: AnswerParser,
    calls: usize,
}

impl StreamedAnswer {
    pub(crate) fn new(parser: AnswerParser) -> Self {
        Self { parser, calls: 0 }
    }

    pub(crate) fn push(&mut self, piece: &Piece) -> Vec<Delta> {
        let parts = self.parser.push(&piece.text, piece.tokens);
        self.deltas(parts)
    }

    pub(crate) fn finish(&mut self) -> Vec<Delta> {
        let parts = self.parser.finish();
        self.deltas(parts)
    }

    pub(crate) fn finish_reason(&self, reason: FinishReason) -> FinishReason {
        finish_reason(reason, self.parser.has_whole_calls())
    }

    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.parser.reasoning_tokens()
    }

    fn deltas(&mut self, parts: Vec<Part>) -> Vec<Delta> {
        let mut deltas = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Reasoning(text) => deltas.push(Delta {
                    reasoning: Some(Reasoning::new(text)),
                    ..Delta::default()
                }),
                Part::Content(text) => deltas.push(Delta {
                    content: Some(text),
                    ..Delta::default()
                }),
                Part::Call(CallPart::Begin { name }) => {
                    let id = call_id(&self.parser, CALL_ID_PREFIX, &name, self.calls);
                    deltas.push(Delta {
                        tool_calls: vec![CalledTool::begin(id, name).at(self.calls)],
                        ..Delta::default()
                    });
                    self.calls += 1;
                }
                Part::Call(CallPart::Arguments(json)) => deltas.push(Delta {
                    tool_calls: vec![CalledTool::more(json).at(self.calls.saturating_sub(1))],
                    ..Delta::default()
                }),
            }
        }
        deltas
    }
}

/// Returns a new ID for the tool call at `index` of an answer.
pub(crate) fn call_id(parser: &AnswerParser, prefix: &str, function: &str, index: usize) -> String {
    let random = Uuid::new_v4().simple().to_string();
    parser.call_id(prefix, &random, function, index)
}

/// Returns `ToolCalls` for an answer that ends regularly with complete tool calls. A truncated
/// answer keeps its reason, so that the client does not run its tool calls.
fn finish_reason(reason: FinishReason, has_complete_calls: bool) -> FinishReason {
    match reason {
        FinishReason::Stop if has_complete_calls => FinishReason::ToolCalls,
        FinishReason::Stop | FinishReason::Length | FinishReason::ToolCalls => reason,
    }
}
