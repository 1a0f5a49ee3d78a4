//! Scores of tokens as the endpoints write them: ids become text.

use super::event::Score;
use crate::openai::response::logprobs::{
    ChatLogprobs, ContentLogprob, LogprobByToken, TextLogprobs, TokenLogprob,
};
use crate::text::tokenizer::Tokenizer;

/// Of a chat. The token that ended the text is no part of the message.
pub(crate) fn of_chat<'a>(tokenizer: &Tokenizer, scores: impl Iterator<Item = &'a Score>) -> ChatLogprobs {
    let token = |token: u32, logprob: f32| {
        let bytes = tokenizer.spelled(token);
        TokenLogprob {
            token: String::from_utf8_lossy(&bytes).into_owned(),
            logprob,
            bytes,
        }
    };
    let said = scores.filter(|score| !tokenizer.is_eos(score.token));
    let content = said.map(|score| ContentLogprob {
        token: token(score.token, score.logprob),
        top_logprobs: score
            .top
            .iter()
            .map(|(id, logprob)| token(*id, *logprob))
            .collect(),
    });
    ChatLogprobs {
        content: content.collect(),
        refusal: (),
    }
}

/// Of a completion, whose text begins after `offset` characters.
pub(crate) fn of_text<'a>(
    tokenizer: &Tokenizer,
    scores: impl Iterator<Item = &'a Score>,
    offset: usize,
) -> TextLogprobs {
    let spelled = |token: u32| String::from_utf8_lossy(&tokenizer.spelled(token)).into_owned();
    let mut logprobs = TextLogprobs::default();
    for score in scores {
        let mut top: Vec<(String, f32)> = Vec::new();
        let chosen = (score.token, score.logprob);
        for (id, logprob) in score.top.iter().copied().chain([chosen]) {
            let token = spelled(id);
            if top.iter().all(|(known, _)| *known != token) {
                top.push((token, logprob));
            }
        }
        logprobs.tokens.push(spelled(score.token));
        logprobs.token_logprobs.push(Some(score.logprob));
        logprobs.top_logprobs.push(Some(LogprobByToken(top)));
        logprobs.text_offset.push(offset + score.offset);
    }
    logprobs
}
