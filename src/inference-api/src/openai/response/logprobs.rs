//! Logprobs as the two endpoints write them.

use serde::{Serialize, Serializer};

/// Of a chat's choice, or of a piece of one.
#[derive(Debug, Serialize)]
pub struct ChatLogprobs {
    pub content: Vec<ContentLogprob>,
    pub refusal: (),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ContentLogprob {
    #[serde(flatten)]
    pub token: TokenLogprob,
    /// Falling.
    pub top_logprobs: Vec<TokenLogprob>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenLogprob {
    /// Bytes that are no text are U+FFFD here.
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

/// Of a completion's choice, or of a piece of one: four lists with an entry for each token.
#[derive(Debug, Default, Serialize)]
pub struct TextLogprobs {
    pub tokens: Vec<String>,
    /// Null for the first token of a prompt, which follows nothing.
    pub token_logprobs: Vec<Option<f32>>,
    pub top_logprobs: Vec<Option<LogprobByToken>>,
    /// Characters before the token.
    pub text_offset: Vec<usize>,
}

/// The most probable tokens and the one that was chosen, falling, none twice.
#[derive(Debug)]
pub struct LogprobByToken(pub Vec<(String, f32)>);

impl Serialize for LogprobByToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}
