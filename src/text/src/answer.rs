//! Parser of generated text: separates reasoning, content and tool calls.
//!
//! The parser works on text in pieces of any size. The pieces do not change the complete result.

use std::sync::Arc;

use serde::de::IgnoredAny;

use super::harmony::HarmonyParser;
pub use super::part::Part;
use super::reasoning::{self, ReasoningMarkers, ReasoningSplitter};
use super::tool_calls::partial::named_function;
use super::tool_calls::{self, CallPart, Format, ToolCallScanner, ToolFormat, kimi};
use rooflet_inference_api::openai::tools::{Function, ToolChoice};

/// Parts that an answer may have besides content.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerShape {
    /// Markers of the reasoning block, and whether the prompt has already opened the block.
    pub reasoning: Option<(ReasoningMarkers, bool)>,
    pub tool_format: ToolFormat,
    /// Functions that the model may call. If `None`, calls are not extracted and stay content.
    pub tools: Option<CallableTools>,
}

/// Functions of a request, and the limits for calls.
#[derive(Debug, Clone, PartialEq)]
pub struct CallableTools {
    pub functions: Arc<[Function]>,
    pub choice: ToolChoice,
    /// If false, only the first call counts.
    pub parallel: bool,
    /// Number of the first call in the conversation, for formats that number calls.
    pub first_call: usize,
}

/// Parser of one completion.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    kind: Kind,
    tool_format: ToolFormat,
    choice: ToolChoice,
    functions: Arc<[Function]>,
    parallel: bool,
    first_call: usize,
    calls: usize,
    /// Arguments of the last call.
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
            first_call: shape.tools.as_ref().map_or(0, |tools| tools.first_call),
            calls: 0,
            arguments: String::new(),
            reasoning_tokens: 0,
        }
    }

    /// Accepts the next text, generated from `tokens` tokens, and returns the completed parts.
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
        // The token that closes the block does not count.
        if before && self.is_reasoning() {
            self.reasoning_tokens += tokens;
        }
        self.counted(parts)
    }

    /// Ends the completion and returns the remaining parts.
    ///
    /// If the answer must be a call, withheld text is the beginning of a call and is never content.
    /// If its function is known, it becomes a call without arguments.
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
            && let Some(name) = self.function_of_partial_call(&held)
        {
            parts.extend(self.counted(vec![Part::Call(CallPart::Begin { name })]));
        }
        parts
    }

    /// Returns the function of a call that was cut off after `held`, before its arguments.
    fn function_of_partial_call(&self, held: &str) -> Option<String> {
        match &self.choice {
            ToolChoice::Auto => None,
            ToolChoice::Function(name) => Some(name.clone()),
            ToolChoice::Required => match &self.functions[..] {
                [only] => Some(only.name.clone()),
                functions => named_function(held, functions).map(str::to_owned),
            },
        }
    }

    /// Returns the identifier of the call at index `place` of the answer.
    ///
    /// `random` holds at least 24 letters and digits. Mistral's templates accept only identifiers
    /// of nine characters; Kimi's models expect the function's name and the number of the call in the conversation.
    pub fn call_id(&self, prefix: &str, random: &str, function: &str, place: usize) -> String {
        match self.tool_format {
            ToolFormat::Mistral => random.chars().take(9).collect(),
            ToolFormat::Kimi => kimi::call_id(function, self.first_call + place),
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

    /// Returns the number of tokens inside the reasoning block.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Returns true if there are calls and the last one has complete arguments, so that the client
    /// can execute them. A stop string or an early end of sequence cuts the last call off.
    pub fn has_whole_calls(&self) -> bool {
        let is_cut = || match serde_json::from_str::<IgnoredAny>(&self.arguments) {
            Ok(IgnoredAny) => false,
            Err(err) => err.is_eof(),
        };
        self.calls > 0 && !is_cut()
    }

    /// Returns the length of the withheld end of the text in bytes. It may be the beginning of a
    /// marker.
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

/// Merges adjacent text parts.
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

    /// OpenAI's API reports the name of a call before its arguments, also if the answer is cut off
    /// there.
    #[test]
    fn required_call_that_is_cut_off_has_its_name() {
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
        for (tool_format, functions, choice, output, expect) in [
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
                    first_call: 0,
                    parallel: true,
                }),
            });
            let mut parts = parser.push(output, 1);
            parts.extend(parser.finish());
            parts.retain(|part| !matches!(part, Part::Reasoning(_)));
            let begin = |name: &str| {
                let name = name.to_owned();
                Part::Call(CallPart::Begin { name })
            };
            assert_eq!(
                parts,
                expect.map(begin).into_iter().collect::<Vec<_>>(),
                "{output}"
            );
            assert!(!parser.has_whole_calls());
        }
        // With tool choice `auto`, the beginning of a call is content.
        let mut parser = AnswerParser::new(&AnswerShape {
            reasoning: None,
            tool_format: ToolFormat::Tagged,
            tools: Some(CallableTools {
                functions: one.into(),
                choice: ToolChoice::Auto,
                first_call: 0,
                parallel: true,
            }),
        });
        let output = "<tool_call>{\"name\": \"weather\", ";
        let mut parts = parser.push(output, 1);
        parts.extend(parser.finish());
        assert_eq!(merged(parts), [Part::Content(output.to_owned())]);
    }
}
