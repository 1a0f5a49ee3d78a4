//! Requests, parsed from JSON into values with only supported parameters. A parameter that is not
//! supported is rejected by name, unless its value has no effect. No parameter that would change
//! the answer is ignored.

pub mod embeddings;
pub mod fields;
pub mod ignored;
pub mod logprobs;
mod options;
mod prompt;
mod sampling;
pub mod stopping;
pub mod template;
pub mod token_options;
pub mod tokenize;

use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use self::fields::Fields;
use self::ignored::IgnoredFields;
pub use self::options::{Options, StreamUsage};
pub use self::prompt::Prompt;
pub use self::sampling::SamplingOptions;
pub use self::stopping::Stopping;
use self::token_options::TokenOptions;
use super::MAX_COMPLETIONS;
use super::error::ApiError;
use super::json::{Json, Members};
use super::message;
use super::response_format::{self, ResponseFormat};
use super::tools::{self, Tools};

/// Request of `POST /v1/chat/completions`.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    pub model: String,
    /// Messages for a chat template: `content` is a string, `role` one of system, user, assistant
    /// and tool.
    pub messages: Vec<Json>,
    /// Chat template of the request. `None`: the template of the model.
    pub template: Option<String>,
    /// Additional variables of the template.
    pub template_variables: Members,
    /// Callable functions; `None` if there are none.
    pub tools: Option<Tools>,
    /// True if the answer continues the last message, which is of the assistant.
    pub continues: bool,
    /// Number of choices; at least 1.
    pub n: usize,
    pub options: Options,
}

/// Request of `POST /v1/completions`.
#[derive(Debug, Clone, PartialEq)]
pub struct TextRequest {
    pub model: String,
    pub prompts: Vec<Prompt>,
    /// Number of choices for each prompt; at least 1.
    pub n: usize,
    /// Text after the answer: the answer fills the gap between prompt and suffix. Not empty.
    pub suffix: Option<String>,
    /// True if the response repeats the prompt before the answer.
    pub echo: bool,
    pub options: Options,
}

/// Parameters of both endpoints, besides those of [`Options`] and [`SamplingOptions`].
const SUPPORTED: &[&str] = &["model", "n"];

/// Ignored parameters: accounting and caching hints, which do not change the answer.
pub(crate) const IGNORED: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// Known parameters that are not supported: OpenAI's, then vLLM's.
const UNSUPPORTED: &[&str] = &[
    "audio",
    "function_call",
    "functions",
    "modalities",
    "moderation",
    "prediction",
    "prompt_cache_options",
    "verbosity",
    "web_search_options",
    "bad_words",
    "chat_template",
    "documents",
    "include_reasoning",
    "include_stop_str_in_output",
    "length_penalty",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "use_beam_search",
];

impl ChatRequest {
    /// Parameters of this endpoint only.
    const NAMES: &[&str] = &[
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "logprobs",
        "max_completion_tokens",
        "top_logprobs",
    ];

    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let Body {
            messages,
            template_variables,
            tools,
            formats,
            mut fields,
        } = Body::parse(body)?;
        let ignored = IgnoredFields::take_from(&mut fields);
        check_parameters(
            &fields,
            &[Self::NAMES, TokenOptions::NAMES, template::NAMES, tools::NAMES],
        )?;
        let mut options = Options::parse(&fields, 1)?;
        options.ignored = ignored;
        if let Some(max_tokens) = fields.integer("max_completion_tokens", 1, usize::MAX)? {
            options.stopping.check_length(Some(max_tokens))?;
            options.max_tokens = Some(max_tokens);
        }
        options.logprobs = logprobs::of_chat(&fields)?;
        options.format = ResponseFormat::parse(&formats)?;
        let messages = message::parse(messages)?;
        Ok(Self {
            model: parse_model(&fields)?,
            continues: parse_continues(&fields, &messages)?,
            messages,
            template: template::parse_source(&fields)?,
            template_variables: template::parse_variables(template_variables, &fields)?,
            tools: Tools::parse(
                tools,
                fields.get("tool_choice"),
                fields.boolean("parallel_tool_calls")?,
            )?,
            n: parse_n(&fields, 1)?,
            options,
        })
    }
}

