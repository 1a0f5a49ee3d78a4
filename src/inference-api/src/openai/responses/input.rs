//! Parameters `instructions` and `input`: conversion of items to chat messages.

use std::collections::BTreeMap;

use super::namespace::qualified_name;
use super::request::StoredItems;
use crate::openai::ApiError;
use crate::openai::json::{Json, Members};
use crate::openai::message;
use crate::openai::message::AssistantTurn;

/// Maximum number of items. Longer conversations exceed any context.
const MAX_ITEMS: usize = 100_000;

/// Returns the request's items. A string is a user message, and a reference is replaced by the
/// stored item.
pub(super) fn items(input: Option<Json>, stored: &impl StoredItems) -> Result<Vec<Json>, ApiError> {
    let mut items = listed(input)?;
    for (index, json) in items.iter_mut().enumerate() {
        if json.get("type").and_then(Json::as_str) == Some("item_reference") {
            let item = Item { index, json };
            let id = item.text("id")?;
            let found = stored.item(id);
            *json = found.ok_or_else(|| ApiError::item_not_found(&item.at(".id"), id))?;
        }
    }
    Ok(items)
}

fn listed(input: Option<Json>) -> Result<Vec<Json>, ApiError> {
    match input {
        None | Some(Json::Null) => Err(ApiError::missing("input")),
        Some(text @ Json::String(_)) => {
            let message = Members::new([("role", "user".into()), ("content", text)]);
            Ok(vec![Json::Object(message)])
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

/// Returns the request's items, each with its index, without calls of functions that are also in `earlier`: some
/// clients send a stored call again with its output.
pub(super) fn new_items(earlier: &[Json], items: Vec<Json>) -> Vec<(usize, Json)> {
    let excess = open_calls(earlier.iter().chain(&items));
    // Calls without an output in spite of the request's outputs are the same calls, as far as `earlier` has open ones.
    let mut repeated: BTreeMap<String, i64> = open_calls(earlier)
        .into_iter()
        .map(|(id, open)| (id.to_owned(), open.min(excess.get(id).copied().unwrap_or(0))))
        .collect();
    let mut is_new = |item: &Json| match call_id(item, "function_call").and_then(|id| repeated.get_mut(id)) {
        Some(times) if *times > 0 => {
            *times -= 1;
            false
        }
        Some(_) | None => true,
    };
    items
        .into_iter()
        .enumerate()
        .filter(|(_, item)| is_new(item))
        .collect()
}

/// Converts items to messages. `earlier` are the items of previous requests and responses.
pub(super) fn messages(
    instructions: Option<&str>,
    earlier: &[Json],
    items: &[(usize, Json)],
) -> Result<Vec<Json>, ApiError> {
    let items = items.iter().map(|(index, json)| Item { index: *index, json });
    let earlier = earlier
        .iter()
        .enumerate()
        .map(|(index, json)| Item { index, json });
    let all: Vec<_> = earlier.chain(items).collect();
    let mut turns = Turns::default();
    turns
        .messages
        .extend(instructions.map(|text| message::with_role("system", text)));
    for item in &all {
        turns.add(item)?;
    }
    turns.end_assistant();
    check_calls(all.iter().map(|item| item.json))?;
    Ok(turns.messages)
}

/// Checks that each call has an output, anywhere in the input, and each output a call.
fn check_calls<'a>(items: impl IntoIterator<Item = &'a Json>) -> Result<(), ApiError> {
    let invalid = |message: String| Err(ApiError::invalid_value("input", message));
    let open_calls = open_calls(items);
    let with = |is_so: fn(i64) -> bool| open_calls.iter().find(|(_, open)| is_so(**open));
    if let Some((id, _)) = with(i64::is_negative) {
        return invalid(format!(
            "'input' has an output of the function call '{id}', but not the call."
        ));
    }
    if let Some((id, _)) = with(i64::is_positive) {
        return invalid(format!(
            "'input' has the function call '{id}', but no output of it."
        ));
    }
    Ok(())
}

/// Returns, for each call id, the number of calls without an output. Negative for outputs without a call.
fn open_calls<'a>(items: impl IntoIterator<Item = &'a Json>) -> BTreeMap<&'a str, i64> {
    let mut open = BTreeMap::new();
    for item in items {
        for (kind, change) in [("function_call", 1), ("function_call_output", -1)] {
            if let Some(id) = call_id(item, kind) {
                *open.entry(id).or_default() += change;
            }
        }
    }
    open
}

/// Returns the call id of an item of this kind.
fn call_id<'a>(item: &'a Json, kind: &str) -> Option<&'a str> {
    let is_kind = item.get("type").and_then(Json::as_str) == Some(kind);
    is_kind.then(|| item.get("call_id")?.as_str()).flatten()
}

#[derive(Default)]
struct Turns {
    messages: Vec<Json>,
    /// Open turn of the assistant, which may consist of several items.
    assistant: AssistantTurn,
}

