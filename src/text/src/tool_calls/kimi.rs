//! Tool call format of Kimi K2: a section of calls, each with an identifier `functions.NAME:INDEX`
//! that the results repeat. Models number the calls of a conversation. Clients pair calls and results by identifier,
//! so that no identifier may repeat. The first templates number the calls of each message instead, and write the
//! client's identifiers for results only.

use std::collections::HashMap;

use rooflet_inference_api::openai::json::Json;

use super::{Arguments, Head, is_name};

pub(crate) const SECTION: &str = "<|tool_calls_section_begin|>";
pub(crate) const SECTION_END: &str = "<|tool_calls_section_end|>";
pub(crate) const CALL: &str = "<|tool_call_begin|>";
pub(crate) const CALL_END: &str = "<|tool_call_end|>";
pub(crate) const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
pub(super) const MARKERS: &[&str] = &[SECTION, SECTION_END, CALL, CALL_END, ARGUMENTS];

pub(super) fn head(text: &str) -> Head {
    let Some((id, arguments)) = text.split_once(ARGUMENTS) else {
        return Head::Unfinished;
    };
    let brace = arguments.trim_start();
    if brace.is_empty() {
        return Head::Unfinished;
    }
    let id = id.trim().trim_start_matches(CALL).trim();
    let id = id.strip_prefix("functions.").unwrap_or(id);
    let name = id.rsplit_once(':').map_or(id, |(name, _index)| name);
    if !is_name(name) || !brace.starts_with('{') {
        return Head::NoCall;
    }
    Head::Begins {
        name: name.to_owned(),
        arguments: Arguments::bare(),
        used: text.len() - brace.len(),
    }
}

/// Returns the identifier of the call with this number.
pub(crate) fn call_id(name: &str, number: usize) -> String {
    format!("functions.{name}:{number}")
}

/// Returns the calls of a message.
fn calls(message: &Json) -> &[Json] {
    match message.get("tool_calls") {
        Some(Json::Array(calls)) => calls,
        Some(_) | None => &[],
    }
}

/// Returns the number of the next call in a conversation: larger than all earlier ones, even if the client has removed
/// messages.
pub fn next_call(messages: &[Json]) -> usize {
    let calls = || messages.iter().flat_map(calls);
    let number = |call: &Json| -> Option<usize> {
        let (_, number) = call
            .get("id")?
            .as_str()?
            .strip_prefix("functions.")?
            .rsplit_once(':')?;
        usize::try_from(number.parse::<u32>().ok()?).ok()?.checked_add(1)
    };
    calls().filter_map(number).max().unwrap_or(0).max(calls().count())
}

/// Returns the messages with the identifiers that a template with numbers per message writes for calls.
pub fn with_template_ids(messages: &[Json]) -> Vec<Json> {
    let mut messages = messages.to_vec();
    let mut ids: HashMap<String, String> = HashMap::new();
    for message in &mut messages {
        if let Some(Json::Array(calls)) = message.get_mut("tool_calls") {
            for (place, call) in calls.iter_mut().enumerate() {
                let name = call
                    .get("function")
                    .and_then(|function| function.get("name")?.as_str());
                let written = call_id(name.unwrap_or_default(), place);
                if let Some(Json::String(id)) = call.get_mut("id") {
                    ids.insert(std::mem::replace(id, written.clone()), written);
                }
            }
        }
        if let Some(Json::String(id)) = message.get_mut("tool_call_id")
            && let Some(written) = ids.get(id)
        {
            id.clone_from(written);
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(text: &str) -> Vec<Json> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn numbers_exceed_those_of_all_earlier_calls() {
        assert_eq!(next_call(&[]), 0);
        let two = r#"[{"role": "assistant", "tool_calls": [{"id": "call_1"}, {"id": "functions.f:0"}]}, {"role": "user"}]"#;
        assert_eq!(next_call(&conversation(two)), 2);
        let cut = r#"[{"role": "assistant", "tool_calls": [{"id": "functions.f:7"}]}]"#;
        assert_eq!(next_call(&conversation(cut)), 8);
        let full = format!(r#"[{{"tool_calls": [{{"id": "functions.f:{}"}}]}}]"#, usize::MAX);
        assert_eq!(next_call(&conversation(&full)), 1);
    }

    #[test]
    fn results_have_the_identifiers_that_the_template_writes() {
        let messages = conversation(
            r#"[{"role": "assistant", "tool_calls": [{"id": "functions.f:0", "function": {"name": "f"}},
                    {"id": "x", "function": {"name": "g"}}]},
                {"role": "tool", "tool_call_id": "x"}, {"role": "tool", "tool_call_id": "functions.f:0"},
                {"role": "assistant", "tool_calls": [{"id": "functions.f:2", "function": {"name": "f"}}]},
                {"role": "tool", "tool_call_id": "functions.f:2"}, {"role": "tool", "tool_call_id": "unknown"}]"#,
        );
        let messages = with_template_ids(&messages);
        let calls: Vec<_> = messages
            .iter()
            .flat_map(calls)
            .map(|call| call.get("id")?.as_str())
            .collect();
        let own = ["functions.f:0", "functions.g:1", "functions.f:0"].map(Some);
        assert_eq!(calls, own);
        let results: Vec<_> = messages
            .iter()
            .filter_map(|message| message.get("tool_call_id")?.as_str())
            .collect();
        assert_eq!(
            results,
            [own[1], own[0], own[0], Some("unknown")].map(Option::unwrap)
        );
    }
}
