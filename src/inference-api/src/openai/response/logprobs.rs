//! Logprobs in the formats of both endpoints.

use serde::{Serialize, Serializer};

/// Logprobs of a chat's choice, or of a part of one.
#[derive(Debug, Serialize)]
pub struct ChatLogprobs {
    pub content: Vec<ContentLogprob>,
    pub refusal: (),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ContentLogprob {
    #[serde(flatten)]
    pub token: TokenLogprob,
    /// Most probable tokens, in descending order.
    pub top_logprobs: Vec<TokenLogprob>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenLogprob {
    /// Text of the token. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

/// Logprobs of a completion's choice, or of a part of one: four lists with an entry per token.
#[derive(Debug, Default, Serialize)]
pub struct TextLogprobs {
    pub tokens: Vec<String>,
    /// Null for the first token of a prompt, which has no predecessor.
    pub token_logprobs: Vec<Option<f32>>,
    pub top_logprobs: Vec<Option<LogprobByToken>>,
    /// Number of characters before the token.
    pub text_offset: Vec<usize>,
}

/// Logprobs of a prompt in vLLM's format: null for the first token, which has no predecessor, then
/// an object per token.
pub type PromptLogprobs = Vec<Option<PromptLogprob>>;

/// Logprobs by token id: of the token at a position of the prompt, then of the most probable
/// tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptLogprob(pub Vec<(u32, RankedLogprob)>);

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankedLogprob {
    pub logprob: f32,
    /// Rank of the token in the vocabulary by probability, from 1.
    pub rank: u32,
    /// Text of the token. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub decoded_token: String,
}

impl Serialize for PromptLogprob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

/// Most probable tokens and the selected one, in descending order without duplicates.
#[derive(Debug)]
pub struct LogprobByToken(pub Vec<(String, f32)>);

impl Serialize for LogprobByToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}
