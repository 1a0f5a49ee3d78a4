//! Messages of a conversation: conversion from the client's form to that of chat templates.

pub mod calls;

use self::calls::CallError;
use super::error::ApiError;
use super::json::{Json, Members};

/// Maximum number of messages. Longer conversations exceed any context.
const MAX_MESSAGES: usize = 100_000;

/// Creates a user message.
pub fn user(text: &str) -> Json {
    with_role("user", text)
}

/// Creates a message with text content.
pub fn with_role(role: &str, text: &str) -> Json {
    Json::Object(Members::new([("role", role.into()), ("content", text.into())]))
}

/// Returns the content of a message, if it is a string.
pub fn text_of(message: &Json) -> Option<&str> {
    message.get("content").and_then(Json::as_str)
}

/// Creates the result of an earlier call.
pub(crate) fn call_result(call_id: &str, text: &str) -> Json {
    Json::Object(Members::new([
        ("role", "tool".into()),
        ("tool_call_id", call_id.into()),
        ("content", text.into()),
    ]))
}

/// Assistant turn that consists of several items.
#[derive(Debug, Default)]
pub struct AssistantTurn {
    content: String,
    reasoning: String,
    calls: Vec<Json>,
}

impl AssistantTurn {
    /// Appends text on a new line.
    pub(crate) fn add_text(&mut self, text: &str) {
        append_line(&mut self.content, text);
    }

    pub(crate) fn add_reasoning(&mut self, text: &str) {
        append_line(&mut self.reasoning, text);
    }

    pub fn add_call(&mut self, id: &str, name: &str, arguments: Json) {
        let function = Members::new([("name", name.into()), ("arguments", arguments)]);
        self.calls.push(Json::Object(Members::new([
            ("id", id.into()),
            ("type", "function".into()),
            ("function", Json::Object(function)),
        ])));
    }

    /// Returns `None` for an empty turn.
    pub fn into_message(self) -> Option<Json> {
        let Self {
            content,
            reasoning,
            calls,
        } = self;
        if content.is_empty() && reasoning.is_empty() && calls.is_empty() {
            return None;
        }
        let mut message = Members::new([("role", "assistant".into()), ("content", content.as_str().into())]);
        if !reasoning.is_empty() {
            message.insert("reasoning_content", reasoning.as_str().into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls", Json::Array(calls));
        }
        Some(Json::Object(message))
    }
}

/// Returns true if the last message is text of the assistant, which an answer can continue.
pub(crate) fn ends_with_assistant(messages: &[Json]) -> bool {
    let text = |message: &Json, name: &str| message.get(name).and_then(Json::as_str).map(str::to_owned);
    messages.last().is_some_and(|message| {
        text(message, "role").as_deref() == Some("assistant")
            && text(message, "content").is_some_and(|content| !content.trim().is_empty())
            && message.get("tool_calls").is_none()
    })
}

/// Appends text on a new line.
pub fn append_line(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

/// Parses the arguments of an earlier call to an object, as templates expect them.
pub fn parsed_arguments(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// Converts the parameter `messages` for a chat template: `content` becomes a string, and `role` is
/// one of system, user, assistant and tool.
pub(super) fn parse(messages: Option<Json>) -> Result<Vec<Json>, ApiError> {
    let messages = match messages {
        None | Some(Json::Null) => return Err(ApiError::missing("messages")),
        Some(Json::Array(messages)) => messages,
        Some(_) => return Err(ApiError::invalid_value("messages", "'messages' must be a list.")),
    };
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        return Err(ApiError::invalid_value(
            "messages",
            format!("'messages' must contain 1 to {MAX_MESSAGES} messages."),
        ));
    }
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| parse_message(index, message))
        .collect::<Result<Vec<Json>, ApiError>>()?;
    match calls::check(&messages) {
        Ok(()) => Ok(messages),
        Err(CallError::UnknownCall { index, id }) => {
            let param = format!("messages[{index}].tool_call_id");
            let message = format!(
                "'{param}' is '{id}', which is not in the 'tool_calls' of the preceding assistant message."
            );
            Err(ApiError::invalid_value(&param, message))
        }
        Err(CallError::MissingResult { index, ids }) => {
            let param = format!("messages[{index}].tool_calls");
            let message = format!(
                "'{param}' must be followed by one message of role 'tool' for each 'tool_call_id'. No message answers: {}.",
                ids.join(", ")
            );
            Err(ApiError::invalid_value(&param, message))
        }
    }
}

/// Index of a message, for error paths.
struct Place {
    index: usize,
}

impl Place {
    fn at(&self, field: &str) -> String {
        format!("messages[{}]{field}", self.index)
    }

