//! Stop conditions besides the maximum length: OpenAI's `stop`, and vLLM's extensions.

use serde_json::Value;

use super::fields::Fields;
use super::prompt::token_ids;
use crate::openai::ApiError;

/// Maximum number of stop strings. OpenAI's API permits 4, vLLM any number.
pub(crate) const MAX_STOP_STRINGS: usize = 64;
const MAX_STOP_BYTES: usize = 1024;
const MAX_STOP_TOKENS: usize = 64;

/// Stop conditions. Matched tokens and strings are not part of the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stopping {
    pub strings: Vec<String>,
    pub token_ids: Vec<u32>,
    /// True if the end-of-sequence token does not end the answer.
    pub ignore_eos: bool,
    /// Minimum number of tokens before a stop condition applies.
    pub min_tokens: usize,
}

impl Stopping {
    /// Parameters of this module.
    pub const NAMES: &[&str] = &["stop", "stop_token_ids", "ignore_eos", "min_tokens"];

    pub(super) fn parse(fields: &Fields) -> Result<Self, ApiError> {
        let expected = format!("a list of at most {MAX_STOP_TOKENS} token ids");
        let tokens = fields.read("stop_token_ids", &expected, |value| match value {
            Value::Array(ids) if ids.len() <= MAX_STOP_TOKENS => token_ids(ids),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        })?;
        Ok(Self {
            strings: parse_strings(fields, "stop", MAX_STOP_STRINGS)?,
            token_ids: tokens.unwrap_or_default(),
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            min_tokens: fields.integer("min_tokens", 0, usize::MAX)?.unwrap_or(0),
        })
    }

    pub fn check_length(&self, max_tokens: Option<usize>) -> Result<(), ApiError> {
        match max_tokens {
            Some(max) if max < self.min_tokens => Err(ApiError::invalid_value(
                "min_tokens",
                format!(
                    "'min_tokens' is {}, which is more than the maximum of {max} tokens.",
                    self.min_tokens
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// Parses a string or a list of strings.
pub(crate) fn parse_strings(fields: &Fields, name: &str, most: usize) -> Result<Vec<String>, ApiError> {
    let expected = format!(
        "a string or a list of at most {most} strings, none empty or longer than {MAX_STOP_BYTES} bytes"
    );
    let fits = |stop: &String| !stop.is_empty() && stop.len() <= MAX_STOP_BYTES;
    let stops = fields.read(name, &expected, |value| {
        let stops: Vec<String> = match value {
            Value::String(stop) => vec![stop.clone()],
            Value::Array(stops) => stops
                .iter()
                .map(|stop| stop.as_str().map(str::to_owned))
                .collect::<Option<_>>()?,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
        };
        (stops.len() <= most && stops.iter().all(fits)).then_some(stops)
    })?;
    Ok(stops.unwrap_or_default())
}
