//! Parameter `messages`: conversion to messages of a chat template. Tool calls of Ollama's messages
//! may have no id, and their results may name only the tool. The conversion adds ids, in the order
//! of the calls.

use crate::openai::ApiError;
use crate::openai::json::{Json, Members};
use crate::openai::message::{self, AssistantTurn};

const MAX_MESSAGES: usize = 100_000;

/// Converts the messages. An empty list has no messages.
pub(super) fn messages(listed: Option<Json>) -> Result<Vec<Json>, ApiError> {
    let listed = match listed {
        None | Some(Json::Null) => return Ok(Vec::new()),
        Some(Json::Array(listed)) if listed.len() <= MAX_MESSAGES => listed,
        Some(_) => {
            let message = format!("'messages' must be a list of at most {MAX_MESSAGES} messages.");
            return Err(ApiError::invalid_value("messages", message));
        }
    };
    let mut calls = Calls::default();
    let message = |(index, message): (usize, &Json)| {
        let place = Place(format!("messages[{index}]"));
        convert(&place, message, &mut calls)
    };
    listed.iter().enumerate().map(message).collect()
}

/// Calls of the conversation.
#[derive(Default)]
struct Calls {
    count: usize,
    /// Calls of the last assistant message without a result: id and name.
    open: Vec<(String, String)>,
}

impl Calls {
    /// Returns a new id. Some templates require nine letters and digits.
    fn next_id(&mut self) -> String {
        self.count += 1;
        format!("call{:05}", self.count)
    }

    /// Returns the call that a result belongs to: the one with its id, else the first open one of
    /// its tool, else the first open one.
    fn take(&mut self, id: Option<&str>, tool: Option<&str>) -> Option<(String, String)> {
        let position = match id {
            Some(id) => self.open.iter().position(|(open, _)| open == id)?,
            None => {
                let of_tool = self.open.iter().position(|(_, name)| Some(name.as_str()) == tool);
                of_tool.unwrap_or(0)
            }
        };
        (position < self.open.len()).then(|| self.open.remove(position))
    }
}

fn convert(place: &Place, message: &Json, calls: &mut Calls) -> Result<Json, ApiError> {
    if message.as_object().is_none() {
        return Err(place.invalid("", "an object"));
    }
    check_images(place, message)?;
    let content = place.text(message, "content")?.unwrap_or_default();
    match place.text(message, "role")? {
        Some(role @ ("system" | "user")) => Ok(message::with_role(role, content)),
        Some("assistant") => {
            let mut turn = AssistantTurn::default();
            turn.add_text(content);
            turn.add_reasoning(place.text(message, "thinking")?.unwrap_or_default());
            add_calls(place, message, &mut turn, calls)?;
            Ok(turn
                .into_message()
                .unwrap_or_else(|| message::with_role("assistant", "")))
        }
        Some("tool") => {
            let tool = place.text(message, "tool_name")?;
            let id = place.text(message, "tool_call_id")?.filter(|id| !id.is_empty());
            let call = calls.take(id, tool);
            let name = tool.map(str::to_owned);
            let (id, name) = match call {
                Some((id, called)) => (id, name.or(Some(called))),
                None => (id.map_or_else(|| calls.next_id(), str::to_owned), name),
            };
            let mut result = message::call_result(&id, content);
            if let (Json::Object(members), Some(name)) = (&mut result, name) {
                members.insert("name", Json::String(name));
            }
            Ok(result)
        }
        Some(_) | None => Err(place.invalid(".role", "one of system, user, assistant and tool")),
    }
}

fn check_images(place: &Place, message: &Json) -> Result<(), ApiError> {
    match message.get("images") {
        None | Some(Json::Null) => Ok(()),
        Some(Json::Array(images)) if images.is_empty() => Ok(()),
        Some(_) => Err(images_unsupported(&format!("{}.images", place.0))),
    }
}

/// Returns the error of a request with images.
pub(super) fn images_unsupported(param: &str) -> ApiError {
    let message = format!("'{param}' is not supported: this server supports only text.");
    ApiError::unsupported(param, message)
}