impl TextRequest {
    /// Parameters of this endpoint only.
    const NAMES: &[&str] = &["best_of", "echo", "logprobs", "prompt", "suffix"];

    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let Body {
            messages,
            template_variables,
            tools,
            formats,
            mut fields,
        } = Body::parse(body)?;
        if tools.is_some_and(|tools| tools != Json::Null) {
            return Err(ApiError::unknown_parameter("tools"));
        }
        if messages.is_some() {
            return Err(ApiError::unknown_parameter("messages"));
        }
        if template_variables.is_some() {
            return Err(ApiError::unknown_parameter("chat_template_kwargs"));
        }
        let ignored = IgnoredFields::take_from(&mut fields);
        check_parameters(&fields, &[Self::NAMES, TokenOptions::NAMES])?;
        let prompts = Prompt::parse_all(&fields, "prompt", MAX_COMPLETIONS)?;
        let echo = fields.boolean("echo")?.unwrap_or(false);
        // With `max_tokens` of 0, the response has only the prompt and its logprobs.
        let least_tokens = usize::from(!echo);
        let mut options = Options::parse(&fields, least_tokens)?;
        options.ignored = ignored;
        options.logprobs = logprobs::of_text(&fields)?;
        options.format = ResponseFormat::parse(&formats)?;
        let suffix = parse_suffix(&fields, &prompts, &options, echo)?;
        let n = parse_n(&fields, prompts.len())?;
        check_best_of(&fields, n)?;
        Ok(Self {
            model: parse_model(&fields)?,
            n,
            prompts,
            suffix,
            echo,
            options,
        })
    }
}

/// Parameters of a body. The order of members is kept where it is relevant for the prompt.
#[derive(Debug, Default)]
struct Body {
    messages: Option<Json>,
    template_variables: Option<Json>,
    tools: Option<Json>,
    /// Response formats.
    formats: Members,
    /// All other parameters.
    fields: Fields,
}

impl Body {
    fn parse(body: &[u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(body).map_err(|err| ApiError::invalid_json(&err.to_string()))
    }

    /// Returns the fields of a request that has no other parameters.
    fn into_fields(self) -> Result<Fields, ApiError> {
        let Self {
            messages,
            template_variables,
            tools,
            formats,
            fields,
        } = self;
        let others = [
            messages.map(|_| "messages"),
            template_variables.map(|_| "chat_template_kwargs"),
            tools.map(|_| "tools"),
            formats.iter().next().map(|(name, _)| name),
        ];
        match others.into_iter().flatten().next() {
            Some(name) => Err(ApiError::unknown_parameter(name)),
            None => Ok(fields),
        }
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BodyVisitor)
    }
}

struct BodyVisitor;

impl<'de> Visitor<'de> for BodyVisitor {
    type Value = Body;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body, A::Error> {
        let mut body = Body::default();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "messages" => body.messages = Some(map.next_value()?),
                name if response_format::NAMES.contains(&name) => body.formats.insert(name, exact(&mut map)?),
                "tools" => body.tools = Some(exact(&mut map)?),
                "chat_template_kwargs" => body.template_variables = Some(map.next_value()?),
                _ => body.fields.insert(name, map.next_value()?),
            }
        }
        Ok(body)
    }
}

/// Reads a member's value with exact numbers: bounds in schemas may have more digits than a double.
fn exact<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Json, A::Error> {
    let raw: &RawValue = map.next_value()?;
    Json::parse(raw.get()).map_err(A::Error::custom)
}

/// Checks the types of ignored parameters, so that mistakes of a client are reported.
pub(crate) fn check_hints(fields: &Fields) -> Result<(), ApiError> {
    for name in IGNORED {
        match *name {
            "store" => drop(fields.boolean(name)?),
            "metadata" => drop(fields.read(name, "an object", Value::as_object)?),
            name => drop(fields.text(name)?),
        }
    }
    Ok(())
}

/// Checks all parameter names. `own` are the parameters of this endpoint only.
fn check_parameters(fields: &Fields, own: &[&[&str]]) -> Result<(), ApiError> {
    let served = [
        SUPPORTED,
        Options::NAMES,
        Stopping::NAMES,
        SamplingOptions::NAMES,
        IGNORED,
    ];
    check_hints(fields)?;
    fields.check_names(&[served.as_slice(), own].concat(), UNSUPPORTED, has_no_effect)
}

