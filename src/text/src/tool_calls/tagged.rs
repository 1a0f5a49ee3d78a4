//! Tool calls between `<tool_call>` and `</tool_call>`: JSON (Hermes, Qwen), `<function=…>` with
//! parameters (Qwen3-Coder), or a name with pairs of keys and values (GLM).

use std::sync::Arc;

use super::json::{self, JsonHead};
use super::value::value;
use super::{Arguments, Head, Reading};
use rooflet_inference_api::openai::json::Json;
use rooflet_inference_api::openai::tools::Function;

pub(crate) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: (&str, &str) = ("<parameter=", "</parameter>");
const KEY: (&str, &str) = ("<arg_key>", "</arg_key>");
const VALUE: (&str, &str) = ("<arg_value>", "</arg_value>");
pub(super) const MARKERS: &[&str] = &[OPEN, CLOSE, KEY.0, KEY.1, VALUE.0, VALUE.1];

pub(super) fn head(text: &str, functions: &Arc<[Function]>, last: bool) -> Head {
    let trimmed = text.trim_start();
    let begins = |name: &str, style: Style, used: usize| Head::Begins {
        name: name.to_owned(),
        arguments: Arguments::Tags(TagArguments::new(name, style, Arc::clone(functions))),
        used,
    };
    if trimmed.starts_with('{') {
        return match json::head(text) {
            JsonHead::Name(name, used) => Head::Begins {
                name,
                arguments: Arguments::enclosed(),
                used,
            },
            JsonHead::Unfinished if !last => Head::Unfinished,
            JsonHead::Unfinished | JsonHead::Other => whole(text, last),
        };
    }
    if let Some(function) = trimmed.strip_prefix(FUNCTION) {
        return match function.split_once('>') {
            Some((name, _)) if name.trim().is_empty() => Head::NoCall,
            Some((name, rest)) => begins(name.trim(), Style::Parameters, text.len() - rest.len()),
            None => Head::Unfinished,
        };
    }
    if FUNCTION.starts_with(trimmed) {
        return Head::Unfinished;
    }
    // Only known functions count, because any text could be a name.
    let known = |name: &str| functions.iter().any(|function| function.name == name);
    match trimmed.find(['\n', '<']) {
        Some(end) if known(trimmed[..end].trim()) => {
            let used = text.len() - trimmed.len() + end;
            begins(trimmed[..end].trim(), Style::Pairs, used)
        }
        Some(_) => Head::NoCall,
        None if last && known(trimmed.trim()) => begins(trimmed.trim(), Style::Pairs, text.len()),
        None => Head::Unfinished,
    }
}

/// Parses JSON with its members in an unusual order.
fn whole(text: &str, last: bool) -> Head {
    // An argument may contain the closing marker.
    let Some(end) = json::end(text) else {
        return match json::read(text) {
            Reading::Unfinished if !last => Head::Unfinished,
            Reading::Call(_) | Reading::Unfinished | Reading::Malformed => Head::NoCall,
        };
    };
    let after = text[end..].trim_start();
    // Many models end their answer without the closing marker, or write another call instead.
    let closed = after.starts_with(CLOSE) || after.starts_with('{') || (last && after.is_empty());
    if !closed {
        return match !last && CLOSE.starts_with(after) {
            true => Head::Unfinished,
            false => Head::NoCall,
        };
    }
    match json::read(&text[..end]) {
        Reading::Call(call) => Head::Whole {
            calls: vec![call],
            used: text.len() - after.len(),
        },
        Reading::Unfinished | Reading::Malformed => Head::NoCall,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// `<parameter=KEY>\nVALUE\n</parameter>` for each, then `</function>`.
    Parameters,
    /// `<arg_key>KEY</arg_key>` and `<arg_value>VALUE</arg_value>` for each.
    Pairs,
}

/// Arguments as text between tags. The function's schema determines the type of each value. The
/// result is a JSON object, member by member.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TagArguments {
    functions: Arc<[Function]>,
    /// Index of the function, if it is known.
    place: Option<usize>,
    style: Style,
    /// Names of the members in the result so far.
    written: Vec<String>,
    /// True if the text ended inside a member.
    cut: bool,
}

/// Result of one parse step.
pub(super) struct ParsedArguments {
    /// Next part of the arguments as JSON.
    pub(super) json: String,
    /// Consumed bytes of the text.
    pub(super) used: usize,
    pub(super) ended: bool,
}

impl TagArguments {
    fn new(name: &str, style: Style, functions: Arc<[Function]>) -> Self {
        Self {
            place: functions.iter().position(|function| function.name == name),
            functions,
            style,
            written: Vec::new(),
            cut: false,
        }
    }