fn add_calls(
    place: &Place,
    message: &Json,
    turn: &mut AssistantTurn,
    calls: &mut Calls,
) -> Result<(), ApiError> {
    calls.open.clear();
    let listed = match message.get("tool_calls") {
        None | Some(Json::Null) => return Ok(()),
        Some(Json::Array(listed)) => listed,
        Some(Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_)) => {
            return Err(place.invalid(".tool_calls", "a list"));
        }
    };
    for (index, call) in listed.iter().enumerate() {
        let place = Place(format!("{}.tool_calls[{index}]", place.0));
        let function = call
            .get("function")
            .filter(|function| function.as_object().is_some());
        let function = function.ok_or_else(|| place.invalid(".function", "an object"))?;
        let name = function.get("name").and_then(Json::as_str);
        let name = name.ok_or_else(|| place.invalid(".function.name", "a string"))?;
        let arguments = match function.get("arguments") {
            None | Some(Json::Null) => Json::Object(Members::default()),
            Some(arguments @ Json::Object(_)) => arguments.clone(),
            Some(Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_)) => {
                return Err(place.invalid(".function.arguments", "an object"));
            }
        };
        let id = place.text(call, "id")?.filter(|id| !id.is_empty());
        let id = id.map_or_else(|| calls.next_id(), str::to_owned);
        turn.add_call(&id, name, arguments);
        calls.open.push((id, name.to_owned()));
    }
    Ok(())
}

/// Path of a value in the request.
struct Place(String);

impl Place {
    fn invalid(&self, field: &str, expected: &str) -> ApiError {
        let param = format!("{}{field}", self.0);
        ApiError::invalid_value(&param, format!("'{param}' must be {expected}."))
    }

    /// Returns an optional string member.
    fn text<'a>(&self, object: &'a Json, name: &str) -> Result<Option<&'a str>, ApiError> {
        match object.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_)) => {
                Err(self.invalid(&format!(".{name}"), "a string"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(listed: &Value) -> Result<Value, Option<String>> {
        let listed = Json::parse(&listed.to_string()).unwrap();
        let messages = messages(Some(listed)).map_err(|err| err.param)?;
        Ok(serde_json::to_value(messages).unwrap())
    }

    #[test]
    fn converts_messages_of_a_conversation_with_tools() {
        let call = |name: &str, town: &str| json!({"function": {"name": name, "arguments": {"town": town}}});
        let listed = json!([
            {"role": "system", "content": "Be terse."},
            {"role": "user", "content": "Weather?", "images": []},
            {"role": "assistant", "thinking": "why", "tool_calls": [call("weather", "Bern"), call("time", "Basel")]},
            {"role": "tool", "tool_name": "time", "content": "noon"},
            {"role": "tool", "content": "sunny"},
            {"role": "assistant", "content": "Sunny."},
        ]);
        let messages = read(&listed).unwrap();
        assert_eq!(messages[0], listed[0]);
        assert_eq!(messages[1], json!({"role": "user", "content": "Weather?"}));
        let turn = &messages[2];
        assert_eq!(
            (&turn["content"], &turn["reasoning_content"]),
            (&json!(""), &json!("why"))
        );
        let id = |index: usize| &turn["tool_calls"][index]["id"];
        assert_eq!(
            turn["tool_calls"][0]["function"]["arguments"],
            json!({"town": "Bern"})
        );
        assert_eq!(
            messages[3],
            json!({"role": "tool", "tool_call_id": id(1), "content": "noon", "name": "time"})
        );
        assert_eq!(
            messages[4],
            json!({"role": "tool", "tool_call_id": id(0), "content": "sunny", "name": "weather"})
        );
        assert_eq!(messages[5], json!({"role": "assistant", "content": "Sunny."}));
        let ids = [id(0), id(1)].map(|id| id.as_str().unwrap().to_owned());
        assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() == 9), "{ids:?}");
    }

    #[test]
    fn keeps_ids_of_calls() {
        let messages = read(&json!([
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}, {"id": "b", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ]))
        .unwrap();
        assert_eq!(messages[0]["tool_calls"][1]["id"], "b");
        assert_eq!(
            (&messages[1]["tool_call_id"], &messages[2]["tool_call_id"]),
            (&json!("b"), &json!("c"))
        );
    }

    #[test]
    fn errors_name_the_message() {
        let call = |call: Value| json!([{"role": "assistant", "tool_calls": [call]}]);
        for (listed, param) in [
            (json!("hi"), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{"content": "hi"}]), "messages[0].role"),
            (json!([{"role": "robot"}]), "messages[0].role"),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "messages[0].content",
            ),
            (
                json!([{"role": "user", "images": ["aGk="]}]),
                "messages[0].images",
            ),
            (call(json!({})), "messages[0].tool_calls[0].function"),
            (
                call(json!({"function": {}})),
                "messages[0].tool_calls[0].function.name",
            ),
            (
                call(json!({"function": {"name": "f", "arguments": "{}"}})),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            assert_eq!(read(&listed), Err(Some(param.to_owned())), "{listed}");
        }
    }
}
