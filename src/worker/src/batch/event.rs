//! What a request's owner hears from the engine.

use rooflet_inference_api::openai::response::{FinishReason, StopReason};

/// In order; [`Event::Done`] or [`Event::Failed`] is the last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// More of the answer, never empty.
    Piece(Piece),
    /// Of the prompt, of length one.
    Embedding(Vec<f32>),
    Done(Done),
    /// The engine could not go on with this request.
    Failed(String),
}

/// A part of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Piece {
    pub text: String,
    /// Tokens that were read since the text before.
    pub tokens: usize,
    /// Of the tokens that this text begins, where the request asks for logprobs. One with text of
    /// its own may be missing here only where that text is missing, too.
    pub scores: Vec<Score>,
}

impl Piece {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.scores.is_empty()
    }
}

/// A token, how probable the model held it, and what it held more probable.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Score {
    pub token: u32,
    /// Characters of the text before it.
    pub offset: usize,
    /// `None` for the first token of a prompt, which follows nothing.
    pub logprob: Option<f32>,
    /// The most probable tokens, falling.
    pub top: Vec<(u32, f32)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    pub reason: FinishReason,
    /// What ended the answer, where the request named it.
    pub stopped_by: Option<StopReason>,
    /// Every token that was chosen, the one that ended the text included.
    pub completion_tokens: usize,
    /// Of the prompt's tokens, those that did not have to be computed.
    pub cached_tokens: usize,
}
