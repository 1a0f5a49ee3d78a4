//! Requests, parsed from JSON into values that hold only what is served. A parameter this server does not serve is
//! refused by name, unless its value asks for nothing; nothing that would change the answer is ignored.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::json::Json;
use super::message;

/// OpenAI's own limit.
const MAX_STOP_STRINGS: usize = 4;
const MAX_STOP_BYTES: usize = 1024;
/// Prompts of one completion request; each occupies the engine like a request of its own.
const MAX_PROMPTS: usize = 16;

/// `POST /v1/chat/completions`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChatRequest {
    pub(crate) model: String,
    /// As a chat template reads them: `content` is a string, `role` one of system, user, assistant and tool.
    pub(crate) messages: Vec<Json>,
    pub(crate) options: Options,
}

/// `POST /v1/completions`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TextRequest {
    pub(crate) model: String,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) options: Options,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// What both endpoints take.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Options {
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    /// `Some(0)` = no limit.
    pub(crate) top_k: Option<u32>,
    pub(crate) seed: Option<u64>,
    /// Among requests that wait, lower goes first; vLLM's extension.
    pub(crate) priority: i32,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

/// Parameters both endpoints serve.
const SERVED: &[&str] = &[
    "model",
    "max_tokens",
    "stop",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "priority",
    "stream",
    "stream_options",
];

/// Accounting and caching hints: they do not change the answer.
const WITHOUT_EFFECT: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// Known and not served.
const UNSERVED: &[&str] = &[
    "audio",
    "best_of",
    "chat_template_kwargs",
    "echo",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "min_p",
    "modalities",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "suffix",
    "tool_choice",
    "tools",
    "top_logprobs",
    "verbosity",
    "web_search_options",
];

impl ChatRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let Body { messages, fields } = parse_body(body)?;
        check_parameters(&fields, &["max_completion_tokens"])?;
        let mut options = parse_options(&fields)?;
        if let Some(max_tokens) = positive(&fields, "max_completion_tokens")? {
            options.max_tokens = Some(max_tokens);
        }
        Ok(Self {
            model: model(&fields)?,
            messages: message::parse(messages)?,
            options,
        })
    }
}

impl TextRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let Body { messages, fields } = parse_body(body)?;
        if messages.is_some() {
            return Err(ApiError::unknown_parameter("messages"));
        }
        check_parameters(&fields, &["prompt"])?;
        Ok(Self {
            model: model(&fields)?,
            prompts: parse_prompts(&fields)?,
            options: parse_options(&fields)?,
        })
    }
}

/// A body's parameters. Their order says nothing, except in what becomes a prompt.
#[derive(Debug, Default)]
struct Body {
    messages: Option<Json>,
    /// All others.
    fields: Map<String, Value>,
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
            if name == "messages" {
                body.messages = Some(map.next_value()?);
            } else {
                body.fields.insert(name, map.next_value()?);
            }
        }
        Ok(body)
    }
}

fn parse_body(body: &[u8]) -> Result<Body, ApiError> {
    serde_json::from_slice(body).map_err(|err| ApiError::invalid_json(&err.to_string()))
}

fn check_parameters(fields: &Map<String, Value>, own: &[&str]) -> Result<(), ApiError> {
    for (name, value) in fields {
        let name = name.as_str();
        if SERVED.contains(&name) || own.contains(&name) || WITHOUT_EFFECT.contains(&name) {
            continue;
        }
        if !UNSERVED.contains(&name) {
            return Err(ApiError::unknown_parameter(name));
        }
        if !asks_for_nothing(name, value) {
            return Err(ApiError::unsupported(
                name,
                format!("'{name}' is not supported by this server."),
            ));
        }
    }
    Ok(())
}

/// Clients often send parameters at the value that means "off".
fn asks_for_nothing(name: &str, value: &Value) -> bool {
    match (name, value) {
        (_, Value::Null) => true,
        ("n" | "best_of" | "repetition_penalty", Value::Number(number)) => number.as_f64() == Some(1.0),
        ("frequency_penalty" | "presence_penalty" | "min_p" | "top_logprobs", Value::Number(number)) => {
            number.as_f64() == Some(0.0)
        }
        ("echo" | "logprobs", Value::Bool(asked)) => !asked,
        // Without tools there are no calls to run in parallel.
        ("parallel_tool_calls", Value::Bool(_)) => true,
        ("tool_choice" | "function_call", Value::String(choice)) => choice == "none" || choice == "auto",
        ("suffix", Value::String(suffix)) => suffix.is_empty(),
        ("tools" | "functions", Value::Array(list)) => list.is_empty(),
        ("modalities", Value::Array(list)) => list.iter().all(|kind| kind == "text"),
        ("logit_bias" | "chat_template_kwargs", Value::Object(map)) => map.is_empty(),
        ("response_format", Value::Object(format)) => {
            format.get("type").is_some_and(|kind| kind == "text") && format.len() == 1
        }
        (_, Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            false
        }
    }
}