    fn invalid(&self, field: &str, expected: &str) -> ApiError {
        let param = self.at(field);
        ApiError::invalid_value(&param, format!("'{param}' must be {expected}."))
    }

    fn missing(&self, field: &str) -> ApiError {
        ApiError::missing(&self.at(field))
    }

    /// Returns a required string member.
    fn text<'a>(&self, object: &'a Json, field: &str, name: &str) -> Result<&'a str, ApiError> {
        let field = format!("{field}.{name}");
        match object.get(name) {
            None | Some(Json::Null) => Err(self.missing(&field)),
            Some(Json::String(text)) => Ok(text),
            Some(Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_)) => {
                Err(self.invalid(&field, "a string"))
            }
        }
    }
}

fn parse_message(index: usize, whole: Json) -> Result<Json, ApiError> {
    let place = Place { index };
    let role = match whole.get("role").and_then(Json::as_str) {
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role.to_owned(),
        // OpenAI's newer name of the role; templates support only the old one.
        Some("developer") => "system".to_owned(),
        Some(_) => {
            return Err(place.invalid(".role", "one of system, developer, user, assistant and tool"));
        }
        None if whole.as_object().is_some() => return Err(place.missing(".role")),
        None => return Err(place.invalid("", "an object")),
    };
    let has = |name: &str| whole.get(name).is_some_and(|value| *value != Json::Null);
    if has("name") {
        place.text(&whole, "", "name")?;
    }
    if has("function_call") {
        let param = place.at(".function_call");
        let message = format!("'{param}' is not supported by this server: please use 'tool_calls'.");
        return Err(ApiError::unsupported(&param, message));
    }
    let calls = parse_calls(&place, &role, whole.get("tool_calls"))?;
    if role == "tool" {
        place.text(&whole, "", "tool_call_id")?;
    }
    let content = match whole.get("content").filter(|content| **content != Json::Null) {
        Some(content) => parse_content(&place, &role, content)?,
        // Content is optional if the message has a refusal, calls or reasoning.
        None if role == "assistant" => match whole.get("refusal").and_then(Json::as_str) {
            Some(refusal) => refusal.to_owned(),
            None if calls || has("reasoning_content") || has("reasoning") => String::new(),
            None => {
                return Err(place.invalid(
                    ".content",
                    "a string or a list of text parts if the message has no 'tool_calls'",
                ));
            }
        },
        None => return Err(place.invalid(".content", "a string or a list of text parts")),
    };
    let Json::Object(mut message) = whole else {
        return Err(place.invalid("", "an object"));
    };
    // Clients return all members of a response, but templates check only whether a member exists.
    message.retain(|name, value| match value {
        Json::Null => name == "content",
        Json::Array(calls) => name != "tool_calls" || !calls.is_empty(),
        Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => true,
    });
    if message.get("reasoning_content").is_none()
        && let Some(Json::String(reasoning)) = message.get("reasoning").cloned()
    {
        message.insert("reasoning_content", Json::String(reasoning));
    }
    parse_tool_arguments(&mut message);
    message.insert("role", Json::String(role));
    message.insert("content", Json::String(content));
    Ok(Json::Object(message))
}

/// Converts content to text. Parts are joined by line breaks, as in vLLM.
fn parse_content(place: &Place, role: &str, content: &Json) -> Result<String, ApiError> {
    let parts = match content {
        Json::String(text) => return Ok(text.clone()),
        Json::Array(parts) if !parts.is_empty() => parts,
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
            return Err(place.invalid(".content", "a string or a list of at least one text part"));
        }
    };
    let text = |(part, value): (usize, &Json)| {
        let at = format!(".content[{part}]");
        if value.as_object().is_none() {
            return Err(place.invalid(&at, "an object {\"type\": \"text\", \"text\": …}"));
        }
        match place.text(value, &at, "type")? {
            "text" => place.text(value, &at, "text").map(str::to_owned),
            "refusal" if role == "assistant" => place.text(value, &at, "refusal").map(str::to_owned),
            kind => {
                let param = place.at(&format!("{at}.type"));
                let message =
                    format!("'{param}' is '{kind}', which is not supported: this server supports only text.");
                Err(ApiError::unsupported(&param, message))
            }
        }
    };
    let texts: Vec<String> = parts.iter().enumerate().map(text).collect::<Result<_, _>>()?;
    Ok(texts.join("\n"))
}

