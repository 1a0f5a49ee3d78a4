//! Assignment of generated tokens to the text of output items.
//!
//! Items do not contain everything that a model generates: the parser removes markers and the line
//! breaks around them. The parser also holds back text that may be the start of a marker.

use std::collections::VecDeque;

use rooflet_inference_api::openai::response::logprobs::ContentLogprob;

/// Generated text and tokens that no item contains yet.
#[derive(Debug, Default)]
pub(super) struct PendingTokens {
    text: String,
    /// Offset of `text` in the answer, in characters.
    offset: usize,
    /// Tokens with their offsets in the answer, in characters.
    tokens: VecDeque<(usize, ContentLogprob)>,
    /// Number of bytes at the end of `text` that may belong to a marker.
    held_bytes: usize,
}

impl PendingTokens {
    /// Appends generated text and its tokens with their offsets.
    pub(super) fn push(&mut self, text: &str, tokens: impl Iterator<Item = (usize, ContentLogprob)>) {
        self.text.push_str(text);
        self.tokens.extend(tokens);
    }

    /// Sets the number of bytes that the parser holds back.
    pub(super) fn set_held_bytes(&mut self, bytes: usize) {
        self.held_bytes = bytes;
    }

    /// Removes and returns the tokens that form `item_text`. Discards all text and tokens before
    /// `item_text`.
    pub(super) fn take(&mut self, item_text: &str) -> Vec<ContentLogprob> {
        let released = &self.text[..self.text.len().saturating_sub(self.held_bytes)];
        // The search starts at the end because removed markers precede the text.
        let Some(at) = released.rfind(item_text) else {
            return Vec::new();
        };
        let begin = self.offset + self.text[..at].chars().count();
        let end = begin + item_text.chars().count();
        let mut tokens = Vec::new();
        while let Some((offset, token)) = self.tokens.pop_front_if(|(offset, _)| *offset < end) {
            // A token ends at the offset of the next token.
            let next = self.tokens.front().map(|(next, _)| *next);
            if offset >= begin || next.is_none_or(|next| next > begin) {
                tokens.push(token);
            }
        }
        self.text.drain(..at + item_text.len());
        self.offset = end;
        tokens
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

    /// Appends one token per text, starting at `offset`.
    fn push_tokens(pending_tokens: &mut PendingTokens, offset: &mut usize, texts: &[&str]) {
        for text in texts {
            let token = ContentLogprob {
                token: TokenLogprob {
                    token: (*text).to_owned(),
                    logprob: -1.0,
                    bytes: text.as_bytes().to_vec(),
                },
                top_logprobs: Vec::new(),
            };
            pending_tokens.push(text, [(*offset, token)].into_iter());
            *offset += text.chars().count();
        }
    }

    fn taken(pending_tokens: &mut PendingTokens, text: &str) -> Vec<String> {
        let tokens = pending_tokens.take(text).into_iter();
        tokens.map(|token| token.token.token).collect()
    }

    proptest! {
        /// The texts contain many starts of markers, but no complete marker.
        #[test]
        fn returns_every_token_of_item_text_exactly_once(
            texts in prop::collection::vec(prop::sample::select(vec!["<", "<<", "<t", "[[", "[", "a", ", ", "é", "<th", "ool_", "1"]), 1..30),
            tool_format in prop::sample::select(vec![ToolFormat::Tagged, ToolFormat::Mistral]),
        ) {
            let reasoning = ReasoningMarkers { open: "<think>", close: "</think>" };
            let tools = CallableTools { functions: Arc::default(), choice: ToolChoice::Auto, parallel: true, first_call: 0 };
            let mut parser = AnswerParser::new(&AnswerShape {
                reasoning: Some((reasoning, false)),
                tool_format,
                tools: Some(tools),
            });
            let (mut pending_tokens, mut offset) = (PendingTokens::default(), 0);
            let (mut from_tokens, mut content) = (String::new(), String::new());
            let mut take_parts = |pending_tokens: &mut PendingTokens, parts: Vec<Part>| {
                for part in parts {
                    let Part::Content(text) = part else { panic!("{part:?}") };
                    from_tokens.extend(self::taken(pending_tokens, &text));
                    content.push_str(&text);
                }
            };
            for text in &texts {
                push_tokens(&mut pending_tokens, &mut offset, &[text]);
                let parts = parser.push(text, 1);
                pending_tokens.set_held_bytes(parser.held_bytes());
                take_parts(&mut pending_tokens, parts);
            }
            let parts = parser.finish();
            pending_tokens.set_held_bytes(0);
            take_parts(&mut pending_tokens, parts);
            prop_assert_eq!(&content, &texts.concat());
            prop_assert_eq!(from_tokens, content);
        }
    }

    #[test]
    fn assigns_tokens_to_item_texts_between_markers() {
        let (mut pending_tokens, mut offset) = (PendingTokens::default(), 0);
        push_tokens(
            &mut pending_tokens,
            &mut offset,
            &["<think>", "wé", "ll", "</think>", "\n\nI"],
        );
        assert_eq!(taken(&mut pending_tokens, "wéll"), ["wé", "ll"]);
        // The token starts with line breaks that the parser removes.
        assert_eq!(taken(&mut pending_tokens, "I"), ["\n\nI"]);
        push_tokens(&mut pending_tokens, &mut offset, &[" se", "e", ".\n", "\n"]);
        assert_eq!(taken(&mut pending_tokens, " see."), [" se", "e", ".\n"]);
        // The parser releases the line break that it held back.
        push_tokens(&mut pending_tokens, &mut offset, &["More"]);
        assert_eq!(taken(&mut pending_tokens, "\n\nMore"), ["\n", "More"]);
        push_tokens(
            &mut pending_tokens,
            &mut offset,
            &["<tool_call>", "{}", "</tool_call>", "Done"],
        );
        assert_eq!(taken(&mut pending_tokens, "Done"), ["Done"]);
        assert_eq!(taken(&mut pending_tokens, "never generated"), [""; 0]);
        push_tokens(&mut pending_tokens, &mut offset, &["!"]);
        assert_eq!(taken(&mut pending_tokens, "!"), ["!"]);
    }
}
