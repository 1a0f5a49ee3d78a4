//! What a model said, taken apart: reasoning, content and tool calls. Works on text in pieces of
//! any size; what is whole is the same for all of them.

use std::sync::Arc;

use serde::de::IgnoredAny;

use super::harmony::HarmonyParser;
pub use super::part::Part;
use super::reasoning::{self, ReasoningMarkers, ReasoningSplitter};
use super::tool_calls::begun::begun;
use super::tool_calls::{self, CallPart, Format, ToolCallScanner, ToolFormat, kimi};
use rooflet_inference_api::openai::tools::{Function, ToolChoice};

/// What may be in an answer beside content.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerShape {
    /// And whether the prompt has begun the block.
    pub reasoning: Option<(ReasoningMarkers, bool)>,
    pub tool_format: ToolFormat,
    /// `None`: calls are not asked for and stay text.
    pub tools: Option<CallableTools>,
}

/// What may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct CallableTools {
    pub functions: Arc<[Function]>,
    pub choice: ToolChoice,
    /// Only the first call counts otherwise.
    pub parallel: bool,
}

/// Reads one completion.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    kind: Kind,
    tool_format: ToolFormat,
    choice: ToolChoice,
    /// What may be called.
    functions: Arc<[Function]>,
    parallel: bool,
    calls: usize,
    /// Of the last call.
    arguments: String,
    reasoning_tokens: usize,
}

#[derive(Debug, Clone)]
enum Kind {
    Marked {
        reasoning: Option<ReasoningSplitter>,
        calls: Option<ToolCallScanner>,
    },
    Harmony(HarmonyParser),
}

impl AnswerParser {
    pub fn new(shape: &AnswerShape) -> Self {
        let scanner = |format| {
            let tools = shape.tools.as_ref()?;
            Some(ToolCallScanner::new(format, Arc::clone(&tools.functions)))
        };
        let marked = |calls| Kind::Marked {
            reasoning: shape
                .reasoning
                .map(|(markers, opened)| ReasoningSplitter::new(markers, opened)),
            calls,
        };
        let kind = match shape.tool_format {
            ToolFormat::Tagged => marked(scanner(Format::Tagged)),
            ToolFormat::Llama => marked(scanner(Format::Llama)),
            ToolFormat::Mistral => marked(scanner(Format::Mistral)),
            ToolFormat::DeepSeek { .. } => marked(scanner(Format::DeepSeek)),
            ToolFormat::Kimi => marked(scanner(Format::Kimi)),
            ToolFormat::Glm => marked(scanner(Format::Glm)),
            ToolFormat::Harmony => Kind::Harmony(HarmonyParser::new(shape.tools.is_some())),
        };
        Self {
            kind,
            tool_format: shape.tool_format,
            choice: shape
                .tools
                .as_ref()
                .map_or(ToolChoice::Auto, |tools| tools.choice.clone()),
            functions: match &shape.tools {
                Some(tools) => Arc::clone(&tools.functions),
                None => Arc::default(),
            },
            parallel: shape.tools.as_ref().is_none_or(|tools| tools.parallel),
            calls: 0,
            arguments: String::new(),
            reasoning_tokens: 0,
        }
    }

    /// Takes the next text, which came with so many tokens.
    pub fn push(&mut self, text: &str, tokens: usize) -> Vec<Part> {
        let before = self.is_reasoning();
        let parts = match &mut self.kind {
            Kind::Marked {
                reasoning: None,
                calls,
            } => content(text.to_owned(), calls),
            Kind::Marked {
                reasoning: Some(splitter),
                calls,
            } => answered(splitter.push(text), calls),
            Kind::Harmony(parser) => parser.push(text),
        };
        // The token that closes a block is none of it.
        if before && self.is_reasoning() {
            self.reasoning_tokens += tokens;
        }
        self.counted(parts)
    }

