//! Thinking budget: limit of the reasoning tokens before an answer. When the budget is used up, the
//! logits masks permit only the tokens that end the reasoning.

use std::sync::Arc;

use rooflet_text::grammar::mask::Mask;
use rooflet_text::reasoning::ReasoningMarkers;

/// Remaining reasoning tokens of one answer.
#[derive(Debug, Clone)]
pub(crate) struct ThinkingBudget {
    left: usize,
    markers: ReasoningMarkers,
    /// Tokens of the closing marker, each with the mask that permits only this token.
    close: Arc<[(u32, Arc<Mask>)]>,
    /// Number of forced tokens so far.
    forced: usize,
    /// End of the answer's text that may be the beginning of a marker.
    tail: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The reasoning has not begun.
    Before,
    Inside,
    After,
}

impl ThinkingBudget {
    /// Creates a budget of `tokens` tokens between the markers. `close` has the tokens of the
    /// closing marker, at least one. `begun`: the prompt already contains the opening marker.
    pub(crate) fn new(
        tokens: usize,
        markers: ReasoningMarkers,
        close: &[u32],
        vocabulary: usize,
        begun: bool,
    ) -> Self {
        let only = |token: &u32| (*token, Arc::new(Mask::only(vocabulary, *token)));
        Self {
            left: tokens,
            markers,
            close: close.iter().map(only).collect(),
            forced: 0,
            tail: Vec::new(),
            state: if begun { State::Inside } else { State::Before },
        }
    }

    /// Records a sampled token and its text.
    pub(crate) fn push(&mut self, token: u32, text: &[u8]) {
        match self.state {
            State::Before => {
                self.tail.extend_from_slice(text);
                let begin = self.tail.trim_ascii_start();
                let open = self.markers.open.as_bytes();
                if let Some(rest) = begin.strip_prefix(open) {
                    self.tail = rest.to_vec();
                    self.state = State::Inside;
                } else if !open.starts_with(begin) {
                    self.state = State::After;
                }
            }
            State::Inside => {
                if self.left == 0
                    && self
                        .close
                        .get(self.forced)
                        .is_some_and(|(next, _)| *next == token)
                {
                    self.forced += 1;
                }
                self.tail.extend_from_slice(text);
                let close = self.markers.close.as_bytes();
                if self.tail.windows(close.len()).any(|part| part == close) {
                    self.state = State::After;
                    return;
                }
                let keep = self.tail.len().min(close.len() - 1);
                self.tail.drain(..self.tail.len() - keep);
                self.left = self.left.saturating_sub(1);
            }
            State::After => {}
        }
    }

    /// Logits mask of the next token, if the reasoning must end.
    pub(crate) fn mask(&self) -> Option<&Arc<Mask>> {
        let must_end = self.state == State::Inside && self.left == 0;
        let (_, mask) = self.close.get(self.forced).filter(|_| must_end)?;
        Some(mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKERS: ReasoningMarkers = ReasoningMarkers {
        open: "<think>",
        close: "</think>",
    };
    const TOKENS: [&str; 9] = ["a", "b", " ", "<th", "ink>", "</th", "<think>", "</think>", "\n"];

    fn token(text: &str) -> u32 {
        let place = TOKENS.iter().position(|token| *token == text).unwrap();
        u32::try_from(place).unwrap()
    }

    /// Number of leading tokens that are sampled before the end of the reasoning is forced.
    fn free(budget: usize, begun: bool, texts: &[&str]) -> usize {
        let mut thinking = ThinkingBudget::new(budget, MARKERS, &[token("</think>")], 10, begun);
        let forced = |text: &&str| {
            let forced = thinking.mask().is_some();
            thinking.push(token(text), text.as_bytes());
            forced
        };
        texts.iter().position(forced).unwrap_or(texts.len())
    }

    #[test]
    fn reasoning_ends_when_the_budget_is_used_up() {
        assert_eq!(free(2, true, &["a", "a", "a", "a"]), 2);
        assert_eq!(
            free(2, false, &["<think>", "a", "a", "a"]),
            3,
            "the opening token does not count"
        );
        assert_eq!(free(2, false, &["\n", "<th", "ink>", "a", "a", "a"]), 5);
        assert_eq!(free(2, false, &["a"; 4]), 4, "answer tokens do not count");
        assert_eq!(
            free(2, false, &["a", "<think>", "a", "a", "a"]),
            5,
            "reasoning is only at the beginning"
        );
        for close in [&["</think>"][..], &["</th", "ink>"]] {
            let texts = [&["a"], close, &["a", "a", "<think>", "a"]].concat();
            assert_eq!(
                free(3, true, &texts),
                texts.len(),
                "tokens after the reasoning do not count"
            );
        }
        assert_eq!(free(0, true, &["a"]), 0);
    }

    #[test]
    fn forces_each_token_of_the_closing_marker() {
        let close = [token("</th"), token("ink>")];
        let mut thinking = ThinkingBudget::new(1, MARKERS, &close, 10, true);
        thinking.push(token("a"), b"a");
        for text in ["</th", "ink>"] {
            let mask = thinking.mask().unwrap();
            assert!((0..10).all(|other| mask.allows(other) == (other == token(text))));
            thinking.push(token(text), text.as_bytes());
        }
        assert!(thinking.mask().is_none());
    }
}
