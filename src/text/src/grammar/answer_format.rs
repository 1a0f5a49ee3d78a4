//! Grammars of complete answers in a model's own syntax: reasoning, then content or tool calls.

use std::sync::Arc;

use super::ebnf::{EbnfError, ebnf_rule};
use super::json::Rules;
use super::json_schema::{SchemaError, schema_rule};
use super::matcher::Automaton;
use super::regex::{Encoding, RegexError, RegexRules, parsed};
use super::{Builder, ByteSet, Grammar, NodeId, RETURN, SPECIAL, TooLarge};
use crate::reasoning::ReasoningMarkers;
use crate::tokenizer::Tokenizer;
use crate::tool_calls::{ToolFormat, deepseek, kimi, llama, mistral, tagged};
use rooflet_inference_api::openai::json::Json;
use rooflet_inference_api::openai::response_format::ContentFormat;
use rooflet_inference_api::openai::tools::Function;

/// Requested answer: content, tool calls, or either of them.
#[derive(Debug, Clone)]
pub struct AnswerFormat<'a> {
    pub content: Option<&'a ContentFormat>,
    pub calls: Option<PermittedCalls<'a>>,
}

/// Permitted tool calls.
#[derive(Debug, Clone)]
pub struct PermittedCalls<'a> {
    /// Functions with their index in the request. If the schema of a function that is not strict is
    /// unsupported, its arguments may be any JSON.
    pub functions: Vec<(usize, &'a Function)>,
    /// True if more than one call is permitted.
    pub parallel: bool,
    /// True if text may precede or replace the calls. Then only strict functions are constrained to
    /// their schemas.
    pub optional: bool,
}

/// Syntax of a model.
#[derive(Debug, Clone, Copy)]
pub struct ModelSyntax<'a> {
    pub tokenizer: &'a Tokenizer,
    /// Markers of the reasoning block, and whether the prompt has already opened it.
    pub reasoning: Option<(ReasoningMarkers, bool)>,
    pub tool_format: ToolFormat,
}

/// Error of a requested answer format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFormatError {
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    Pattern(#[from] RegexError),
    #[error(transparent)]
    Grammar(#[from] EbnfError),
    #[error("{err}")]
    Parameters { function: usize, err: SchemaError },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("no answer satisfies it")]
    Empty,
}

impl AnswerFormat<'_> {
    /// Builds the grammar of the answers in the syntax of a model.
    pub fn grammar(&self, syntax: &ModelSyntax<'_>) -> Result<Arc<Grammar>, AnswerFormatError> {
        let mut builder = Builder::new();
        let writer = Writer {
            builder: &mut builder,
            syntax,
        };
        let start = writer.answer(self)?;
        let grammar = Arc::new(builder.finish(start)?);
        let can_begin = Automaton::new(Arc::clone(&grammar))
            .is_ok_and(|automaton| !automaton.positions(automaton.start()).is_at_end());
        can_begin.then_some(grammar).ok_or(AnswerFormatError::Empty)
    }
}

struct Writer<'a, 'b> {
    builder: &'b mut Builder,
    syntax: &'a ModelSyntax<'a>,
}

impl Writer<'_, '_> {
    fn answer(mut self, format: &AnswerFormat<'_>) -> Result<NodeId, AnswerFormatError> {
        let harmony = self.syntax.tool_format == ToolFormat::Harmony;
        let mut branches = Vec::new();
        if let Some(content) = format.content {
            let content = self.content(content)?;
            branches.push(match harmony {
                true => {
                    let head = self.marks(&["<|channel|>", "final", "<|message|>"]);
                    self.builder.literal(&head, content)
                }
                false => content,
            });
        }
        if let Some(calls) = &format.calls {
            let written = self.calls(calls)?;
            branches.push(match calls.optional {
                true => self.text_or(written),
                false => written,
            });
        }
        let answer = self.builder.any_of(branches);
        Ok(match harmony {
            true => self.after_analysis(answer),
            false => self.after_reasoning(answer),
        })
    }

    fn content(&mut self, format: &ContentFormat) -> Result<NodeId, AnswerFormatError> {
        Ok(match format {
            ContentFormat::Object => Rules::new(self.builder).object,
            ContentFormat::Schema(schema) => schema_rule(self.builder, schema)?,
            ContentFormat::Pattern(pattern) => {
                let hir = parsed(pattern)?;
                let mut rules = RegexRules {
                    builder: self.builder,
                    encoding: Encoding::Plain,
                };
                rules.whole(&hir)?
            }
            ContentFormat::Grammar(text) => ebnf_rule(self.builder, text)?,
            ContentFormat::Choice(texts) => {
                let texts = texts.iter().map(|text| text.as_bytes().to_vec());
                self.builder.one_of(texts.collect(), RETURN)
            }
        })
    }