fn parse_options(fields: &Map<String, Value>) -> Result<Options, ApiError> {
    let stream = boolean(fields, "stream")?.unwrap_or(false);
    Ok(Options {
        max_tokens: positive(fields, "max_tokens")?,
        stop: parse_stop(fields)?,
        temperature: number(fields, "temperature", 0.0, 2.0)?,
        top_p: number(fields, "top_p", 0.0, 1.0)?,
        top_k: parse_top_k(fields)?,
        seed: parse_seed(fields)?,
        priority: parse_priority(fields)?,
        stream,
        include_usage: parse_include_usage(fields, stream)?,
    })
}

fn present<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn model(fields: &Map<String, Value>) -> Result<String, ApiError> {
    match present(fields, "model") {
        None => Err(ApiError::missing("model")),
        Some(Value::String(model)) => Ok(model.clone()),
        Some(_) => Err(ApiError::invalid_value("model", "'model' must be a string.")),
    }
}

fn boolean(fields: &Map<String, Value>, name: &str) -> Result<Option<bool>, ApiError> {
    present(fields, name)
        .map(|value| {
            value
                .as_bool()
                .ok_or_else(|| ApiError::invalid_value(name, format!("'{name}' must be true or false.")))
        })
        .transpose()
}

fn number(fields: &Map<String, Value>, name: &str, min: f64, max: f64) -> Result<Option<f32>, ApiError> {
    present(fields, name)
        .map(|value| {
            value
                .as_f64()
                .filter(|number| (min..=max).contains(number))
                .map(|number| number as f32)
                .ok_or_else(|| {
                    ApiError::invalid_value(name, format!("'{name}' must be a number from {min} to {max}."))
                })
        })
        .transpose()
}

fn positive(fields: &Map<String, Value>, name: &str) -> Result<Option<usize>, ApiError> {
    present(fields, name)
        .map(|value| {
            value
                .as_u64()
                .filter(|number| *number >= 1)
                .map(|number| usize::try_from(number).unwrap_or(usize::MAX))
                .ok_or_else(|| {
                    ApiError::invalid_value(name, format!("'{name}' must be an integer of at least 1."))
                })
        })
        .transpose()
}

fn parse_top_k(fields: &Map<String, Value>) -> Result<Option<u32>, ApiError> {
    present(fields, "top_k")
        .map(|value| match value.as_i64() {
            // Other servers write "no limit" as -1.
            Some(-1) => Ok(0),
            Some(top_k) => u32::try_from(top_k).ok().ok_or(()),
            None => Err(()),
        })
        .transpose()
        .map_err(|()| {
            ApiError::invalid_value("top_k", "'top_k' must be a positive integer, or 0 for no limit.")
        })
}

fn parse_priority(fields: &Map<String, Value>) -> Result<i32, ApiError> {
    let Some(value) = present(fields, "priority") else {
        return Ok(0);
    };
    let priority = value.as_i64().and_then(|priority| i32::try_from(priority).ok());
    priority.ok_or_else(|| ApiError::invalid_value("priority", "'priority' must be a 32-bit integer."))
}

fn parse_seed(fields: &Map<String, Value>) -> Result<Option<u64>, ApiError> {
    present(fields, "seed")
        .map(|value| {
            value
                .as_u64()
                .or_else(|| value.as_i64().map(i64::cast_unsigned))
                .ok_or_else(|| ApiError::invalid_value("seed", "'seed' must be a 64-bit integer."))
        })
        .transpose()
}

