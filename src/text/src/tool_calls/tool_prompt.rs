//! Tools for models whose chat template does not support them.
//!
//! The system message describes the tools, or the first user message if the template rejects system
//! messages. If the template does not render earlier calls, these and their results become text, in
//! the tags that most models were trained with.

use super::tagged;
use rooflet_inference_api::openai::json::{Json, Members};

/// Returns true if a template renders the available tools.
pub fn supports_tools(template: &str) -> bool {
    template.contains("tools")
}

/// Role of the message that describes the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptRole {
    System,
    /// For templates that reject system messages.
    User,
}

/// Converts a conversation for a template that does not support tools. A message of `in_role`
/// describes the tools.
pub fn with_tool_prompt(template: &str, messages: &[Json], tools: &[Json], in_role: PromptRole) -> Vec<Json> {
    let mut plain = match template.contains("tool_calls") {
        true => messages.iter().map(without_empty_content).collect(),
        false => as_text(messages),
    };
    if tools.is_empty() {
        return plain;
    }
    let description = described(tools);
    match (
        in_role,
        plain.iter_mut().find(|message| role(message) != "system"),
    ) {
        (PromptRole::User, Some(first)) if role(first) == "user" => {
            if let Some(Json::String(content)) = first.get_mut("content") {
                content.insert_str(0, &format!("{description}\n\n"));
            }
        }
        (PromptRole::User, _) => plain.insert(0, new_message("user", &description)),
        (PromptRole::System, _) => match plain.first_mut() {
            Some(first) if role(first) == "system" => append(first, &format!("\n{description}")),
            Some(_) | None => plain.insert(0, new_message("system", &description)),
        },
    }
    plain
}

/// Replaces empty content by null. Some DeepSeek templates render calls only if the content is
/// null.
fn without_empty_content(message: &Json) -> Json {
    let mut message = message.clone();
    let is_empty = content(&message).is_empty() && message.get("tool_calls").is_some();
    if let Some(content) = message.get_mut("content").filter(|_| is_empty) {
        *content = Json::Null;
    }
    message
}

/// Converts calls and results to text.
fn as_text(messages: &[Json]) -> Vec<Json> {
    let mut plain: Vec<Json> = Vec::with_capacity(messages.len() + 1);
    let mut results_open = false;
    for message in messages {
        let is_result = role(message) == "tool";
        if is_result {
            let result = format!("<tool_response>\n{}\n</tool_response>", content(message));
            match plain.last_mut() {
                // All results of a turn form one user message.
                Some(turn) if results_open => append(turn, &result),
                Some(_) | None => plain.push(new_message("user", &result)),
            }
        } else {
            let mut turn = message.clone();
            if let (Json::Object(members), Some(Json::Array(calls))) = (&mut turn, message.get("tool_calls"))
            {
                members.retain(|name, _| name != "tool_calls");
                calls.iter().for_each(|call| append(&mut turn, &written(call)));
            }
            plain.push(turn);
        }
        results_open = is_result;
    }
    plain
}

fn role(message: &Json) -> &str {
    message.get("role").and_then(Json::as_str).unwrap_or_default()
}

fn content(message: &Json) -> &str {
    message.get("content").and_then(Json::as_str).unwrap_or_default()
}

fn new_message(role: &str, content: &str) -> Json {
    Json::Object(Members::new([
        ("role", Json::String(role.to_owned())),
        ("content", Json::String(content.to_owned())),
    ]))
}

fn append(message: &mut Json, text: &str) {
    if let Some(Json::String(content)) = message.get_mut("content") {
        if !content.is_empty() {
            content.push('\n');
        }
        content.push_str(text);
    }
}

fn written(call: &Json) -> String {
    let call = call.get("function").unwrap_or(call);
    let member = |name: &str| call.get(name).cloned().unwrap_or(Json::Null);
    let call = Json::Object(Members::new([
        ("name", member("name")),
        ("arguments", member("arguments")),
    ]));
    format!("{}\n{}\n{}", tagged::OPEN, json(&call), tagged::CLOSE)
}

fn described(tools: &[Json]) -> String {
    let listed: Vec<String> = tools.iter().map(json).collect();
    format!(
        "You may call functions. These are the ones there are:\n<tools>\n{}\n</tools>\n\
         To call one, answer with its name and its arguments as a JSON object in these tags:\n\
         {}\n{{\"name\": \"…\", \"arguments\": {{…}}}}\n{}",
        listed.join("\n"),
        tagged::OPEN,
        tagged::CLOSE
    )
}

fn json(value: &Json) -> String {
    serde_json::to_string(value).expect("JSON values serialize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_calls_for_templates_that_render_them() {
        let messages: Vec<Json> = serde_json::from_str(
            r#"[{"role": "user", "content": ""},
                {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
                {"role": "tool", "content": ""}, {"role": "assistant", "content": "a", "tool_calls": [{"id": "2"}]}]"#,
        )
        .unwrap();
        let mut expected = messages.clone();
        *expected[1].get_mut("content").unwrap() = Json::Null;
        assert_eq!(
            with_tool_prompt("{{ message.tool_calls }}", &messages, &[], PromptRole::System),
            expected
        );
    }

    #[test]
    fn converts_calls_and_tools_to_text() {
        let messages: Vec<Json> = serde_json::from_str(
            r#"[{"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]},
                {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, {"role": "user", "content": "Go on"}]"#,
        )
        .unwrap();
        let tools: Vec<Json> = serde_json::from_str(r#"[{"type": "function"}]"#).unwrap();
        let plain = with_tool_prompt("", &messages, &tools, PromptRole::System);
        let roles: Vec<&str> = plain.iter().map(role).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user", "user"]);
        assert!(content(&plain[0]).contains("<tools>\n{\"type\":\"function\"}\n</tools>"));
        assert_eq!(
            content(&plain[2]),
            "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"z\":1,\"a\":2}}\n</tool_call>"
        );
        assert_eq!(
            content(&plain[3]),
            "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
        );
        let terse = [new_message("system", "Be terse."), new_message("user", "Hi")];
        assert!(
            content(&with_tool_prompt("", &terse, &tools, PromptRole::System)[0])
                .starts_with("Be terse.\n\nYou may")
        );
        let named: Vec<Json> = serde_json::from_str(
            r#"[{"role": "user", "name": "Ada", "content": "Hi", "reasoning_content": "x"}]"#,
        )
        .unwrap();
        assert_eq!(
            with_tool_prompt("", &named, &[], PromptRole::System),
            named,
            "messages without calls are unchanged"
        );
    }
}
