//! Tool call format of Llama 3: JSON objects as the complete answer, separated by `;`.

use super::json::{self, JsonCall, JsonHead};
use super::{Arguments, Head, ToolCall};
use rooflet_inference_api::openai::tools::Function;

/// Marker before calls of built-in tools, and in some models before all calls.
pub(crate) const MARKER: &str = "<|python_tag|>";

/// Parses the beginning of a call. Other JSON may be content: a call has a known name and
/// arguments.
pub(super) fn head(text: &str, functions: &[Function], last: bool) -> Head {
    let known = |name: &str| functions.iter().any(|function| function.name == name);
    match json::head(text) {
        JsonHead::Name(name, used) if known(&name) => Head::Begins {
            name,
            arguments: Arguments::enclosed(),
            used,
        },
        JsonHead::Name(..) => Head::NoCall,
        JsonHead::Other | JsonHead::Unfinished if !last => Head::Unfinished,
        JsonHead::Other | JsonHead::Unfinished => match whole(text, functions) {
            Some(calls) => Head::Whole {
                calls,
                used: text.len(),
            },
            None => Head::NoCall,
        },
    }
}

fn whole(text: &str, functions: &[Function]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<JsonCall<'_>>();
        let call = values.next()?.ok().filter(JsonCall::has_arguments)?.into_call()?;
        functions.iter().find(|function| function.name == call.name)?;
        calls.push(call);
        rest = rest[values.byte_offset()..].trim_start();
        rest = rest.strip_prefix(';').unwrap_or(rest).trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}