fn parse_stop(fields: &Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let invalid = || {
        ApiError::invalid_value(
            "stop",
            format!(
                "'stop' must be a string or a list of at most {MAX_STOP_STRINGS} strings, none empty or longer than {MAX_STOP_BYTES} bytes."
            ),
        )
    };
    let stops = match present(fields, "stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => stops
            .iter()
            .map(|stop| stop.as_str().map(str::to_owned).ok_or_else(invalid))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(invalid()),
    };
    let fits = |stop: &String| !stop.is_empty() && stop.len() <= MAX_STOP_BYTES;
    if stops.len() > MAX_STOP_STRINGS || !stops.iter().all(fits) {
        return Err(invalid());
    }
    Ok(stops)
}

fn parse_include_usage(fields: &Map<String, Value>, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = present(fields, "stream_options") else {
        return Ok(false);
    };
    let options = value
        .as_object()
        .ok_or_else(|| ApiError::invalid_value("stream_options", "'stream_options' must be an object."))?;
    if !stream {
        return Err(ApiError::invalid_value(
            "stream_options",
            "'stream_options' is only allowed when 'stream' is true.",
        ));
    }
    for (name, value) in options {
        let param = format!("stream_options.{name}");
        match (name.as_str(), value) {
            ("include_usage", Value::Bool(_) | Value::Null) => {}
            ("include_obfuscation", Value::Bool(false) | Value::Null) => {}
            ("include_usage", _) => {
                return Err(ApiError::invalid_value(
                    &param,
                    format!("'{param}' must be true or false."),
                ));
            }
            ("include_obfuscation", _) => {
                return Err(ApiError::unsupported(
                    &param,
                    format!("'{param}' is not supported by this server."),
                ));
            }
            (_, _) => return Err(ApiError::unknown_parameter(&param)),
        }
    }
    Ok(options
        .get("include_usage")
        .and_then(Value::as_bool)
        .unwrap_or(false))
}

