//! Tool call parsers. Each model family has its own format. Text that is not a well-formed call
//! stays content.

pub(super) mod deepseek;
pub mod glm;
mod json;
pub mod kimi;
pub(super) mod llama;
pub(super) mod mistral;
pub(super) mod partial;
pub(super) mod tagged;
pub mod tool_prompt;
mod value;

use std::sync::Arc;

use self::json::JsonScan;
use self::tagged::{ParsedArguments, TagArguments};
use super::markers::take_certain;
use super::tokenizer::Tokenizer;
use rooflet_inference_api::openai::tools::Function;

/// Complete call.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ToolCall {
    name: String,
    /// JSON object as text.
    arguments: String,
}

/// Part of a call. The first part is the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallPart {
    Begin {
        name: String,
    },
    /// More text of the arguments. All parts form a JSON object, unless the model wrote none or was
    /// cut off.
    Arguments(String),
}

/// Format of a model's tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>…</tool_call>` around JSON (Hermes, Qwen), XML (Qwen3-Coder) or pairs of tags
    /// (GLM).
    Tagged,
    /// `{"name": …, "parameters": …}` as the complete answer, or after `<|python_tag|>`.
    Llama,
    /// `[TOOL_CALLS]` before a list of calls, or before each call.
    Mistral,
    /// Section of marked calls. The arguments are in a code block if `fenced` (V3 and R1, but not
    /// V3.1).
    DeepSeek { fenced: bool },
    /// Section of marked calls with identifiers (Kimi K2).
    Kimi,
    /// Function name, line break and arguments as the complete answer (GLM-4 0414).
    Glm,
    /// Messages to functions on a separate channel (gpt-oss).
    Harmony,
}

impl ToolFormat {
    /// Detects the format in which the template writes earlier calls, or else from the vocabulary.
    /// `Tagged` is the default, because most models were trained with it. The prompt asks models
    /// whose template does not support tools for this format.
    pub fn of(template: &str, tokenizer: &Tokenizer) -> Self {
        let written = |marker: &str| template.contains(marker);
        let token = |marker: &str| tokenizer.token_id(marker).is_some();
        if written("<|channel|>") && written("<|start|>") {
            Self::Harmony
        } else if !tool_prompt::supports_tools(template) {
            Self::Tagged
        } else if glm::matches_template(template) {
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

    /// Markers of this format. If they are special tokens, the parser needs them in the text.
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

/// Piece of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Call(CallPart),
}

/// Scanner for the calls of one completion. Text is returned as soon as it is final. A call is
/// returned as soon as its name is complete and its arguments start; later text does not revoke it.
#[derive(Debug, Clone)]
pub(super) struct ToolCallScanner {
    format: Format,
    functions: Arc<[Function]>,
    state: State,
    held: String,
}

/// Formats with markers in plain text.
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
    /// Markers that open a call or a section of calls.
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

    /// Markers that follow a call's arguments.
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

    /// Returns true if another call may follow without an opening marker. `closed` is true
    /// if a marker has closed the last call.
    fn allows_unmarked_call(self, closed: bool) -> bool {
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
    /// After an opening marker. `taken` becomes text if no call follows.
    Head {
        taken: String,
    },
    Arguments(Arguments),
    /// After the arguments, inside the enclosing object.
    Rest(JsonScan),
    /// After a call. Markers and white space before the next call are dropped.
    Called {
        /// True if a marker has closed the call.
        closed: bool,
    },
}

/// Arguments that are not complete.
#[derive(Debug, Clone, PartialEq)]
enum Arguments {
    Json {
        scan: JsonScan,
        /// True if the arguments are a member of an object.
        enclosed: bool,
    },
    Tags(TagArguments),
}

impl Arguments {
    /// Creates arguments inside another object.
    fn enclosed() -> Self {
        Self::Json {
            scan: JsonScan::default(),
            enclosed: true,
        }
    }

    /// Creates arguments without an enclosing object.
    fn bare() -> Self {
        Self::Json {
            scan: JsonScan::default(),
            enclosed: false,
        }
    }
}

/// Result of parsing the text after a marker.
enum Head {
    /// A call. Its arguments start after `used` bytes.
    Begins {
        name: String,
        arguments: Arguments,
        used: usize,
    },
    /// Complete calls, and their length in bytes.
    Whole {
        calls: Vec<ToolCall>,
        used: usize,
    },
    /// Undecided: more text is needed.
    Unfinished,
    NoCall,
}

/// Result of parsing a text as one call.
enum Reading {
    Call(ToolCall),
    /// Undecided: more text is needed.
    Unfinished,
    Malformed,
}

/// Returns true if the name is a valid function name.
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

    /// Ends the completion. Withheld text becomes a call or text.
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

    /// Decides at the beginning of the answer. For Llama, an answer that starts as JSON may be a
    /// call. For GLM, an answer that starts as a function's name may be a call.
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
            // The state is already that of text.
            Head::Unfinished | Head::NoCall => {
                pieces.extend((!taken.is_empty()).then_some(Piece::Text(taken)));
            }
        }
    }

    fn arguments(&mut self, mut arguments: Arguments, last: bool) -> Option<Piece> {
        let parsed = match &mut arguments {
            Arguments::Json { scan, enclosed } => {
                let end = scan.end_in(&self.held);
                if end.is_some() {
                    self.state = match *enclosed {
                        true => State::Rest(JsonScan::inside()),
                        false => State::Called { closed: false },
                    };
                }
                let after = self.held.split_off(end.unwrap_or(self.held.len()));
                let json = std::mem::replace(&mut self.held, after);
                (json, end.is_some())
            }
            Arguments::Tags(tags) => {
                let ParsedArguments { json, used, ended } = tags.read(&self.held, last);
                self.held.drain(..used);
                self.state = State::Called { closed: false };
                (json, ended)
            }
        };
        let (json, ended) = parsed;
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
        } else if self.format.allows_unmarked_call(closed) && held.starts_with('{') {
            self.held.drain(..skipped);
            self.state = State::Head { taken: String::new() };
        } else {
            let marks = [self.format.closes(), self.format.opens()].concat();
            let may_be_one = marks.iter().any(|mark| mark.starts_with(held));
            self.held.drain(..skipped);
            if may_be_one && last {
                // Incomplete closing marker.
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
