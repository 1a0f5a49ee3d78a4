//! Parameters `system` and `messages`: conversion of content blocks to chat messages. Texts of one
//! message are joined by line breaks.

use crate::openai::ApiError;
use crate::openai::json::Json;
use crate::openai::message;
use crate::openai::message::calls;
use crate::openai::message::calls::CallError;
use crate::openai::message::{AssistantTurn, append_line};

/// Limit of Anthropic's API.
const MAX_MESSAGES: usize = 100_000;

pub(super) fn messages(system: Option<Json>, messages: Option<Json>) -> Result<Vec<Json>, ApiError> {
    let mut turns: Vec<Json> = Vec::new();
    if let Some(system) = system.filter(|system| *system != Json::Null) {
        let text = Place("system".to_owned()).texts(&system)?;
        if !text.is_empty() {
            turns.push(message::with_role("system", &text));
        }
    }
    let listed = match messages {
        None | Some(Json::Null) => return Err(ApiError::missing("messages")),
        Some(Json::Array(listed)) if (1..=MAX_MESSAGES).contains(&listed.len()) => listed,
        Some(_) => {
            let message = format!("'messages' must be a list of 1 to {MAX_MESSAGES} messages.");
            return Err(ApiError::invalid_value("messages", message));
        }
    };
    let mut open = Open::None;
    for (index, message) in listed.iter().enumerate() {
        let place = Place(format!("messages[{index}]"));
        let content = place.below(".content");
        let blocks = content.blocks(message.get("content"))?;
        let is_last = index + 1 == listed.len();
        let prefills = is_last && message.get("role").and_then(Json::as_str) == Some("assistant");
        let is_empty = match message.get("content").and_then(Json::as_str) {
            Some(text) => text.is_empty(),
            None => blocks.is_empty(),
        };
        // Anthropic's rule: only the last assistant message, which the answer continues, may be
        // empty.
        if is_empty && !prefills {
            return Err(content.invalid("", "non-empty"));
        }
        match message.get("role").and_then(Json::as_str) {
            Some("user") => {
                let mut text = open.into_user(&mut turns);
                user(&content, &blocks, &mut text, &mut turns)?;
                open = Open::User(text);
            }
            Some("assistant") => {
                let mut turn = open.into_assistant(&mut turns);
                assistant(&content, &blocks, &mut turn)?;
                open = Open::Assistant(turn);
            }
            // Newer clients send system messages between turns.
            Some("system") => {
                let text = content.texts(message.get("content").unwrap_or(&Json::Null))?;
                std::mem::replace(&mut open, Open::None).close(&mut turns);
                turns.push(message::with_role("system", &text));
            }
            Some(_) | None => return Err(place.invalid(".role", "one of user, assistant and system")),
        }
    }
    open.close(&mut turns);
    check_calls(&turns)?;
    Ok(turns)
}

/// Checks Anthropic's rule for calls and results, with its wording.
fn check_calls(turns: &[Json]) -> Result<(), ApiError> {
    let message = match calls::check(turns) {
        Ok(()) => return Ok(()),
        Err(CallError::UnknownCall { id, .. }) => format!(
            "'messages' has a `tool_result` for '{id}' without a `tool_use` block with that id in the previous \
             message."
        ),
        Err(CallError::MissingResult { ids, .. }) => format!(
            "'messages' has `tool_use` blocks without `tool_result` blocks at the beginning of the next message: {}.",
            ids.join(", ")
        ),
    };
    Err(ApiError::invalid_value("messages", message))
}

/// Turn to which further messages of the same role are appended.
enum Open {
    None,
    User(String),
    Assistant(AssistantTurn),
}

impl Open {
    fn into_user(self, turns: &mut Vec<Json>) -> String {
        match self {
            Self::User(text) => text,
            Self::None | Self::Assistant(_) => {
                self.close(turns);
                String::new()
            }
        }
    }

    fn into_assistant(self, turns: &mut Vec<Json>) -> AssistantTurn {
        match self {
            Self::Assistant(turn) => turn,
            Self::None | Self::User(_) => {
                self.close(turns);
                AssistantTurn::default()
            }
        }
    }

    fn close(self, turns: &mut Vec<Json>) {
        match self {
            Self::None => {}
            Self::User(text) => turns.extend((!text.is_empty()).then(|| message::user(&text))),
            Self::Assistant(turn) => turns.extend(turn.into_message()),
        }
    }
}

