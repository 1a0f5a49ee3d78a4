//! Requests with raw prompts: text completions and embeddings.

use std::sync::Arc;

use super::truncation::{last_echo, last_tokens};
use super::{DEFAULT_COMPLETION_TOKENS, Echo, PromptUse, Prompter, ValidRequest};
use crate::batch::transcript::chars_before;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::request::token_options::Truncation;
use rooflet_inference_api::openai::request::{Options, Prompt};
use rooflet_text::answer::AnswerShape;
use rooflet_text::detokenizer::Detokenizer;
use rooflet_text::grammar::constraint::Constraint;
use rooflet_text::tokenizer::DecodeError;
use rooflet_text::tool_calls::ToolFormat;

impl Prompter {
    /// Validates a request of `/v1/completions`. If `echo` is set, the answer starts with the
    /// prompt.
    pub(crate) fn text(
        &self,
        prompt: &Prompt,
        echo: bool,
        options: &Options,
    ) -> Result<ValidRequest, ApiError> {
        let param = "prompt";
        let constraint = self.text_constraint(options)?;
        let answer_tokens = options.max_tokens.unwrap_or(DEFAULT_COMPLETION_TOKENS);
        let kept = self.kept_tokens(options.tokens.truncation, answer_tokens)?;
        if !echo {
            let tokens = self.tokens(param, prompt, kept)?;
            let request = self.build_request(param, tokens, options, DEFAULT_COMPLETION_TOKENS)?;
            return Ok(ValidRequest {
                continues_prompt: true,
                constraint,
                ..request
            });
        }
        let initial = self.initial_tokens();
        let (tokens, echo) = match prompt {
            Prompt::Text(text) => {
                self.check_length(param, text)?;
                let (tokens, offsets) = self
                    .tokenizer
                    .encode_prompt_with_offsets(text)
                    .map_err(|err| ApiError::invalid_value(param, err.to_string()))?;
                let text = text.clone();
                (tokens, Echo { text, offsets })
            }
            Prompt::Tokens(tokens) => {
                let echo = self.echo_tokens(tokens);
                (
                    tokens.clone(),
                    echo.map_err(|err| ApiError::invalid_value(param, err.to_string()))?,
                )
            }
        };
        let (tokens, echo) = match kept {
            Some(kept) => last_echo(tokens, echo, kept, &initial),
            None => (tokens, echo),
        };
        let request = self.build_request(param, tokens, options, DEFAULT_COMPLETION_TOKENS)?;
        Ok(ValidRequest {
            prompt_use: PromptUse::Echo(echo),
            continues_prompt: true,
            constraint,
            ..request
        })
    }

    /// Returns the constraint of a text completion, which has neither reasoning nor tool calls.
    pub(super) fn text_constraint(&self, options: &Options) -> Result<Option<Constraint>, ApiError> {
        let shape = AnswerShape {
            reasoning: None,
            tool_format: ToolFormat::Tagged,
            tools: None,
        };
        self.constraint(options.format.as_ref(), None, &shape)
    }

    /// Returns the tokens that the tokenizer adds at the beginning of a raw prompt.
    pub(super) fn initial_tokens(&self) -> Vec<u32> {
        self.tokenizer.encode_prompt("").unwrap_or_default()
    }

    /// Checks the requested size of embeddings.
    pub(crate) fn check_dimensions(&self, dimensions: Option<usize>) -> Result<(), ApiError> {
        dimensions.map_or(Ok(()), |dimensions| self.embedding_sizes.check(dimensions))
    }

    pub(crate) fn embedding(
        &self,
        input: &Prompt,
        truncation: Option<Truncation>,
    ) -> Result<ValidRequest, ApiError> {
        let param = "input";
        let kept = self.kept_tokens(truncation, 0)?;
        let tokens = self.tokens(param, input, kept)?;
        let options = Options {
            max_tokens: Some(0),
            ..Options::default()
        };
        let request = self.build_request(param, tokens, &options, 0)?;
        Ok(ValidRequest {
            prompt_use: PromptUse::Embed,
            ..request
        })
    }

    /// Returns the last `kept` tokens of a prompt, or all if `None`.
    fn tokens(&self, param: &str, prompt: &Prompt, kept: Option<usize>) -> Result<Vec<u32>, ApiError> {
        match prompt {
            Prompt::Text(text) => {
                let encode = |text: &str| self.tokenizer.encode_prompt(text);
                self.encode_last(param, text, kept, &self.initial_tokens(), encode)
            }
            Prompt::Tokens(tokens) => Ok(match kept {
                Some(kept) => last_tokens(tokens.clone(), kept, &[]),
                None => tokens.clone(),
            }),
        }
    }

    fn echo_tokens(&self, tokens: &[u32]) -> Result<Echo, DecodeError> {
        let mut detokenizer = Detokenizer::new(&self.tokenizer, &Arc::default());
        let mut echo = Echo::default();
        let mut chars = 0;
        for token in tokens {
            let text = detokenizer.push(&self.tokenizer, *token)?;
            echo.offsets
                .push(chars + chars_before(&text, &self.tokenizer, *token));
            chars += text.chars().count();
            echo.text.push_str(&text);
        }
        echo.text.push_str(&detokenizer.flush(&self.tokenizer)?);
        Ok(echo)
    }
}