/// Returns true if the value disables the parameter. Clients often send such values.
fn has_no_effect(name: &str, value: &Value) -> bool {
    match (name, value) {
        (_, Value::Null) => true,
        ("function_call", Value::String(choice)) => choice == "none" || choice == "auto",
        // Default behaviour of models.
        ("verbosity", Value::String(word)) => word == "medium",
        ("functions", Value::Array(list)) => list.is_empty(),
        ("modalities", Value::Array(list)) => list.iter().all(|kind| kind == "text"),
        ("bad_words", Value::Array(list)) => list.is_empty(),
        ("length_penalty", Value::Number(one)) => one.as_f64() == Some(1.0),
        (
            "include_reasoning" | "skip_special_tokens" | "spaces_between_special_tokens",
            Value::Bool(usual),
        ) => *usual,
        ("include_stop_str_in_output" | "use_beam_search", Value::Bool(asked)) => !asked,
        ("prompt_cache_options", Value::Object(options)) => options.is_empty(),
        (_, Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            false
        }
    }
}

/// End of a rendered conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptEnd {
    /// The last message.
    Message,
    /// The beginning of an answer.
    Answer,
    /// The incomplete last message, which the answer continues.
    OpenMessage,
}

impl PromptEnd {
    /// Parses vLLM's parameters: the template begins an answer, or the last message is continued.
    fn parse(fields: &Fields, messages: &[Json]) -> Result<Self, ApiError> {
        const NAME: &str = "continue_final_message";
        let continues = fields.boolean(NAME)?.unwrap_or(false);
        let begins = fields.boolean("add_generation_prompt")?.unwrap_or(!continues);
        match (continues, begins) {
            (true, true) => Err(ApiError::invalid_value(
                NAME,
                "'continue_final_message' and 'add_generation_prompt' cannot both be true.",
            )),
            (true, false) if !message::ends_with_assistant(messages) => Err(ApiError::invalid_value(
                NAME,
                "'continue_final_message' requires a last message of role 'assistant', with text and without tool calls.",
            )),
            (true, false) => Ok(Self::OpenMessage),
            (false, true) => Ok(Self::Answer),
            (false, false) => Ok(Self::Message),
        }
    }
}

/// Returns true if the answer continues the last message.
fn parse_continues(fields: &Fields, messages: &[Json]) -> Result<bool, ApiError> {
    match PromptEnd::parse(fields, messages)? {
        PromptEnd::OpenMessage => Ok(true),
        PromptEnd::Answer => Ok(false),
        PromptEnd::Message => Err(ApiError::unsupported(
            "add_generation_prompt",
            "'add_generation_prompt' of false is only supported with 'continue_final_message'.",
        )),
    }
}

pub(crate) fn parse_model(fields: &Fields) -> Result<String, ApiError> {
    let model = fields.text("model")?.filter(|model| !model.is_empty());
    Ok(model.ok_or_else(|| ApiError::missing("model"))?.to_owned())
}

fn parse_n(fields: &Fields, prompts: usize) -> Result<usize, ApiError> {
    let n = fields.integer("n", 1, MAX_COMPLETIONS)?.unwrap_or(1);
    if n * prompts > MAX_COMPLETIONS {
        return Err(ApiError::invalid_value(
            "n",
            format!("{prompts} prompts with 'n' of {n} are more than {MAX_COMPLETIONS} completions."),
        ));
    }
    Ok(n)
}

/// Parses the text after the answer. An empty suffix has no effect.
fn parse_suffix(
    fields: &Fields,
    prompts: &[Prompt],
    options: &Options,
    echo: bool,
) -> Result<Option<String>, ApiError> {
    const NAME: &str = "suffix";
    let Some(suffix) = fields.text(NAME)?.filter(|suffix| !suffix.is_empty()) else {
        return Ok(None);
    };
    let combined =
        |with: &str| ApiError::invalid_value(NAME, format!("'suffix' cannot be combined with {with}."));
    if prompts.iter().any(|prompt| matches!(prompt, Prompt::Tokens(_))) {
        return Err(combined("a prompt of token ids"));
    }
    if echo {
        return Err(combined("'echo'"));
    }
    if options.tokens.truncation.is_some() {
        return Err(combined("'truncate_prompt_tokens'"));
    }
    Ok(Some(suffix.to_owned()))
}

/// Checks `best_of`. All completions are returned: none is generated only for comparison.
fn check_best_of(fields: &Fields, n: usize) -> Result<(), ApiError> {
    match fields.integer("best_of", 1, MAX_COMPLETIONS)? {
        Some(best_of) if best_of < n => Err(ApiError::invalid_value(
            "best_of",
            "'best_of' must not be less than 'n'.",
        )),
        Some(best_of) if best_of > n => Err(ApiError::unsupported(
            "best_of",
            "'best_of' greater than 'n' is not supported by this server.",
        )),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
