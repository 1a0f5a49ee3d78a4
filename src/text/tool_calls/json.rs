//! Calls written as JSON objects. Their arguments are kept as the model wrote them.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Reading, ToolCall};

/// `{"name": …, "arguments": {…}}`; `parameters` is Llama's word for them.
#[derive(Deserialize)]
pub(super) struct JsonCall<'a> {
    name: String,
    #[serde(borrow, alias = "parameters", default)]
    arguments: Option<&'a RawValue>,
}

impl JsonCall<'_> {
    /// `None` where the arguments are no object.
    pub(super) fn into_call(self) -> Option<ToolCall> {
        if self.name.is_empty() {
            return None;
        }
        let arguments = match self.arguments.map(RawValue::get) {
            None => "{}".to_owned(),
            Some(object) if object.starts_with('{') => object.to_owned(),
            // Some models write the object as a string, as OpenAI's API does.
            Some(other) => serde_json::from_str::<String>(other)
                .ok()
                .filter(|text| is_object(text))?,
        };
        Some(ToolCall {
            name: self.name,
            arguments,
        })
    }

    /// Whether the arguments are there at all.
    pub(super) fn has_arguments(&self) -> bool {
        self.arguments.is_some()
    }
}

/// A text that is one call.
pub(super) fn read(text: &str) -> Reading {
    match serde_json::from_str::<JsonCall<'_>>(text) {
        Ok(call) => call.into_call().map_or(Reading::Malformed, Reading::Call),
        Err(err) if err.is_eof() => Reading::Unfinished,
        Err(_) => Reading::Malformed,
    }
}

/// Whether a text is a JSON object.
pub(crate) fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok()
}
