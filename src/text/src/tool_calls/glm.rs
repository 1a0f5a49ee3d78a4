//! Tool call format of GLM-4 (0414): the answer is a function's name, a line break and the
//! arguments.
//!
//! The template supports neither `tool_calls` nor the role `tool`: a call is an assistant message
//! with the name in `metadata`.

use super::{Arguments, Head};
use rooflet_inference_api::openai::json::{Json, Members};
use rooflet_inference_api::openai::tools::Function;

/// Returns true if a template has this format.
pub(super) fn matches_template(template: &str) -> bool {
    template.contains("<|observation|>") && template.contains("metadata") && !template.contains("tool_calls")
}

/// Parses the beginning of an answer. Answers without a call start with a line break.
pub(super) fn head(text: &str, functions: &[Function]) -> Head {
    let mut may_be_one = false;
    for function in functions {
        let name = function.name.as_str();
        let Some(rest) = text.strip_prefix(name) else {
            may_be_one |= name.starts_with(text);
            continue;
        };
        let rest = rest.trim_start_matches(' ');
        let arguments = rest.strip_prefix('\n').unwrap_or(rest);
        if arguments.len() < rest.len() && arguments.starts_with('{') {
            return Head::Begins {
                name: name.to_owned(),
                arguments: Arguments::bare(),
                used: text.len() - arguments.len(),
            };
        }
        may_be_one |= arguments.is_empty();
    }
    if may_be_one {
        Head::Unfinished
    } else {
        Head::NoCall
    }
}

/// Converts a conversation to the messages of such a template.
pub fn turns(messages: &[Json]) -> Vec<Json> {
    let mut turns = Vec::with_capacity(messages.len());
    for message in messages {
        let mut turn = message.clone();
        let Json::Object(members) = &mut turn else {
            turns.push(turn);
            continue;
        };
        if message.get("role").and_then(Json::as_str) == Some("tool") {
            members.insert("role", "observation".into());
        }
        let calls = members.remove("tool_calls");
        let has_content = message.get("content").and_then(Json::as_str) != Some("");
        if calls.is_none() || has_content {
            turns.push(turn);
        }
        if let Some(Json::Array(calls)) = calls {
            turns.extend(calls.iter().map(called));
        }
    }
    turns
}

fn called(call: &Json) -> Json {
    let call = call.get("function").unwrap_or(call);
    let member = |name: &str| call.get(name).cloned().unwrap_or(Json::Null);
    let arguments = serde_json::to_string(&member("arguments")).expect("JSON values serialize");
    Json::Object(Members::new([
        ("role", "assistant".into()),
        ("metadata", member("name")),
        ("content", Json::String(arguments)),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_results_become_separate_messages() {
        let messages: Vec<Json> = serde_json::from_str(
            r#"[{"role": "user", "content": "Now?"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"z": 1, "a": "é"}}}]},
                {"role": "tool", "tool_call_id": "1", "content": "09:05"},
                {"role": "assistant", "content": "It is.", "tool_calls": [{"id": "2", "function": {"name": "f", "arguments": {}}}]}]"#,
        )
        .unwrap();
        let expected: Vec<Json> = serde_json::from_str(
            r#"[{"role": "user", "content": "Now?"},
                {"role": "assistant", "metadata": "now", "content": "{\"z\":1,\"a\":\"é\"}"},
                {"role": "observation", "tool_call_id": "1", "content": "09:05"},
                {"role": "assistant", "content": "It is."},
                {"role": "assistant", "metadata": "f", "content": "{}"}]"#,
        )
        .unwrap();
        assert_eq!(turns(&messages), expected);
    }
}
