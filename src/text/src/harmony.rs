//! Parser of the harmony format (gpt-oss). An answer is a sequence of messages, each on a channel:
//! `analysis` is reasoning, `final` is the answer, and a message `to=functions.NAME` is a tool
//! call.

pub(super) mod markers;

use self::markers::{CALL, CHANNEL, END, MESSAGE, RETURN, START};
use super::markers::held_from;
use super::part::Part;
use super::tool_calls::CallPart;

const ENDS: [&str; 4] = [END, CALL, RETURN, START];

/// Parser of one completion, which starts after `<|start|>assistant`.
#[derive(Debug, Clone)]
pub(super) struct HarmonyParser {
    /// True if tool calls are extracted.
    tools: bool,
    state: State,
    held: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Before a message: channel and recipient follow.
    Header,
    Body(Body),
    /// Text outside of messages.
    Bare,
}

/// Destination of a message's text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    Reasoning,
    Answer,
    /// Call of this function, before its first argument text.
    Call(String),
    Arguments,
}

impl HarmonyParser {
    pub(super) fn new(tools: bool) -> Self {
        Self {
            tools,
            state: State::Header,
            held: String::new(),
        }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.state == State::Body(Body::Reasoning)
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Returns the withheld text, which may be the beginning of a call.
    pub(super) fn held(&self) -> String {
        match &self.state {
            State::Header => self.held.clone(),
            State::Body(Body::Call(name)) => format!("functions.{name} "),
            State::Body(Body::Reasoning | Body::Answer | Body::Arguments) | State::Bare => String::new(),
        }
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        self.advance(false)
    }

    pub(super) fn finish(&mut self) -> Vec<Part> {
        self.advance(true)
    }

    fn advance(&mut self, last: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        loop {
            let before = (self.state.clone(), self.held.len());
            match std::mem::replace(&mut self.state, State::Header) {
                State::Header => self.header(last),
                State::Body(body) => parts.extend(self.body(body, last)),
                State::Bare => {
                    self.state = State::Bare;
                    let text = std::mem::take(&mut self.held);
                    parts.extend((!text.is_empty()).then_some(Part::Content(text)));
                }
            }
            if (&self.state, self.held.len()) == (&before.0, before.1) {
                return parts;
            }
        }
    }

    /// Parses a header. Headers are markup: an incomplete header is dropped.
    fn header(&mut self, last: bool) {
        let text = self.held.trim_start();
        let begins = |marker: &str| text.starts_with(marker) || marker.starts_with(text);
        if ![START, CHANNEL, "to="].into_iter().any(begins) {
            self.state = State::Bare;
        } else if let Some((header, after)) = self.held.split_once(MESSAGE) {
            self.state = State::Body(self.body_of(header));
            self.held = after.to_owned();
        } else if last {
            self.held.clear();
        }
    }

    /// Parses `<|channel|>commentary to=functions.NAME <|constrain|>json`. The recipient may also
    /// precede the channel.
    fn body_of(&self, header: &str) -> Body {
        let word = |after: &str| {
            let (_, rest) = header.split_once(after)?;
            let end = rest
                .find(|c: char| c.is_whitespace() || c == '<')
                .unwrap_or(rest.len());
            Some(rest[..end].to_owned())
        };
        let function = word("to=functions.").filter(|name| self.tools && !name.is_empty());
        if let Some(name) = function {
            return Body::Call(name);
        }
        match word(CHANNEL).as_deref() {
            Some("analysis") => Body::Reasoning,
            Some(_) | None => Body::Answer,
        }
    }

    fn body(&mut self, body: Body, last: bool) -> Option<Part> {
        let body = match body {
            Body::Call(name) => {
                let text = self.held.trim_start();
                if text.starts_with('{') {
                    self.held = text.to_owned();
                    self.state = State::Body(Body::Arguments);
                    return Some(Part::Call(CallPart::Begin { name }));
                }
                if text.is_empty() && !last {
                    self.state = State::Body(Body::Call(name));
                    return None;
                }
                Body::Answer
            }
            Body::Reasoning | Body::Answer | Body::Arguments => body,
        };
        let end = ENDS
            .into_iter()
            .filter_map(|marker| Some((self.held.find(marker)?, marker)))
            .min();
        if let Some((at, marker)) = end {
            let after = self.held.split_off(at);
            let text = std::mem::replace(&mut self.held, after);
            // Text between the end of a message and the next header is the author.
            let skipped = if marker == START { 0 } else { marker.len() };
            self.held.drain(..skipped);
            return part(&body, text);
        }
        if last {
            return part(&body, std::mem::take(&mut self.held));
        }
        let kept = self.held.split_off(held_from(&self.held, ENDS));
        let text = std::mem::replace(&mut self.held, kept);
        let part = part(&body, text);
        self.state = State::Body(body);
        part
    }
}

fn part(body: &Body, text: String) -> Option<Part> {
    if text.is_empty() {
        return None;
    }
    Some(match body {
        Body::Reasoning => Part::Reasoning(text),
        Body::Arguments => Part::Call(CallPart::Arguments(text)),
        Body::Answer | Body::Call(_) => Part::Content(text),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::answer::merged;

    fn read<'a>(tools: bool, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Part> {
        let mut parser = HarmonyParser::new(tools);
        let mut parts: Vec<Part> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
        parts.extend(parser.finish());
        merged(parts)
    }

    /// Examples of OpenAI's description of the format.
    #[test]
    fn separates_reasoning_answer_and_calls_by_channel() {
        let reasoning = || Part::Reasoning("Need weather.".to_owned());
        let begin = |name: &str| {
            Part::Call(CallPart::Begin {
                name: name.to_owned(),
            })
        };
        let arguments = |json: &str| Part::Call(CallPart::Arguments(json.to_owned()));
        let weather = || begin("get_weather");
        let bern = || arguments(r#"{"town":"Bern"}"#);
        let content = |text: &str| Part::Content(text.to_owned());
        let thought = "<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant";
        let cases = [
            (
                format!("{thought}<|channel|>final<|message|>It is < 5 °C."),
                vec![reasoning(), content("It is < 5 °C.")],
            ),
            (
                format!(
                    "{thought}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{{\"town\":\"Bern\"}}<|call|>"
                ),
                vec![reasoning(), weather(), bern()],
            ),
            (
                format!(
                    "{thought} to=functions.get_weather<|channel|>commentary json<|message|>{{\"town\":\"Bern\"}}"
                ),
                vec![reasoning(), weather(), bern()],
            ),
            (
                "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>comm"
                    .to_owned(),
                vec![content("I will look.")],
            ),
            (
                "<|channel|>commentary to=functions.f<|message|>{\"cut".to_owned(),
                vec![begin("f"), arguments("{\"cut")],
            ),
            (
                "<|channel|>commentary to=functions.f<|message|>no object<|call|>".to_owned(),
                vec![content("no object")],
            ),
            ("plain text".to_owned(), vec![content("plain text")]),
        ];
        for (text, expected) in cases {
            assert_eq!(read(true, [text.as_str()]), expected, "{text}");
        }
        assert_eq!(
            read(
                false,
                ["<|channel|>commentary to=functions.f<|message|>{}<|call|>"]
            ),
            [content("{}")]
        );
    }

    proptest! {
        #[test]
        fn result_does_not_depend_on_pieces(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just("<|channel|>analysis<|message|>"), Just("<|channel|>final<|message|>"), Just("<|end|>"),
                    Just("<|start|>assistant"), Just(" to=functions.f <|constrain|>json<|message|>"), Just("{}"),
                    Just("a<|é "), Just("<|call|>"), Just("\n"),
                ],
                0..8,
            ),
            sizes in proptest::collection::vec(1_usize..7, 0..60),
        ) {
            let text = parts.concat();
            let pieces = crate::markers::pieces(&text, &sizes);
            prop_assert_eq!(read(true, pieces), read(true, [text.as_str()]));
        }
    }
}