    /// The completion has ended. Of an answer that must be a call, what was held back is the
    /// beginning of one, and no content: it is told as a call without arguments, where it is known
    /// of which function.
    pub fn finish(&mut self) -> Vec<Part> {
        let was_reasoning = self.is_reasoning();
        let mut held = match &self.kind {
            Kind::Marked { .. } => String::new(),
            Kind::Harmony(parser) => parser.held(),
        };
        let mut parts = match &mut self.kind {
            Kind::Marked { reasoning, calls } => {
                let pieces = reasoning
                    .as_mut()
                    .map(ReasoningSplitter::finish)
                    .unwrap_or_default();
                let mut parts = answered(pieces, calls);
                if let Some(scanner) = calls {
                    parts.extend(scanner.finish().into_iter().map(scanned));
                }
                parts
            }
            Kind::Harmony(parser) => parser.finish(),
        };
        if self.choice != ToolChoice::Auto {
            parts.retain(|part| match part {
                Part::Content(text) => {
                    held.push_str(text);
                    false
                }
                Part::Reasoning(_) | Part::Call(_) => true,
            });
        }
        let mut parts = self.counted(parts);
        if self.calls == 0
            && !was_reasoning
            && let Some(name) = self.called_before_arguments(&held)
        {
            parts.extend(self.counted(vec![Part::Call(CallPart::Begin { name })]));
        }
        parts
    }

    /// Of which function a call must be that has begun with this text.
    fn called_before_arguments(&self, held: &str) -> Option<String> {
        match &self.choice {
            ToolChoice::Auto => None,
            ToolChoice::Function(name) => Some(name.clone()),
            ToolChoice::Required => match &self.functions[..] {
                [only] => Some(only.name.clone()),
                functions => begun(held, functions).map(str::to_owned),
            },
        }
    }

    /// A name for the call at this place of the answer, made from letters and digits of which there
    /// are at least 24. Templates of Mistral's refuse all names but those of nine; Kimi's say which
    /// function was called.
    pub fn call_id(&self, prefix: &str, random: &str, function: &str, place: usize) -> String {
        match self.tool_format {
            ToolFormat::Mistral => random.chars().take(9).collect(),
            ToolFormat::Kimi => kimi::call_id(function, place),
            ToolFormat::Tagged
            | ToolFormat::Llama
            | ToolFormat::DeepSeek { .. }
            | ToolFormat::Glm
            | ToolFormat::Harmony => {
                let name: String = random.chars().take(24).collect();
                format!("{prefix}{name}")
            }
        }
    }

    /// Tokens between the markers.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Whether there are calls, all of them with their arguments to the end, so that they can be
    /// answered. The last is not where a stop text or the model's own end came in between.
    pub fn has_whole_calls(&self) -> bool {
        let is_cut = || match serde_json::from_str::<IgnoredAny>(&self.arguments) {
            Ok(IgnoredAny) => false,
            Err(err) => err.is_eof(),
        };
        self.calls > 0 && !is_cut()
    }

    /// How much at the end of the text is in no part yet, since it may be a marker's.
    pub fn held_bytes(&self) -> usize {
        match &self.kind {
            Kind::Marked { reasoning, calls } => {
                let splitter = reasoning.as_ref().map_or(0, ReasoningSplitter::held_bytes);
                splitter + calls.as_ref().map_or(0, ToolCallScanner::held_bytes)
            }
            Kind::Harmony(parser) => parser.held_bytes(),
        }
    }

    fn is_reasoning(&self) -> bool {
        match &self.kind {
            Kind::Marked { reasoning, .. } => reasoning.as_ref().is_some_and(ReasoningSplitter::is_reasoning),
            Kind::Harmony(parser) => parser.is_reasoning(),
        }
    }

    fn counted(&mut self, mut parts: Vec<Part>) -> Vec<Part> {
        parts.retain(|part| match part {
            Part::Reasoning(_) | Part::Content(_) => true,
            Part::Call(call) => {
                self.calls += usize::from(matches!(call, CallPart::Begin { .. }));
                let counts = self.parallel || self.calls == 1;
                match call {
                    CallPart::Begin { .. } if counts => self.arguments.clear(),
                    CallPart::Arguments(json) if counts => self.arguments.push_str(json),
                    CallPart::Begin { .. } | CallPart::Arguments(_) => {}
                }
                counts
            }
        });
        parts
    }
}

fn answered(pieces: Vec<reasoning::Piece>, calls: &mut Option<ToolCallScanner>) -> Vec<Part> {
    let mut parts = Vec::new();
    for piece in pieces {
        match piece {
            reasoning::Piece::Reasoning(text) => parts.push(Part::Reasoning(text)),
            reasoning::Piece::Answer(text) => parts.extend(content(text, calls)),
        }
    }
    parts
}

fn content(text: String, calls: &mut Option<ToolCallScanner>) -> Vec<Part> {
    match calls {
        None => vec![Part::Content(text)],
        Some(scanner) => scanner.push(&text).into_iter().map(scanned).collect(),
    }
}

