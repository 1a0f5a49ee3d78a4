//! Variables of the chat template besides the messages: `chat_template_kwargs`, and the parameters
//! for reasoning effort.

use serde_json::Value;

use super::fields::Fields;
use crate::openai::ApiError;
use crate::openai::json::{Json, Members};

/// Parameters of this module, besides `chat_template_kwargs`, whose member order is relevant.
pub(super) const NAMES: &[&str] = &["enable_thinking", "reasoning", "reasoning_effort"];

/// Variables that the server sets.
const RESERVED: &[&str] = &[
    "add_generation_prompt",
    "bos_token",
    "documents",
    "eos_token",
    "messages",
    "strftime_now",
    "tools",
];

/// OpenAI's values; models support some of them.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh"];

/// Maximum size of the chat template of a request, in bytes. The largest template of a published model
/// has about 20 KiB.
const MAX_SOURCE_BYTES: usize = 64 << 10;

/// Returns the chat template of the request.
pub(super) fn parse_source(fields: &Fields) -> Result<Option<String>, ApiError> {
    let Some(source) = fields.text("chat_template")? else {
        return Ok(None);
    };
    if source.len() > MAX_SOURCE_BYTES {
        return Err(ApiError::invalid_value(
            "chat_template",
            format!("'chat_template' must have at most {MAX_SOURCE_BYTES} bytes."),
        ));
    }
    Ok(Some(source.to_owned()))
}

/// Returns the template's variables. `chat_template_kwargs` takes precedence over other parameters.
pub(crate) fn parse_variables(kwargs: Option<Json>, fields: &Fields) -> Result<Members, ApiError> {
    let mut variables = match kwargs {
        None | Some(Json::Null) => Members::default(),
        Some(Json::Object(members)) => members,
        Some(Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_)) => {
            return Err(ApiError::invalid_value(
                "chat_template_kwargs",
                "'chat_template_kwargs' must be an object.",
            ));
        }
    };
    if let Some((name, _)) = variables.iter().find(|(name, _)| RESERVED.contains(name)) {
        return Err(ApiError::invalid_value(
            &format!("chat_template_kwargs.{name}"),
            format!("'{name}' is set by the server."),
        ));
    }
    let mut default = |name: &str, value: Json| {
        if variables.get(name).is_none() {
            variables.insert(name, value);
        }
    };
    if let Some(enable) = fields.boolean("enable_thinking")? {
        default("enable_thinking", Json::Bool(enable));
    }
    if let Some(effort) = parse_effort(fields)? {
        // Templates with only a switch for reasoning ignore the effort.
        if effort == "none" {
            default("enable_thinking", Json::Bool(false));
        }
        default("reasoning_effort", Json::String(effort.to_owned()));
    }
    Ok(variables)
}

/// Parses `reasoning_effort`, or else `reasoning.effort`.
fn parse_effort(fields: &Fields) -> Result<Option<&str>, ApiError> {
    let known = |effort: &&str| EFFORTS.contains(effort);
    let expected = || format!("one of {}", EFFORTS.join(", "));
    let effort = fields.read("reasoning_effort", &expected(), |value| {
        value.as_str().filter(known)
    })?;
    let Some(reasoning) = fields.read("reasoning", "an object", Value::as_object)? else {
        return Ok(effort);
    };
    if let Some(name) = reasoning.keys().find(|name| *name != "effort") {
        return Err(ApiError::unknown_parameter(&format!("reasoning.{name}")));
    }
    let nested = match reasoning.get("effort") {
        None | Some(Value::Null) => None,
        Some(value) => {
            let param = "reasoning.effort";
            let effort = value.as_str().filter(known);
            Some(effort.ok_or_else(|| {
                ApiError::invalid_value(param, format!("'{param}' must be {}.", expected()))
            })?)
        }
    };
    Ok(effort.or(nested))
}
