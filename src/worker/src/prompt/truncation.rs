//! Truncation of prompts to their last tokens, as in vLLM. The tokens that the tokenizer adds at the
//! beginning of a text are kept.

use super::{LONG_TEXT_BYTES_PER_TOKEN, MAX_UNCOUNTED_BYTES, Prompter};
use crate::prompt::Echo;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::request::token_options::Truncation;
use rooflet_text::tokenizer::EncodeError;

/// Number of tokens whose boundaries can depend on text before them.
const BOUNDARY_TOKENS: usize = 64;

impl Prompter {
    /// Returns the maximum number of prompt tokens to keep. `None`: the prompt is not truncated.
    /// `answer_tokens` is the length of the answer for which the context must have room.
    pub(super) fn kept_tokens(
        &self,
        truncation: Option<Truncation>,
        answer_tokens: usize,
    ) -> Result<Option<usize>, ApiError> {
        let context_tokens = self.context_tokens();
        match truncation {
            None => Ok(None),
            Some(Truncation::ToContext) => Ok(Some(context_tokens.saturating_sub(answer_tokens).max(1))),
            Some(Truncation::Tokens(tokens)) if tokens > context_tokens => Err(ApiError::invalid_value(
                "truncate_prompt_tokens",
                format!(
                    "'truncate_prompt_tokens' is {tokens}, which is more than the model's context of \
                     {context_tokens} tokens. Please use a smaller number, or -1 for the context."
                ),
            )),
            Some(Truncation::Tokens(tokens)) => Ok(Some(tokens)),
        }
    }

    /// Tokenizes a text with `encode` and keeps `initial`, if the tokens begin with it, and the last
    /// tokens: `kept` in total. Rejects a text that is clearly longer than the context, unless it is
    /// truncated.
    pub(super) fn encode_last(
        &self,
        param: &str,
        text: &str,
        kept: Option<usize>,
        initial: &[u32],
        encode: impl Fn(&str) -> Result<Vec<u32>, EncodeError>,
    ) -> Result<Vec<u32>, ApiError> {
        let encode = |text: &str| encode(text).map_err(|err| ApiError::invalid_value(param, err.to_string()));
        let Some(kept) = kept else {
            self.check_length(param, text)?;
            return encode(text);
        };
        // Only the end of a long text is tokenized, because this needs much memory.
        let mut bytes = MAX_UNCOUNTED_BYTES.max(kept.saturating_mul(LONG_TEXT_BYTES_PER_TOKEN));
        loop {
            let end = &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..];
            let tokens = encode(end)?;
            if end.len() == text.len() || tokens.len() > kept + initial.len() + BOUNDARY_TOKENS {
                return Ok(last_tokens(tokens, kept, initial));
            }
            bytes = bytes.saturating_mul(2);
        }
    }
}

/// Keeps the last tokens, and `initial` if the tokens begin with it: `kept` in total.
pub(super) fn last_tokens(mut tokens: Vec<u32>, kept: usize, initial: &[u32]) -> Vec<u32> {
    let protected = protected(&tokens, kept, initial);
    let dropped = tokens.len().saturating_sub(kept);
    tokens.drain(protected..protected + dropped);
    tokens
}

/// Truncates tokens and the text of an echoed prompt as [`last_tokens`] does.
pub(super) fn last_echo(tokens: Vec<u32>, mut echo: Echo, kept: usize, initial: &[u32]) -> (Vec<u32>, Echo) {
    let protected = protected(&tokens, kept, initial);
    let dropped = tokens.len().saturating_sub(kept);
    if dropped == 0 {
        return (tokens, echo);
    }
    let begin = echo.offsets.get(protected + dropped).copied().unwrap_or(0);
    echo.text = echo.text.chars().skip(begin).collect();
    echo.offsets.drain(protected..protected + dropped);
    for offset in &mut echo.offsets {
        *offset = offset.saturating_sub(begin);
    }
    (last_tokens(tokens, kept, initial), echo)
}

/// Returns the number of tokens at the beginning that are kept.
fn protected(tokens: &[u32], kept: usize, initial: &[u32]) -> usize {
    match tokens.starts_with(initial) && initial.len() < kept {
        true => initial.len(),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::prompter;
    use super::*;
    use rooflet_inference_api::openai::request::{Options, Prompt};

    #[test]
    fn keeps_initial_and_last_tokens() {
        let tokens = || vec![1, 5, 6, 7, 8];
        assert_eq!(last_tokens(tokens(), 9, &[1]), tokens());
        assert_eq!(last_tokens(tokens(), 5, &[1]), tokens());
        assert_eq!(last_tokens(tokens(), 3, &[1]), [1, 7, 8]);
        assert_eq!(last_tokens(tokens(), 3, &[]), [6, 7, 8]);
        assert_eq!(last_tokens(tokens(), 3, &[2]), [6, 7, 8]);
        assert_eq!(last_tokens(tokens(), 1, &[1]), [8]);
    }

    #[test]
    fn truncated_echo_begins_with_first_kept_token() {
        let echo = Echo {
            text: "äbcd".to_owned(),
            offsets: vec![0, 0, 1, 3],
        };
        let (tokens, cut) = last_echo(vec![1, 5, 6, 7], echo.clone(), 3, &[1]);
        assert_eq!(tokens, [1, 6, 7]);
        assert_eq!((cut.text.as_str(), &cut.offsets[..]), ("bcd", &[0, 0, 2][..]));
        let (tokens, whole) = last_echo(vec![1, 5, 6, 7], echo.clone(), 4, &[1]);
        assert_eq!((tokens.len(), whole), (4, echo));
    }

    #[test]
    fn truncates_long_text_to_end_of_its_tokens() {
        let prompter = prompter(1000);
        let truncated = |text: &str, truncation| {
            let mut options = Options::default();
            options.tokens.truncation = Some(truncation);
            prompter.text(&Prompt::Text(text.to_owned()), false, &options)
        };
        let text = "One two three. ".repeat(100_000);
        let tokens = truncated(&text, Truncation::Tokens(50)).unwrap().prompt;
        assert_eq!(tokens.len(), 50);
        let all = prompter
            .tokenizer()
            .encode_prompt(&text[text.len() - 15_000..])
            .unwrap();
        assert!(all.ends_with(&tokens));
        // The context has room for the default of 16 tokens.
        assert_eq!(truncated(&text, Truncation::ToContext).unwrap().prompt.len(), 984);
        let whole = prompter.tokenizer().encode_prompt("One two").unwrap();
        assert_eq!(
            truncated("One two", Truncation::Tokens(500)).unwrap().prompt,
            whole
        );
        let err = truncated("One", Truncation::Tokens(1001)).unwrap_err();
        assert_eq!(err.param.as_deref(), Some("truncate_prompt_tokens"));
    }
}
