//! Tool calls in what a model says: each family of models writes them in a way of its own. What is no well-formed call
//! stays text.

mod json;
mod llama;
mod mistral;
pub(crate) mod offer;
mod tagged;

use std::sync::Arc;

use super::markers::held_from;
use super::tokenizer::Tokenizer;
use crate::openai::tools::Function;

pub(super) use json::is_object;

/// A call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    /// The text of a JSON object.
    pub(crate) arguments: String,
}

/// How a model writes its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolFormat {
    /// `<tool_call>…</tool_call>` around JSON (Hermes, Qwen), XML (Qwen3-Coder) or pairs of tags (GLM).
    Tagged,
    /// `{"name": …, "parameters": …}` as the whole answer, or behind `<|python_tag|>`.
    Llama,
    /// `[TOOL_CALLS]` before a list of calls, or before each of them.
    Mistral,
    /// Messages to functions on a channel of their own (gpt-oss).
    Harmony,
}

impl ToolFormat {
    /// As the template writes earlier calls; where it says nothing, as the vocabulary suggests. `Tagged` is what most
    /// models have seen.
    pub(crate) fn of(template: Option<&str>, tokenizer: &Tokenizer) -> Self {
        let written = |marker: &str| template.is_some_and(|source| source.contains(marker));
        let token = |marker: &str| tokenizer.token_id(marker).is_some();
        if written("<|channel|>") && written("<|start|>") {
            Self::Harmony
        } else if written(mistral::MARKER) {
            Self::Mistral
        } else if written(tagged::OPEN) {
            Self::Tagged
        } else if written(llama::MARKER) || token(llama::MARKER) {
            Self::Llama
        } else if token(mistral::MARKER) && !token(tagged::OPEN) {
            Self::Mistral
        } else {
            Self::Tagged
        }
    }

    /// Texts that this format is read by. Where they are special tokens they must be shown to the parser.
    pub(crate) fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Tagged => tagged::MARKERS,
            Self::Llama => &[llama::MARKER],
            Self::Mistral => mistral::MARKERS,
            Self::Harmony => super::harmony::MARKERS,
        }
    }
}

/// A piece of what was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Call(ToolCall),
}

/// Finds the calls in one completion. Text is shown as soon as it is certain, a call when it is whole.
#[derive(Debug, Clone)]
pub(super) struct ToolCallScanner {
    format: Format,
    functions: Arc<[Function]>,
    state: State,
    held: String,
}

/// The formats that are read by markers in one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Tagged,
    Llama,
    Mistral,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Before the first text.
    Start,
    Text,
    /// Behind a marker. What was taken away before the call comes back if it is none.
    Call {
        taken: String,
    },
    /// Behind a call. White space up to the next one says nothing.
    Called,
}

/// Whether a text is a call.
enum Reading {
    Call(ToolCall),
    /// It may be with more text.
    Unfinished,
    Malformed,
}

impl ToolCallScanner {
    pub(super) fn new(format: Format, functions: Arc<[Function]>) -> Self {
        Self {
            format,
            functions,
            state: State::Start,
            held: String::new(),
        }
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        self.advance(false)
    }

    /// The completion has ended: what was held back is a call or text after all.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        self.advance(true)
    }

    fn advance(&mut self, last: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        loop {
            let before = (self.state.clone(), self.held.len());
            match std::mem::replace(&mut self.state, State::Text) {
                State::Start => self.start(last),
                State::Text => pieces.extend(self.text(last)),
                State::Call { taken } => self.call(taken, last, &mut pieces),
                State::Called => {
                    self.held = self.held.trim_start().to_owned();
                    if self.held.is_empty() {
                        self.state = State::Called;
                    }
                }
            }
            if (&self.state, self.held.len()) == (&before.0, before.1) {
                return pieces;
            }
        }
    }

    fn marker(&self) -> &'static str {
        match self.format {
            Format::Tagged => tagged::OPEN,
            Format::Llama => llama::MARKER,
            Format::Mistral => mistral::MARKER,
        }
    }

    /// A Llama's answer that begins as JSON is a call until it turns out to be none.
    fn start(&mut self, last: bool) {
        let text = self.held.trim_start();
        if self.format == Format::Llama && text.starts_with('{') {
            self.state = State::Call { taken: String::new() };
        } else if text.is_empty() && !last {
            self.state = State::Start;
        }
    }

    fn text(&mut self, last: bool) -> Option<Piece> {
        let text = |text: &str| (!text.is_empty()).then(|| Piece::Text(text.to_owned()));
        let marker = self.marker();
        if let Some((before, behind)) = self.held.split_once(marker) {
            let shown = before.trim_end_matches('\n');
            let taken = format!("{}{marker}", &before[shown.len()..]);
            let piece = text(shown);
            self.held = behind.to_owned();
            self.state = State::Call { taken };
            return piece;
        }
        if last {
            return text(&std::mem::take(&mut self.held));
        }
        let certain = &self.held[..held_from(&self.held, [marker])];
        let shown = certain.trim_end_matches('\n').len();
        let kept = self.held.split_off(shown);
        text(&std::mem::replace(&mut self.held, kept))
    }

    fn call(&mut self, taken: String, last: bool, pieces: &mut Vec<Piece>) {
        match self.format {
            Format::Tagged => self.tagged(taken, last, pieces),
            Format::Llama | Format::Mistral if !last => self.state = State::Call { taken },
            Format::Llama => self.calls_to_the_end(taken, llama::read(&self.held, &self.functions), pieces),
            Format::Mistral => self.calls_to_the_end(taken, mistral::read(&self.held), pieces),
        }
    }

    fn tagged(&mut self, taken: String, last: bool, pieces: &mut Vec<Piece>) {
        let ends = self.held.match_indices(tagged::CLOSE).map(|(at, _)| at);
        for at in ends {
            match tagged::read(&self.held[..at], &self.functions) {
                Reading::Call(call) => {
                    pieces.push(Piece::Call(call));
                    self.held.drain(..at + tagged::CLOSE.len());
                    self.state = State::Called;
                    return;
                }
                // The marker is part of an argument.
                Reading::Unfinished => {}
                Reading::Malformed => {
                    let behind = self.held.split_off(at + tagged::CLOSE.len());
                    let text = taken + &std::mem::replace(&mut self.held, behind);
                    pieces.push(Piece::Text(text));
                    return;
                }
            }
        }
        if !last {
            self.state = State::Call { taken };
            return;
        }
        // Many models end their answer where the closing marker should be.
        let held = std::mem::take(&mut self.held);
        match tagged::read(&held, &self.functions) {
            Reading::Call(call) => {
                pieces.push(Piece::Call(call));
                self.state = State::Called;
            }
            Reading::Unfinished | Reading::Malformed => pieces.push(Piece::Text(taken + &held)),
        }
    }

    fn calls_to_the_end(&mut self, taken: String, calls: Option<Vec<ToolCall>>, pieces: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        match calls {
            Some(calls) => {
                pieces.extend(calls.into_iter().map(Piece::Call));
                self.state = State::Called;
            }
            None => pieces.push(Piece::Text(taken + &held)),
        }
    }
}

#[cfg(test)]
mod tests;
