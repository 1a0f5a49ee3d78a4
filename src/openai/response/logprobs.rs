//! Logprobs as the two endpoints write them.

use serde::{Serialize, Serializer};

/// Of a chat's choice, or of a piece of one.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ContentLogprob>,
    pub(crate) refusal: (),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ContentLogprob {
    #[serde(flatten)]
    pub(crate) token: TokenLogprob,
    /// Falling.
    pub(crate) top_logprobs: Vec<TokenLogprob>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TokenLogprob {
    /// Bytes that are no text are U+FFFD here.
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

/// Of a completion's choice, or of a piece of one: four lists with an entry for each token.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TextLogprobs {
    pub(crate) tokens: Vec<String>,
    /// Null for the first token of a prompt, which follows nothing.
    pub(crate) token_logprobs: Vec<Option<f32>>,
    pub(crate) top_logprobs: Vec<Option<LogprobByToken>>,
    /// Characters before the token.
    pub(crate) text_offset: Vec<usize>,
}

/// The most probable tokens and the one that was chosen, falling, none twice.
#[derive(Debug)]
pub(crate) struct LogprobByToken(pub(crate) Vec<(String, f32)>);

impl Serialize for LogprobByToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}
