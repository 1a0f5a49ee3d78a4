//! Messages of a conversation: from what clients send to what chat templates read.

use super::error::ApiError;
use super::json::{Json, Members};

/// A conversation of more turns than this would not fit any context.
const MAX_MESSAGES: usize = 100_000;

/// One message of a user.
pub(crate) fn user(text: &str) -> Json {
    said("user", text)
}

/// One message of nothing but text.
pub(crate) fn said(role: &str, text: &str) -> Json {
    Json::Object(Members::new([("role", role.into()), ("content", text.into())]))
}

/// The answer to an earlier call.
pub(crate) fn call_result(call_id: &str, text: &str) -> Json {
    Json::Object(Members::new([
        ("role", "tool".into()),
        ("tool_call_id", call_id.into()),
        ("content", text.into()),
    ]))
}

/// One turn of the assistant, for APIs that write it in several items.
#[derive(Debug, Default)]
pub(crate) struct AssistantTurn {
    content: String,
    reasoning: String,
    calls: Vec<Json>,
}

impl AssistantTurn {
    /// Texts are separated by line breaks.
    pub(crate) fn say(&mut self, text: &str) {
        append_line(&mut self.content, text);
    }

    pub(crate) fn reason(&mut self, text: &str) {
        append_line(&mut self.reasoning, text);
    }

    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: Json) {
        let function = Members::new([("name", name.into()), ("arguments", arguments)]);
        self.calls.push(Json::Object(Members::new([
            ("id", id.into()),
            ("type", "function".into()),
            ("function", Json::Object(function)),
        ])));
    }

    /// `None` where nothing was said.
    pub(crate) fn into_message(self) -> Option<Json> {
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

/// Whether the last message is text of the assistant's, which could be gone on with.
pub(crate) fn ends_with_assistant(messages: &[Json]) -> bool {
    let text = |message: &Json, name: &str| message.get(name).and_then(Json::as_str).map(str::to_owned);
    messages.last().is_some_and(|message| {
        text(message, "role").as_deref() == Some("assistant")
            && text(message, "content").is_some_and(|content| !content.trim().is_empty())
            && message.get("tool_calls").is_none()
    })
}

/// Texts of one message, separated by line breaks.
pub(crate) fn append_line(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

/// Arguments of an earlier call as templates print them.
pub(crate) fn parsed_arguments(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// `messages` of a request, as a chat template reads them: `content` is a string, `role` one of system, user, assistant
/// and tool.
pub(super) fn parse(messages: Option<Json>) -> Result<Vec<Json>, ApiError> {
    let messages = match messages {
        None | Some(Json::Null) => return Err(ApiError::missing("messages")),
        Some(Json::Array(messages)) => messages,
        Some(_) => return Err(ApiError::invalid_value("messages", "'messages' must be a list.")),
    };
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        return Err(ApiError::invalid_value(
            "messages",
            format!("'messages' must hold from 1 to {MAX_MESSAGES} messages."),
        ));
    }
    messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| parse_message(index, message))
        .collect()
}

fn parse_message(index: usize, mut whole: Json) -> Result<Json, ApiError> {
    let at = |field: &str| format!("messages[{index}]{field}");
    let invalid = |field: &str, expected: &str| {
        ApiError::invalid_value(&at(field), format!("'{}' must be {expected}.", at(field)))
    };
    let Json::Object(message) = &mut whole else {
        return Err(invalid("", "an object"));
    };
    let role = match message.get("role").and_then(Json::as_str) {
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role.to_owned(),
        // OpenAI's later name for the same thing; templates know only the old one.
        Some("developer") => "system".to_owned(),
        Some(_) | None => {
            return Err(invalid(
                ".role",
                "one of system, developer, user, assistant and tool",
            ));
        }
    };
    let content = match message.get("content") {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(part, value)| {
                text_part(value).map_err(|problem| match problem {
                    PartProblem::Malformed => {
                        invalid(&format!(".content[{part}]"), "an object {\"type\": \"text\", \"text\": …}")
                    }
                    PartProblem::NotText(kind) => {
                        let param = at(&format!(".content[{part}].type"));
                        let message = format!(
                            "'{param}' is '{kind}', which is not supported by this server: it reads text only."
                        );
                        ApiError::unsupported(&param, message)
                    }
                })
            });
            texts.collect::<Result<String, _>>()?
        }
        Some(Json::Null) | None if role == "assistant" => String::new(),
        Some(_) | None => return Err(invalid(".content", "a string or a list of text parts")),
    };
    // Clients send back all members of what they were sent; templates ask only whether one is there.
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
    parse_tool_arguments(message);
    message.insert("role", Json::String(role));
    message.insert("content", Json::String(content));
    Ok(whole)
}

enum PartProblem {
    Malformed,
    NotText(String),
}

fn text_part(part: &Json) -> Result<&str, PartProblem> {
    match part.get("type").and_then(Json::as_str) {
        Some("text") => part
            .get("text")
            .and_then(Json::as_str)
            .ok_or(PartProblem::Malformed),
        Some(kind) => Err(PartProblem::NotText(kind.to_owned())),
        None => Err(PartProblem::Malformed),
    }
}

/// Earlier tool calls carry their arguments as JSON text; templates print them as objects.
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

    fn parsed(messages: &str) -> Vec<serde_json::Value> {
        let messages = parse(Some(serde_json::from_str(messages).unwrap())).unwrap();
        messages
            .iter()
            .map(|message| serde_json::to_value(message).unwrap())
            .collect()
    }

    #[test]
    fn messages_become_what_templates_read() {
        let messages = parsed(
            r#"[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null,
             "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"}]"#,
        );
        assert_eq!(messages[0], json!({"role": "system", "content": "ab"}));
        assert_eq!(messages[1]["content"], "");
        assert_eq!(
            messages[1]["tool_calls"][0]["function"]["arguments"],
            json!({"x": 1})
        );
        assert_eq!(messages[2]["tool_call_id"], "1");
    }

    #[test]
    fn an_answer_can_be_sent_back_as_it_came() {
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
    fn members_keep_the_order_they_came_in() {
        let text = r#"[{"role":"assistant","content":"","tool_calls":[{"type":"function","id":"1","function":{"name":"f","arguments":"{\"z\":1,\"a\":{\"y\":2,\"b\":3}}"}}]}]"#;
        let messages = parse(Some(serde_json::from_str(text).unwrap())).unwrap();
        let expected = text.replace(
            r#""{\"z\":1,\"a\":{\"y\":2,\"b\":3}}""#,
            r#"{"z":1,"a":{"y":2,"b":3}}"#,
        );
        assert_eq!(serde_json::to_string(&messages).unwrap(), expected);
    }
}
