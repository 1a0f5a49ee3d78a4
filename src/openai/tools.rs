//! `tools`, `tool_choice` and `parallel_tool_calls` of a chat request.

use serde_json::Value;

use super::error::ApiError;
use super::json::{Json, Members};

/// The parameters that are read here, besides `tools`, whose members' order counts.
pub(super) const NAMES: &[&str] = &["tool_choice", "parallel_tool_calls"];

/// OpenAI's own limit.
const MAX_TOOLS: usize = 128;
/// Anthropic's; OpenAI's 64 are too few for names that begin with a namespace's.
const MAX_NAME_CHARS: usize = 128;

/// A tool of an API that writes its function's members beside its type, `schema` being those arguments' schema, as chat
/// templates and this module know it.
pub(crate) fn nested(tool: &Json, schema: &str) -> Json {
    let mut function = Members::default();
    for (own, there) in [
        ("name", "name"),
        ("description", "description"),
        (schema, "parameters"),
        ("strict", "strict"),
    ] {
        if let Some(value) = tool.get(own).filter(|value| **value != Json::Null) {
            function.insert(there, value.clone());
        }
    }
    Json::Object(Members::new([
        ("type", "function".into()),
        ("function", Json::Object(function)),
    ]))
}

/// Functions that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tools {
    /// As they came, for the chat template.
    pub(crate) listed: Vec<Json>,
    pub(crate) functions: Vec<Function>,
    pub(crate) choice: ToolChoice,
    /// More than one call in an answer.
    pub(crate) parallel: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// JSON Schema of the arguments.
    pub(crate) parameters: Option<Json>,
    /// Arguments of every call fit the schema.
    pub(crate) strict: bool,
}

/// Whether to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    Auto,
    /// At least one.
    Required,
    /// This one.
    Function(String),
}

/// What `tool_choice` says.
enum Choice {
    None,
    Some(ToolChoice),
}

impl Tools {
    /// `None`: there is nothing to call.
    pub(crate) fn parse(
        tools: Option<Json>,
        choice: Option<&Value>,
        parallel: Option<bool>,
    ) -> Result<Option<Self>, ApiError> {
        let listed = match tools {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::Array(tools)) => tools,
            Some(Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_)) => {
                return Err(ApiError::invalid_value("tools", "'tools' must be a list."));
            }
        };
        if listed.len() > MAX_TOOLS {
            return Err(ApiError::invalid_value(
                "tools",
                format!("'tools' must hold at most {MAX_TOOLS} tools."),
            ));
        }
        let functions = listed
            .iter()
            .enumerate()
            .map(|(index, tool)| parse_function(index, tool))
            .collect::<Result<Vec<Function>, ApiError>>()?;
        let twice = functions.iter().enumerate().find(|(index, function)| {
            functions[..*index]
                .iter()
                .any(|earlier| earlier.name == function.name)
        });
        if let Some((index, function)) = twice {
            return Err(ApiError::invalid_value(
                &format!("tools[{index}].function.name"),
                format!("'tools' has two functions named '{}'.", function.name),
            ));
        }
        let choice = match parse_choice(choice, &functions)? {
            Choice::None => return Ok(None),
            Choice::Some(choice) => choice,
        };
        if functions.is_empty() {
            return match choice {
                ToolChoice::Auto => Ok(None),
                ToolChoice::Required | ToolChoice::Function(_) => Err(ApiError::invalid_value(
                    "tool_choice",
                    "'tool_choice' asks for a call, and 'tools' has nothing to call.",
                )),
            };
        }
        Ok(Some(Self {
            listed,
            functions,
            choice,
            parallel: parallel.unwrap_or(true),
        }))
    }

    /// Whether an answer is held to calls, or its calls to their schemas.
    pub(crate) fn constrain(&self) -> bool {
        self.choice != ToolChoice::Auto || self.functions.iter().any(|function| function.strict)
    }
}

fn parse_function(index: usize, tool: &Json) -> Result<Function, ApiError> {
    let invalid = |field: &str, expected: &str| {
        let param = format!("tools[{index}]{field}");
        ApiError::invalid_value(&param, format!("'{param}' must be {expected}."))
    };
    match tool.get("type").and_then(Json::as_str) {
        Some("function") => {}
        Some(kind) => {
            let param = format!("tools[{index}].type");
            let message = format!("'{param}' is '{kind}': this server knows only functions.");
            return Err(ApiError::unsupported(&param, message));
        }
        None => return Err(invalid(".type", "'function'")),
    }
    let function = tool
        .get("function")
        .filter(|function| function.as_object().is_some());
    let function = function.ok_or_else(|| invalid(".function", "an object"))?;
    let is_name = |name: &&str| {
        let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        !name.is_empty() && name.len() <= MAX_NAME_CHARS && name.chars().all(usual)
    };
    let name = function.get("name").and_then(Json::as_str).filter(is_name);
    let name = name.ok_or_else(|| {
        let expected = format!("a name of 1 to {MAX_NAME_CHARS} letters, digits, '_', '-' and '.'");
        invalid(".function.name", &expected)
    })?;
    let parameters = match function.get("parameters") {
        None | Some(Json::Null) => None,
        Some(schema @ Json::Object(_)) if may_be_object(schema) => Some(schema.clone()),
        Some(Json::Object(_)) => {
            let expected = "a JSON Schema of type 'object': arguments are always an object";
            return Err(invalid(".function.parameters", expected));
        }
        Some(Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_)) => {
            return Err(invalid(".function.parameters", "a JSON Schema object"));
        }
    };
    let strict = match function.get("strict") {
        None | Some(Json::Null) => false,
        Some(Json::Bool(strict)) => *strict,
        Some(Json::Number(_) | Json::String(_) | Json::Array(_) | Json::Object(_)) => {
            return Err(invalid(".function.strict", "true or false"));
        }
    };
    Ok(Function {
        name: name.to_owned(),
        parameters,
        strict,
    })
}

/// As far as `type` says it.
fn may_be_object(schema: &Json) -> bool {
    match schema.get("type") {
        Some(Json::String(kind)) => kind == "object",
        Some(Json::Array(kinds)) => kinds.iter().any(|kind| kind.as_str() == Some("object")),
        None | Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_)) => true,
    }
}

fn parse_choice(choice: Option<&Value>, functions: &[Function]) -> Result<Choice, ApiError> {
    let invalid = || {
        ApiError::invalid_value(
            "tool_choice",
            "'tool_choice' must be 'none', 'auto', 'required' or {\"type\": \"function\", \"function\": {\"name\": …}}.",
        )
    };
    let Some(choice) = choice.filter(|choice| !choice.is_null()) else {
        return Ok(Choice::Some(ToolChoice::Auto));
    };
    if let Some(word) = choice.as_str() {
        return match word {
            "none" => Ok(Choice::None),
            "auto" => Ok(Choice::Some(ToolChoice::Auto)),
            "required" => Ok(Choice::Some(ToolChoice::Required)),
            _ => Err(invalid()),
        };
    }
    if choice.get("type").and_then(Value::as_str) != Some("function") {
        return Err(invalid());
    }
    let name = choice
        .get("function")
        .and_then(|function| function.get("name")?.as_str());
    let name = name.ok_or_else(invalid)?;
    if !functions.iter().any(|function| function.name == name) {
        return Err(ApiError::invalid_value(
            "tool_choice",
            format!("'tool_choice' names the function '{name}', which is not in 'tools'."),
        ));
    }
    Ok(Choice::Some(ToolChoice::Function(name.to_owned())))
}