    /// Encodes text that may contain special tokens. Other text never matches special tokens.
    fn marks(&self, texts: &[&str]) -> Vec<u8> {
        let special = |text: &str| !self.syntax.tokenizer.special_tokens(&[text]).is_empty();
        texts
            .iter()
            .flat_map(|text| special(text).then_some(SPECIAL).into_iter().chain(text.bytes()))
            .collect()
    }

    fn after_reasoning(&mut self, content: NodeId) -> NodeId {
        let Some((markers, opened)) = self.syntax.reasoning else {
            return content;
        };
        let line = self.builder.literal(b"\n", RETURN);
        let content_line = self.builder.repeat(line, 0, Some(2), content);
        let close = self.marks(&[markers.close]);
        let block = match close.first() {
            // The parser of the answer also ends the block at the marker in ordinary tokens.
            Some(&SPECIAL) => {
                let special = self.builder.literal(&close, content_line);
                self.builder
                    .until_either(markers.close.as_bytes(), content_line, special)
            }
            Some(_) | None => self.builder.until(&close, content_line),
        };
        if opened {
            return block;
        }
        let open = self.marks(&[markers.open]);
        let block = self.builder.literal(&open, block);
        self.builder.any_of(vec![block, content])
    }

    /// Permits a message on the analysis channel before `message`.
    fn after_analysis(&mut self, message: NodeId) -> NodeId {
        let again = self.marks(&["<|start|>", "assistant"]);
        let again = self.builder.literal(&again, message);
        let end = self.marks(&["<|end|>"]);
        let analysis = self.builder.until(&end, again);
        let head = self.marks(&["<|channel|>", "analysis", "<|message|>"]);
        let analysis = self.builder.literal(&head, analysis);
        self.builder.any_of(vec![analysis, message])
    }

    /// Permits text without a call, then these calls or the end.
    fn text_or(&mut self, calls: NodeId) -> NodeId {
        let calls_or_end = self.builder.optional(calls, RETURN);
        match self.syntax.tool_format {
            ToolFormat::Tagged => self.text_up_to(tagged::OPEN, calls_or_end),
            ToolFormat::Mistral => self.text_up_to(mistral::MARKER, calls_or_end),
            ToolFormat::DeepSeek { .. } => self.text_up_to(deepseek::SECTION, calls_or_end),
            ToolFormat::Kimi => self.text_up_to(kimi::SECTION, calls_or_end),
            // Text that starts with a brace is a call.
            ToolFormat::Llama => {
                let marker = self.marks(&[llama::MARKER]);
                let rest = self.builder.without(&marker, RETURN);
                let mut first = ByteSet::ALL;
                for byte in [b'{', SPECIAL, marker[0]].iter().chain(b" \t\r\n") {
                    first.remove(*byte);
                }
                let text = self.builder.bytes(first, rest);
                let space = self.builder.bytes(ByteSet::of(b" \t\r\n"), RETURN);
                let text = self.builder.any_of(vec![text, RETURN]);
                let text = self.builder.repeat(space, 0, None, text);
                self.builder.any_of(vec![calls, text])
            }
            // An answer with a brace at the beginning of its second line is a call.
            ToolFormat::Glm => {
                let rest = self.builder.without(&[SPECIAL], RETURN);
                let mut first = ByteSet::ALL;
                first.remove(b'{');
                first.remove(SPECIAL);
                let second_line = self.builder.bytes(first, rest);
                let second_line = self.builder.any_of(vec![second_line, RETURN]);
                let second_line = self.builder.literal(b"\n", second_line);
                let mut line = ByteSet::ALL;
                line.remove(b'\n');
                line.remove(SPECIAL);
                let line = self.builder.bytes(line, RETURN);
                let after = self.builder.any_of(vec![second_line, RETURN]);
                let text = self.builder.repeat(line, 0, None, after);
                self.builder.any_of(vec![calls, text])
            }
            ToolFormat::Harmony => {
                let head = self.marks(&["<|channel|>", "final", "<|message|>"]);
                let text = self.builder.without(&[SPECIAL], RETURN);
                let message = self.builder.literal(&head, text);
                self.builder.any_of(vec![message, calls])
            }
        }
    }

    fn text_up_to(&mut self, mark: &str, next: NodeId) -> NodeId {
        let mark = self.marks(&[mark]);
        self.builder.without(&mark, next)
    }