fn user(
    content: &Place,
    blocks: &[Block<'_>],
    text: &mut String,
    turns: &mut Vec<Json>,
) -> Result<(), ApiError> {
    for (index, block) in blocks.iter().enumerate() {
        let place = content.below(&format!("[{index}]"));
        match block.kind() {
            Some("text") => append_line(text, block.non_empty_text(&place)?),
            Some("tool_result") => {
                Open::User(std::mem::take(text)).close(turns);
                let result = match block.get("content") {
                    None | Some(Json::Null) => String::new(),
                    Some(content) => place.below(".content").texts(content)?,
                };
                let failed = match block.get("is_error") {
                    None | Some(Json::Null) => false,
                    Some(Json::Bool(failed)) => *failed,
                    Some(Json::Number(_) | Json::String(_) | Json::Array(_) | Json::Object(_)) => {
                        return Err(place.invalid(".is_error", "true or false"));
                    }
                };
                let result = if failed { as_error(&result) } else { result };
                turns.push(message::call_result(block.text(&place, "tool_use_id")?, &result));
            }
            kind => return Err(place.unsupported(kind)),
        }
    }
    Ok(())
}

/// Marks the result of a failed tool, because chat templates have no field for it.
fn as_error(result: &str) -> String {
    match result {
        "" => "Error".to_owned(),
        text if text.starts_with("Error") => text.to_owned(),
        text => format!("Error: {text}"),
    }
}

fn assistant(content: &Place, blocks: &[Block<'_>], turn: &mut AssistantTurn) -> Result<(), ApiError> {
    for (index, block) in blocks.iter().enumerate() {
        let place = content.below(&format!("[{index}]"));
        match block.kind() {
            Some("text") => turn.add_text(block.text(&place, "text")?),
            Some("thinking") => turn.add_reasoning(block.text(&place, "thinking")?),
            // Redacted reasoning is not readable.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let input = block.get("input").filter(|input| input.as_object().is_some());
                let input = input.ok_or_else(|| place.invalid(".input", "an object"))?;
                turn.add_call(
                    block.text(&place, "id")?,
                    block.text(&place, "name")?,
                    input.clone(),
                );
            }
            kind => return Err(place.unsupported(kind)),
        }
    }
    Ok(())
}

/// Content block.
enum Block<'a> {
    /// Content that is a plain string.
    Text(&'a str),
    Typed(&'a Json),
}

impl<'a> Block<'a> {
    fn kind(&self) -> Option<&'a str> {
        match self {
            Self::Text(_) => Some("text"),
            Self::Typed(block) => block.get("type").and_then(Json::as_str),
        }
    }

    fn get(&self, name: &str) -> Option<&'a Json> {
        match self {
            Self::Text(_) => None,
            Self::Typed(block) => block.get(name),
        }
    }

    /// Returns the text of a block. Empty text is an error, as in Anthropic's API.
    fn non_empty_text(&self, place: &Place) -> Result<&'a str, ApiError> {
        match self.text(place, "text")? {
            "" => Err(place.invalid(".text", "non-empty")),
            text => Ok(text),
        }
    }

    fn text(&self, place: &Place, name: &str) -> Result<&'a str, ApiError> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Typed(_) => {
                let text = self.get(name).and_then(Json::as_str);
                text.ok_or_else(|| place.invalid(&format!(".{name}"), "a string"))
            }
        }
    }
}

/// Path of a value in the request.
struct Place(String);

impl Place {
    fn below(&self, part: &str) -> Self {
        Self(format!("{}{part}", self.0))
    }

    fn invalid(&self, field: &str, expected: &str) -> ApiError {
        let param = format!("{}{field}", self.0);
        ApiError::invalid_value(&param, format!("'{param}' must be {expected}."))
    }

    fn unsupported(&self, kind: Option<&str>) -> ApiError {
        let Some(kind) = kind else {
            return self.invalid("", "an object with a 'type'");
        };
        let param = format!("{}.type", self.0);
        let message =
            format!("'{param}' is '{kind}', which is not supported: this server supports only text.");
        ApiError::unsupported(&param, message)
    }

