//! Check of tool calls and their results in a conversation: each call has a result in the next
//! messages, and each result has a call. OpenAI and Anthropic require both. Templates would render
//! prompts that no model was trained on.

use crate::openai::json::Json;

/// Violation, with the index of the message.
#[derive(Debug, PartialEq, Eq)]
pub enum CallError {
    /// Result without a call in the previous assistant message.
    UnknownCall { index: usize, id: String },
    /// Calls without a result.
    MissingResult { index: usize, ids: Vec<String> },
}

/// Checks `messages` in the form of chat templates.
pub fn check(messages: &[Json]) -> Result<(), CallError> {
    let mut calls_at = 0;
    let mut open: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let text = |name: &str| message.get(name).and_then(Json::as_str);
        if text("role") == Some("tool") {
            let id = text("tool_call_id").unwrap_or_default();
            match open.iter().position(|call| *call == id) {
                Some(position) => drop(open.remove(position)),
                None => {
                    let id = id.to_owned();
                    return Err(CallError::UnknownCall { index, id });
                }
            }
            continue;
        }
        all_answered(calls_at, &open)?;
        calls_at = index;
        if let Some(Json::Array(calls)) = message.get("tool_calls") {
            open = calls.iter().filter_map(|call| call.get("id")?.as_str()).collect();
        }
    }
    all_answered(calls_at, &open)
}

fn all_answered(index: usize, open: &[&str]) -> Result<(), CallError> {
    if open.is_empty() {
        return Ok(());
    }
    let ids = open.iter().map(|id| (*id).to_owned()).collect();
    Err(CallError::MissingResult { index, ids })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a conversation: `a1,2` is an assistant that calls 1 and 2, `t1` the result of 1, `u`
    /// a user.
    fn conversation(text: &str) -> Vec<Json> {
        let message = |word: &str| {
            let (role, ids) = word.split_at(1);
            let role_name = match role {
                "a" => "assistant",
                "t" => "tool",
                _ => "user",
            };
            let calls: Vec<_> = ids.split(',').filter(|id| !id.is_empty()).collect();
            let calls: Vec<_> = calls.iter().map(|id| serde_json::json!({"id": id})).collect();
            let message = match role {
                "t" => serde_json::json!({"role": role_name, "tool_call_id": ids}),
                _ => serde_json::json!({"role": role_name, "tool_calls": calls}),
            };
            serde_json::from_value(message).unwrap()
        };
        text.split(' ').map(message).collect()
    }

    #[test]
    fn requires_results_for_calls_and_calls_for_results() {
        for text in ["u", "u a u", "u a1 t1", "u a1,2 t2 t1 u a3 t3 a", "a1 t1 a1 t1"] {
            assert_eq!(check(&conversation(text)), Ok(()), "{text}");
        }
        let unknown_call = |index, id: &str| CallError::UnknownCall {
            index,
            id: id.to_owned(),
        };
        let missing_result = |index, ids: &[&str]| CallError::MissingResult {
            index,
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        for (text, problem) in [
            ("t1", unknown_call(0, "1")),
            ("u a1 t2", unknown_call(2, "2")),
            ("u a1 t1 t1", unknown_call(3, "1")),
            ("u a1 t1 u t1", unknown_call(4, "1")),
            ("u a1", missing_result(1, &["1"])),
            ("u a1,2 t2 u", missing_result(1, &["1"])),
            ("u a1,2 u t1", missing_result(1, &["1", "2"])),
            ("u a1 a2 t2", missing_result(1, &["1"])),
        ] {
            assert_eq!(check(&conversation(text)), Err(problem), "{text}");
        }
    }
}
