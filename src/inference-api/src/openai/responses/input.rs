//! `instructions` and `input` of a request: from items to the messages of a chat.

use std::collections::BTreeSet;

use super::namespace::joined;
use super::request::Recall;
use crate::openai::ApiError;
use crate::openai::json::{Json, Members};
use crate::openai::message;
use crate::openai::message::AssistantTurn;

/// A conversation of more items than this would not fit any context.
const MAX_ITEMS: usize = 100_000;

/// A request's own items: a text is one of the user's, and one that is named by its id is what an
/// earlier answer had.
pub(super) fn items(input: Option<Json>, recall: &impl Recall) -> Result<Vec<Json>, ApiError> {
    let mut items = listed(input)?;
    for (index, json) in items.iter_mut().enumerate() {
        if json.get("type").and_then(Json::as_str) == Some("item_reference") {
            let item = Item { index, json };
            let id = item.text("id")?;
            let found = recall.item(id);
            *json = found.ok_or_else(|| ApiError::item_not_found(&item.at(".id"), id))?;
        }
    }
    Ok(items)
}

fn listed(input: Option<Json>) -> Result<Vec<Json>, ApiError> {
    match input {
        None | Some(Json::Null) => Err(ApiError::missing("input")),
        Some(text @ Json::String(_)) => {
            let said = Members::new([("role", "user".into()), ("content", text)]);
            Ok(vec![Json::Object(said)])
        }
        Some(Json::Array(items)) if (1..=MAX_ITEMS).contains(&items.len()) => Ok(items),
        Some(Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_)) => {
            Err(ApiError::invalid_value(
                "input",
                format!("'input' must be a string or a list of 1 to {MAX_ITEMS} items."),
            ))
        }
    }
}

/// `earlier` are items of requests and answers before this one.
pub(super) fn messages(
    instructions: Option<&str>,
    earlier: &[Json],
    items: &[Json],
) -> Result<Vec<Json>, ApiError> {
    let mut turns = Turns::default();
    turns
        .messages
        .extend(instructions.map(|text| message::said("system", text)));
    for items in [earlier, items] {
        for (index, json) in items.iter().enumerate() {
            turns.add(&Item { index, json })?;
        }
    }
    turns.end_assistant();
    turns.check_calls()?;
    Ok(turns.messages)
}

#[derive(Default)]
struct Turns {
    messages: Vec<Json>,
    /// What the assistant says in several items.
    assistant: AssistantTurn,
    /// Ids of calls, and of calls that have an output.
    calls: BTreeSet<String>,
    outputs: BTreeSet<String>,
}

impl Turns {
    fn add(&mut self, item: &Item<'_>) -> Result<(), ApiError> {
        match item.json.get("type").and_then(Json::as_str) {
            None | Some("message") => self.message(item),
            Some("reasoning") => {
                let text = item.texts("content", &["reasoning_text", "text"])?;
                let summary = item.texts("summary", &["summary_text"])?;
                self.assistant
                    .reason(if text.is_empty() { &summary } else { &text });
                Ok(())
            }
            Some("function_call") => {
                let arguments = message::parsed_arguments(item.text("arguments")?);
                let name = joined(item.optional_text("namespace")?, item.text("name")?);
                self.assistant.call(item.text("call_id")?, &name, arguments);
                self.calls.insert(item.text("call_id")?.to_owned());
                Ok(())
            }
            Some("function_call_output") => {
                let output = item.texts("output", &["input_text", "output_text", "text"])?;
                let result = message::call_result(item.text("call_id")?, &output);
                self.end_assistant();
                self.messages.push(result);
                self.outputs.insert(item.text("call_id")?.to_owned());
                Ok(())
            }
            Some(kind) => {
                let param = item.at(".type");
                let message = format!("'{param}' is '{kind}', which is not supported by this server.");
                Err(ApiError::unsupported(&param, message))
            }
        }
    }

    fn message(&mut self, item: &Item<'_>) -> Result<(), ApiError> {
        let text = item.texts("content", &["input_text", "output_text", "text", "refusal"])?;
        let role = match item.json.get("role").and_then(Json::as_str) {
            Some("assistant") => {
                self.assistant.say(&text);
                return Ok(());
            }
            Some(role @ ("user" | "system")) => role,
            Some("developer") => "system",
            Some(_) | None => {
                return Err(item.invalid(".role", "one of user, assistant, system and developer"));
            }
        };
        self.end_assistant();
        self.messages.push(message::said(role, &text));
        Ok(())
    }

