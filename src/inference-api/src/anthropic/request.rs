//! `POST /v1/messages` and `/v1/messages/count_tokens`: supported parameters and their conversion
//! to a chat request.

use serde_json::{Value, json};

use super::error::THREAD;
use super::message;
use crate::openai::ApiError;
use crate::openai::json::{Json, Members};
use crate::openai::message::ends_with_assistant;
use crate::openai::request::fields::Fields;
use crate::openai::request::ignored::IgnoredFields;
use crate::openai::request::stopping::{MAX_STOP_STRINGS, parse_strings};
use crate::openai::request::{ChatRequest, Options, parse_model, template};
use crate::openai::response_format::{ContentFormat, ResponseFormat};
use crate::openai::tools;
use crate::openai::tools::Tools;

/// Parameters with objects whose member order is relevant.
const ORDERED: &[&str] = &["messages", "output_config", "output_format", "system", "tools"];

/// Supported parameters: Anthropic's, then rooflet's.
const SUPPORTED: &[&str] = &[
    "max_tokens",
    "model",
    "stop_sequences",
    "stream",
    "temperature",
    "thinking",
    "tool_choice",
    "top_k",
    "top_p",
    "cache_salt",
    "priority",
    "seed",
];

/// Ignored parameters: accounting and caching hints, which do not change the answer.
/// `context_management` permits to shorten the prompt, which rooflet never does.
const IGNORED: &[&str] = &[
    "cache_control",
    "context_management",
    "inference_geo",
    "metadata",
    "service_tier",
];

/// Known parameters that are not supported.
const UNSUPPORTED: &[&str] = &[
    "container",
    "diagnostics",
    "mcp_servers",
    "speed",
    "user_profile_id",
    THREAD,
];

/// Request of both endpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct MessagesRequest {
    pub chat: ChatRequest,
}

impl MessagesRequest {
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let request = Self::parse_countable(body)?;
        match request.chat.options.max_tokens {
            Some(_) => Ok(request),
            None => Err(ApiError::missing("max_tokens")),
        }
    }

    /// Parses a request of `count_tokens`, in which `max_tokens` is optional.
    pub fn parse_countable(body: &[u8]) -> Result<Self, ApiError> {
        let (mut ordered, mut fields) = Fields::split(body, ORDERED)?;
        let ignored = IgnoredFields::take_from(&mut fields);
        check_parameters(&fields)?;
        let mut options = Options::parse(&fields, 1)?;
        options.ignored = ignored;
        fields.read("stop_sequences", "a list of strings", Value::as_array)?;
        options.stopping.strings = parse_strings(&fields, "stop_sequences", MAX_STOP_STRINGS)?;
        let output = Output::parse(ordered.remove("output_config"), ordered.remove("output_format"))?;
        options.format = output.format;
        let (template_variables, thinking_tokens) = parse_thinking(&fields, output.effort)?;
        options.thinking_tokens = thinking_tokens;
        let messages = message::messages(ordered.remove("system"), ordered.remove("messages"))?;
        Ok(Self {
            chat: ChatRequest {
                model: parse_model(&fields)?,
                // Anthropic's prefilling: the answer continues the last message.
                continues: ends_with_assistant(&messages),
                messages,
                template: None,
                template_variables,
                tools: parse_tools(ordered.remove("tools"), &fields)?,
                n: 1,
                options,
            },
        })
    }
}

fn check_parameters(fields: &Fields) -> Result<(), ApiError> {
    for name in IGNORED {
        match *name {
            "inference_geo" | "service_tier" => drop(fields.text(name)?),
            name => drop(fields.read(name, "an object", Value::as_object)?),
        }
    }
    fields.check_names(&[SUPPORTED, IGNORED], UNSUPPORTED, |_, value| {
        value.is_null() || *value == json!([])
    })
}

/// Requested format of the answer and reasoning effort.
#[derive(Default)]
struct Output {
    format: Option<ResponseFormat>,
    effort: Option<String>,
}

