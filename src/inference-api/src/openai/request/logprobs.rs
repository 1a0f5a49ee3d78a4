//! Number of most probable tokens in the response, which each endpoint requests differently.

use serde_json::Value;

use super::fields::Fields;
use crate::openai::ApiError;

/// Limits of OpenAI's API.
const MAX_OF_CHAT: usize = 20;
const MAX_OF_TEXT: usize = 5;

/// Parses a flag and a number.
pub(crate) fn of_chat(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let requested = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, MAX_OF_CHAT)?;
    match (requested, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid_value(
            "top_logprobs",
            "'top_logprobs' is only allowed when 'logprobs' is true.",
        )),
    }
}

/// Value in `include` of `/v1/responses` that requests logprobs.
pub(crate) const INCLUDED: &str = "message.output_text.logprobs";

/// Parses a value in a list and a number.
pub(crate) fn of_responses(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let listed = fields.get("include").and_then(Value::as_array);
    let requested = listed.is_some_and(|names| names.iter().any(|name| name.as_str() == Some(INCLUDED)));
    let top = fields.integer("top_logprobs", 0, MAX_OF_CHAT)?;
    match (requested, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid_value(
            "top_logprobs",
            format!("'top_logprobs' is only allowed when 'include' has '{INCLUDED}'."),
        )),
    }
}

/// Parses a number. Some clients send `false` for none.
pub(super) fn of_text(fields: &Fields) -> Result<Option<usize>, ApiError> {
    match fields.get("logprobs") {
        Some(Value::Bool(false)) => Ok(None),
        _ => fields.integer("logprobs", 0, MAX_OF_TEXT),
    }
}
