//! Tool call format of Mistral: `[TOOL_CALLS]` and a list of JSON objects. Newer models write
//! `[TOOL_CALLS]NAME[ARGS]{…}` for each call.

use super::json::{self, JsonCall, JsonHead};
use super::{Arguments, Head, is_name};

pub(crate) const MARKER: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";
pub(super) const MARKERS: &[&str] = &[MARKER, CALL_ID, ARGUMENTS];

pub(super) fn head(text: &str, last: bool) -> Head {
    let trimmed = text.trim_start();
    if !trimmed.starts_with(['[', '{']) {
        return named(text);
    }
    let object = trimmed.strip_prefix('[').unwrap_or(trimmed);
    match json::head(object) {
        JsonHead::Name(name, used) => Head::Begins {
            name,
            arguments: Arguments::enclosed(),
            used: text.len() - object.len() + used,
        },
        JsonHead::Other | JsonHead::Unfinished if !last => Head::Unfinished,
        JsonHead::Other | JsonHead::Unfinished => {
            let calls = serde_json::from_str(text).ok();
            let calls = calls.and_then(|calls: Vec<JsonCall<'_>>| {
                calls.into_iter().map(JsonCall::into_call).collect::<Option<_>>()
            });
            match calls {
                Some(calls) => Head::Whole {
                    calls,
                    used: text.len(),
                },
                None => Head::NoCall,
            }
        }
    }
}

fn named(text: &str) -> Head {
    let Some(at) = text.find('{') else {
        return Head::Unfinished;
    };
    let head = text[..at].trim().trim_end_matches(ARGUMENTS);
    let name = head.split_once(CALL_ID).map_or(head, |(name, _id)| name).trim();
    match is_name(name) {
        true => Head::Begins {
            name: name.to_owned(),
            arguments: Arguments::bare(),
            used: at,
        },
        false => Head::NoCall,
    }
}
