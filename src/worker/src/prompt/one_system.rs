//! Conversations for templates that know one system message, at the beginning.

use rooflet_inference_api::openai::json::Json;
use rooflet_inference_api::openai::message::{append_line, said, text_of};

/// The same with all system messages as one, the first; `None` where they are already. Users' texts
/// that one stood between become one, since such templates have roles alternate, too.
pub(super) fn one_system(messages: &[Json]) -> Option<Vec<Json>> {
    let role = |message: &Json| message.get("role").and_then(Json::as_str).map(str::to_owned);
    let is_system = |message: &Json| role(message).as_deref() == Some("system");
    if !messages.iter().skip(1).any(is_system) {
        return None;
    }
    let mut system = Vec::new();
    let mut others: Vec<Json> = Vec::new();
    let mut stood_between = false;
    for message in messages {
        if is_system(message) {
            system.push(text_of(message)?);
            stood_between = true;
            continue;
        }
        let both_users = role(message).as_deref() == Some("user")
            && others.last().and_then(role).as_deref() == Some("user");
        match others.last_mut() {
            Some(last) if both_users && stood_between => {
                let mut text = text_of(last)?.to_owned();
                append_line(&mut text, text_of(message)?);
                *last = said("user", &text);
            }
            Some(_) | None => others.push(message.clone()),
        }
        stood_between = false;
    }
    others.insert(0, said("system", &system.join("\n\n")));
    Some(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: &str) -> Option<String> {
        let Json::Array(messages) = serde_json::from_str(messages).unwrap() else {
            panic!("a list");
        };
        let said = |message: &Json| {
            let word = |name| message.get(name).and_then(Json::as_str).unwrap_or("-").to_owned();
            format!("{}: {}", word("role"), word("content"))
        };
        let words = |messages: Vec<Json>| messages.iter().map(said).collect::<Vec<_>>().join(" | ");
        one_system(&messages).map(words)
    }

    #[test]
    fn all_that_the_system_says_is_said_first() {
        let messages = r#"[{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"},
            {"role": "system", "content": "d"}, {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"},
            {"role": "system", "content": "g"}]"#;
        let expected = "system: a\n\nb\n\nd\n\ng | user: c\ne | assistant: f";
        assert_eq!(read(messages).as_deref(), Some(expected));
        let late = r#"[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "system", "content": "c"}]"#;
        assert_eq!(read(late).as_deref(), Some("system: c | user: a | user: b"));
    }

    #[test]
    fn one_that_is_first_already_stays() {
        for messages in [
            "[]",
            r#"[{"role": "user", "content": "a"}]"#,
            r#"[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]"#,
        ] {
            assert_eq!(read(messages), None, "{messages}");
        }
    }
}
