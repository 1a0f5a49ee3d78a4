//! Tool calls in what a model says: each family of models writes them in a way of its own. What is
//! no well-formed call stays text.

pub(super) mod begun;
pub(super) mod deepseek;
pub mod glm;
mod json;
pub(super) mod kimi;
pub(super) mod llama;
pub(super) mod mistral;
pub mod offer;
pub(super) mod tagged;
mod value;

use std::sync::Arc;

use self::json::JsonScan;
use self::tagged::{TagArguments, Told};
use super::markers::take_certain;
use super::tokenizer::Tokenizer;
use rooflet_inference_api::openai::tools::Function;

/// A call that was read as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ToolCall {
    name: String,
    /// The text of a JSON object.
    arguments: String,
}

/// A part of a call, which begins with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallPart {
    Begin {
        name: String,
    },
    /// More of the arguments' text: a JSON object, unless the model wrote none or was cut off.
    Arguments(String),
}

/// How a model writes its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>…</tool_call>` around JSON (Hermes, Qwen), XML (Qwen3-Coder) or pairs of tags
    /// (GLM).
    Tagged,
    /// `{"name": …, "parameters": …}` as the whole answer, or behind `<|python_tag|>`.
    Llama,
    /// `[TOOL_CALLS]` before a list of calls, or before each of them.
    Mistral,
    /// A section of marked calls, their arguments in a block of code where they are `fenced` (V3,
    /// R1; not V3.1).
    DeepSeek { fenced: bool },
    /// A section of marked calls with names of their own (Kimi K2).
    Kimi,
    /// A function's name, a line break and its arguments as the whole answer (GLM-4 0414).
    Glm,
    /// Messages to functions on a channel of their own (gpt-oss).
    Harmony,
}

impl ToolFormat {
    /// As the template writes earlier calls; where it says nothing, as the vocabulary suggests.
    /// `Tagged` is what most models have seen, and how those are asked to write them whose template
    /// knows no tools.
    pub fn of(template: &str, tokenizer: &Tokenizer) -> Self {
        let written = |marker: &str| template.contains(marker);
        let token = |marker: &str| tokenizer.token_id(marker).is_some();
        if written("<|channel|>") && written("<|start|>") {
            Self::Harmony
        } else if !offer::knows_tools(template) {
            Self::Tagged
        } else if glm::is_of(template) {
            Self::Glm
        } else if written(deepseek::CALL) {
            Self::DeepSeek {
                fenced: written("```json"),
            }
        } else if written(kimi::CALL) {
            Self::Kimi
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

    /// Texts that this format is read by. Where they are special tokens they must be shown to the
    /// parser.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Tagged => tagged::MARKERS,
            Self::Llama => &[llama::MARKER],
            Self::Mistral => mistral::MARKERS,
            Self::DeepSeek { .. } => deepseek::MARKERS,
            Self::Kimi => kimi::MARKERS,
            Self::Glm => &[],
            Self::Harmony => super::harmony::markers::MARKERS,
        }
    }
}

/// A piece of what was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Call(CallPart),
}

/// Finds the calls in one completion. Text is shown as soon as it is certain, a call as soon as its
/// name is known and its arguments begin; from then on it is one, whatever comes.
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
    DeepSeek,
    Kimi,
    Glm,
}