    /// Every call has its output, wherever it stands, and every output its call.
    fn check_calls(&self) -> Result<(), ApiError> {
        let refused = |message: String| Err(ApiError::invalid_value("input", message));
        if let Some(id) = self.outputs.difference(&self.calls).next() {
            return refused(format!(
                "'input' has an output of the function call '{id}', and not the call."
            ));
        }
        if let Some(id) = self.calls.difference(&self.outputs).next() {
            return refused(format!(
                "'input' has the function call '{id}', and no output of it."
            ));
        }
        Ok(())
    }

    fn end_assistant(&mut self) {
        self.messages
            .extend(std::mem::take(&mut self.assistant).into_message());
    }
}

/// An item and its place.
struct Item<'a> {
    index: usize,
    json: &'a Json,
}

impl Item<'_> {
    fn at(&self, field: &str) -> String {
        format!("input[{}]{field}", self.index)
    }

    fn invalid(&self, field: &str, expected: &str) -> ApiError {
        let param = self.at(field);
        ApiError::invalid_value(&param, format!("'{param}' must be {expected}."))
    }

    fn text(&self, name: &str) -> Result<&str, ApiError> {
        let text = self.json.get(name).and_then(Json::as_str);
        text.ok_or_else(|| self.invalid(&format!(".{name}"), "a string"))
    }

    fn optional_text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        match self.json.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(_) => self.text(name).map(Some),
        }
    }

    /// A text, or parts of these kinds.
    fn texts(&self, name: &str, kinds: &[&str]) -> Result<String, ApiError> {
        let parts = match self.json.get(name) {
            Some(Json::String(text)) => return Ok(text.clone()),
            Some(Json::Array(parts)) => parts,
            // Of reasoning, there may be either.
            None | Some(Json::Null) if self.json.get("type").and_then(Json::as_str) == Some("reasoning") => {
                return Ok(String::new());
            }
            None | Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_)) => {
                return Err(self.invalid(&format!(".{name}"), "a string or a list of parts"));
            }
        };
        let mut texts = Vec::new();
        for (place, part) in parts.iter().enumerate() {
            let at = format!(".{name}[{place}]");
            let kind = part.get("type").and_then(Json::as_str);
            if let Some(other) = kind.filter(|kind| !kinds.contains(kind)) {
                let param = self.at(&format!("{at}.type"));
                let message = format!(
                    "'{param}' is '{other}', which is not supported by this server: it reads text only."
                );
                return Err(ApiError::unsupported(&param, message));
            }
            let member = if kind == Some("refusal") {
                "refusal"
            } else {
                "text"
            };
            let text = kind.and_then(|_| part.get(member)?.as_str());
            texts.push(text.ok_or_else(|| self.invalid(&at, "an object with 'type' and 'text'"))?);
        }
        Ok(texts.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(input: &str) -> Result<serde_json::Value, Option<String>> {
        let items = listed(Some(serde_json::from_str(input).unwrap()));
        let messages = items.and_then(|items| messages(Some("Be terse."), &[], &items));
        Ok(serde_json::to_value(messages.map_err(|err| err.param)?).unwrap())
    }

    #[test]
    fn items_become_the_messages_of_a_chat() {
        assert_eq!(
            read(r#""Hi""#),
            Ok(json!([{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hi"}]))
        );
        let input = r#"[
            {"role": "developer", "content": "a"},
            {"role": "user", "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "d", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{\"z\": 1, \"a\": 2}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "ok"}]"#;
        assert_eq!(
            read(input),
            Ok(json!([
                {"role": "system", "content": "Be terse."},
                {"role": "system", "content": "a"},
                {"role": "user", "content": "b\nc"},
                {"role": "assistant", "content": "d", "reasoning_content": "why",
                 "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
            ]))
        );
    }

    #[test]
    fn refusals_name_the_item() {
        for (input, param) in [
            ("[]", "input"),
            ("5", "input"),
            (r#"[{"role": "tool", "content": "a"}]"#, "input[0].role"),
            (r#"[{"role": "user"}]"#, "input[0].content"),
            (r#"[{"role": "user", "content": ["a"]}]"#, "input[0].content[0]"),
            (
                r#"[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]"#,
                "input[0].content[0].type",
            ),
            (r#"[{"type": "web_search_call", "id": "x"}]"#, "input[0].type"),
            (
                r#"["a", {"type": "function_call", "name": "f", "arguments": "{}"}]"#,
                "input[0].content",
            ),
            (
                r#"[{"type": "function_call", "name": "f", "arguments": "{}"}]"#,
                "input[0].call_id",
            ),
            (
                r#"[{"type": "function_call_output", "call_id": "a"}]"#,
                "input[0].output",
            ),
            (
                r#"[{"type": "function_call_output", "call_id": "a", "output": "b"}]"#,
                "input",
            ),
            (
                r#"[{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}]"#,
                "input",
            ),
        ] {
            assert_eq!(read(input), Err(Some(param.to_owned())), "{input}");
        }
    }
}
