//! Chat templates: Jinja as the reference implementation (transformers) runs it, with
//! byte-identical output. Inputs are the template source, messages and the time. The output is the
//! prompt text.

mod job;
mod json;
mod python;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};

use self::job::{BoundedText, job_of};
pub use self::job::{MAX_JOB_TEXT_BYTES, RenderElsewhere, render_job};
use self::json::{Style, dumps, tojson};
use rooflet_inference_api::openai::json::{Json, Members};

/// Limit of template instructions per rendering. Templates are downloaded code.
const MAX_RENDER_INSTRUCTIONS: u64 = 50_000_000;

const NAME: &str = "chat_template";

/// Compiled chat template.
pub struct ChatTemplate {
    renderer: Renderer,
    source: String,
}

enum Renderer {
    Here {
        environment: Box<Environment<'static>>,
        /// Maximum length of the text in bytes.
        max_bytes: Option<usize>,
    },
    Elsewhere(Arc<dyn RenderElsewhere>),
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChatTemplate")
    }
}

/// Error in the source of a template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("{file}: chat template: {problem}")]
    Invalid { file: &'static str, problem: String },
    #[error(
        "{file}: field `chat_template` must be a string or a list of objects with `name` and `template`, one of them named `default`"
    )]
    InvalidField { file: &'static str },
}

impl TemplateError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid { .. } | Self::InvalidField { .. } => "InvalidChatTemplate",
        }
    }
}

/// Error of a rendering: the template rejected the messages or failed.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct RenderError {
    problem: String,
}

/// Variables of a template, besides its functions.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    pub messages: &'a [Json],
    /// Additional variables of the request.
    pub variables: &'a Members,
    pub tools: Option<&'a [Json]>,
    pub add_generation_prompt: bool,
    /// Special tokens by name, such as `bos_token`.
    pub special_tokens: &'a BTreeMap<String, String>,
    pub now: &'a Zoned,
}

/// Sources of a model's chat templates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    pub default: String,
    /// Template for conversations with tools, if the model has a separate one.
    pub tool_use: Option<String>,
}

/// Returns the templates in `tokenizer_config.json` or `chat_template.json`: one template, or
/// several by name. `None` if the file has no template.
pub fn sources_in(file: &'static str, config: &serde_json::Value) -> Result<Option<Sources>, TemplateError> {
    use serde_json::Value;
    let sources = |default: &str, tool_use: Option<&str>| {
        Some(Sources {
            default: default.to_owned(),
            tool_use: tool_use.map(str::to_owned),
        })
    };
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(sources(source, None)),
        Some(Value::Array(named)) => {
            let find = |wanted: &str| {
                let mut named = named.iter();
                let found = named.find(|template| template.get("name").is_some_and(|name| name == wanted))?;
                found.get("template")?.as_str()
            };
            let default = find("default").ok_or(TemplateError::InvalidField { file })?;
            Ok(sources(default, find("tool_use")))
        }
        Some(_) => Err(TemplateError::InvalidField { file }),
    }
}

impl ChatTemplate {
    /// Compiles a template. `file` is the origin of the source, for error messages.
    pub fn compile(file: &'static str, source: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.expect("only white space differs from the default syntax"));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(python::call_method);
        environment.set_fuel(Some(MAX_RENDER_INSTRUCTIONS));
        environment.set_debug(false);
        environment.add_filter("tojson", tojson);
        environment.add_test("iterable", is_iterable);
        environment.add_test("sequence", is_sequence);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, without_generation_marks(source))
            .map_err(|err| TemplateError::Invalid {
                file,
                problem: err.to_string(),
            })?;
        Ok(Self {
            renderer: Renderer::Here {
                environment: Box::new(environment),
                max_bytes: None,
            },
            source: source.to_owned(),
        })
    }

    /// Returns a template that `renderer` compiles and renders, for a source that is not trusted.
    pub fn elsewhere(source: &str, renderer: Arc<dyn RenderElsewhere>) -> Self {
        Self {
            renderer: Renderer::Elsewhere(renderer),
            source: source.to_owned(),
        }
    }

    /// Returns the template with limits of instructions per rendering and of the text's length.
    fn with_limits(mut self, instructions: u64, bytes: usize) -> Self {
        if let Renderer::Here {
            environment,
            max_bytes,
        } = &mut self.renderer
        {
            environment.set_fuel(Some(instructions));
            *max_bytes = Some(bytes);
        }
        self
    }

    /// Returns the source of the compiled template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the prompt with the first representation of messages and tools that the template
    /// accepts:
    ///
    /// 1. Reasoning under all names that templates read, as in transformers.
    /// 2. Unchanged messages. gpt-oss rejects reasoning and content next to a call.
    /// 3. Arguments of earlier calls as strings, for DeepSeek.
    /// 4. All of these again, with an empty description for functions without description.
    ///    gpt-oss requires a description.
    pub fn render(&self, input: RenderInput<'_>) -> Result<String, RenderError> {
        let (environment, max_bytes) = match &self.renderer {
            Renderer::Here {
                environment,
                max_bytes,
            } => (environment, *max_bytes),
            Renderer::Elsewhere(renderer) => {
                let rendered = renderer.render(&job_of(&self.source, input));
                return rendered.map_err(|problem| RenderError { problem });
            }
        };
        let render_once =
            |messages: &[Json], input: RenderInput<'_>| render_once(environment, max_bytes, messages, input);
        let aliased = with_reasoning_aliases(input.messages);
        let shown = aliased.as_deref().unwrap_or(input.messages);
        let rendered = render_once(shown, input);
        if rendered.is_ok() {
            return rendered;
        }
        let as_texts = with_text_arguments(shown);
        let described = input.tools.and_then(with_descriptions);
        let messages = [
            Some(shown),
            aliased.is_some().then_some(input.messages),
            as_texts.as_deref(),
        ];
        let tools = [Some(input.tools), described.as_deref().map(Some)];
        let attempts = tools.into_iter().flatten().flat_map(|tools| {
            messages
                .into_iter()
                .flatten()
                .map(move |messages| (messages, tools))
        });
        let other = attempts
            .skip(1)
            .find_map(|(messages, tools)| render_once(messages, RenderInput { tools, ..input }).ok());
        other.map_or(rendered, Ok)
    }
}

