//! What stands between `<tool_call>` and `</tool_call>`: JSON (Hermes, Qwen), `<function=…>` with
//! its parameters (Qwen3-Coder), or a name with pairs of keys and values (GLM).

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
    // Any text would be a name.
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

/// JSON whose members come in an unusual order.
fn whole(text: &str, last: bool) -> Head {
    // A closing marker may be part of an argument.
    let Some(end) = json::end(text) else {
        return match json::read(text) {
            Reading::Unfinished if !last => Head::Unfinished,
            Reading::Call(_) | Reading::Unfinished | Reading::Malformed => Head::NoCall,
        };
    };
    let behind = text[end..].trim_start();
    // Many models end their answer where the closing marker should be, and some write another call
    // there.
    let closed = behind.starts_with(CLOSE) || behind.starts_with('{') || (last && behind.is_empty());
    if !closed {
        return match !last && CLOSE.starts_with(behind) {
            true => Head::Unfinished,
            false => Head::NoCall,
        };
    }
    match json::read(&text[..end]) {
        Reading::Call(call) => Head::Whole {
            calls: vec![call],
            used: text.len() - behind.len(),
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

/// Arguments that come as text; what kind of values they are is for the function's schema to say.
/// They are told as a JSON object, member by member.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TagArguments {
    functions: Arc<[Function]>,
    /// Of the function, where it is known.
    place: Option<usize>,
    style: Style,
    /// Names of members that have been told.
    told: Vec<String>,
    /// The text ended inside a member.
    cut: bool,
}

/// What a step made of the text.
pub(super) struct Told {
    /// Of the arguments' JSON.
    pub(super) json: String,
    /// Bytes of the text.
    pub(super) used: usize,
    pub(super) ended: bool,
}

impl TagArguments {
    fn new(name: &str, style: Style, functions: Arc<[Function]>) -> Self {
        Self {
            place: functions.iter().position(|function| function.name == name),
            functions,
            style,
            told: Vec::new(),
            cut: false,
        }
    }

    /// Reads as many members as there are. One that is cut off at the end is not told.
    pub(super) fn read(&mut self, text: &str, last: bool) -> Told {
        let mut json = String::new();
        let mut rest = text;
        let ended = loop {
            rest = rest.trim_start();
            if self.cut {
                break false;
            }
            if self.style == Style::Parameters
                && let Some(behind) = rest.strip_prefix(FUNCTION_END)
            {
                rest = behind;
                break true;
            }
            if rest.starts_with(CLOSE) || (rest.is_empty() && last) {
                break true;
            }
            match self.member(rest, last) {
                Member::Whole { key, value, behind } => {
                    json.push_str(&self.told_as_json(key, value));
                    rest = behind;
                }
                Member::Unfinished if last => {
                    rest = "";
                    self.cut = true;
                    // Not an object yet, so that nobody takes it for one without members.
                    json.push_str(if self.told.is_empty() { "{" } else { "" });
                    break false;
                }
                Member::Unfinished => break false,
                // No member and no end: not part of the call.
                Member::None => {
                    let mut others = rest.char_indices().skip(1).skip_while(|(_, c)| *c != '<');
                    rest = others.next().map_or("", |(at, _)| &rest[at..]);
                }
            }
        };
        if ended {
            json.push_str(if self.told.is_empty() { "{}" } else { "}" });
        }
        Told {
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
                let (value, behind) = self.split_value(rest, last)?;
                // The line breaks beside the tags are the format's.
                let value = value.strip_prefix('\n').unwrap_or(value);
                Some((key, value.strip_suffix('\n').unwrap_or(value), behind))
            }),
            Style::Pairs => rest.split_once(KEY.1).and_then(|(key, rest)| {
                let (_, rest) = rest.split_once(VALUE.0)?;
                let (value, behind) = self.split_value(rest, last)?;
                Some((key, value, behind))
            }),
        };
        match parts {
            Some((key, value, behind)) => Member::Whole {
                key: key.trim(),
                value,
                behind,
            },
            None => Member::Unfinished,
        }
    }

    /// A value, which may hold any of the tags itself, and what is behind it. `None`: its end is
    /// not certain.
    fn split_value<'t>(&self, text: &'t str, last: bool) -> Option<(&'t str, &'t str)> {
        let (close, behind): (&str, &[&str]) = match self.style {
            Style::Parameters => (PARAMETER.1, &[PARAMETER.0, FUNCTION_END, CLOSE]),
            Style::Pairs => (VALUE.1, &[KEY.0, CLOSE]),
        };
        for (at, _) in text.match_indices('<') {
            let tag = &text[at..];
            let (end, follows) = if let Some(rest) = tag.strip_prefix(close) {
                (at + close.len(), follows(rest, behind, last))
            } else if self.style == Style::Pairs {
                continue;
            // A closing tag was left out.
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

    /// Whether a text begins with a member's name and the end of its tag; `None`: it may with more
    /// text.
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

    fn told_as_json(&mut self, key: &str, text: &str) -> String {
        // Members cannot be taken back: of several with one name the first counts.
        if self.told.iter().any(|told| told == key) {
            return String::new();
        }
        let before = if self.told.is_empty() { "{" } else { "," };
        self.told.push(key.to_owned());
        let json = |value: &Json| serde_json::to_string(value).expect("memory does not fail");
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
        behind: &'a str,
    },
    Unfinished,
    None,
}

/// Whether a text begins with one of these, white space aside; `None`: it may with more text.
fn follows(text: &str, any: &[&str], last: bool) -> Option<bool> {
    let text = text.trim_start();
    if any.iter().any(|mark| text.starts_with(mark)) {
        return Some(true);
    }
    // At the end, it is the beginning of one that was cut off.
    let may_be_one = any.iter().any(|mark| mark.starts_with(text));
    match may_be_one && !last {
        true => None,
        false => Some(may_be_one),
    }
}
