//! Prompt lookup: guesses how a text goes on from what followed the same tokens earlier in it. Answers that repeat their
//! prompt (code that is edited, extracts, quotations) are guessed well, others hardly ever. The model checks each guess
//! in one pass over all of its tokens. Pure.

use std::collections::HashMap;

/// So many tokens must be the same for what follows them to be a guess. Two are too often so by chance.
const SAME: usize = 3;

/// The first guess; how many of it are right says how long the next one may be.
const FIRST: usize = 4;

/// After a guess that was all wrong, so many tokens are not guessed: each costs a pass over more tokens, and the
/// device has nothing to do while the tokens before it are read.
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
    /// The longest guess.
    most: usize,
    /// The longest next one.
    next: usize,
    /// Tokens that are not guessed.
    pause: usize,
}

impl PromptLookup {
    /// Guesses have `most` tokens at most.
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

    /// The longest guess, in tokens.
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

    /// Of a guess of so many tokens, the first `right` were.
    pub(crate) fn verified(&mut self, guessed: usize, right: usize) {
        if right == 0 {
            self.pause = PAUSE;
        }
        let next = if right == guessed {
            2 * self.next
        } else {
            right + 1
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
