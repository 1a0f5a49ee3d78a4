//! Events of a request, sent by the engine to the API.

use std::time::Duration;

use rooflet_inference_api::openai::response::{FinishReason, StopReason};

/// Event of a request. [`Event::Done`] or [`Event::Failed`] is the last one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// Part of the answer, never empty.
    Piece(Piece),
    /// Embedding of the prompt, normalised to length 1.
    Embedding(Vec<f32>),
    Done(Done),
    /// Error message, if the engine failed on this request.
    Failed(String),
}

/// Part of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Piece {
    pub text: String,
    /// Number of tokens that were read since the previous piece.
    pub tokens: usize,
    /// Scores of the tokens whose text begins in this piece, if the request asks for log
    /// probabilities. A token whose text was removed by a stop string has no score.
    pub scores: Vec<Score>,
    /// Tokens that were read since the previous piece, if the request asks for token ids. The last
    /// piece includes tokens without text, such as the end-of-sequence token.
    pub token_ids: Vec<u32>,
    /// Scores of all tokens of the prompt, if the request asks for them.
    pub prompt_scores: Option<Vec<PromptScore>>,
}

impl Piece {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.scores.is_empty()
    }
}

/// Log probability of a prompt token, and of the most probable tokens in its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptScore {
    pub token: u32,
    /// Logprob and rank of the token. `None` for the first token, which has no predecessor.
    pub logprob: Option<(f32, u32)>,
    /// Most probable tokens in descending order.
    pub top: Vec<(u32, f32)>,
}

/// Log probability of a token, and of the most probable tokens in its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Score {
    pub token: u32,
    /// Number of characters before the token's text.
    pub offset: usize,
    /// `None` for the first token of a prompt, which has no predecessor.
    pub logprob: Option<f32>,
    /// Most probable tokens in descending order.
    pub top: Vec<(u32, f32)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    pub reason: FinishReason,
    /// Stop string or stop token that ended the answer, if the request specified it.
    pub stopped_by: Option<StopReason>,
    /// Number of sampled tokens, including the one that ended the text.
    pub completion_tokens: usize,
    /// Number of prompt tokens that came from the prefix cache.
    pub cached_tokens: usize,
    /// Set when the engine sends the event.
    pub durations: Durations,
}

/// Durations of a request in the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Durations {
    /// Time in which the request waited until the model was loaded again.
    pub loading: Duration,
    /// Time from the end of the queue to the first token.
    pub prefill: Duration,
    /// Time after the first token.
    pub decode: Duration,
}
