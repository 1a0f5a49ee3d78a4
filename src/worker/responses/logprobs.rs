//! Which tokens an item's text was made of: what a model says is more than its items show, markers and the line breaks around
//! them, and some of it is held back for a while.

use std::collections::VecDeque;

use crate::openai::response::logprobs::ContentLogprob;

/// What has been said and is in no item yet.
#[derive(Debug, Default)]
pub(super) struct Unshown {
    text: String,
    /// Characters before it.
    before: usize,
    /// Each with the characters before it.
    tokens: VecDeque<(usize, ContentLogprob)>,
}

impl Unshown {
    /// More was said; tokens come with the place where they begin.
    pub(super) fn push(&mut self, text: &str, tokens: impl Iterator<Item = (usize, ContentLogprob)>) {
        self.text.push_str(text);
        self.tokens.extend(tokens);
    }

    /// This text is shown: the tokens that it is made of. What was said before it never is.
    pub(super) fn show(&mut self, shown: &str) -> Vec<ContentLogprob> {
        // From the end, as markers stand before it and less than a word is held back behind it.
        let Some(at) = self.text.rfind(shown) else {
            return Vec::new();
        };
        let begin = self.before + self.text[..at].chars().count();
        let end = begin + shown.chars().count();
        let mut of_it = Vec::new();
        while let Some((place, token)) = self.tokens.pop_front_if(|(place, _)| *place < end) {
            // A token reaches to where the next one begins.
            let next = self.tokens.front().map(|(next, _)| *next);
            if place >= begin || next.is_none_or(|next| next > begin) {
                of_it.push(token);
            }
        }
        self.text.drain(..at + shown.len());
        self.before = end;
        of_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::response::logprobs::TokenLogprob;

    /// Tokens by their texts, each at its place.
    fn said(unshown: &mut Unshown, place: &mut usize, texts: &[&str]) {
        for text in texts {
            let token = ContentLogprob {
                token: TokenLogprob {
                    token: (*text).to_owned(),
                    logprob: -1.0,
                    bytes: text.as_bytes().to_vec(),
                },
                top_logprobs: Vec::new(),
            };
            unshown.push(text, [(*place, token)].into_iter());
            *place += text.chars().count();
        }
    }

    fn shown(unshown: &mut Unshown, text: &str) -> Vec<String> {
        let tokens = unshown.show(text).into_iter();
        tokens.map(|token| token.token.token).collect()
    }

    #[test]
    fn tokens_come_with_the_text_that_shows_them() {
        let (mut unshown, mut place) = (Unshown::default(), 0);
        said(
            &mut unshown,
            &mut place,
            &["<think>", "wé", "ll", "</think>", "\n\nI"],
        );
        assert_eq!(shown(&mut unshown, "wéll"), ["wé", "ll"]);
        // The token begins with line breaks that are the template's.
        assert_eq!(shown(&mut unshown, "I"), ["\n\nI"]);
        said(&mut unshown, &mut place, &[" se", "e", ".\n", "\n"]);
        assert_eq!(shown(&mut unshown, " see."), [" se", "e", ".\n"]);
        // What was held back, and comes after all.
        said(&mut unshown, &mut place, &["More"]);
        assert_eq!(shown(&mut unshown, "\n\nMore"), ["\n", "More"]);
        said(
            &mut unshown,
            &mut place,
            &["<tool_call>", "{}", "</tool_call>", "Done"],
        );
        assert_eq!(shown(&mut unshown, "Done"), ["Done"]);
        assert_eq!(shown(&mut unshown, "never said"), [""; 0]);
        said(&mut unshown, &mut place, &["!"]);
        assert_eq!(shown(&mut unshown, "!"), ["!"]);
    }
}
