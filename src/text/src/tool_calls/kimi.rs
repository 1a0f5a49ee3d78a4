//! Tool call format of Kimi K2: a section of calls, each with an identifier `functions.NAME:INDEX`
//! that the results repeat.

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

/// Returns the identifier of the call at index `place` of the answer, as the template expects it.
pub(crate) fn call_id(name: &str, place: usize) -> String {
    format!("functions.{name}:{place}")
}