impl Format {
    /// What a call, or a section of calls, begins with.
    fn opens(self) -> &'static [&'static str] {
        match self {
            Self::Tagged => &[tagged::OPEN],
            Self::Llama => &[llama::MARKER],
            Self::Mistral => &[mistral::MARKER],
            Self::DeepSeek => &[deepseek::SECTION, deepseek::CALL],
            Self::Kimi => &[kimi::SECTION, kimi::CALL],
            Self::Glm => &[],
        }
    }

    /// What stands behind a call's arguments and says nothing more.
    fn closes(self) -> &'static [&'static str] {
        match self {
            Self::Tagged => &[tagged::CLOSE],
            Self::Llama => &[";"],
            Self::Mistral => &[",", "]"],
            Self::DeepSeek => &["```", deepseek::CALL_END, deepseek::SECTION_END],
            Self::Kimi => &[kimi::CALL_END, kimi::SECTION_END],
            Self::Glm => &[],
        }
    }

    /// Whether another call may follow without a mark that opens it; `closed`: one has closed the
    /// last.
    fn goes_on(self, closed: bool) -> bool {
        match self {
            Self::Llama | Self::Mistral => true,
            Self::Tagged => !closed,
            Self::DeepSeek | Self::Kimi | Self::Glm => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    /// Before the first text.
    Start,
    Text,
    /// Behind a marker. What was taken away before the call comes back if it is none.
    Head {
        taken: String,
    },
    Arguments(Arguments),
    /// Behind the arguments, inside the object around them.
    Rest(JsonScan),
    /// Behind a call. Marks and white space up to the next one say nothing.
    Called {
        /// By a mark.
        closed: bool,
    },
}

/// Arguments under way.
#[derive(Debug, Clone, PartialEq)]
enum Arguments {
    Json {
        scan: JsonScan,
        /// They are a member of an object.
        enclosed: bool,
    },
    Tags(TagArguments),
}

impl Arguments {
    /// An object in another one.
    fn enclosed() -> Self {
        Self::Json {
            scan: JsonScan::default(),
            enclosed: true,
        }
    }

    /// An object of its own.
    fn bare() -> Self {
        Self::Json {
            scan: JsonScan::default(),
            enclosed: false,
        }
    }
}

/// What stands behind a marker.
enum Head {
    /// A call whose arguments begin behind so many bytes.
    Begins {
        name: String,
        arguments: Arguments,
        used: usize,
    },
    /// Calls that could only be read as a whole, and their bytes.
    Whole {
        calls: Vec<ToolCall>,
        used: usize,
    },
    /// It may be a call with more text.
    Unfinished,
    NoCall,
}

/// Whether a text is a call.
enum Reading {
    Call(ToolCall),
    /// It may be with more text.
    Unfinished,
    Malformed,
}

/// As functions may be called.
fn is_name(name: &str) -> bool {
    let usual = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.chars().all(usual)
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

    pub(super) fn held_bytes(&self) -> usize {
        self.held.len()
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
                State::Head { taken } => self.head(taken, last, &mut pieces),
                State::Arguments(arguments) => pieces.extend(self.arguments(arguments, last)),
                State::Rest(mut scan) => match scan.end_in(&self.held) {
                    Some(end) => {
                        self.held.drain(..end);
                        self.state = State::Called { closed: false };
                    }
                    None => {
                        self.held.clear();
                        self.state = State::Rest(scan);
                    }
                },
                State::Called { closed } => self.called(closed, last),
            }
            if (&self.state, self.held.len()) == (&before.0, before.1) {
                return pieces;
            }
        }
    }

    /// A Llama's answer that begins as JSON, or GLM's that begins as a function's name, is a call
    /// until it turns out to be none.
    fn start(&mut self, last: bool) {
        let text = self.held.trim_start();
        let begins = match self.format {
            Format::Llama => text.starts_with('{'),
            Format::Glm => {
                let head = glm::head(&self.held, &self.functions);
                !self.held.is_empty() && !matches!(head, Head::NoCall)
            }
            Format::Tagged | Format::Mistral | Format::DeepSeek | Format::Kimi => false,
        };
        if begins {
            self.state = State::Head { taken: String::new() };
        } else if text.is_empty() && !last {
            self.state = State::Start;
        }
    }

    fn text(&mut self, last: bool) -> Option<Piece> {
        let text = |text: &str| (!text.is_empty()).then(|| Piece::Text(text.to_owned()));
        let opens = self.format.opens();
        let found = opens
            .iter()
            .filter_map(|open| Some((self.held.find(open)?, *open)))
            .min();
        if let Some((at, open)) = found {
            let shown = self.held[..at].trim_end_matches('\n').len();
            let taken = self.held[shown..at + open.len()].to_owned();
            let piece = text(&self.held[..shown]);
            self.held.drain(..at + open.len());
            self.state = State::Head { taken };
            return piece;
        }
        if last {
            return text(&std::mem::take(&mut self.held));
        }
        take_certain(&mut self.held, opens.iter().copied()).map(Piece::Text)
    }

    fn head(&mut self, taken: String, last: bool, pieces: &mut Vec<Piece>) {
        let held = &self.held;
        let head = match self.format {
            Format::Tagged => tagged::head(held, &self.functions, last),
            Format::Llama => llama::head(held, &self.functions, last),
            Format::Mistral => mistral::head(held, last),
            Format::DeepSeek => deepseek::head(held),
            Format::Kimi => kimi::head(held),
            Format::Glm => glm::head(held, &self.functions),
        };
        match head {
            Head::Begins {
                name,
                arguments,
                used,
            } => {
                pieces.push(Piece::Call(CallPart::Begin { name }));
                self.held.drain(..used);
                self.state = State::Arguments(arguments);
            }
            Head::Whole { calls, used } => {
                for ToolCall { name, arguments } in calls {
                    pieces.push(Piece::Call(CallPart::Begin { name }));
                    pieces.push(Piece::Call(CallPart::Arguments(arguments)));
                }
                self.held.drain(..used);
                self.state = State::Called { closed: false };
            }
            Head::Unfinished if !last => self.state = State::Head { taken },
            // The state is that of text.
            Head::Unfinished | Head::NoCall => {
                pieces.extend((!taken.is_empty()).then_some(Piece::Text(taken)));
            }
        }
    }

    fn arguments(&mut self, mut arguments: Arguments, last: bool) -> Option<Piece> {
        let told = match &mut arguments {
            Arguments::Json { scan, enclosed } => {
                let end = scan.end_in(&self.held);
                if end.is_some() {
                    self.state = match *enclosed {
                        true => State::Rest(JsonScan::inside()),
                        false => State::Called { closed: false },
                    };
                }
                let behind = self.held.split_off(end.unwrap_or(self.held.len()));
                let json = std::mem::replace(&mut self.held, behind);
                (json, end.is_some())
            }
            Arguments::Tags(tags) => {
                let Told { json, used, ended } = tags.read(&self.held, last);
                self.held.drain(..used);
                self.state = State::Called { closed: false };
                (json, ended)
            }
        };
        let (json, ended) = told;
        if !ended {
            self.state = State::Arguments(arguments);
        }
        (!json.is_empty()).then_some(Piece::Call(CallPart::Arguments(json)))
    }

    fn called(&mut self, closed: bool, last: bool) {
        let held = self.held.trim_start();
        let skipped = self.held.len() - held.len();
        let starts = |marks: &[&'static str]| marks.iter().copied().find(|mark| held.starts_with(mark));
        if let Some(mark) = starts(self.format.closes()) {
            self.held.drain(..skipped + mark.len());
            self.state = State::Called { closed: true };
        } else if let Some(mark) = starts(self.format.opens()) {
            self.held.drain(..skipped + mark.len());
            self.state = State::Head {
                taken: mark.to_owned(),
            };
        } else if self.format.goes_on(closed) && held.starts_with('{') {
            self.held.drain(..skipped);
            self.state = State::Head { taken: String::new() };
        } else {
            let marks = [self.format.closes(), self.format.opens()].concat();
            let may_be_one = marks.iter().any(|mark| mark.starts_with(held));
            self.held.drain(..skipped);
            if may_be_one && last {
                // A mark that was cut off.
                self.held.clear();
            }
            if self.held.is_empty() || may_be_one {
                self.state = State::Called { closed };
            }
        }
    }
}

#[cfg(test)]
mod tests;
