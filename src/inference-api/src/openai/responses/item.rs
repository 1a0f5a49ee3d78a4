//! Responses of `/v1/responses`: a response and its items.

use serde::Serialize;

use super::request::Settings;
use crate::openai::response::Usage;
use crate::openai::response::logprobs::ContentLogprob;

/// Response of `POST /v1/responses`, complete or in progress.
#[derive(Debug, Clone, Serialize)]
pub struct Response {
    pub id: String,
    pub object: &'static str,
    /// Unix time in seconds.
    pub created_at: i64,
    pub model: String,
    pub status: Status,
    pub error: Option<ResponseError>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub output: Vec<Item>,
    pub usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub settings: Settings,
}

/// Status of a response or an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResponseError {
    pub code: &'static str,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IncompleteDetails {
    pub reason: &'static str,
}

/// [`Usage`] under the names of this endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: InputTokensDetails,
    output_tokens: usize,
    output_tokens_details: OutputTokensDetails,
    total_tokens: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct InputTokensDetails {
    cached_tokens: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct OutputTokensDetails {
    reasoning_tokens: usize,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.prompt_tokens_details.cached_tokens,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails {
                reasoning_tokens: usage.completion_tokens_details.reasoning_tokens,
            },
            total_tokens: usage.total_tokens,
        }
    }
}

/// Item of a response.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Item {
    pub id: String,
    pub status: Status,
    #[serde(flatten)]
    pub content: ItemContent,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ItemContent {
    Reasoning {
        /// Always empty: the content has the complete reasoning.
        summary: [(); 0],
        content: Vec<ContentPart>,
    },
    Message {
        role: &'static str,
        content: Vec<ContentPart>,
    },
    FunctionCall {
        call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        /// JSON as text.
        arguments: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart {
    ReasoningText {
        text: String,
    },
    OutputText {
        text: String,
        annotations: [(); 0],
        /// Logprobs of the text's tokens, if requested.
        logprobs: Vec<ContentLogprob>,
    },
}

impl ContentPart {
    pub fn reasoning(text: String) -> Self {
        Self::ReasoningText { text }
    }

    pub fn output(text: String) -> Self {
        Self::OutputText {
            text,
            annotations: [],
            logprobs: Vec::new(),
        }
    }
}