/// Checks calls and returns true if there are any. Some clients send an empty list.
fn parse_calls(place: &Place, role: &str, calls: Option<&Json>) -> Result<bool, ApiError> {
    let calls = match calls {
        None | Some(Json::Null) => return Ok(false),
        Some(Json::Array(calls)) => calls,
        Some(Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_)) => {
            return Err(place.invalid(".tool_calls", "a list"));
        }
    };
    if role != "assistant" && !calls.is_empty() {
        let message = format!(
            "'{}' is only allowed in messages of role 'assistant'.",
            place.at(".tool_calls")
        );
        return Err(ApiError::invalid_value(&place.at(".tool_calls"), message));
    }
    for (index, call) in calls.iter().enumerate() {
        let at = format!(".tool_calls[{index}]");
        if call.as_object().is_none() {
            return Err(place.invalid(&at, "an object"));
        }
        place.text(call, &at, "id")?;
        match place.text(call, &at, "type")? {
            "function" => {}
            kind => {
                let param = place.at(&format!("{at}.type"));
                let message = format!("'{param}' is '{kind}': this server supports only functions.");
                return Err(ApiError::unsupported(&param, message));
            }
        }
        let function = call
            .get("function")
            .filter(|function| function.as_object().is_some());
        let at = format!("{at}.function");
        let function = function.ok_or_else(|| place.invalid(&at, "an object"))?;
        place.text(function, &at, "name")?;
        place.text(function, &at, "arguments")?;
    }
    Ok(!calls.is_empty())
}

