//! Responses of `/v1/messages`: a message, its content blocks, and the events of a stream.

use serde::Serialize;
use serde_json::{Value, json};

use crate::openai::json::Json;
use crate::openai::response;

/// Complete message, or the beginning of one.
#[derive(Debug, Clone, Serialize)]
pub struct Message {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub role: &'static str,
    pub model: String,
    pub content: Vec<Block>,
    pub stop_reason: Option<StopReason>,
    /// Matched stop sequence of the request.
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

/// Number of tokens. `input_tokens` excludes cached tokens of the prompt.
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
        /// Empty until the block is complete.
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

/// Signature of all reasoning blocks. It proves nothing, but clients drop blocks without one.
pub const SIGNATURE: &str = "unsigned";

/// Increment of a block.
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

/// Event of a stream.
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

/// End of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MessageEnd {
    pub stop_reason: Option<StopReason>,
    pub stop_sequence: Option<String>,
}

/// Returns the response of `POST /v1/messages/count_tokens`.
pub fn token_count(input_tokens: usize) -> Value {
    json!({"input_tokens": input_tokens})
}
