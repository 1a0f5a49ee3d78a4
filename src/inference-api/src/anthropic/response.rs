//! What `/v1/messages` answers: a message, its content blocks, and the events of a stream.

use serde::Serialize;
use serde_json::{Value, json};

use crate::openai::json::Json;
use crate::openai::response;

/// A whole message, or the beginning of one.
#[derive(Debug, Clone, Serialize)]
pub struct Message {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub role: &'static str,
    pub model: String,
    pub content: Vec<Block>,
    pub stop_reason: Option<StopReason>,
    /// Which of the request's own.
    pub stop_sequence: Option<String>,
    pub usage: Usage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
}

/// Tokens of a request; those of the prompt that were known are not among `input_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub input_tokens: usize,
    pub cache_creation_input_tokens: usize,
    pub cache_read_input_tokens: usize,
    pub output_tokens: usize,
}

impl From<response::Usage> for Usage {
    fn from(usage: response::Usage) -> Self {
        let cached = usage.prompt_tokens_details.cached_tokens;
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    Thinking {
        thinking: String,
        /// Empty until the block is done.
        signature: &'static str,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Json,
    },
}

/// Of what was thought. Nobody here asks for a proof of it, but clients drop what has none.
pub const SIGNATURE: &str = "unsigned";

/// More of a block.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type")]
pub enum BlockDelta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// An event of a stream.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    MessageStart { message: Message },
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageEnd, usage: Usage },
    MessageStop,
    Ping,
}

/// How a message ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MessageEnd {
    pub stop_reason: Option<StopReason>,
    pub stop_sequence: Option<String>,
}

/// `POST /v1/messages/count_tokens`.
pub fn token_count(input_tokens: usize) -> Value {
    json!({"input_tokens": input_tokens})
}