fn render_once(
    environment: &Environment<'static>,
    max_bytes: Option<usize>,
    messages: &[Json],
    input: RenderInput<'_>,
) -> Result<String, RenderError> {
    let failed = |err: Error| RenderError {
        problem: problem_of(&err),
    };
    let now = input.now.clone();
    let strftime_now = Value::from_function(move |format: String| -> Result<String, Error> {
        jiff::fmt::strtime::format(&format, &now)
            .map_err(|err| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {err}")))
    });
    // Absent tokens stay undefined, which renders as an empty string.
    let special_tokens = input.special_tokens.iter();
    let mut context: Vec<(&str, Value)> = special_tokens
        .map(|(name, token)| (name.as_str(), Value::from(token.as_str())))
        .collect();
    context.extend([
        ("messages", Value::from(Serde(messages))),
        ("add_generation_prompt", Value::from(input.add_generation_prompt)),
        (
            "tools",
            input
                .tools
                .map_or(Value::from(()), |tools| Value::from(Serde(tools))),
        ),
        ("documents", Value::from(())),
        ("strftime_now", strftime_now),
    ]);
    let variables = input.variables.iter();
    context.extend(variables.map(|(name, value)| (name, Value::from(Serde(value)))));
    let template = environment.get_template(NAME).map_err(failed)?;
    let context = Value::from_pairs(context);
    let Some(max_bytes) = max_bytes else {
        return template.render(context).map_err(failed);
    };
    let mut text = BoundedText::new(max_bytes);
    template.render_captured_to(context, &mut text).map_err(failed)?;
    Ok(text.into_text())
}

/// Names of the reasoning field of a message, as in transformers 5.
const REASONING: &[&str] = &["reasoning_content", "thinking", "reasoning"];

/// Returns `None` if no message has reasoning.
fn with_reasoning_aliases(messages: &[Json]) -> Option<Vec<Json>> {
    let reasoning = |message: &Json| {
        let mut named = REASONING.iter().filter_map(|name| message.get(name));
        named.find(|value| **value != Json::Null).cloned()
    };
    let aliased = |message: &Json| {
        let (Some(reasoning), Some(own)) = (reasoning(message), message.as_object()) else {
            return message.clone();
        };
        let mut members = Members::new([("thinking", reasoning.clone())]);
        own.iter()
            .for_each(|(name, value)| members.insert(name, value.clone()));
        members.insert("reasoning_content", reasoning);
        Json::Object(members)
    };
    let any = messages.iter().any(|message| reasoning(message).is_some());
    any.then(|| messages.iter().map(aliased).collect())
}

/// Returns `None` if no call has an object as arguments.
fn with_text_arguments(messages: &[Json]) -> Option<Vec<Json>> {
    let mut changed = false;
    let mut messages = messages.to_vec();
    for message in &mut messages {
        let Some(Json::Array(calls)) = message.get_mut("tool_calls") else {
            continue;
        };
        let functions = calls.iter_mut().filter_map(|call| call.get_mut("function"));
        for arguments in functions.filter_map(|function| function.get_mut("arguments")) {
            if arguments.as_object().is_some() {
                *arguments = Json::String(dumps(arguments, Style::default()).expect("JSON values serialize"));
                changed = true;
            }
        }
    }
    changed.then_some(messages)
}

/// Returns `None` if all functions have a description.
fn with_descriptions(tools: &[Json]) -> Option<Vec<Json>> {
    let mut changed = false;
    let mut tools = tools.to_vec();
    for tool in &mut tools {
        if let Some(Json::Object(function)) = tool.get_mut("function")
            && function.get("description").is_none_or(|own| *own == Json::Null)
        {
            function.insert("description", "".into());
            changed = true;
        }
    }
    changed.then_some(tools)
}

/// Returns the message of `raise_exception`, or a description of the failure.
fn problem_of(err: &Error) -> String {
    let source = || std::error::Error::source(err).map(ToString::to_string);
    match (err.kind(), err.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_owned(),
        (ErrorKind::WriteFailure, _) => source().unwrap_or_else(|| err.to_string()),
        (_, _) => err.to_string(),
    }
}

/// Replaces `{% generation %}`, which marks the assistant's text for training and renders nothing.
/// `{% if true %}` has the same effect on white space.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        // `{%}` opens a tag and does not close it: search after the first two characters.
        let Some(end) = tag[2..].find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(2 + end + 2);
        let inner = &tag[2..tag.len() - 2];
        let name = inner
            .trim_start_matches(['-', '+'])
            .trim_end_matches(['-', '+'])
            .trim();
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Implements Python's `iterable` test: None is not iterable. minijinja treats it as an empty list.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Implements Python's `sequence` test: everything with a length and an index, including strings
/// and mappings.
fn is_sequence(value: &Value) -> bool {
    is_iterable(value) && (value.len().is_some() || value.is_undefined())
}

#[cfg(test)]
mod tests;
