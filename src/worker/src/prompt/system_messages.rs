//! Merging of system messages, for templates that accept a single one at the beginning.

use rooflet_inference_api::openai::json::Json;
use rooflet_inference_api::openai::message::{append_line, text_of, with_role};

/// Merges all system messages into one at the beginning. Returns `None` if no message after the
/// first one is a system message.
///
/// User messages that become adjacent are also merged, because such templates require alternating
/// roles.
pub(super) fn merge_system_messages(messages: &[Json]) -> Option<Vec<Json>> {
    let role = |message: &Json| message.get("role").and_then(Json::as_str).map(str::to_owned);
    let is_system = |message: &Json| role(message).as_deref() == Some("system");
    if !messages.iter().skip(1).any(is_system) {
        return None;
    }
    let mut system = Vec::new();
    let mut others: Vec<Json> = Vec::new();
    let mut after_system = false;
    for message in messages {
        if is_system(message) {
            system.push(text_of(message)?);
            after_system = true;
            continue;
        }
        let both_users = role(message).as_deref() == Some("user")
            && others.last().and_then(role).as_deref() == Some("user");
        match others.last_mut() {
            Some(last) if both_users && after_system => {
                let mut text = text_of(last)?.to_owned();
                append_line(&mut text, text_of(message)?);
                *last = with_role("user", &text);
            }
            Some(_) | None => others.push(message.clone()),
        }
        after_system = false;
    }
    others.insert(0, with_role("system", &system.join("\n\n")));
    Some(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(messages: &str) -> Option<String> {
        let Json::Array(messages) = serde_json::from_str(messages).unwrap() else {
            panic!("not a list");
        };
        let line = |message: &Json| {
            let member = |name| message.get(name).and_then(Json::as_str).unwrap_or("-").to_owned();
            format!("{}: {}", member("role"), member("content"))
        };
        let lines = |messages: Vec<Json>| messages.iter().map(line).collect::<Vec<_>>().join(" | ");
        merge_system_messages(&messages).map(lines)
    }

    #[test]
    fn merges_system_messages_and_adjacent_user_messages() {
        let messages = r#"[{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"},
            {"role": "system", "content": "d"}, {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"},
            {"role": "system", "content": "g"}]"#;
        let expected = "system: a\n\nb\n\nd\n\ng | user: c\ne | assistant: f";
        assert_eq!(merged(messages).as_deref(), Some(expected));
        let late = r#"[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "system", "content": "c"}]"#;
        assert_eq!(merged(late).as_deref(), Some("system: c | user: a | user: b"));
    }

    #[test]
    fn keeps_conversations_with_single_leading_system_message() {
        for messages in [
            "[]",
            r#"[{"role": "user", "content": "a"}]"#,
            r#"[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]"#,
        ] {
            assert_eq!(merged(messages), None, "{messages}");
        }
    }
}