    fn calls(&mut self, calls: &PermittedCalls<'_>) -> Result<NodeId, AnswerFormatError> {
        let mut branches = Vec::new();
        for (place, function) in &calls.functions {
            let held = function.strict || !calls.optional;
            let parameters = function.parameters.as_ref().filter(|_| held);
            let fitting = parameters.map(|schema| {
                let schema = of_object(schema);
                self.builder.attempt(|builder| schema_rule(builder, &schema))
            });
            let arguments = match fitting {
                Some(Ok(rule)) => rule,
                Some(Err(err)) if function.strict || !err.is_unsupported() => {
                    return Err(AnswerFormatError::Parameters {
                        function: *place,
                        err,
                    });
                }
                Some(Err(_)) | None => Rules::new(self.builder).object,
            };
            branches.push(self.call(&function.name, arguments));
        }
        let call = self.builder.any_of(branches);
        let several = |builder: &mut Builder, between: &[u8], end: NodeId| {
            let another = builder.literal(between, call);
            let max = if calls.parallel { None } else { Some(0) };
            let more = builder.repeat(another, 0, max, end);
            builder.call(call, more)
        };
        Ok(match self.syntax.tool_format {
            ToolFormat::Tagged => several(self.builder, b"\n", RETURN),
            ToolFormat::Mistral => {
                let close = self.builder.bytes(ByteSet::of(b"]"), RETURN);
                let listed = several(self.builder, b", ", close);
                let open = self.marks(&["[TOOL_CALLS]"]);
                let listed = self.builder.literal(b"[", listed);
                self.builder.literal(&open, listed)
            }
            ToolFormat::DeepSeek { .. } => {
                self.section((deepseek::SECTION, b"\n", deepseek::SECTION_END), several)
            }
            ToolFormat::Kimi => self.section((kimi::SECTION, b"", kimi::SECTION_END), several),
            // A message, or an answer, contains a single call.
            ToolFormat::Llama | ToolFormat::Glm | ToolFormat::Harmony => call,
        })
    }

    /// Calls between two markers, with a separator.
    fn section(
        &mut self,
        (open, between, close): (&str, &[u8], &str),
        calls: impl FnOnce(&mut Builder, &[u8], NodeId) -> NodeId,
    ) -> NodeId {
        let close = self.marks(&[close]);
        let close = self.builder.literal(&close, RETURN);
        let calls = calls(self.builder, between, close);
        let open = self.marks(&[open]);
        self.builder.literal(&open, calls)
    }

    fn call(&mut self, name: &str, arguments: NodeId) -> NodeId {
        let named = |word: &str| format!("{{\"name\": \"{name}\", \"{word}\": ").into_bytes();
        let (before, after) = match self.syntax.tool_format {
            ToolFormat::Tagged => {
                let mut before = self.marks(&["<tool_call>"]);
                before.push(b'\n');
                before.extend(named("arguments"));
                let mut after = b"}\n".to_vec();
                after.extend(self.marks(&["</tool_call>"]));
                (before, after)
            }
            ToolFormat::Mistral => (named("arguments"), b"}".to_vec()),
            ToolFormat::Llama => (named("parameters"), b"}".to_vec()),
            ToolFormat::Glm => (format!("{name}\n").into_bytes(), Vec::new()),
            ToolFormat::DeepSeek { fenced: true } => {
                let (open, close) = deepseek::FENCE;
                let mut before = self.marks(&[deepseek::CALL, "function", deepseek::SEPARATOR]);
                before.extend(format!("{name}\n{open}").bytes());
                let mut after = close.as_bytes().to_vec();
                after.extend(self.marks(&[deepseek::CALL_END]));
                (before, after)
            }
            ToolFormat::DeepSeek { fenced: false } => {
                let before = self.marks(&[deepseek::CALL, name, deepseek::SEPARATOR]);
                (before, self.marks(&[deepseek::CALL_END]))
            }
            ToolFormat::Kimi => return self.kimi_call(name, arguments),
            ToolFormat::Harmony => {
                let recipient = format!("commentary to=functions.{name} ");
                let before = self.marks(&["<|channel|>", &recipient, "<|constrain|>", "json", "<|message|>"]);
                (before, Vec::new())
            }
        };
        let after = self.builder.literal(&after, RETURN);
        let arguments = self.builder.call(arguments, after);
        self.builder.literal(&before, arguments)
    }

    /// Builds a Kimi call. Its identifier ends with its index in the answer; any index is
    /// permitted.
    fn kimi_call(&mut self, name: &str, arguments: NodeId) -> NodeId {
        let end = self.marks(&[kimi::CALL_END]);
        let end = self.builder.literal(&end, RETURN);
        let arguments = self.builder.call(arguments, end);
        let mark = self.marks(&[kimi::ARGUMENTS]);
        let arguments = self.builder.literal(&mark, arguments);
        let digit = self.builder.bytes(ByteSet::range(b'0', b'9'), RETURN);
        let place = self.builder.repeat(digit, 1, Some(2), arguments);
        let id = self.marks(&[kimi::CALL, &format!("functions.{name}:")]);
        self.builder.literal(&id, place)
    }
}

/// Restricts a schema to objects: arguments are always an object.
fn of_object(schema: &Json) -> Json {
    let mut schema = schema.clone();
    if let Json::Object(members) = &mut schema {
        members.insert("type", "object".into());
    }
    schema
}