    /// Returns the content blocks. A string is one text block.
    fn blocks<'a>(&self, content: Option<&'a Json>) -> Result<Vec<Block<'a>>, ApiError> {
        match content {
            Some(Json::String(text)) => Ok(vec![Block::Text(text)]),
            Some(Json::Array(blocks)) => Ok(blocks.iter().map(Block::Typed).collect()),
            None | Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_)) => {
                Err(self.invalid("", "a string or a list of content blocks"))
            }
        }
    }

    /// Returns content that consists only of text.
    fn texts(&self, content: &Json) -> Result<String, ApiError> {
        let mut whole = String::new();
        for (index, block) in self.blocks(Some(content))?.into_iter().enumerate() {
            let place = self.below(&format!("[{index}]"));
            match block.kind() {
                Some("text") => append_line(&mut whole, block.text(&place, "text")?),
                kind => return Err(place.unsupported(kind)),
            }
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(system: &str, listed: &str) -> Result<serde_json::Value, Option<String>> {
        let json = |text: &str| Some(serde_json::from_str(text).unwrap());
        let messages = messages(json(system), json(listed)).map_err(|err| err.param)?;
        Ok(serde_json::to_value(messages).unwrap())
    }

    #[test]
    fn converts_blocks_to_chat_messages() {
        let listed = r#"[
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "why", "signature": ""},
                {"type": "text", "text": "c"}, {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"z": 1, "a": 2}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "ok"}]},
                {"type": "text", "text": "d"}]},
            {"role": "assistant", "content": "e"}]"#;
        assert_eq!(
            read(
                r#"[{"type": "text", "text": "s"}, {"type": "text", "text": "t"}]"#,
                listed
            ),
            Ok(json!([
                {"role": "system", "content": "s\nt"},
                {"role": "user", "content": "a\nb"},
                {"role": "assistant", "content": "c", "reasoning_content": "why",
                 "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "ok"},
                {"role": "user", "content": "d"},
                {"role": "assistant", "content": "e"},
            ]))
        );
    }

    #[test]
    fn accepts_system_messages_between_turns() {
        let listed = r#"[{"role": "user", "content": "a"}, {"role": "system", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"}]"#;
        assert_eq!(
            read(r#""s""#, listed),
            Ok(json!([
                {"role": "system", "content": "s"},
                {"role": "user", "content": "a"},
                {"role": "system", "content": "b"},
                {"role": "user", "content": "c"},
            ]))
        );
    }

    #[test]
    fn failed_tool_result_starts_with_error() {
        let result_content = |result: &str| {
            let listed = format!(
                r#"[{{"role": "assistant", "content": [{{"type": "tool_use", "id": "1", "name": "f", "input": {{}}}}]}},
                    {{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": "1", {result}}}]}}]"#
            );
            read("null", &listed).map(|messages| messages[1]["content"].clone())
        };
        assert_eq!(
            result_content(r#""is_error": true, "content": "no file""#),
            Ok(json!("Error: no file"))
        );
        assert_eq!(
            result_content(r#""is_error": true, "content": "Error: no file""#),
            Ok(json!("Error: no file"))
        );
        assert_eq!(result_content(r#""is_error": true"#), Ok(json!("Error")));
        assert_eq!(
            result_content(r#""is_error": false, "content": "no file""#),
            Ok(json!("no file"))
        );
        let param = "messages[1].content[0].is_error".to_owned();
        assert_eq!(result_content(r#""is_error": "yes""#), Err(Some(param)));
    }

    #[test]
    fn errors_name_the_block() {
        for (listed, param) in [
            ("[]", "messages"),
            ("5", "messages"),
            (r#"[{"role": "tool", "content": "a"}]"#, "messages[0].role"),
            (r#"[{"role": "system", "content": ""}]"#, "messages[0].content"),
            (
                r#"[{"role": "system", "content": [{"type": "image"}]}]"#,
                "messages[0].content[0].type",
            ),
            (r#"[{"role": "user"}]"#, "messages[0].content"),
            (
                r#"[{"role": "user", "content": ["a"]}]"#,
                "messages[0].content[0]",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "image", "source": {}}]}]"#,
                "messages[0].content[0].type",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "tool_result", "content": "a"}]}]"#,
                "messages[0].content[0].tool_use_id",
            ),
            (
                r#"[{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": "{}"}]}]"#,
                "messages[0].content[0].input",
            ),
            (
                r#"[{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]"#,
                "messages",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]"#,
                "messages",
            ),
            (r#"[{"role": "user", "content": ""}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": []}]"#, "messages[0].content"),
            (
                r#"[{"role": "assistant", "content": ""}, {"role": "user", "content": "a"}]"#,
                "messages[0].content",
            ),
            (
                r#"[{"role": "user", "content": [{"type": "text", "text": ""}]}]"#,
                "messages[0].content[0].text",
            ),
        ] {
            assert_eq!(read("null", listed), Err(Some(param.to_owned())), "{listed}");
        }
        assert_eq!(
            read(r#"[{"type": "image"}]"#, "[]"),
            Err(Some("system[0].type".to_owned()))
        );
    }
}