impl Output {
    fn parse(config: Option<Json>, format: Option<Json>) -> Result<Self, ApiError> {
        let mut output = Self {
            format: parse_format("output_format", format.as_ref())?,
            effort: None,
        };
        let Some(config) = config.filter(|config| *config != Json::Null) else {
            return Ok(output);
        };
        let members = config
            .as_object()
            .ok_or_else(|| ApiError::invalid_value("output_config", "'output_config' must be an object."))?;
        for (name, value) in members.iter() {
            match name {
                "format" => {
                    output.format = parse_format("output_config.format", Some(value))?.or(output.format)
                }
                "effort" => output.effort = Some(parse_effort(value)?),
                name => return Err(ApiError::unknown_parameter(&format!("output_config.{name}"))),
            }
        }
        Ok(output)
    }
}

fn parse_format(param: &str, format: Option<&Json>) -> Result<Option<ResponseFormat>, ApiError> {
    let Some(format) = format.filter(|format| **format != Json::Null) else {
        return Ok(None);
    };
    let schema = format.get("schema").filter(|schema| schema.as_object().is_some());
    match (format.get("type").and_then(Json::as_str), schema) {
        (Some("json_schema"), Some(schema)) => Ok(Some(ResponseFormat {
            content: ContentFormat::Schema(schema.clone()),
            param: format!("{param}.schema"),
        })),
        _ => Err(ApiError::invalid_value(
            param,
            format!("'{param}' must be {{\"type\": \"json_schema\", \"schema\": {{…}}}}."),
        )),
    }
}

/// Converts the effort to OpenAI's values, which templates expect.
fn parse_effort(value: &Json) -> Result<String, ApiError> {
    match value.as_str() {
        Some(effort @ ("low" | "medium" | "high" | "xhigh")) => Ok(effort.to_owned()),
        Some("max") => Ok("xhigh".to_owned()),
        Some(_) | None => Err(ApiError::invalid_value(
            "output_config.effort",
            "'output_config.effort' must be one of low, medium, high, xhigh and max.",
        )),
    }
}

/// Parses reasoning parameters into template variables and the maximum number of reasoning tokens.
fn parse_thinking(fields: &Fields, effort: Option<String>) -> Result<(Members, Option<usize>), ApiError> {
    let thinking = fields.read("thinking", "an object", Value::as_object)?;
    let kind = thinking.and_then(|thinking| thinking.get("type"));
    let mut words = Fields::default();
    match (thinking, kind.and_then(Value::as_str)) {
        (None, _) => {}
        (Some(_), Some("enabled" | "adaptive")) => {
            words.insert("enable_thinking".to_owned(), json!(true));
        }
        (Some(_), Some("disabled")) => words.insert("enable_thinking".to_owned(), json!(false)),
        (Some(_), _) => {
            return Err(ApiError::invalid_value(
                "thinking.type",
                "'thinking.type' must be one of enabled, adaptive and disabled.",
            ));
        }
    }
    if let Some(effort) = effort {
        words.insert("reasoning_effort".to_owned(), json!(effort));
    }
    let budget = thinking.and_then(|thinking| thinking.get("budget_tokens"));
    let budget = budget.filter(|budget| !budget.is_null());
    let tokens = budget.map(|budget| {
        let tokens = budget.as_u64().and_then(|tokens| usize::try_from(tokens).ok());
        tokens.filter(|tokens| *tokens > 0).ok_or_else(|| {
            let message = "'thinking.budget_tokens' must be an integer of at least 1.";
            ApiError::invalid_value("thinking.budget_tokens", message)
        })
    });
    Ok((template::parse_variables(None, &words)?, tokens.transpose()?))
}