impl Turns {
    fn add(&mut self, item: &Item<'_>) -> Result<(), ApiError> {
        match item.json.get("type").and_then(Json::as_str) {
            None | Some("message") => self.message(item),
            Some("reasoning") => {
                let text = item.texts("content", &["reasoning_text", "text"])?;
                let summary = item.texts("summary", &["summary_text"])?;
                self.assistant
                    .add_reasoning(if text.is_empty() { &summary } else { &text });
                Ok(())
            }
            Some("function_call") => {
                let arguments = message::parsed_arguments(item.text("arguments")?);
                let name = qualified_name(item.optional_text("namespace")?, item.text("name")?);
                self.assistant.add_call(item.text("call_id")?, &name, arguments);
                Ok(())
            }
            Some("function_call_output") => {
                let output = item.texts("output", &["input_text", "output_text", "text"])?;
                let result = message::call_result(item.text("call_id")?, &output);
                self.end_assistant();
                self.messages.push(result);
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
                self.assistant.add_text(&text);
                return Ok(());
            }
            Some(role @ ("user" | "system")) => role,
            Some("developer") => "system",
            Some(_) | None => {
                return Err(item.invalid(".role", "one of user, assistant, system and developer"));
            }
        };
        self.end_assistant();
        self.messages.push(message::with_role(role, &text));
        Ok(())
    }

    fn end_assistant(&mut self) {
        self.messages
            .extend(std::mem::take(&mut self.assistant).into_message());
    }
}

/// Item with its index, for error paths.
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

    /// Returns a string, or the text of parts of these kinds.
    fn texts(&self, name: &str, kinds: &[&str]) -> Result<String, ApiError> {
        let parts = match self.json.get(name) {
            Some(Json::String(text)) => return Ok(text.clone()),
            Some(Json::Array(parts)) => parts,
            // Reasoning may have only a summary or only content.
            None | Some(Json::Null) if self.json.get("type").and_then(Json::as_str) == Some("reasoning") => {
                return Ok(String::new());
            }
            None | Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_)) => {
                return Err(self.invalid(&format!(".{name}"), "a string or a list of parts"));
            }
        };
        let mut texts = Vec::new();
        for (part_index, part) in parts.iter().enumerate() {
            let at = format!(".{name}[{part_index}]");
            let kind = part.get("type").and_then(Json::as_str);
            if let Some(other) = kind.filter(|kind| !kinds.contains(kind)) {
                let param = self.at(&format!("{at}.type"));
                let message = format!(
                    "'{param}' is '{other}', which is not supported: this server supports only text."
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
        read_after("[]", input)
    }

    fn read_after(earlier: &str, input: &str) -> Result<serde_json::Value, Option<String>> {
        let earlier: Vec<Json> = serde_json::from_str(earlier).unwrap();
        let items = listed(Some(serde_json::from_str(input).unwrap()));
        let items = items.map(|items| new_items(&earlier, items));
        let messages = items.and_then(|items| messages(Some("Be terse."), &earlier, &items));
        Ok(serde_json::to_value(messages.map_err(|err| err.param)?).unwrap())
    }

    #[test]
    fn converts_items_to_chat_messages() {
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

    /// Kimi's earlier answers repeat ids.
    #[test]
    fn each_call_of_a_repeated_id_needs_an_output() {
        let call = r#"{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}"#;
        let output = r#"{"type": "function_call_output", "call_id": "a", "output": "b"}"#;
        let is_valid = |items: &[&str]| read(&format!("[{}]", items.join(","))).is_ok();
        assert!(is_valid(&[call, output, call, output]) && is_valid(&[call, call, output, output]));
        assert!(!is_valid(&[call, output, call]) && !is_valid(&[call, output, output]));
    }

    #[test]
    fn accepts_a_stored_call_that_is_sent_again_with_its_output() {
        let call = r#"{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}"#;
        let output = r#"{"type": "function_call_output", "call_id": "a", "output": "b"}"#;
        let after = |earlier: &[&str], items: &[&str]| {
            read_after(
                &format!("[{}]", earlier.join(",")),
                &format!("[{}]", items.join(",")),
            )
        };
        let once = read(&format!("[{call}, {output}]")).unwrap();
        for items in [&[output][..], &[call, output], &[output, call]] {
            assert_eq!(after(&[call], items), Ok(once.clone()), "{items:?}");
        }
        // The request has a further call of the id, after the output of the stored call.
        let twice = after(&[], &[call, output, call, output]).unwrap();
        assert_eq!(after(&[call], &[output, call, output]), Ok(twice.clone()));
        assert_eq!(after(&[call, output], &[call, output]), Ok(twice));
        for items in [&[call][..], &[call, call, output], &[output, output]] {
            assert_eq!(after(&[call], items), Err(Some("input".to_owned())), "{items:?}");
        }
        let wrong = r#"{"role": "user"}"#;
        let param = "input[2].content".to_owned();
        assert_eq!(after(&[call], &[call, output, wrong]), Err(Some(param)));
    }

    #[test]
    fn errors_name_the_item() {
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
