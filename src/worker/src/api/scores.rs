//! Conversion of token scores to the logprobs of the API, with token texts in place of IDs.

use crate::batch::event::{PromptScore, Score};
use rooflet_inference_api::openai::response::logprobs::{
    ChatLogprobs, ContentLogprob, LogprobByToken, PromptLogprob, PromptLogprobs, RankedLogprob, TextLogprobs,
    TokenLogprob,
};
use rooflet_text::tokenizer::Tokenizer;

/// Names of tokens in logprobs: their texts, or `token_id:N`, as in vLLM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenNames<'a> {
    pub tokenizer: &'a Tokenizer,
    pub by_id: bool,
}

impl TokenNames<'_> {
    /// Returns `token_id:N`, or the text if tokens are not named by their ids.
    fn name(&self, token: u32, text: impl FnOnce() -> String) -> String {
        match self.by_id {
            true => format!("token_id:{token}"),
            false => text(),
        }
    }
}

/// Returns the logprobs of a chat choice.
pub(crate) fn chat_logprobs<'a>(
    names: TokenNames<'_>,
    scores: impl Iterator<Item = &'a Score>,
) -> ChatLogprobs {
    ChatLogprobs {
        content: scores.filter_map(|score| content_logprob(names, score)).collect(),
        refusal: (),
    }
}

/// Returns the logprob of one token of a message; `None` for the end-of-text token, which is not
/// part of the message.
pub(crate) fn content_logprob(names: TokenNames<'_>, score: &Score) -> Option<ContentLogprob> {
    let tokenizer = names.tokenizer;
    let token = |token: u32, logprob: f32| {
        let bytes = tokenizer.standalone_bytes(token);
        TokenLogprob {
            token: names.name(token, || String::from_utf8_lossy(&bytes).into_owned()),
            logprob,
            bytes,
        }
    };
    let logprob = score.logprob.filter(|_| !tokenizer.is_eos(score.token))?;
    let top = score.top.iter().map(|(id, logprob)| token(*id, *logprob));
    Some(ContentLogprob {
        token: token(score.token, logprob),
        top_logprobs: top.collect(),
    })
}

/// Returns the text of a token. A token that is part of a character becomes `bytes:` and its
/// escaped bytes, as in OpenAI's API. With `\u{fffd}` in its place, clients could not distinguish
/// such tokens.
fn token_text(spelled: &[u8]) -> String {
    match std::str::from_utf8(spelled) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes = spelled.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", bytes.collect::<String>())
        }
    }
}

/// Returns the logprobs of a completion, including an echoed prompt.
pub(crate) fn text_logprobs<'a>(
    names: TokenNames<'_>,
    scores: impl Iterator<Item = &'a Score>,
) -> TextLogprobs {
    let text = |token: u32| names.name(token, || token_text(&names.tokenizer.standalone_bytes(token)));
    let mut logprobs = TextLogprobs::default();
    for score in scores {
        let by_token = |logprob: f32| {
            let others = score.top.iter().copied().filter(|(id, _)| *id != score.token);
            let mut all: Vec<(u32, f32)> = others.chain([(score.token, logprob)]).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1));
            let own = text(score.token);
            let mut top: Vec<(String, f32)> = Vec::new();
            for (id, logprob) in all {
                // Different tokens may have the same text. In this case, the list contains the
                // sampled token, or the most probable one if none of them is the sampled token.
                let token = text(id);
                if id == score.token || token != own && top.iter().all(|(listed, _)| *listed != token) {
                    top.push((token, logprob));
                }
            }
            LogprobByToken(top)
        };
        logprobs.tokens.push(text(score.token));
        logprobs.token_logprobs.push(score.logprob);
        logprobs.top_logprobs.push(score.logprob.map(by_token));
        logprobs.text_offset.push(score.offset);
    }
    logprobs
}

/// Returns the logprobs of a prompt in vLLM's format.
pub(crate) fn prompt_logprobs(tokenizer: &Tokenizer, scores: &[PromptScore]) -> PromptLogprobs {
    let ranked = |token: u32, logprob: f32, rank: u32| RankedLogprob {
        logprob,
        rank,
        decoded_token: String::from_utf8_lossy(&tokenizer.standalone_bytes(token)).into_owned(),
    };
    let entry = |score: &PromptScore| {
        let (logprob, rank) = score.logprob?;
        let own = (score.token, ranked(score.token, logprob, rank));
        let top = (1..).zip(&score.top);
        let others = top.filter(|(_, (token, _))| *token != score.token);
        let others = others.map(|(rank, (token, logprob))| (*token, ranked(*token, *logprob, rank)));
        Some(PromptLogprob(std::iter::once(own).chain(others).collect()))
    };
    scores.iter().map(entry).collect()
}