fn parse_prompts(fields: &Map<String, Value>) -> Result<Vec<Prompt>, ApiError> {
    let invalid = || {
        ApiError::invalid_value(
            "prompt",
            format!(
                "'prompt' must be a string, a list of token ids, or a list of at most {MAX_PROMPTS} of these."
            ),
        )
    };
    let tokens = |ids: &[Value]| {
        ids.iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<Vec<u32>>>()
    };
    match present(fields, "prompt") {
        None => Err(ApiError::missing("prompt")),
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text.clone())]),
        Some(Value::Array(list)) if list.iter().any(Value::is_number) => {
            Ok(vec![Prompt::Tokens(tokens(list).ok_or_else(invalid)?)])
        }
        Some(Value::Array(list)) if !list.is_empty() && list.len() <= MAX_PROMPTS => list
            .iter()
            .map(|prompt| match prompt {
                Value::String(text) => Ok(Prompt::Text(text.clone())),
                Value::Array(ids) => Ok(Prompt::Tokens(tokens(ids).ok_or_else(invalid)?)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(invalid()),
            })
            .collect(),
        Some(_) => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::openai::error::ErrorCode;

    fn chat(extra: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        ChatRequest::parse(body.to_string().as_bytes())
    }

    fn text(prompt: Value) -> Result<Vec<Prompt>, ApiError> {
        TextRequest::parse(json!({"model": "m", "prompt": prompt}).to_string().as_bytes()).map(|r| r.prompts)
    }

    #[test]
    fn a_full_request() {
        let request = chat(json!({
            "max_tokens": 5, "max_completion_tokens": 7, "stop": ["a", "b"], "temperature": 0.5, "top_p": 0.9,
            "top_k": -1, "seed": -1, "priority": -2, "stream": true, "stream_options": {"include_usage": true}, "user": "u",
            "n": 1, "tools": [], "logprobs": false, "presence_penalty": 0.0, "response_format": {"type": "text"},
            "logit_bias": null, "tool_choice": "auto"
        }))
        .unwrap();
        assert_eq!(
            request.options,
            Options {
                max_tokens: Some(7),
                stop: vec!["a".to_owned(), "b".to_owned()],
                temperature: Some(0.5),
                top_p: Some(0.9),
                top_k: Some(0),
                seed: Some(u64::MAX),
                priority: -2,
                stream: true,
                include_usage: true,
            }
        );
    }

    #[test]
    fn refusals_name_the_parameter() {
        let cases = [
            (
                json!({"tools": [{"type": "function"}]}),
                "tools",
                ErrorCode::UnsupportedParameter,
            ),
            (json!({"n": 2}), "n", ErrorCode::UnsupportedParameter),
            (
                json!({"logprobs": true}),
                "logprobs",
                ErrorCode::UnsupportedParameter,
            ),
            (
                json!({"response_format": {"type": "json_object"}}),
                "response_format",
                ErrorCode::UnsupportedParameter,
            ),
            (
                json!({"presence_penalty": 0.1}),
                "presence_penalty",
                ErrorCode::UnsupportedParameter,
            ),
            (
                json!({"temprature": 1}),
                "temprature",
                ErrorCode::UnknownParameter,
            ),
            (
                json!({"temperature": 2.5}),
                "temperature",
                ErrorCode::InvalidValue,
            ),
            (
                json!({"temperature": "hot"}),
                "temperature",
                ErrorCode::InvalidValue,
            ),
            (json!({"top_p": -0.1}), "top_p", ErrorCode::InvalidValue),
            (json!({"top_k": -2}), "top_k", ErrorCode::InvalidValue),
            (json!({"max_tokens": 0}), "max_tokens", ErrorCode::InvalidValue),
            (json!({"max_tokens": 1.5}), "max_tokens", ErrorCode::InvalidValue),
            (json!({"stop": 5}), "stop", ErrorCode::InvalidValue),
            (json!({"stop": [""]}), "stop", ErrorCode::InvalidValue),
            (
                json!({"stop": ["a", "b", "c", "d", "e"]}),
                "stop",
                ErrorCode::InvalidValue,
            ),
            (json!({"seed": 1.5}), "seed", ErrorCode::InvalidValue),
            (
                json!({"priority": 1_u64 << 31}),
                "priority",
                ErrorCode::InvalidValue,
            ),
            (json!({"stream": "yes"}), "stream", ErrorCode::InvalidValue),
            (
                json!({"stream_options": {}}),
                "stream_options",
                ErrorCode::InvalidValue,
            ),
            (
                json!({"stream": true, "stream_options": {"usage": true}}),
                "stream_options.usage",
                ErrorCode::UnknownParameter,
            ),
            (json!({"model": null}), "model", ErrorCode::MissingParameter),
            (json!({"messages": []}), "messages", ErrorCode::InvalidValue),
            (json!({"messages": null}), "messages", ErrorCode::MissingParameter),
            (
                json!({"messages": ["hi"]}),
                "messages[0]",
                ErrorCode::InvalidValue,
            ),
            (
                json!({"messages": [{"role": "robot", "content": ""}]}),
                "messages[0].role",
                ErrorCode::InvalidValue,
            ),
            (
                json!({"messages": [{"role": "user"}]}),
                "messages[0].content",
                ErrorCode::InvalidValue,
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}]}),
                "messages[0].content[0].type",
                ErrorCode::UnsupportedParameter,
            ),
        ];
        for (extra, param, code) in cases {
            let err = chat(extra.clone()).unwrap_err();
            assert_eq!(
                (err.param.as_deref(), err.code, err.status.as_u16()),
                (Some(param), Some(code), 400),
                "{extra}"
            );
        }
    }

    #[test]
    fn empty_stream_options_are_accepted() {
        let request = chat(json!({"stream": true, "stream_options": {}})).unwrap();
        assert!(request.options.stream && !request.options.include_usage);
    }

    #[test]
    fn prompts_in_all_shapes() {
        let words = |texts: &[&str]| {
            texts
                .iter()
                .map(|t| Prompt::Text((*t).to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(text(json!("a")).unwrap(), words(&["a"]));
        assert_eq!(text(json!(["a"])).unwrap(), words(&["a"]));
        assert_eq!(text(json!(["a", "b"])).unwrap(), words(&["a", "b"]));
        assert_eq!(text(json!([1, 2])).unwrap(), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(
            text(json!([[1], [2]])).unwrap(),
            [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])]
        );
        for wrong in [
            json!([]),
            json!(5),
            json!([1, "a"]),
            json!([-1]),
            json!([{}]),
            json!([1.5]),
        ] {
            assert_eq!(
                text(wrong.clone()).unwrap_err().param.as_deref(),
                Some("prompt"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_body_that_is_no_object() {
        for body in ["", "{", "[]", "\"a\"", "{\"model\": \"\u{0}\"}"] {
            assert_eq!(
                ChatRequest::parse(body.as_bytes()).unwrap_err().code,
                Some(ErrorCode::InvalidJson),
                "{body}"
            );
        }
        assert_eq!(
            ChatRequest::parse(b"\xff").unwrap_err().code,
            Some(ErrorCode::InvalidJson)
        );
    }
}
