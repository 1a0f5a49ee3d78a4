//! Conversion of an answer's parts to the content blocks and events of a message.

use uuid::Uuid;

use crate::api::answers::call_id;
use crate::batch::event::{Done, Piece};
use rooflet_inference_api::anthropic::response::{
    Block, BlockDelta, Event, Message, MessageEnd, SIGNATURE, StopReason,
};
use rooflet_inference_api::openai::json::{Json, Members};
use rooflet_inference_api::openai::message::parsed_arguments;
use rooflet_inference_api::openai::response;
use rooflet_inference_api::openai::response::FinishReason;
use rooflet_text::answer::{AnswerParser, Part};
use rooflet_text::tool_calls::CallPart;

/// Builder of one message and its stream events.
#[derive(Debug)]
pub(super) struct MessageWriter {
    message: Message,
    parser: AnswerParser,
    calls: usize,
    /// True while the last block is incomplete.
    open: bool,
    /// Arguments of the open tool call.
    arguments: String,
    events: Vec<Event>,
}

impl MessageWriter {
    pub(super) fn new(model: String, prompt_tokens: usize, parser: AnswerParser) -> Self {
        Self {
            message: Message {
                id: format!("msg_{}", Uuid::new_v4().simple()),
                kind: "message",
                role: "assistant",
                model,
                content: Vec::new(),
                stop_reason: None,
                stop_sequence: None,
                // The number of cached tokens is unknown before prefill.
                usage: response::Usage::new(prompt_tokens, 0).into(),
            },
            parser,
            calls: 0,
            open: false,
            arguments: String::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn begin(&self) -> Event {
        Event::MessageStart {
            message: self.message.clone(),
        }
    }

    pub(super) fn push(&mut self, piece: &Piece) -> Vec<Event> {
        let parts = self.parser.push(&piece.text, piece.tokens);
        parts.into_iter().for_each(|part| self.part(part));
        std::mem::take(&mut self.events)
    }

    pub(super) fn finish(&mut self, done: Done, usage: response::Usage) -> Vec<Event> {
        let parts = self.parser.finish();
        parts.into_iter().for_each(|part| self.part(part));
        self.close();
        let stop_sequence = match done.stopped_by {
            Some(response::StopReason::Text(text)) => Some(text),
            // Requests of this API cannot set stop token IDs.
            Some(response::StopReason::Token(_)) | None => None,
        };
        let stop_reason = match done.reason {
            FinishReason::Length => StopReason::MaxTokens,
            FinishReason::ToolCalls => StopReason::ToolUse,
            FinishReason::Stop if stop_sequence.is_some() => StopReason::StopSequence,
            FinishReason::Stop if self.parser.has_whole_calls() => StopReason::ToolUse,
            FinishReason::Stop => StopReason::EndTurn,
        };
        self.message.stop_reason = Some(stop_reason);
        self.message.stop_sequence.clone_from(&stop_sequence);
        self.message.usage = usage.into();
        self.events.push(Event::MessageDelta {
            delta: MessageEnd {
                stop_reason: Some(stop_reason),
                stop_sequence,
            },
            usage: self.message.usage,
        });
        self.events.push(Event::MessageStop);
        std::mem::take(&mut self.events)
    }

    pub(super) fn into_message(self) -> Message {
        self.message
    }

    fn part(&mut self, part: Part) {
        match part {
            Part::Reasoning(text) => {
                if !matches!(self.current(), Some(Block::Thinking { .. })) {
                    self.open(Block::Thinking {
                        thinking: String::new(),
                        signature: "",
                    });
                }
                if let Some(Block::Thinking { thinking, .. }) = self.current() {
                    thinking.push_str(&text);
                }
                self.delta(BlockDelta::Thinking { thinking: text });
            }
            Part::Content(text) => {
                if !matches!(self.current(), Some(Block::Text { .. })) {
                    self.open(Block::Text { text: String::new() });
                }
                if let Some(Block::Text { text: full_text }) = self.current() {
                    full_text.push_str(&text);
                }
                self.delta(BlockDelta::Text { text });
            }
            Part::Call(CallPart::Begin { name }) => {
                let id = call_id(&self.parser, "toolu_", &name, self.calls);
                self.calls += 1;
                self.open(Block::ToolUse {
                    id,
                    name,
                    input: Json::Object(Members::default()),
                });
            }
            Part::Call(CallPart::Arguments(json)) => {
                self.arguments.push_str(&json);
                self.delta(BlockDelta::InputJson { partial_json: json });
            }
        }
    }

    /// Returns the open block.
    fn current(&mut self) -> Option<&mut Block> {
        let open = self.open;
        self.message.content.last_mut().filter(|_| open)
    }

    fn last_index(&self) -> usize {
        self.message.content.len().saturating_sub(1)
    }

    fn open(&mut self, block: Block) {
        self.close();
        self.message.content.push(block.clone());
        self.open = true;
        self.events.push(Event::ContentBlockStart {
            index: self.last_index(),
            content_block: block,
        });
    }

    fn delta(&mut self, delta: BlockDelta) {
        let index = self.last_index();
        self.events.push(Event::ContentBlockDelta { index, delta });
    }

    fn close(&mut self) {
        let arguments = std::mem::take(&mut self.arguments);
        if let Some(Block::ToolUse { input, .. }) = self.current() {
            *input = match parsed_arguments(&arguments) {
                object @ Json::Object(_) => object,
                // Truncated arguments, or arguments that are not an object. The stream carries them
                // unchanged, but `input` must be an object.
                Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) => {
                    Json::Object(Members::default())
                }
            };
        }
        if let Some(Block::Thinking { signature, .. }) = self.current() {
            *signature = SIGNATURE;
            self.delta(BlockDelta::Signature { signature: SIGNATURE });
        }
        if self.open {
            self.open = false;
            let index = self.last_index();
            self.events.push(Event::ContentBlockStop { index });
        }
    }
}
