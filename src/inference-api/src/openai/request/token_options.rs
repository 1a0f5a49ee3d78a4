//! vLLM's parameters for tokens: truncation of the prompt, and token ids and prompt logprobs in the
//! response.

use serde_json::Value;

use super::fields::Fields;
use crate::openai::ApiError;

/// Maximum number of most probable tokens per prompt token; vLLM's default limit.
const MAX_PROMPT_LOGPROBS: usize = 20;

/// Parameters for tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenOptions {
    /// Truncation of the prompt. `None`: a prompt that is too long is rejected.
    pub truncation: Option<Truncation>,
    /// Number of most probable tokens to report with each prompt token; `None`: no logprobs.
    pub prompt_logprobs: Option<usize>,
    /// True if the response contains the token ids of prompt and answer.
    pub return_ids: bool,
    /// True if logprobs name tokens as `token_id:N` instead of their text.
    pub named_by_id: bool,
}

/// Maximum length of a prompt, of which only the last tokens are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// The context, less the maximum length of the answer.
    ToContext,
    /// Number of tokens; at least 1.
    Tokens(usize),
}

impl Truncation {
    pub(super) const NAME: &str = "truncate_prompt_tokens";

    /// Parses a number of tokens, or -1 for the context.
    pub(super) fn parse(fields: &Fields) -> Result<Option<Self>, ApiError> {
        fields.read(
            Self::NAME,
            "an integer of at least 1, or -1 for the context",
            |value| match value.as_i64()? {
                -1 => Some(Self::ToContext),
                tokens @ 1.. => Some(Self::Tokens(usize::try_from(tokens).unwrap_or(usize::MAX))),
                _ => None,
            },
        )
    }
}

impl TokenOptions {
    /// Parameters of this module.
    pub const NAMES: &[&str] = &[
        "prompt_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        Truncation::NAME,
    ];

    pub(super) fn parse(fields: &Fields, stream: bool) -> Result<Self, ApiError> {
        Ok(Self {
            truncation: Truncation::parse(fields)?,
            prompt_logprobs: parse_prompt_logprobs(fields, stream)?,
            return_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            named_by_id: fields.boolean("return_tokens_as_token_ids")?.unwrap_or(false),
        })
    }
}

fn parse_prompt_logprobs(fields: &Fields, stream: bool) -> Result<Option<usize>, ApiError> {
    const NAME: &str = "prompt_logprobs";
    if let Some(Value::Bool(false)) = fields.get(NAME) {
        return Ok(None);
    }
    let top = fields.integer(NAME, 0, MAX_PROMPT_LOGPROBS)?;
    if stream && top.is_some() {
        return Err(ApiError::invalid_value(
            NAME,
            "'prompt_logprobs' is only allowed when 'stream' is false.",
        ));
    }
    Ok(top)
}