/// Parses the arguments of earlier calls from JSON text to objects, which templates expect.
fn parse_tool_arguments(message: &mut Members) {
    let Some(Json::Array(calls)) = message.get_mut("tool_calls") else {
        return;
    };
    for call in calls {
        let arguments = call
            .get_mut("function")
            .and_then(|function| function.get_mut("arguments"));
        if let Some(arguments) = arguments
            && let Some(text) = arguments.as_str()
        {
            *arguments = parsed_arguments(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Call with its result.
    const CALLED: &str = r#"{"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": ""}"#;

    fn parsed(messages: &str) -> Vec<serde_json::Value> {
        let messages = parse(Some(serde_json::from_str(messages).unwrap())).unwrap();
        messages
            .iter()
            .map(|message| serde_json::to_value(message).unwrap())
            .collect()
    }

    #[test]
    fn converts_messages_for_templates() {
        let messages = parsed(
            r#"[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null,
             "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"}]"#,
        );
        assert_eq!(messages[0], json!({"role": "system", "content": "a\nb"}));
        assert_eq!(messages[1]["content"], "");
        assert_eq!(
            messages[1]["tool_calls"][0]["function"]["arguments"],
            json!({"x": 1})
        );
        assert_eq!(messages[2]["tool_call_id"], "1");
    }

    #[test]
    fn accepts_messages_of_earlier_responses() {
        let messages = parsed(
            r#"[{"role": "assistant", "content": "b", "reasoning": "a", "refusal": null, "tool_calls": null, "audio": null},
                {"role": "assistant", "content": "b", "reasoning_content": "c", "reasoning": "a", "tool_calls": []}]"#,
        );
        assert_eq!(
            messages[0],
            json!({"role": "assistant", "content": "b", "reasoning": "a", "reasoning_content": "a"})
        );
        assert_eq!(messages[1]["reasoning_content"], "c");
        assert_eq!(messages[1].get("tool_calls"), None);
    }

    #[test]
    fn keeps_member_order() {
        let text = r#"[{"role":"assistant","content":"","tool_calls":[{"type":"function","id":"1","function":{"name":"f","arguments":"{\"z\":1,\"a\":{\"y\":2,\"b\":3}}"}}]},{"role":"tool","tool_call_id":"1","content":"ok"}]"#;
        let messages = parse(Some(serde_json::from_str(text).unwrap())).unwrap();
        let expected = text.replace(
            r#""{\"z\":1,\"a\":{\"y\":2,\"b\":3}}""#,
            r#"{"z":1,"a":{"y":2,"b":3}}"#,
        );
        assert_eq!(serde_json::to_string(&messages).unwrap(), expected);
    }

    #[test]
    fn content_is_optional_with_other_members() {
        for message in [
            CALLED,
            r#"{"role": "assistant", "content": null, "reasoning_content": "a"}"#,
            r#"{"role": "assistant", "content": ""}"#,
            r#"{"role": "user", "content": "", "tool_calls": []}"#,
        ] {
            assert_eq!(parsed(&format!("[{message}]"))[0]["content"], "", "{message}");
        }
        for message in [
            r#"{"role": "assistant", "content": null, "refusal": "No."}"#,
            r#"{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}"#,
        ] {
            assert_eq!(parsed(&format!("[{message}]"))[0]["content"], "No.", "{message}");
        }
    }

    /// OpenAI's API rejects all of these messages, too.
    #[test]
    fn errors_name_the_path_of_malformed_messages() {
        let call = |call: &str| format!(r#"[{{"role": "assistant", "tool_calls": [{call}]}}]"#);
        for (messages, param) in [
            (r#"["a"]"#.to_owned(), "messages[0]"),
            (r#"[{"content": "a"}]"#.to_owned(), "messages[0].role"),
            (
                r#"[{"role": "function", "name": "f", "content": "a"}]"#.to_owned(),
                "messages[0].role",
            ),
            (r#"[{"role": "user"}]"#.to_owned(), "messages[0].content"),
            (
                r#"[{"role": "system", "content": null}]"#.to_owned(),
                "messages[0].content",
            ),
            (
                r#"[{"role": "user", "content": []}]"#.to_owned(),
                "messages[0].content",
            ),
            (
                r#"[{"role": "user", "content": {"type": "text"}}]"#.to_owned(),
                "messages[0].content",
            ),
            (
                r#"[{"role": "user", "content": ["a"]}]"#.to_owned(),
                "messages[0].content[0]",
            ),
            (
                r#"[{"role": "user", "content": [{"text": "a"}]}]"#.to_owned(),
                "messages[0].content[0].type",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "text", "text": 5}]}]"#.to_owned(),
                "messages[0].content[0].text",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#.to_owned(),
                "messages[0].content[0].type",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "refusal", "refusal": "a"}]}]"#.to_owned(),
                "messages[0].content[0].type",
            ),
            (
                r#"[{"role": "user", "content": "a", "name": 5}]"#.to_owned(),
                "messages[0].name",
            ),
            (r#"[{"role": "assistant"}]"#.to_owned(), "messages[0].content"),
            (
                r#"[{"role": "assistant", "content": null, "tool_calls": []}]"#.to_owned(),
                "messages[0].content",
            ),
            (
                r#"[{"role": "assistant", "content": "a", "function_call": {"name": "f"}}]"#.to_owned(),
                "messages[0].function_call",
            ),
            (
                r#"[{"role": "assistant", "content": "a", "tool_calls": {}}]"#.to_owned(),
                "messages[0].tool_calls",
            ),
            (call("5"), "messages[0].tool_calls[0]"),
            (call(r#"{"type": "function"}"#), "messages[0].tool_calls[0].id"),
            (call(r#"{"id": "1"}"#), "messages[0].tool_calls[0].type"),
            (
                call(r#"{"id": "1", "type": "custom"}"#),
                "messages[0].tool_calls[0].type",
            ),
            (
                call(r#"{"id": "1", "type": "function"}"#),
                "messages[0].tool_calls[0].function",
            ),
            (
                call(r#"{"id": "1", "type": "function", "function": {"arguments": "{}"}}"#),
                "messages[0].tool_calls[0].function.name",
            ),
            (
                call(r#"{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}"#),
                "messages[0].tool_calls[0].function.arguments",
            ),
            (
                call(r#"{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}"#),
                "messages[0].tool_calls",
            ),
            (
                r#"[{"role": "tool", "content": "a"}]"#.to_owned(),
                "messages[0].tool_call_id",
            ),
            (
                r#"[{"role": "tool", "tool_call_id": "1", "content": "a"}]"#.to_owned(),
                "messages[0].tool_call_id",
            ),
            (
                format!(r#"[{CALLED}, {{"role": "tool", "tool_call_id": "2", "content": "a"}}]"#),
                "messages[2].tool_call_id",
            ),
            (
                r#"[{"role": "user", "content": "a", "tool_calls": [{}]}]"#.to_owned(),
                "messages[0].tool_calls",
            ),
        ] {
            let refused = parse(Some(serde_json::from_str(&messages).unwrap())).unwrap_err();
            assert_eq!(
                (refused.status.as_u16(), refused.param.as_deref()),
                (400, Some(param)),
                "{messages}"
            );
        }
    }
}
