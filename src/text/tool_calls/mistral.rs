//! Mistral's calls: `[TOOL_CALLS]` and a list of JSON objects, or, in newer models, `[TOOL_CALLS]NAME[ARGS]{…}` for
//! each call.

use super::ToolCall;
use super::json::{JsonCall, is_object};

pub(super) const MARKER: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";
pub(super) const MARKERS: &[&str] = &[MARKER, CALL_ID, ARGUMENTS];

/// All calls behind the first marker.
pub(super) fn read(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    if text.starts_with('[') {
        let calls: Vec<JsonCall<'_>> = serde_json::from_str(text).ok()?;
        return calls.into_iter().map(JsonCall::into_call).collect();
    }
    text.split(MARKER).map(read_named).collect()
}

fn read_named(text: &str) -> Option<ToolCall> {
    let (head, arguments) = text.split_at(text.find('{')?);
    let head = head.trim().trim_end_matches(ARGUMENTS);
    let name = head.split_once(CALL_ID).map_or(head, |(name, _id)| name).trim();
    (!name.is_empty() && is_object(arguments)).then(|| ToolCall {
        name: name.to_owned(),
        arguments: arguments.trim().to_owned(),
    })
}