fn scanned(piece: tool_calls::Piece) -> Part {
    match piece {
        tool_calls::Piece::Text(text) => Part::Content(text),
        tool_calls::Piece::Call(part) => Part::Call(part),
    }
}

/// Parts with neighbouring texts put together.
#[cfg(test)]
pub(super) fn merged(parts: Vec<Part>) -> Vec<Part> {
    let mut whole: Vec<Part> = Vec::new();
    for part in parts {
        match (whole.last_mut(), part) {
            (Some(Part::Reasoning(text)), Part::Reasoning(more))
            | (Some(Part::Content(text)), Part::Content(more))
            | (Some(Part::Call(CallPart::Arguments(text))), Part::Call(CallPart::Arguments(more))) => {
                text.push_str(&more);
            }
            (_, part) => whole.push(part),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As OpenAI tells it: a call has its name before its arguments, and keeps it when the answer
    /// is cut there.
    #[test]
    fn a_call_that_must_be_made_has_its_name_though_it_is_cut_off() {
        let function = |name: &str| Function {
            strict: false,
            name: name.to_owned(),
            parameters: None,
        };
        let (one, two) = (
            vec![function("weather")],
            vec![function("weather"), function("time")],
        );
        let named = || ToolChoice::Function("time".to_owned());
        let think = ReasoningMarkers {
            open: "<think>",
            close: "</think>",
        };
        for (tool_format, functions, choice, said, expect) in [
            (ToolFormat::Tagged, &two, named(), "", Some("time")),
            (ToolFormat::Tagged, &two, ToolChoice::Required, "", None),
            (
                ToolFormat::Tagged,
                &one,
                ToolChoice::Required,
                "",
                Some("weather"),
            ),
            (ToolFormat::Tagged, &one, ToolChoice::Required, "<think>why", None),
            (
                ToolFormat::Tagged,
                &two,
                ToolChoice::Required,
                "<think>\n</think>\n<tool_call>{\"name\": \"we",
                None,
            ),
            (
                ToolFormat::Tagged,
                &two,
                ToolChoice::Required,
                "<think>\n</think>\n<tool_call>{\"name\": \"weather\", \"arg",
                Some("weather"),
            ),
            (
                ToolFormat::Llama,
                &two,
                ToolChoice::Required,
                "{\"name\": \"time\", ",
                Some("time"),
            ),
            (
                ToolFormat::Mistral,
                &two,
                ToolChoice::Required,
                "[TOOL_CALLS]time[ARGS]",
                Some("time"),
            ),
            (
                ToolFormat::Harmony,
                &two,
                ToolChoice::Required,
                "<|channel|>commentary to=functions.ti",
                None,
            ),
            (
                ToolFormat::Harmony,
                &two,
                ToolChoice::Required,
                "<|channel|>commentary to=functions.time <|constrain|>js",
                Some("time"),
            ),
            (
                ToolFormat::Harmony,
                &two,
                ToolChoice::Required,
                "<|channel|>commentary to=functions.time<|message|>",
                Some("time"),
            ),
        ] {
            let mut parser = AnswerParser::new(&AnswerShape {
                reasoning: Some((think, false)),
                tool_format,
                tools: Some(CallableTools {
                    functions: functions.clone().into(),
                    choice,
                    parallel: true,
                }),
            });
            let mut parts = parser.push(said, 1);
            parts.extend(parser.finish());
            parts.retain(|part| !matches!(part, Part::Reasoning(_)));
            let begin = |name: &str| {
                let name = name.to_owned();
                Part::Call(CallPart::Begin { name })
            };
            assert_eq!(parts, expect.map(begin).into_iter().collect::<Vec<_>>(), "{said}");
            assert!(!parser.has_whole_calls());
        }
        // What need not be a call is text.
        let mut parser = AnswerParser::new(&AnswerShape {
            reasoning: None,
            tool_format: ToolFormat::Tagged,
            tools: Some(CallableTools {
                functions: one.into(),
                choice: ToolChoice::Auto,
                parallel: true,
            }),
        });
        let said = "<tool_call>{\"name\": \"weather\", ";
        let mut parts = parser.push(said, 1);
        parts.extend(parser.finish());
        assert_eq!(merged(parts), [Part::Content(said.to_owned())]);
    }
}