    /// Parses all complete members. A member that is cut off at the end of the text is dropped.
    pub(super) fn read(&mut self, text: &str, last: bool) -> ParsedArguments {
        let mut json = String::new();
        let mut rest = text;
        let ended = loop {
            rest = rest.trim_start();
            if self.cut {
                break false;
            }
            if self.style == Style::Parameters
                && let Some(after) = rest.strip_prefix(FUNCTION_END)
            {
                rest = after;
                break true;
            }
            if rest.starts_with(CLOSE) || (rest.is_empty() && last) {
                break true;
            }
            match self.member(rest, last) {
                Member::Whole { key, value, after } => {
                    json.push_str(&self.member_json(key, value));
                    rest = after;
                }
                Member::Unfinished if last => {
                    rest = "";
                    self.cut = true;
                    // An incomplete object, so that it is not mistaken for one without members.
                    json.push_str(if self.written.is_empty() { "{" } else { "" });
                    break false;
                }
                Member::Unfinished => break false,
                // Neither a member nor the end: drop the text up to the next tag.
                Member::None => {
                    let mut others = rest.char_indices().skip(1).skip_while(|(_, c)| *c != '<');
                    rest = others.next().map_or("", |(at, _)| &rest[at..]);
                }
            }
        };
        if ended {
            json.push_str(if self.written.is_empty() { "{}" } else { "}" });
        }
        ParsedArguments {
            json,
            used: text.len() - rest.len(),
            ended,
        }
    }

    fn member<'t>(&self, text: &'t str, last: bool) -> Member<'t> {
        let (open, ends) = match self.style {
            Style::Parameters => (PARAMETER.0, [FUNCTION_END, CLOSE]),
            Style::Pairs => (KEY.0, [CLOSE, CLOSE]),
        };
        let Some(rest) = text.strip_prefix(open) else {
            let begins = |mark: &str| mark.starts_with(text);
            return match begins(open) || ends.into_iter().any(begins) {
                true => Member::Unfinished,
                false => Member::None,
            };
        };
        let parts = match self.style {
            Style::Parameters => rest.split_once('>').and_then(|(key, rest)| {
                let (value, after) = self.split_value(rest, last)?;
                // The format adds a line break next to each tag.
                let value = value.strip_prefix('\n').unwrap_or(value);
                Some((key, value.strip_suffix('\n').unwrap_or(value), after))
            }),
            Style::Pairs => rest.split_once(KEY.1).and_then(|(key, rest)| {
                let (_, rest) = rest.split_once(VALUE.0)?;
                let (value, after) = self.split_value(rest, last)?;
                Some((key, value, after))
            }),
        };
        match parts {
            Some((key, value, after)) => Member::Whole {
                key: key.trim(),
                value,
                after,
            },
            None => Member::Unfinished,
        }
    }

    /// Splits off a value, which may contain any of the tags. `None`: its end is undecided.
    fn split_value<'t>(&self, text: &'t str, last: bool) -> Option<(&'t str, &'t str)> {
        let (close, after): (&str, &[&str]) = match self.style {
            Style::Parameters => (PARAMETER.1, &[PARAMETER.0, FUNCTION_END, CLOSE]),
            Style::Pairs => (VALUE.1, &[KEY.0, CLOSE]),
        };
        for (at, _) in text.match_indices('<') {
            let tag = &text[at..];
            let (end, follows) = if let Some(rest) = tag.strip_prefix(close) {
                (at + close.len(), follows(rest, after, last))
            } else if self.style == Style::Pairs {
                continue;
            // The model omitted the closing tag.
            } else if let Some(rest) = tag.strip_prefix(FUNCTION_END) {
                (at, follows(rest, &[CLOSE], last))
            } else if let Some(rest) = tag.strip_prefix(PARAMETER.0) {
                (at, self.begins_with_key(rest, last))
            } else {
                continue;
            };
            match follows {
                Some(true) => return Some((&text[..at], &text[end..])),
                Some(false) => {}
                None => return None,
            }
        }
        None
    }

    /// Returns true if a text starts with a known parameter's name and the end of its tag; `None`
    /// if undecided.
    fn begins_with_key(&self, text: &str, last: bool) -> Option<bool> {
        match text.split_once('>') {
            Some((key, _)) => Some(
                self.properties()
                    .is_some_and(|properties| properties.get(key.trim()).is_some()),
            ),
            None => last.then_some(false),
        }
    }

    fn parameters(&self) -> Option<&Json> {
        self.functions[self.place?].parameters.as_ref()
    }

    fn properties(&self) -> Option<&Json> {
        self.parameters()?.get("properties")
    }

    fn member_json(&mut self, key: &str, text: &str) -> String {
        // Written members are final: if a name repeats, the first value counts.
        if self.written.iter().any(|written| written == key) {
            return String::new();
        }
        let before = if self.written.is_empty() { "{" } else { "," };
        self.written.push(key.to_owned());
        let json = |value: &Json| serde_json::to_string(value).expect("JSON values serialize");
        let key_text = json(&Json::String(key.to_owned()));
        format!("{before}{key_text}:{}", json(&self.value(key, text)))
    }

    fn value(&self, key: &str, text: &str) -> Json {
        let schema = self.properties().and_then(|properties| properties.get(key));
        match self.parameters().zip(schema) {
            Some((root, schema)) => value(root, schema, text),
            None => Json::String(text.to_owned()),
        }
    }
}

enum Member<'a> {
    Whole {
        key: &'a str,
        value: &'a str,
        after: &'a str,
    },
    Unfinished,
    None,
}

/// Returns true if a text starts with one of these, after white space; `None` if undecided.
fn follows(text: &str, any: &[&str], last: bool) -> Option<bool> {
    let text = text.trim_start();
    if any.iter().any(|mark| text.starts_with(mark)) {
        return Some(true);
    }
    // At the end of the text, a prefix of a tag is a tag that was cut off.
    let may_be_one = any.iter().any(|mark| mark.starts_with(text));
    match may_be_one && !last {
        true => None,
        false => Some(may_be_one),
    }
}
