//! What a request's owner hears from the engine.

use crate::openai::response::{FinishReason, StopReason};

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
    pub(crate) text: String,
    /// Tokens that were read since the text before.
    pub(crate) tokens: usize,
    /// Of the tokens that this text begins, where the request asks for logprobs. One with text of its own may be missing
    /// here only where that text is missing, too.
    pub(crate) scores: Vec<Score>,
}

impl Piece {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.scores.is_empty()
    }
}

/// A token, how probable the model held it, and what it held more probable.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Score {
    pub(crate) token: u32,
    /// Characters of the text before it.
    pub(crate) offset: usize,
    /// `None` for the first token of a prompt, which follows nothing.
    pub(crate) logprob: Option<f32>,
    /// The most probable tokens, falling.
    pub(crate) top: Vec<(u32, f32)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) reason: FinishReason,
    /// What ended the answer, where the request named it.
    pub(crate) stopped_by: Option<StopReason>,
    /// Every token that was chosen, the one that ended the text included.
    pub(crate) completion_tokens: usize,
    /// Of the prompt's tokens, those that did not have to be computed.
    pub(crate) cached_tokens: usize,
}
