//! One completion's text: tokens in, out what may be shown, cut at the first stop string. Scores of
//! tokens come out with the text that the tokens begin, so that none is told of a token that the
//! stop string took.

use std::collections::VecDeque;

use crate::batch::event::{Piece, Score};
use crate::sampling::logprobs::TokenLogprobs;
use rooflet_inference_api::openai::request::Stopping;
use rooflet_text::detokenizer::Detokenizer;
use rooflet_text::stop::StopMatcher;
use rooflet_text::tokenizer::{DecodeError, Tokenizer};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Transcript {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Tokens whose text is not looked through for stop strings.
    exempt: usize,
    /// Scores whose text is held back.
    held: VecDeque<Score>,
    /// Tokens that were read since the last text came out.
    untold: usize,
    /// Characters that the tokens came to.
    said: usize,
    /// Those of them that are out.
    shown: usize,
}

impl Transcript {
    /// `before` counts the characters that come before all of this.
    pub(crate) fn new(detokenizer: Detokenizer, stopping: &Stopping, before: usize) -> Self {
        Self {
            detokenizer,
            stops: StopMatcher::new(stopping.strings.clone()),
            exempt: stopping.min_tokens,
            held: VecDeque::new(),
            untold: 0,
            said: before,
            shown: before,
        }
    }

    /// A stop string that has been seen: nothing more comes out.
    pub(crate) fn stopped_by(&self) -> Option<&str> {
        self.stops.found()
    }

    pub(crate) fn push(
        &mut self,
        tokenizer: &Tokenizer,
        token: u32,
        logprobs: Option<TokenLogprobs>,
    ) -> Result<Piece, DecodeError> {
        let text = self.detokenizer.push(tokenizer, token)?;
        let before = match logprobs {
            Some(_) => chars_before(&text, tokenizer, token),
            None => 0,
        };
        self.hold(token, before, logprobs);
        let watched = self.exempt == 0;
        self.exempt = self.exempt.saturating_sub(1);
        let shown = match watched {
            true => self.stops.push(&text),
            false => text.clone(),
        };
        Ok(self.show(&text, shown))
    }

    /// The token that ended the text, which is none of it.
    pub(crate) fn end(&mut self, token: u32, logprobs: Option<TokenLogprobs>) {
        self.hold(token, 0, logprobs);
    }

    /// What was held back, at the end.
    pub(crate) fn finish(&mut self, tokenizer: &Tokenizer) -> Result<Piece, DecodeError> {
        if self.stopped_by().is_some() {
            return Ok(Piece::default());
        }
        let rest = self.detokenizer.flush(tokenizer)?;
        let shown = self.stops.push(&rest);
        let mut piece = self.show(&rest, shown);
        if self.stopped_by().is_none() {
            let held = self.stops.flush();
            piece.tokens += self.told_with(&held);
            piece.text.push_str(&held);
            piece.scores.extend(self.held.drain(..));
        }
        Ok(piece)
    }

    /// The token's text begins so many characters after those that are known.
    fn hold(&mut self, token: u32, before: usize, logprobs: Option<TokenLogprobs>) {
        self.untold += 1;
        let offset = self.said + before;
        self.held
            .extend(logprobs.map(|TokenLogprobs { chosen, top }| Score {
                token,
                offset,
                logprob: Some(chosen),
                top,
            }));
    }

    /// Tokens since the last text, where there is text now.
    fn told_with(&mut self, text: &str) -> usize {
        if text.is_empty() {
            return 0;
        }
        std::mem::take(&mut self.untold)
    }

    /// Of `text`, `shown` may be seen, with what was held back before.
    fn show(&mut self, text: &str, shown: String) -> Piece {
        self.said += text.chars().count();
        self.shown += shown.chars().count();
        let mut scores = Vec::new();
        while let Some(score) = self.held.pop_front_if(|score| score.offset < self.shown) {
            scores.push(score);
        }
        Piece {
            tokens: self.told_with(&shown),
            text: shown,
            scores,
        }
    }
}

/// Characters of `text`, which came out with `token`, that earlier tokens had begun: bytes are
/// known to be no text only when other bytes follow them.
pub(crate) fn chars_before(text: &str, tokenizer: &Tokenizer, token: u32) -> usize {
    let own = tokenizer.spelled(token);
    let before = text.strip_suffix(String::from_utf8_lossy(&own).as_ref());
    before.map_or(0, |before| before.chars().count())
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;
    use proptest::prelude::*;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let path = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("examples/models/guide/tokenizer.json");
        Tokenizer::new(&std::fs::read(path).unwrap(), None, None, &[]).unwrap()
    }

    fn scored(token: u32) -> Option<TokenLogprobs> {
        Some(TokenLogprobs {
            chosen: -(token as f32),
            top: Vec::new(),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The text is the same as without; there is a score for each token whose text, or some of
        /// it, is out, at the place where that text begins.
        #[test]
        fn scores_come_with_their_text(
            text in "[ab é😀]{0,30}",
            stop in proptest::collection::vec("[ab é]{1,3}", 0..2),
        ) {
            let tokenizer = tokenizer();
            let tokens = tokenizer.encode_chat(&text).unwrap();
            let stopping = Stopping { strings: stop.clone(), ..Stopping::default() };
            let run = |with: bool| {
                let mut transcript = Transcript::new(Detokenizer::new(&tokenizer, &[].into()), &stopping, 0);
                let mut out = Piece::default();
                let append = |out: &mut Piece, more: Piece| {
                    out.text.push_str(&more.text);
                    out.tokens += more.tokens;
                    out.scores.extend(more.scores);
                };
                for token in &tokens {
                    append(&mut out, transcript.push(&tokenizer, *token, scored(*token).filter(|_| with)).unwrap());
                    let complete = out.scores.iter().all(|score| score.offset < out.text.chars().count());
                    prop_assert!(complete, "no score before its text");
                }
                append(&mut out, transcript.finish(&tokenizer).unwrap());
                Ok(out)
            };
            let (bare, full) = (run(false)?, run(true)?);
            prop_assert_eq!(&bare.text, &full.text);
            prop_assert!(full.text.is_empty() || (1..=tokens.len()).contains(&full.tokens));
            prop_assert!(bare.scores.is_empty());
            let shown = full.text.chars().count();
            let ids: Vec<u32> = full.scores.iter().map(|score| score.token).collect();
            prop_assert!(tokens.starts_with(&ids));
            if full.text == text {
                prop_assert_eq!(&ids, &tokens);
            }
            for (at, score) in full.scores.iter().enumerate() {
                let before = tokens[..at].iter().flat_map(|token| tokenizer.spelled(*token)).collect::<Vec<u8>>();
                let whole = before.utf8_chunks().map(|chunk| chunk.valid().chars().count()).sum::<usize>();
                prop_assert_eq!(score.offset, whole);
                prop_assert!(score.offset < shown);
            }
        }
    }
}
