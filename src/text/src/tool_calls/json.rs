//! Tool calls as JSON objects. Arguments are kept as the model wrote them.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{Reading, ToolCall};

/// Call `{"name": …, "arguments": {…}}`. Llama names the arguments `parameters`.
#[derive(Deserialize)]
pub(super) struct JsonCall<'a> {
    name: String,
    #[serde(borrow, alias = "parameters", default)]
    arguments: Option<&'a RawValue>,
}

impl JsonCall<'_> {
    /// Returns `None` if the arguments are not an object.
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

    pub(super) fn has_arguments(&self) -> bool {
        self.arguments.is_some()
    }
}

/// Parses a text as one call.
pub(super) fn read(text: &str) -> Reading {
    match serde_json::from_str::<JsonCall<'_>>(text) {
        Ok(call) => call.into_call().map_or(Reading::Malformed, Reading::Call),
        Err(err) if err.is_eof() => Reading::Unfinished,
        Err(_) => Reading::Malformed,
    }
}

/// Returns the length of the JSON value at the start of a text, if it is complete.
pub(super) fn end(text: &str) -> Option<usize> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    Some(values.byte_offset())
}

/// Returns true if a text is a JSON object.
fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Result of parsing the beginning of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JsonHead {
    /// Name, and the length up to the opening brace of the arguments.
    Name(String, usize),
    /// Undecided: more text is needed.
    Unfinished,
    /// Another form, which requires the complete text.
    Other,
}

/// Parses `{"name": "…", "arguments": {`, up to the last brace.
pub(super) fn head(text: &str) -> JsonHead {
    let mut cursor = Cursor { text, at: 0 };
    match cursor.head() {
        Ok(name) => JsonHead::Name(name, cursor.at),
        Err(stop) => stop,
    }
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl Cursor<'_> {
    fn head(&mut self) -> Result<String, JsonHead> {
        self.expect('{')?;
        if self.string()? != "name" {
            return Err(JsonHead::Other);
        }
        self.expect(':')?;
        let name = self.string()?;
        self.expect(',')?;
        if !matches!(self.string()?.as_str(), "arguments" | "parameters") || name.is_empty() {
            return Err(JsonHead::Other);
        }
        self.expect(':')?;
        self.expect('{')?;
        self.at -= 1;
        Ok(name)
    }

    fn expect(&mut self, expected: char) -> Result<(), JsonHead> {
        let rest = self.text[self.at..].trim_start();
        match rest.chars().next() {
            None => Err(JsonHead::Unfinished),
            Some(c) if c == expected => {
                self.at = self.text.len() - rest.len() + c.len_utf8();
                Ok(())
            }
            Some(_) => Err(JsonHead::Other),
        }
    }

    fn string(&mut self) -> Result<String, JsonHead> {
        self.expect('"')?;
        let begin = self.at - 1;
        let mut escaped = false;
        for (at, byte) in self.text.bytes().enumerate().skip(self.at) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    self.at = at + 1;
                    return serde_json::from_str(&self.text[begin..self.at]).map_err(|_| JsonHead::Other);
                }
                _ => {}
            }
        }
        Err(JsonHead::Unfinished)
    }
}

/// Scanner that finds the end of an object in text that arrives in pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JsonScan {
    /// Number of open objects and lists.
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl JsonScan {
    /// Starts inside an object.
    pub(super) fn inside() -> Self {
        Self {
            depth: 1,
            ..Self::default()
        }
    }

    /// Continues with `text`, and returns the length up to the end of the object. In JSON, `<` only
    /// occurs in strings. Elsewhere it starts a marker and ends an unclosed object.
    pub(super) fn end_in(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'<' => return Some(at),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}
