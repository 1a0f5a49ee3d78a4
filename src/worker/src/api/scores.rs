//! Scores of tokens as the endpoints write them: ids become text.

use crate::batch::event::Score;
use rooflet_inference_api::openai::response::logprobs::{
    ChatLogprobs, ContentLogprob, LogprobByToken, TextLogprobs, TokenLogprob,
};
use rooflet_text::tokenizer::Tokenizer;

/// Of a chat.
pub(crate) fn of_chat<'a>(tokenizer: &Tokenizer, scores: impl Iterator<Item = &'a Score>) -> ChatLogprobs {
    ChatLogprobs {
        content: scores.filter_map(|score| said(tokenizer, score)).collect(),
        refusal: (),
    }
}

/// One token of a message; `None` for the one that ended the text, which is no part of it.
pub(crate) fn said(tokenizer: &Tokenizer, score: &Score) -> Option<ContentLogprob> {
    let token = |token: u32, logprob: f32| {
        let bytes = tokenizer.spelled(token);
        TokenLogprob {
            token: String::from_utf8_lossy(&bytes).into_owned(),
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

/// A token that is a part of a character is written as its bytes, as OpenAI did: all of them would
/// be the same `\u{fffd}`, and clients look among them whether the chosen one was the most
/// probable.
fn written(spelled: &[u8]) -> String {
    match std::str::from_utf8(spelled) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes = spelled.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", bytes.collect::<String>())
        }
    }
}

/// Of a completion, and of its prompt where that is repeated.
pub(crate) fn of_text<'a>(tokenizer: &Tokenizer, scores: impl Iterator<Item = &'a Score>) -> TextLogprobs {
    let text = |token: u32| written(&tokenizer.spelled(token));
    let mut logprobs = TextLogprobs::default();
    for score in scores {
        let by_token = |logprob: f32| {
            let others = score.top.iter().copied().filter(|(id, _)| *id != score.token);
            let mut all: Vec<(u32, f32)> = others.chain([(score.token, logprob)]).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1));
            let own = text(score.token);
            let mut top: Vec<(String, f32)> = Vec::new();
            for (id, logprob) in all {
                // Different tokens may be written alike: then the chosen one counts, or else the
                // most probable.
                let token = text(id);
                if id == score.token || token != own && top.iter().all(|(known, _)| *known != token) {
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