fn parse_tools(listed: Option<Json>, fields: &Fields) -> Result<Option<Tools>, ApiError> {
    let nested = match listed {
        Some(Json::Array(tools)) => {
            for (index, tool) in tools.iter().enumerate() {
                match tool.get("type").and_then(Json::as_str) {
                    None | Some("custom") => {}
                    Some(kind) => {
                        let param = format!("tools[{index}].type");
                        let message =
                            format!("'{param}' is '{kind}': this server does not run server-side tools.");
                        return Err(ApiError::unsupported(&param, message));
                    }
                }
            }
            let nested = tools.iter().map(|tool| tools::nested(tool, "input_schema"));
            Some(Json::Array(nested.collect()))
        }
        other => other,
    };
    let invalid = || {
        ApiError::invalid_value(
            "tool_choice",
            "'tool_choice' must be {\"type\": \"auto\"}, {\"type\": \"any\"}, {\"type\": \"none\"} or {\"type\": \"tool\", \"name\": …}.",
        )
    };
    let choice = fields.read("tool_choice", "an object", Value::as_object)?;
    let word = |name: &str| choice.and_then(|choice| choice.get(name));
    let openai = match (choice, word("type").and_then(Value::as_str)) {
        (None, _) => None,
        (Some(_), Some("auto")) => Some(json!("auto")),
        (Some(_), Some("any")) => Some(json!("required")),
        (Some(_), Some("none")) => Some(json!("none")),
        (Some(_), Some("tool")) => {
            let name = word("name").and_then(Value::as_str).ok_or_else(invalid)?;
            Some(json!({"type": "function", "function": {"name": name}}))
        }
        (Some(_), _) => return Err(invalid()),
    };
    let one = match word("disable_parallel_tool_use") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(one)) => Some(!one),
        Some(Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            let param = "tool_choice.disable_parallel_tool_use";
            return Err(ApiError::invalid_value(
                param,
                format!("'{param}' must be true or false."),
            ));
        }
    };
    let names = [(".function.parameters", ".input_schema"), (".function.", ".")];
    Tools::parse(nested, openai.as_ref(), one).map_err(|err| err.renamed(&names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::openapi::properties_of;
    use crate::openai::tools::ToolChoice;

    fn parse(extra: Value) -> Result<ChatRequest, String> {
        let mut body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        let request = MessagesRequest::parse(body.to_string().as_bytes());
        Ok(request.map_err(|err| err.param.unwrap_or_default())?.chat)
    }

    #[test]
    fn converts_request_to_chat_request() {
        let chat = parse(json!({
            "system": "Be terse.", "stop_sequences": ["a", "b"], "temperature": 0.5, "top_k": 3, "stream": true,
            "metadata": {"user_id": "x"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
        }))
        .unwrap();
        assert_eq!((chat.messages.len(), chat.continues), (2, false));
        assert_eq!(
            chat.template_variables.get("enable_thinking"),
            Some(&Json::Bool(true))
        );
        let tools = chat.tools.unwrap();
        assert_eq!(
            (tools.choice, tools.parallel),
            (ToolChoice::Function("f".to_owned()), false)
        );
        assert_eq!(
            serde_json::to_value(&tools.listed).unwrap(),
            json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}])
        );
        assert_eq!(
            (chat.options.max_tokens, chat.options.stopping.strings.len()),
            (Some(9), 2)
        );
        let prefilled =
            json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I"}]});
        assert!(parse(prefilled).unwrap().continues);
        let config =
            json!({"effort": "max", "format": {"type": "json_schema", "schema": {"type": "integer"}}});
        let chat = parse(json!({"output_config": config})).unwrap();
        assert_eq!(chat.options.format.unwrap().param, "output_config.format.schema");
        assert_eq!(
            chat.template_variables.get("reasoning_effort"),
            Some(&"xhigh".into())
        );
    }

    #[test]
    fn openapi_document_lists_all_parameters() {
        let names = [ORDERED, SUPPORTED, IGNORED].concat();
        assert_eq!(
            properties_of("MessagesRequest"),
            names.into_iter().map(str::to_owned).collect()
        );
    }

    #[test]
    fn errors_name_the_parameter_of_this_api() {
        for (extra, param) in [
            (json!({"max_tokens": null}), "max_tokens"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"stop": "a"}), "stop"),
            (json!({"stop_sequences": [""]}), "stop_sequences"),
            (json!({"stop_sequences": "a"}), "stop_sequences"),
            (json!({"metadata": "x"}), "metadata"),
            (json!({"service_tier": {}}), "service_tier"),
            (json!({"cache_control": true}), "cache_control"),
            (json!({"context_management": []}), "context_management"),
            (json!({"container": "x"}), "container"),
            (json!({"thinking": {"type": "much"}}), "thinking.type"),
            (
                json!({"tools": [{"type": "web_search_20250305", "name": "w"}]}),
                "tools[0].type",
            ),
            (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
            (
                json!({"tools": [{"name": "f", "input_schema": 1}]}),
                "tools[0].input_schema",
            ),
            (json!({"tool_choice": "auto"}), "tool_choice"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
            (
                json!({"output_config": {"effort": "most"}}),
                "output_config.effort",
            ),
        ] {
            assert_eq!(parse(extra.clone()).unwrap_err(), param, "{extra}");
        }
    }
}
