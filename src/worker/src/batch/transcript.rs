//! Text of one answer: converts tokens to text and cuts it at the first stop string. The score of a
//! token is returned together with the beginning of its text, so that tokens removed by a stop
//! string have no score.

use std::collections::VecDeque;

use crate::batch::event::{Piece, Score};
use crate::sampling::logprobs::TokenLogprobs;
use rooflet_inference_api::openai::request::Stopping;
use rooflet_text::detokenizer::Detokenizer;
use rooflet_text::stop::StopMatcher;
use rooflet_text::tokenizer::{DecodeError, Tokenizer};

/// Text of one answer while it is decoded.
#[derive(Debug)]
pub(crate) struct Transcript {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Number of next tokens whose text is not searched for stop strings.
    unchecked_tokens: usize,
    /// Scores of tokens whose text is held back.
    held_scores: VecDeque<Score>,
    /// Tokens read since the last returned text.
    unreported: usize,
    /// Number of characters of all tokens so far.
    decoded_chars: usize,
    /// Number of returned characters.
    returned_chars: usize,
}

impl Transcript {
    /// Creates a transcript whose text begins after `before` characters.
    pub(crate) fn new(detokenizer: Detokenizer, stopping: &Stopping, before: usize) -> Self {
        Self {
            detokenizer,
            stops: StopMatcher::new(stopping.strings.clone()),
            unchecked_tokens: stopping.min_tokens,
            held_scores: VecDeque::new(),
            unreported: 0,
            decoded_chars: before,
            returned_chars: before,
        }
    }

    /// Returns the stop string that was found. After a stop string, the transcript returns no more
    /// text.
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
        self.hold_score(token, before, logprobs);
        let checked = self.unchecked_tokens == 0;
        self.unchecked_tokens = self.unchecked_tokens.saturating_sub(1);
        let shown = match checked {
            true => self.stops.push(&text),
            false => text.clone(),
        };
        Ok(self.piece(&text, shown))
    }

    /// Adds the token that ends the text and has no text itself.
    pub(crate) fn end(&mut self, token: u32, logprobs: Option<TokenLogprobs>) {
        self.hold_score(token, 0, logprobs);
    }

    /// Returns the text that was held back, at the end of the answer.
    pub(crate) fn finish(&mut self, tokenizer: &Tokenizer) -> Result<Piece, DecodeError> {
        if self.stopped_by().is_some() {
            return Ok(Piece::default());
        }
        let rest = self.detokenizer.flush(tokenizer)?;
        let shown = self.stops.push(&rest);
        let mut piece = self.piece(&rest, shown);
        if self.stopped_by().is_none() {
            let held = self.stops.flush();
            piece.tokens += self.count_reported(&held);
            piece.text.push_str(&held);
            piece.scores.extend(self.held_scores.drain(..));
        }
        Ok(piece)
    }

    /// Holds back the score of a token whose text begins `before` characters after the known text.
    fn hold_score(&mut self, token: u32, before: usize, logprobs: Option<TokenLogprobs>) {
        self.unreported += 1;
        let offset = self.decoded_chars + before;
        self.held_scores
            .extend(logprobs.map(|TokenLogprobs { logprob, top }| Score {
                token,
                offset,
                logprob: Some(logprob),
                top,
            }));
    }

    /// Returns the number of tokens since the last returned text, or 0 if `text` is empty.
    fn count_reported(&mut self, text: &str) -> usize {
        if text.is_empty() {
            return 0;
        }
        std::mem::take(&mut self.unreported)
    }

    /// Adds `text` and returns a piece with `shown`, the part of the text that may be returned now.
    fn piece(&mut self, text: &str, shown: String) -> Piece {
        self.decoded_chars += text.chars().count();
        self.returned_chars += shown.chars().count();
        let mut scores = Vec::new();
        while let Some(score) = self
            .held_scores
            .pop_front_if(|score| score.offset < self.returned_chars)
        {
            scores.push(score);
        }
        Piece {
            tokens: self.count_reported(&shown),
            text: shown,
            scores,
            ..Piece::default()
        }
    }
}

/// Returns the number of characters of `text`, which was decoded with `token`, that belong to
/// earlier tokens. Incomplete UTF-8 sequences become text only when the following bytes are known.
pub(crate) fn chars_before(text: &str, tokenizer: &Tokenizer, token: u32) -> usize {
    let own = tokenizer.standalone_bytes(token);
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
            logprob: -(token as f32),
            top: Vec::new(),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Scores do not change the text. Each token whose text is returned at least in part has a
        /// score, with the position of its text.
        #[test]
        fn scores_accompany_their_text(
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
                    prop_assert!(complete, "no score precedes its text");
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
                let before = tokens[..at].iter().flat_map(|token| tokenizer.standalone_bytes(*token)).collect::<Vec<u8>>();
                let whole = before.utf8_chunks().map(|chunk| chunk.valid().chars().count()).sum::<usize>();
                prop_assert_eq!(score.offset, whole);
                prop_assert!(score.offset < shown);
            }
        }
    }
}
