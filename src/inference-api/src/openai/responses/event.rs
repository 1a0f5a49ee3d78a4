//! Events of a streamed response, with sequence numbers.

use serde::Serialize;

use super::item::{ContentPart, Item, Response};
use crate::openai::response::logprobs::{ContentLogprob, TokenLogprob};

#[derive(Debug, Clone, Serialize)]
pub struct Event {
    #[serde(flatten)]
    pub kind: EventKind,
    /// Starts at 0.
    pub sequence_number: usize,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type")]
pub enum EventKind {
    #[serde(rename = "response.created")]
    Created { response: Response },
    #[serde(rename = "response.in_progress")]
    InProgress { response: Response },
    #[serde(rename = "response.completed")]
    Completed { response: Response },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: Response },
    #[serde(rename = "response.failed")]
    Failed { response: Response },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { output_index: usize, item: Item },
    #[serde(rename = "response.output_item.done")]
    ItemDone { output_index: usize, item: Item },
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        #[serde(flatten)]
        place: PartPosition,
        part: ContentPart,
    },
    #[serde(rename = "response.content_part.done")]
    PartDone {
        #[serde(flatten)]
        place: PartPosition,
        part: ContentPart,
    },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        #[serde(flatten)]
        place: PartPosition,
        delta: String,
        logprobs: Vec<EventLogprob>,
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        #[serde(flatten)]
        place: PartPosition,
        text: String,
        logprobs: Vec<EventLogprob>,
    },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        #[serde(flatten)]
        place: PartPosition,
        delta: String,
    },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        #[serde(flatten)]
        place: PartPosition,
        text: String,
    },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        item_id: String,
        output_index: usize,
        delta: String,
    },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        item_id: String,
        output_index: usize,
        name: String,
        arguments: String,
    },
}

/// Position of a part in the output.
#[derive(Debug, Clone, Serialize)]
pub struct PartPosition {
    pub item_id: String,
    pub output_index: usize,
    /// Index of the part; 0, because items have one part.
    pub content_index: usize,
}

/// Token of an event: without its bytes, as in OpenAI's API.
#[derive(Debug, Clone, Serialize)]
pub struct EventLogprob {
    #[serde(flatten)]
    own: TokenProbability,
    /// Most probable tokens, in descending order.
    top_logprobs: Vec<TokenProbability>,
}

#[derive(Debug, Clone, Serialize)]
struct TokenProbability {
    token: String,
    logprob: f32,
}

impl EventLogprob {
    pub fn all(of: &[ContentLogprob]) -> Vec<Self> {
        let bare = |token: &TokenLogprob| TokenProbability {
            token: token.token.clone(),
            logprob: token.logprob,
        };
        let one = |one: &ContentLogprob| Self {
            own: bare(&one.token),
            top_logprobs: one.top_logprobs.iter().map(bare).collect(),
        };
        of.iter().map(one).collect()
    }
}
