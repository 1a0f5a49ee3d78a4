//! Responses of `/api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings`. A stream has one
//! object per line; the last one has `done: true` and the figures.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::openai::json::Json;
use crate::openai::response::logprobs::ContentLogprob;

/// Complete response, or one line of a stream.
#[derive(Debug, Serialize)]
pub struct Answer {
    pub model: String,
    /// Time in RFC 3339 format.
    pub created_at: String,
    #[serde(flatten)]
    pub content: Content,
    pub done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<DoneReason>,
    #[serde(flatten)]
    pub figures: Option<Figures>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<ContentLogprob>,
}

/// Text of an answer, in the format of its endpoint.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Content {
    Chat {
        message: Message,
    },
    Generate {
        response: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        thinking: String,
    },
}

/// Message of the assistant.
#[derive(Debug, Serialize)]
pub struct Message {
    pub role: &'static str,
    pub content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// Complete tool call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolCall {
    pub id: String,
    pub function: CalledFunction,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CalledFunction {
    /// Index of the call in the answer.
    pub index: usize,
    pub name: String,
    /// Object with the arguments.
    pub arguments: Json,
}

/// Reason for the end of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DoneReason {
    Stop,
    Length,
    /// The request had no prompt.
    Load,
    /// The request had no prompt, and `keep_alive` 0.
    Unload,
}

/// Numbers of tokens, and durations in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Figures {
    #[serde(serialize_with = "nanoseconds")]
    pub total_duration: Duration,
    /// Zero, unless the request caused the worker to load its model again.
    #[serde(serialize_with = "nanoseconds")]
    pub load_duration: Duration,
    pub prompt_eval_count: usize,
    #[serde(serialize_with = "nanoseconds")]
    pub prompt_eval_duration: Duration,
    pub eval_count: usize,
    #[serde(serialize_with = "nanoseconds")]
    pub eval_duration: Duration,
}

/// Response of `POST /api/embed`.
#[derive(Debug, Serialize)]
pub struct Embeddings {
    pub model: String,
    pub embeddings: Vec<Vec<f32>>,
    #[serde(serialize_with = "nanoseconds")]
    pub total_duration: Duration,
    /// Always zero: the time of a request that loads the model again is in `total_duration`.
    #[serde(serialize_with = "nanoseconds")]
    pub load_duration: Duration,
    pub prompt_eval_count: usize,
}

/// Response of `POST /api/embeddings`.
#[derive(Debug, Serialize)]
pub struct SingleEmbedding {
    pub embedding: Vec<f32>,
}

fn nanoseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
