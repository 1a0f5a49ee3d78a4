//! Prompt lookup: proposes as draft tokens what followed the same tokens earlier in the text.
//! Answers that repeat their prompt (edited code, extracts, quotations) have many accepted drafts,
//! other answers few. The model verifies a draft in one pass over all of its tokens. Pure.

use std::collections::HashMap;

/// Number of equal tokens that a draft must follow. Two tokens are too often equal by chance.
const SAME: usize = 3;

/// Length of the first draft. The accepted tokens of a draft determine the length of the next one.
const FIRST: usize = 4;

/// Number of tokens without a draft after a draft that was rejected whole. Each draft costs a pass
/// over more tokens, and the device is idle while the tokens before it are read.
const PAUSE: usize = 8;

/// Draft tokens that the model has verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verified {
    /// Number of draft tokens.
    pub drafted: usize,
    /// Number of draft tokens, from the first, that equal the model's choice.
    pub accepted: usize,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct PromptLookup {
    text: Vec<u32>,
    /// By some tokens, the place of what followed them when they last occurred.
    follows: HashMap<[u32; SAME], usize>,
    /// Most tokens of a draft.
    most: usize,
    /// The longest next one.
    next: usize,
    /// Tokens until the next draft.
    pause: usize,
}

impl PromptLookup {
    /// Drafts have at most `most` tokens.
    pub(crate) fn new(prompt: &[u32], most: usize) -> Self {
        let mut lookup = Self {
            text: Vec::with_capacity(prompt.len()),
            follows: HashMap::with_capacity(prompt.len()),
            most,
            next: FIRST.min(most),
            pause: 0,
        };
        prompt.iter().for_each(|token| lookup.append(*token));
        lookup
    }

    /// Most tokens of a draft.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    fn append(&mut self, token: u32) {
        if let Some(before) = self.text.last_chunk::<SAME>() {
            self.follows.insert(*before, self.text.len());
        }
        self.text.push(token);
    }

    /// The text has gone on.
    pub(crate) fn push(&mut self, token: u32) {
        self.pause = self.pause.saturating_sub(1);
        self.append(token);
    }

    /// How it may go on, as far as there is `room`; empty where nothing is known.
    pub(crate) fn draft_tokens(&self, room: usize) -> &[u32] {
        if self.pause > 0 {
            return &[];
        }
        let known = self.text.last_chunk::<SAME>();
        let Some(at) = known.and_then(|tail| self.follows.get(tail)).copied() else {
            return &[];
        };
        let end = self.text.len().min(at + room.min(self.next));
        &self.text[at..end]
    }

    /// The model accepted the first `accepted` of `drafted` draft tokens.
    pub(crate) fn verified(&mut self, drafted: usize, accepted: usize) {
        if accepted == 0 {
            self.pause = PAUSE;
        }
        let next = if accepted == drafted {
            2 * self.next
        } else {
            accepted + 1
        };
        self.next = next.min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_followed_last_is_the_guess() {
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
    fn guesses_grow_with_success_and_pause_after_failure() {
        let text: Vec<u32> = (0..100).chain(0..3).collect();
        let mut lookup = PromptLookup::new(&text, 16);
        let mut lengths = Vec::new();
        for right in [4, 8, 16, 5, 6, 1] {
            let guessed = lookup.draft_tokens(99).len();
            lengths.push(guessed);
            lookup.verified(guessed, right);
        }
        assert_eq!(lengths, [4, 8, 16, 16, 6, 12]);
        lookup.verified(2, 0);
        for token in 3..3 + PAUSE as u32 {
            assert!(lookup.draft_tokens(99).is_empty());
            lookup.push(token);
        }
        assert_eq!(lookup.draft_tokens(99).len(), 1);
    }

    proptest! {
        #[test]
        fn a_guess_followed_the_same_tokens(
            prompt in proptest::collection::vec(0..4_u32, 0..60), answer in proptest::collection::vec(0..4_u32, 0..60),
            room in 0..20_usize,
        ) {
            let mut lookup = PromptLookup::new(&prompt, 8);
            let mut text = prompt;
            for token in answer {
                text.push(token);
                lookup.push(token);
                let guess = lookup.draft_tokens(room);
                prop_assert!(guess.len() <= room.min(8));
                let tail = text.len().saturating_sub(SAME);
                let seen = text.windows(SAME + guess.len()).take(tail);
                prop_assert!(guess.is_empty() || seen.into_iter().any(|w| w == [&text[tail..], guess].concat()));
                // Nothing that is known is missed.
                let known = text.len() > SAME && text[..text.len() - 1].windows(SAME).any(|w| w == &text[tail..]);
                prop_assert_eq!(guess.is_empty(), !known || room == 0);
            }
        }
    }
}
