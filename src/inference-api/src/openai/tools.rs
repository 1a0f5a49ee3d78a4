//! `tools`, `tool_choice` and `parallel_tool_calls` of a chat request.

use serde_json::Value;

use super::error::ApiError;
use super::json::{Json, Members};

/// Parameters of this module, besides `tools`, whose member order is relevant.
pub(super) const NAMES: &[&str] = &["tool_choice", "parallel_tool_calls"];

/// Limit of OpenAI's API.
const MAX_TOOLS: usize = 128;
/// Limit of Anthropic's API. OpenAI's limit of 64 is too small for names with a namespace.
const MAX_NAME_CHARS: usize = 128;

/// Converts a tool with the function's members next to its type to the form of chat templates, in
/// which they are in `function`. `schema` is the name of the member with the arguments' schema.
pub fn nested(tool: &Json, schema: &str) -> Json {
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
pub struct Tools {
    /// All tools in their original form, for the chat template. Tools that must not be called are
    /// included, so that prompts share their prefix.
    pub listed: Vec<Json>,
    /// Functions that may be called.
    pub functions: Vec<Function>,
    pub choice: ToolChoice,
    /// True if an answer may have more than one call.
    pub parallel: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    pub name: String,
    /// JSON Schema of the arguments.
    pub parameters: Option<Json>,
    /// True if the arguments of every call must match the schema.
    pub strict: bool,
}

/// Choice of the called functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    Auto,
    /// At least one call.
    Required,
    /// A call of this function.
    Function(String),
}

/// Parsed `tool_choice`.
enum Choice {
    None,
    Some(ToolChoice),
    /// Only these functions.
    Among(Vec<String>, ToolChoice),
}

