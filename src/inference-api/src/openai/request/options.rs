//! Parameters of both endpoints besides the prompt: length, sampling and streaming.

use serde_json::Value;

use super::fields::Fields;
use super::ignored::IgnoredFields;
use super::sampling::SamplingOptions;
use super::stopping::Stopping;
use super::token_options::TokenOptions;
use crate::openai::ApiError;
use crate::openai::response_format::ResponseFormat;

/// Parameters of both endpoints besides the prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    pub max_tokens: Option<usize>,
    /// Maximum number of reasoning tokens; `None`: no separate limit.
    pub thinking_tokens: Option<usize>,
    pub stopping: Stopping,
    /// Format of the answer; `None`: any text.
    pub format: Option<ResponseFormat>,
    pub sampling: SamplingOptions,
    /// Number of most probable tokens to report with each token; `None`: no logprobs.
    pub logprobs: Option<usize>,
    /// Priority in the waiting queue; lower values run first. vLLM's extension.
    pub priority: i32,
    /// Requests share cached prefixes only with requests of the same salt. Empty if absent.
    pub cache_salt: String,
    pub stream: bool,
    pub usage: StreamUsage,
    /// True if the events of a stream are padded, so that their sizes do not reveal the length of
    /// tokens.
    pub obfuscated: bool,
    pub tokens: TokenOptions,
    pub ignored: IgnoredFields,
}

/// Chunks of a stream that report usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StreamUsage {
    #[default]
    Never,
    AtEnd,
    /// In each chunk, for the tokens so far. vLLM's extension.
    Throughout,
}

impl Options {
    /// Parameters of this module.
    pub const NAMES: &[&str] = &["max_tokens", "priority", "cache_salt", "stream", "stream_options"];

    /// Parses the parameters. `least_tokens` is the minimum of `max_tokens`.
    pub fn parse(fields: &Fields, least_tokens: usize) -> Result<Self, ApiError> {
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let max_tokens = fields.integer("max_tokens", least_tokens, usize::MAX)?;
        let stopping = Stopping::parse(fields)?;
        stopping.check_length(max_tokens)?;
        let (usage, obfuscated) = parse_stream_options(fields, stream)?;
        Ok(Self {
            max_tokens,
            thinking_tokens: None,
            stopping,
            format: None,
            sampling: SamplingOptions::parse(fields)?,
            // The endpoints request logprobs differently.
            logprobs: None,
            priority: parse_priority(fields)?,
            cache_salt: parse_cache_salt(fields)?,
            stream,
            usage,
            obfuscated,
            tokens: TokenOptions::parse(fields, stream)?,
            // The caller removes these parameters before it checks the others.
            ignored: IgnoredFields::default(),
        })
    }
}

/// Parses the salt, which must not be empty, as in vLLM.
fn parse_cache_salt(fields: &Fields) -> Result<String, ApiError> {
    match fields.text("cache_salt")? {
        Some("") => Err(ApiError::invalid_value(
            "cache_salt",
            "'cache_salt' must not be empty.",
        )),
        salt => Ok(salt.unwrap_or_default().to_owned()),
    }
}

fn parse_priority(fields: &Fields) -> Result<i32, ApiError> {
    let priority = fields.read("priority", "a 32-bit integer", |value| {
        i32::try_from(value.as_i64()?).ok()
    })?;
    Ok(priority.unwrap_or(0))
}

fn parse_stream_options(fields: &Fields, stream: bool) -> Result<(StreamUsage, bool), ApiError> {
    let Some(options) = fields.read("stream_options", "an object", Value::as_object)? else {
        return Ok((StreamUsage::Never, false));
    };
    if !stream {
        return Err(ApiError::invalid_value(
            "stream_options",
            "'stream_options' is only allowed when 'stream' is true.",
        ));
    }
    for (name, value) in options {
        let param = format!("stream_options.{name}");
        match (name.as_str(), value) {
            (
                "include_usage" | "include_obfuscation" | "continuous_usage_stats",
                Value::Bool(_) | Value::Null,
            ) => {}
            ("include_usage" | "include_obfuscation" | "continuous_usage_stats", _) => {
                return Err(ApiError::invalid_value(
                    &param,
                    format!("'{param}' must be true or false."),
                ));
            }
            (_, _) => return Err(ApiError::unknown_parameter(&param)),
        }
    }
    let is_on = |name: &str| options.get(name).and_then(Value::as_bool) == Some(true);
    let usage = match (is_on("include_usage"), is_on("continuous_usage_stats")) {
        (false, _) => StreamUsage::Never,
        (true, false) => StreamUsage::AtEnd,
        (true, true) => StreamUsage::Throughout,
    };
    Ok((usage, is_on("include_obfuscation")))
}
