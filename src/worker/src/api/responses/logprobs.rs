//! Which tokens an item's text was made of: what a model says is more than its items show, markers
//! and the line breaks around them, and some of it is held back for a while.

use std::collections::VecDeque;

use rooflet_inference_api::openai::response::logprobs::ContentLogprob;

/// What has been said and is in no item yet.
#[derive(Debug, Default)]
pub(super) struct Unshown {
    text: String,
    /// Characters before it.
    before: usize,
    /// Each with the characters before it.
    tokens: VecDeque<(usize, ContentLogprob)>,
    /// Bytes at its end that may still be a marker's.
    held: usize,
}

impl Unshown {
    /// More was said; tokens come with the place where they begin.
    pub(super) fn push(&mut self, text: &str, tokens: impl Iterator<Item = (usize, ContentLogprob)>) {
        self.text.push_str(text);
        self.tokens.extend(tokens);
    }

    /// Of what was said, so many bytes are held back.
    pub(super) fn hold_back(&mut self, bytes: usize) {
        self.held = bytes;
    }

    /// This text is shown: the tokens that it is made of. What was said before it never is.
    pub(super) fn show(&mut self, shown: &str) -> Vec<ContentLogprob> {
        let said = &self.text[..self.text.len().saturating_sub(self.held)];
        // From the end, as markers stand before it.
        let Some(at) = said.rfind(shown) else {
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
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use rooflet_inference_api::openai::response::logprobs::TokenLogprob;
    use rooflet_inference_api::openai::tools::ToolChoice;
    use rooflet_text::answer::{AnswerParser, AnswerShape, CallableTools, Part};
    use rooflet_text::reasoning::ReasoningMarkers;
    use rooflet_text::tool_calls::ToolFormat;

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

    proptest! {
        /// Beginnings of markers, again and again, and no whole one.
        #[test]
        fn every_token_of_what_is_shown_is_told_once(
            texts in prop::collection::vec(prop::sample::select(vec!["<", "<<", "<t", "[[", "[", "a", ", ", "é", "<th", "ool_", "1"]), 1..30),
            tool_format in prop::sample::select(vec![ToolFormat::Tagged, ToolFormat::Mistral]),
        ) {
            let reasoning = ReasoningMarkers { open: "<think>", close: "</think>" };
            let tools = CallableTools { functions: Arc::default(), choice: ToolChoice::Auto, parallel: true };
            let mut parser = AnswerParser::new(&AnswerShape {
                reasoning: Some((reasoning, false)),
                tool_format,
                tools: Some(tools),
            });
            let (mut unshown, mut place) = (Unshown::default(), 0);
            let (mut told, mut content) = (String::new(), String::new());
            let mut show = |unshown: &mut Unshown, parts: Vec<Part>| {
                for part in parts {
                    let Part::Content(text) = part else { panic!("{part:?}") };
                    told.extend(self::shown(unshown, &text));
                    content.push_str(&text);
                }
            };
            for text in &texts {
                said(&mut unshown, &mut place, &[text]);
                let parts = parser.push(text, 1);
                unshown.hold_back(parser.held_bytes());
                show(&mut unshown, parts);
            }
            let parts = parser.finish();
            unshown.hold_back(0);
            show(&mut unshown, parts);
            prop_assert_eq!(&content, &texts.concat());
            prop_assert_eq!(told, content);
        }
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
