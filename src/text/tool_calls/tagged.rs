//! What stands between `<tool_call>` and `</tool_call>`: JSON (Hermes, Qwen), `<function=…>` with its parameters
//! (Qwen3-Coder), or a name with pairs of keys and values (GLM).

use super::{Reading, ToolCall, json};
use crate::openai::json::{Json, Members};
use crate::openai::tools::Function;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
const KEY: (&str, &str) = ("<arg_key>", "</arg_key>");
const VALUE: (&str, &str) = ("<arg_value>", "</arg_value>");
pub(super) const MARKERS: &[&str] = &[OPEN, CLOSE, KEY.0, KEY.1, VALUE.0, VALUE.1];

pub(super) fn read(text: &str, functions: &[Function]) -> Reading {
    let text = text.trim();
    if text.starts_with('{') {
        json::read(text)
    } else if let Some(function) = text.strip_prefix("<function=") {
        read_function(function, functions)
    } else {
        read_pairs(text, functions)
    }
}

/// `NAME>`, then `<parameter=KEY>\nVALUE\n</parameter>` for each, then `</function>`.
fn read_function(text: &str, functions: &[Function]) -> Reading {
    let Some((name, mut rest)) = text.split_once('>') else {
        return Reading::Unfinished;
    };
    let mut arguments = Arguments::of(name.trim(), functions);
    loop {
        rest = rest.trim_start();
        if let Some(behind) = rest.strip_prefix("</function>") {
            return if behind.trim().is_empty() {
                arguments.into_call()
            } else {
                Reading::Malformed
            };
        }
        if rest.is_empty() {
            return Reading::Unfinished;
        }
        let Some(parameter) = rest.strip_prefix("<parameter=") else {
            return Reading::Malformed;
        };
        let parts = parameter
            .split_once('>')
            .and_then(|(key, rest)| Some((key, rest.split_once("</parameter>")?)));
        let Some((key, (value, behind))) = parts else {
            return Reading::Unfinished;
        };
        // The line breaks beside the tags are the format's.
        let value = value.strip_prefix('\n').unwrap_or(value);
        arguments.set(key.trim(), value.strip_suffix('\n').unwrap_or(value));
        rest = behind;
    }
}

/// A name, then `<arg_key>KEY</arg_key>` and `<arg_value>VALUE</arg_value>` for each.
fn read_pairs(text: &str, functions: &[Function]) -> Reading {
    let (name, mut rest) = match text.find(KEY.0) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let name = name.trim();
    // Any text would be a name.
    if !functions.iter().any(|function| function.name == name) {
        return Reading::Malformed;
    }
    let mut arguments = Arguments::of(name, functions);
    while !rest.is_empty() {
        let Some(key) = rest.strip_prefix(KEY.0) else {
            return Reading::Malformed;
        };
        let Some((key, behind)) = key.split_once(KEY.1) else {
            return Reading::Unfinished;
        };
        let Some(value) = behind.trim_start().strip_prefix(VALUE.0) else {
            return Reading::Malformed;
        };
        let Some((value, behind)) = value.split_once(VALUE.1) else {
            return Reading::Unfinished;
        };
        arguments.set(key.trim(), value);
        rest = behind.trim_start();
    }
    arguments.into_call()
}

/// Arguments that come as text; what kind of values they are is for the function's schema to say.
struct Arguments<'a> {
    name: String,
    parameters: Option<&'a Json>,
    members: Members,
}

impl<'a> Arguments<'a> {
    fn of(name: &str, functions: &'a [Function]) -> Self {
        let function = functions.iter().find(|function| function.name == name);
        Self {
            name: name.to_owned(),
            parameters: function.and_then(|function| function.parameters.as_ref()),
            members: Members::default(),
        }
    }

    fn set(&mut self, key: &str, text: &str) {
        let schema = self
            .parameters
            .and_then(|parameters| parameters.get("properties")?.get(key));
        let string = || Json::String(text.to_owned());
        let value = match schema {
            // A string's text is not to be read as anything else.
            None => string(),
            Some(schema) if may_be_string(schema) => string(),
            Some(_) => serde_json::from_str(text.trim()).unwrap_or_else(|_| string()),
        };
        self.members.insert(key, value);
    }

    fn into_call(self) -> Reading {
        if self.name.is_empty() {
            return Reading::Malformed;
        }
        let arguments = serde_json::to_string(&Json::Object(self.members));
        Reading::Call(ToolCall {
            name: self.name,
            arguments: arguments.expect("names are strings and memory does not fail"),
        })
    }
}

fn may_be_string(schema: &Json) -> bool {
    match schema.get("type") {
        Some(Json::String(kind)) => kind == "string",
        Some(Json::Array(kinds)) => kinds.iter().any(|kind| kind.as_str() == Some("string")),
        Some(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_)) | None => {
            schema.get("enum").is_some()
                && matches!(schema.get("enum"), Some(Json::Array(values)) if values.iter().all(|value| value.as_str().is_some()))
        }
    }
}
