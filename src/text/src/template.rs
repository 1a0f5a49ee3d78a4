//! Chat templates: Jinja as the reference implementation (transformers) runs it, so that the text
//! is the same byte for byte. Inputs: template source, messages and the time; output: the prompt's
//! text.

mod json;
mod python;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};

use self::json::{Style, dumps, tojson};
use rooflet_inference_api::openai::json::{Json, Members};

/// Work that one rendering may do, in template instructions: a template is code from a download.
const MAX_RENDER_INSTRUCTIONS: u64 = 50_000_000;

const NAME: &str = "chat_template";

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChatTemplate")
    }
}

/// The template's source cannot be read.
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

/// The template refused these messages or failed on them.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct RenderError {
    problem: String,
}

/// Everything a template sees besides its functions.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    pub messages: &'a [Json],
    /// Others that the request names.
    pub variables: &'a Members,
    pub tools: Option<&'a [Json]>,
    pub add_generation_prompt: bool,
    /// Such as `bos_token`.
    pub special_tokens: &'a BTreeMap<String, String>,
    pub now: &'a Zoned,
}

/// A model's chat templates before they are compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    pub default: String,
    /// For conversations with tools, where these have one of their own.
    pub tool_use: Option<String>,
}

/// The templates in a value of `tokenizer_config.json` or `chat_template.json`: one, or several by
/// name. `None` where the file has none.
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
    /// `file` is where the source comes from, for messages.
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
            environment,
            source: source.to_owned(),
        })
    }

    /// What was compiled.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Messages and tools are shown to the template in the first of these ways that it takes: with
    /// messages' reasoning under all names that templates read, as transformers has it; as they
    /// are, for gpt-oss's refuses reasoning and content beside a call; with the arguments of
    /// earlier calls as the texts that they were, as DeepSeek's want them; and in these ways again
    /// with an empty description of each function that has none, which gpt-oss's reads in any case.
    pub fn render(&self, input: RenderInput<'_>) -> Result<String, RenderError> {
        let aliased = with_reasoning_aliases(input.messages);
        let shown = aliased.as_deref().unwrap_or(input.messages);
        let rendered = self.render_once(shown, input);
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
        let ways = tools.into_iter().flatten().flat_map(|tools| {
            messages
                .into_iter()
                .flatten()
                .map(move |messages| (messages, tools))
        });
        let other = ways
            .skip(1)
            .find_map(|(messages, tools)| self.render_once(messages, RenderInput { tools, ..input }).ok());
        other.map_or(rendered, Ok)
    }

    fn render_once(&self, messages: &[Json], input: RenderInput<'_>) -> Result<String, RenderError> {
        let failed = |err: Error| RenderError {
            problem: problem_of(&err),
        };
        let now = input.now.clone();
        let strftime_now = Value::from_function(move |format: String| -> Result<String, Error> {
            jiff::fmt::strtime::format(&format, &now)
                .map_err(|err| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {err}")))
        });
        // Absent tokens stay undefined, which prints as nothing.
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
        let template = self.environment.get_template(NAME).map_err(failed)?;
        template.render(Value::from_pairs(context)).map_err(failed)
    }
}

/// Names under which a message's reasoning is passed, as transformers 5 looks for it.
const REASONING: &[&str] = &["reasoning_content", "thinking", "reasoning"];

/// `None` where no message has any.
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

/// `None` where no arguments are objects.
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
                *arguments = Json::String(dumps(arguments, Style::default()).expect("names are strings"));
                changed = true;
            }
        }
    }
    changed.then_some(messages)
}

/// `None` where all functions have one.
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

/// What `raise_exception` said, or what went wrong.
fn problem_of(err: &Error) -> String {
    match (err.kind(), err.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_owned(),
        (_, _) => err.to_string(),
    }
}

/// `{% generation %}` marks the assistant's text for training and prints nothing itself. A block
/// that is always taken strips white space in the same way.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        // Not of `{%}`, which opens a tag and does not close it.
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

/// As in Python, where None cannot be gone through; minijinja takes it for an empty list.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// As in Python, where whatever has a length and can be indexed is one, texts and mappings too.
fn is_sequence(value: &Value) -> bool {
    is_iterable(value) && (value.len().is_some() || value.is_undefined())
}

#[cfg(test)]
mod tests;
