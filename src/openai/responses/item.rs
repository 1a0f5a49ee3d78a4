//! What `/v1/responses` answers: a response, and the items in it.

use serde::Serialize;

use super::request::Settings;
use crate::openai::response::Usage;
use crate::openai::response::logprobs::ContentLogprob;

/// `POST /v1/responses`, whole, or as far as it has come.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Response {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    /// Unix time in seconds.
    pub(crate) created_at: i64,
    pub(crate) model: String,
    pub(crate) status: Status,
    pub(crate) error: Option<ResponseError>,
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    pub(crate) output: Vec<Item>,
    pub(crate) usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub(crate) settings: Settings,
}

/// How far a response or an item has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ResponseError {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct IncompleteDetails {
    pub(crate) reason: &'static str,
}

/// [`Usage`] under this endpoint's names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ResponseUsage {
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

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Item {
    pub(crate) id: String,
    pub(crate) status: Status,
    #[serde(flatten)]
    pub(crate) content: ItemContent,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ItemContent {
    Reasoning {
        /// What is reasoned is told as it is.
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
pub(crate) enum ContentPart {
    ReasoningText {
        text: String,
    },
    OutputText {
        text: String,
        annotations: [(); 0],
        /// Of the tokens that it is made of, where they are asked for.
        logprobs: Vec<ContentLogprob>,
    },
}

impl ContentPart {
    pub(crate) fn reasoning(text: String) -> Self {
        Self::ReasoningText { text }
    }

    pub(crate) fn output(text: String) -> Self {
        Self::OutputText {
            text,
            annotations: [],
            logprobs: Vec::new(),
        }
    }
}
