//! Prompt lookup: proposes draft tokens, which are the tokens that followed the same tokens earlier
//! in the text. Answers that repeat their prompt (edited code, extracts, quotations) have many
//! accepted draft tokens. Other answers have few. The model verifies a draft in one pass over all
//! of its tokens. The module is pure.

use std::collections::HashMap;

/// Number of equal tokens that a draft must follow. Two tokens are too often equal by chance.
const MATCH_TOKENS: usize = 3;

/// Length of the first draft. Afterwards the accepted tokens of a draft determine the length of the
/// next one.
const FIRST_DRAFT_TOKENS: usize = 4;

/// Number of tokens without a draft after a completely rejected draft. Each draft costs a pass over
/// more tokens, and the device is idle while the tokens before it are read.
const PAUSE_TOKENS: usize = 8;

/// Draft tokens that the model has verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verified {
    /// Number of draft tokens.
    pub drafted: usize,
    /// Number of draft tokens, from the first, that equal the model's choice.
    pub accepted: usize,
}

/// Source of draft tokens for one sequence.
#[derive(Debug)]
pub(crate) struct PromptLookup {
    text: Vec<u32>,
    /// Position after the last occurrence of each sequence of [`MATCH_TOKENS`] tokens.
    follows: HashMap<[u32; MATCH_TOKENS], usize>,
    /// Maximum length of a draft.
    max_tokens: usize,
    /// Maximum length of the next draft.
    next_length: usize,
    /// Number of tokens until the next draft.
    pause: usize,
}

impl PromptLookup {
    /// Creates a lookup with drafts of at most `max_tokens` tokens.
    pub(crate) fn new(prompt: &[u32], max_tokens: usize) -> Self {
        let mut lookup = Self {
            text: Vec::with_capacity(prompt.len()),
            follows: HashMap::with_capacity(prompt.len()),
            max_tokens,
            next_length: FIRST_DRAFT_TOKENS.min(max_tokens),
            pause: 0,
        };
        prompt.iter().for_each(|token| lookup.append(*token));
        lookup
    }

    /// Returns the maximum length of a draft.
    pub(crate) fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    fn append(&mut self, token: u32) {
        if let Some(before) = self.text.last_chunk::<MATCH_TOKENS>() {
            self.follows.insert(*before, self.text.len());
        }
        self.text.push(token);
    }

    /// Appends a token of the answer.
    pub(crate) fn push(&mut self, token: u32) {
        self.pause = self.pause.saturating_sub(1);
        self.append(token);
    }

    /// Returns up to `room` draft tokens; empty if the last tokens did not occur before.
    pub(crate) fn draft_tokens(&self, room: usize) -> &[u32] {
        if self.pause > 0 {
            return &[];
        }
        let known = self.text.last_chunk::<MATCH_TOKENS>();
        let Some(at) = known.and_then(|tail| self.follows.get(tail)).copied() else {
            return &[];
        };
        let end = self.text.len().min(at + room.min(self.next_length));
        &self.text[at..end]
    }

    /// Records that the model accepted the first `accepted` of `drafted` draft tokens.
    pub(crate) fn verified(&mut self, drafted: usize, accepted: usize) {
        if accepted == 0 {
            self.pause = PAUSE_TOKENS;
        }
        let next = if accepted == drafted {
            2 * self.next_length
        } else {
            accepted + 1
        };
        self.next_length = next.min(self.max_tokens);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn drafts_tokens_after_the_last_occurrence() {
        let mut lookup = PromptLookup::new(&[1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 8, 9, 1, 2], 16);
        assert_eq!(lookup.draft_tokens(9), [0; 0], "two tokens are not enough");
        lookup.push(3);
        assert_eq!(lookup.draft_tokens(9), [6, 7, 8, 9]);
        assert_eq!(lookup.draft_tokens(2), [6, 7]);
        assert_eq!(lookup.draft_tokens(0), [0; 0]);
        lookup.push(40);
        assert_eq!(lookup.draft_tokens(9), [0; 0]);
    }

    #[test]
    fn drafts_grow_when_accepted_and_pause_when_rejected() {
        let text: Vec<u32> = (0..100).chain(0..3).collect();
        let mut lookup = PromptLookup::new(&text, 16);
        let mut lengths = Vec::new();
        for accepted in [4, 8, 16, 5, 6, 1] {
            let drafted = lookup.draft_tokens(99).len();
            lengths.push(drafted);
            lookup.verified(drafted, accepted);
        }
        assert_eq!(lengths, [4, 8, 16, 16, 6, 12]);
        lookup.verified(2, 0);
        for token in 3..3 + PAUSE_TOKENS as u32 {
            assert!(lookup.draft_tokens(99).is_empty());
            lookup.push(token);
        }
        assert_eq!(lookup.draft_tokens(99).len(), 1);
    }

    proptest! {
        #[test]
        fn draft_follows_an_earlier_occurrence(
            prompt in proptest::collection::vec(0..4_u32, 0..60), answer in proptest::collection::vec(0..4_u32, 0..60),
            room in 0..20_usize,
        ) {
            let mut lookup = PromptLookup::new(&prompt, 8);
            let mut text = prompt;
            for token in answer {
                text.push(token);
                lookup.push(token);
                let draft = lookup.draft_tokens(room);
                prop_assert!(draft.len() <= room.min(8));
                let tail = text.len().saturating_sub(MATCH_TOKENS);
                let seen = text.windows(MATCH_TOKENS + draft.len()).take(tail);
                prop_assert!(draft.is_empty() || seen.into_iter().any(|w| w == [&text[tail..], draft].concat()));
                // If the last tokens occurred before, there is a draft.
                let known = text.len() > MATCH_TOKENS && text[..text.len() - 1].windows(MATCH_TOKENS).any(|w| w == &text[tail..]);
                prop_assert_eq!(draft.is_empty(), !known || room == 0);
            }
        }
    }
}