impl Tools {
    /// Parses the parameters. `None` if no function may be called.
    pub fn parse(
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
                format!("'tools' must contain at most {MAX_TOOLS} tools."),
            ));
        }
        let mut functions = listed
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
            Choice::Among(names, choice) => {
                functions.retain(|function| names.contains(&function.name));
                choice
            }
        };
        if functions.is_empty() {
            return match choice {
                ToolChoice::Auto => Ok(None),
                ToolChoice::Required | ToolChoice::Function(_) => Err(ApiError::invalid_value(
                    "tool_choice",
                    "'tool_choice' requires a call, but 'tools' has no callable function.",
                )),
            };
        }
        Ok(Some(Self {
            listed,
            functions,
            parallel: match &choice {
                ToolChoice::Auto | ToolChoice::Required => parallel.unwrap_or(true),
                ToolChoice::Function(_) => false,
            },
            choice,
        }))
    }

    /// Returns the index of a function in the request.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        let named = |tool: &Json| {
            let function = tool.get("function");
            function.is_some_and(|function| function.get("name").and_then(Json::as_str) == Some(name))
        };
        self.listed.iter().position(named)
    }

    /// Returns true if an answer must have calls, or if calls are limited to some functions or to
    /// their schemas.
    pub fn is_constrained(&self) -> bool {
        self.choice != ToolChoice::Auto
            || self.functions.len() < self.listed.len()
            || self.functions.iter().any(|function| function.strict)
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
            let message = format!("'{param}' is '{kind}': this server supports only functions.");
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

/// Returns true unless `type` excludes objects.
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
            "'tool_choice' must be 'none', 'auto', 'required', {\"type\": \"function\", \"function\": {\"name\": …}} or {\"type\": \"allowed_tools\", …}.",
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
    match choice.get("type").and_then(Value::as_str) {
        Some("function") => {}
        Some("allowed_tools") => return parse_allowed(choice, functions),
        Some(_) | None => return Err(invalid()),
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

/// Parses `{"type": "allowed_tools", "mode": …, "tools": […]}`. In chat requests, `mode` and
/// `tools` are nested in another object.
fn parse_allowed(choice: &Value, functions: &[Function]) -> Result<Choice, ApiError> {
    let (at, allowed) = match choice.get("allowed_tools") {
        Some(allowed) => ("tool_choice.allowed_tools", allowed),
        None => ("tool_choice", choice),
    };
    let invalid = |field: &str, expected: &str| {
        let param = format!("{at}.{field}");
        ApiError::invalid_value(&param, format!("'{param}' must be {expected}."))
    };
    let mode = match allowed.get("mode").and_then(Value::as_str) {
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        Some(_) | None => return Err(invalid("mode", "'auto' or 'required'")),
    };
    let tools = allowed.get("tools").and_then(Value::as_array);
    let tools = tools.filter(|tools| !tools.is_empty());
    let tools = tools.ok_or_else(|| invalid("tools", "a list of at least one function of 'tools'"))?;
    let mut names = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let field = format!("tools[{index}]");
        let is_function = tool.get("type").and_then(Value::as_str) == Some("function");
        let name = tool.get("function").unwrap_or(tool).get("name");
        let name = name.and_then(Value::as_str).filter(|_| is_function);
        let name = name.ok_or_else(|| invalid(&field, "a function of 'tools', by its type and name"))?;
        if !functions.iter().any(|function| function.name == name) {
            let param = format!("{at}.{field}");
            let message = format!("'{param}' names the function '{name}', which is not in 'tools'.");
            return Err(ApiError::invalid_value(&param, message));
        }
        names.push(name.to_owned());
    }
    Ok(Choice::Among(names, mode))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(choice: Value, parallel: Option<bool>) -> Result<Tools, (String, String)> {
        let function = |name: &str| json!({"type": "function", "function": {"name": name}});
        let tools = json!([function("x"), function("y"), function("z")]);
        let tools = serde_json::from_str(&tools.to_string()).unwrap();
        Tools::parse(Some(tools), Some(&choice), parallel)
            .map(Option::unwrap)
            .map_err(|err| (err.param.unwrap_or_default(), err.message))
    }

    fn allowed(mode: Value, names: &[&str]) -> Value {
        let tools: Vec<Value> = names
            .iter()
            .map(|name| json!({"type": "function", "function": {"name": name}}))
            .collect();
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    }

    /// As in OpenAI's API.
    #[test]
    fn named_function_is_called_once() {
        for (choice, parallel, several) in [
            (
                json!({"type": "function", "function": {"name": "y"}}),
                None,
                false,
            ),
            (
                json!({"type": "function", "function": {"name": "y"}}),
                Some(true),
                false,
            ),
            (json!("required"), None, true),
            (json!("required"), Some(false), false),
            (json!("auto"), None, true),
            (allowed(json!("required"), &["y"]), None, true),
        ] {
            assert_eq!(
                parse(choice.clone(), parallel).unwrap().parallel,
                several,
                "{choice}"
            );
        }
    }

    #[test]
    fn allowed_tools_limit_callable_functions() {
        let flat = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "y"}]});
        for (choice, word, names) in [
            (
                allowed(json!("required"), &["y"]),
                ToolChoice::Required,
                &["y"][..],
            ),
            (flat, ToolChoice::Required, &["y"]),
            (
                allowed(json!("auto"), &["z", "x", "z"]),
                ToolChoice::Auto,
                &["x", "z"],
            ),
        ] {
            let tools = parse(choice.clone(), None).unwrap();
            let own: Vec<&str> = tools.functions.iter().map(|function| &*function.name).collect();
            assert_eq!((own, &tools.choice), (names.to_vec(), &word), "{choice}");
            assert_eq!(tools.listed.len(), 3, "the prompt contains all tools");
            assert!(tools.is_constrained(), "{choice}");
            let indices: Vec<Option<usize>> = names.iter().map(|name| tools.index_of(name)).collect();
            assert!(
                indices
                    .iter()
                    .zip(names)
                    .all(|(index, name)| *index == ["x", "y", "z"].iter().position(|own| own == name))
            );
        }
        let all = parse(allowed(json!("auto"), &["x", "y", "z"]), None).unwrap();
        assert!(!all.is_constrained());
        let other = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp", "server_label": "y"}]}});
        let flat =
            json!({"type": "allowed_tools", "mode": "any", "tools": [{"type": "function", "name": "y"}]});
        for (choice, param, word) in [
            (
                allowed(json!("none"), &["y"]),
                "tool_choice.allowed_tools.mode",
                "'auto' or 'required'",
            ),
            (
                allowed(json!(null), &["y"]),
                "tool_choice.allowed_tools.mode",
                "'auto' or 'required'",
            ),
            (flat, "tool_choice.mode", "'auto' or 'required'"),
            (
                allowed(json!("auto"), &[]),
                "tool_choice.allowed_tools.tools",
                "at least one",
            ),
            (
                allowed(json!("auto"), &["x", "w"]),
                "tool_choice.allowed_tools.tools[1]",
                "'w', which is not in 'tools'",
            ),
            (
                other,
                "tool_choice.allowed_tools.tools[0]",
                "a function of 'tools'",
            ),
            (
                json!({"type": "allowed_tools"}),
                "tool_choice.mode",
                "'auto' or 'required'",
            ),
        ] {
            let (own, message) = parse(choice.clone(), None).unwrap_err();
            assert_eq!(own, param, "{choice}");
            assert!(message.contains(word) && message.contains(param), "{message}");
        }
    }
}
