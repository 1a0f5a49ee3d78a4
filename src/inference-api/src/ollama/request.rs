//! Requests of `/api/chat` and `/api/generate`. Fields that would change the answer and are not
//! supported are rejected by name. All other fields without effect are ignored, as Ollama does, and
//! [`IgnoredFields`] lists their names.

pub mod embed;
pub mod show;

use serde_json::Value;

use super::ignored::IgnoredFields;
use super::keep_alive::KeepAlive;
use super::{message, options};
use crate::openai::ApiError;
use crate::openai::json::Members;
use crate::openai::message::{ends_with_assistant, user, with_role};
use crate::openai::request::fields::Fields;
use crate::openai::request::{self as openai, Options, parse_model};
use crate::openai::tools::Tools;

/// Fields of both endpoints.
const COMMON: &[&str] = &[
    "cache_salt",
    "format",
    "keep_alive",
    "logprobs",
    "model",
    "options",
    "priority",
    "stream",
    "think",
    "top_logprobs",
];

/// Request of `POST /api/chat`.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    pub model: String,
    /// `None` if the request has no messages and only loads or unloads the model.
    pub chat: Option<openai::ChatRequest>,
    pub keep_alive: Option<KeepAlive>,
    pub ignored: IgnoredFields,
}

/// Request of `POST /api/generate`.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    pub model: String,
    /// Empty if the request only loads or unloads the model.
    pub prompt: String,
    /// Text after the answer: the answer fills the gap between prompt and suffix. Not empty.
    pub suffix: Option<String>,
    system: Option<String>,
    /// True if the prompt is not rendered with the chat template.
    pub raw: bool,
    template_variables: Members,
    options: Options,
    pub keep_alive: Option<KeepAlive>,
    pub ignored: IgnoredFields,
}

impl ChatRequest {
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let (mut ordered, fields) = Fields::split(body, &["messages", "tools", "format"])?;
        let mut ignored = IgnoredFields::default();
        let model = parse_model(&fields)?;
        let mut options = options::parse(&fields, &mut ignored)?;
        options.format = options::parse_format(ordered.get("format"))?;
        let keep_alive = KeepAlive::parse(&fields)?;
        ignore_unknown(&fields, &[COMMON], &mut ignored);
        let template_variables = options::parse_think(&fields)?;
        let messages = message::messages(ordered.remove("messages"))?;
        let tools = Tools::parse(ordered.remove("tools"), None, None)?;
        let chat = openai::ChatRequest {
            model: model.clone(),
            // As in Ollama, the answer continues a last message of the assistant.
            continues: ends_with_assistant(&messages),
            messages,
            template: None,
            template_variables,
            tools,
            n: 1,
            options,
        };
        Ok(Self {
            model,
            chat: Some(chat).filter(|chat| !chat.messages.is_empty()),
            keep_alive,
            ignored,
        })
    }
}

impl GenerateRequest {
    /// Fields of this endpoint only.
    const NAMES: &[&str] = &[
        "context", "images", "prompt", "raw", "suffix", "system", "template",
    ];

    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let (ordered, fields) = Fields::split(body, &["format"])?;
        let mut ignored = IgnoredFields::default();
        let mut options = options::parse(&fields, &mut ignored)?;
        options.format = options::parse_format(ordered.get("format"))?;
        let keep_alive = KeepAlive::parse(&fields)?;
        ignore_unknown(&fields, &[COMMON, Self::NAMES], &mut ignored);
        if fields.text("template")?.is_some_and(|text| !text.is_empty()) {
            let message =
                "'template' is not supported by this server. The chat template is part of the model.";
            return Err(ApiError::unsupported("template", message));
        }
        let listed = |name: &str| fields.read(name, "a list", Value::as_array);
        if listed("context")?.is_some_and(|tokens| !tokens.is_empty()) {
            let message =
                "'context' is not supported by this server. Please send the earlier messages to /api/chat.";
            return Err(ApiError::unsupported("context", message));
        }
        if listed("images")?.is_some_and(|images| !images.is_empty()) {
            return Err(message::images_unsupported("images"));
        }
        Ok(Self {
            model: parse_model(&fields)?,
            prompt: fields.text("prompt")?.unwrap_or_default().to_owned(),
            suffix: fields
                .text("suffix")?
                .filter(|text| !text.is_empty())
                .map(str::to_owned),
            system: fields.text("system")?.map(str::to_owned),
            raw: fields.boolean("raw")?.unwrap_or(false),
            template_variables: options::parse_think(&fields)?,
            options,
            keep_alive,
            ignored,
        })
    }

    /// Returns the chat with the prompt as the message of the user.
    pub fn into_chat(self) -> openai::ChatRequest {
        let system = self.system.filter(|system| !system.is_empty());
        let system = system.map(|system| with_role("system", &system));
        openai::ChatRequest {
            model: self.model,
            continues: false,
            messages: system.into_iter().chain([user(&self.prompt)]).collect(),
            template: None,
            template_variables: self.template_variables,
            tools: None,
            n: 1,
            options: self.options,
        }
    }

    /// Returns the prompt as text that the answer continues, and the options. The default of the
    /// answer's length is the remaining context.
    pub fn into_text(self) -> (String, Options) {
        let system = self.system.filter(|system| {
            // The system's message is no part of the text before a gap.
            !self.raw && self.suffix.is_none() && !system.is_empty()
        });
        let text = match system {
            Some(system) => format!("{system}\n{}", self.prompt),
            None => self.prompt,
        };
        let options = Options {
            max_tokens: self.options.max_tokens.or(Some(usize::MAX)),
            ..self.options
        };
        (text, options)
    }
}

/// Adds the names of unknown fields, unless they are null.
fn ignore_unknown(fields: &Fields, known: &[&[&str]], ignored: &mut IgnoredFields) {
    for (name, value) in fields.iter() {
        if !value.is_null() && !known.iter().any(|names| names.contains(&name)) {
            ignored.add(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::openai::json::Json;
    use crate::openai::message::text_of;
    use crate::openai::openapi::properties_of;
    use crate::openai::response_format::ContentFormat;

    fn ignored(names: &[&str]) -> IgnoredFields {
        let mut ignored = IgnoredFields::default();
        names.iter().for_each(|name| ignored.add((*name).to_owned()));
        ignored
    }

    fn chat(body: &Value) -> Result<ChatRequest, String> {
        ChatRequest::parse(body.to_string().as_bytes()).map_err(|err| err.param.unwrap_or_default())
    }

    fn generate(body: &Value) -> Result<GenerateRequest, String> {
        GenerateRequest::parse(body.to_string().as_bytes()).map_err(|err| err.param.unwrap_or_default())
    }

    #[test]
    fn openapi_document_has_the_same_fields() {
        let fields = |own: &[&str]| -> BTreeSet<String> {
            let all = COMMON.iter().chain(own);
            all.map(|name| (*name).to_owned()).collect()
        };
        assert_eq!(properties_of("OllamaChatRequest"), fields(&["messages", "tools"]));
        assert_eq!(
            properties_of("OllamaGenerateRequest"),
            fields(GenerateRequest::NAMES)
        );
    }

    #[test]
    fn converts_chat_request() {
        let body = json!({
            "model": "guide:latest", "messages": [{"role": "user", "content": "Hi"}], "think": "low",
            "format": "SCHEMA", "keep_alive": "5m", "truncate": true, "options": {"num_ctx": 2048}, "stream": false,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        });
        // `json!` sorts the members of the schema.
        let schema = r#"{"type": "object", "properties": {"b": {}, "a": {}}}"#;
        let body = body.to_string().replace("\"SCHEMA\"", schema);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        assert_eq!(request.model, "guide:latest");
        assert_eq!(request.ignored, ignored(&["options.num_ctx", "truncate"]));
        assert_eq!(
            request.keep_alive,
            Some(KeepAlive::For(std::time::Duration::from_secs(300)))
        );
        let chat = request.chat.unwrap();
        assert!(!chat.options.stream && !chat.continues);
        assert_eq!(chat.tools.unwrap().functions[0].name, "f");
        let Some(ContentFormat::Schema(schema)) = chat.options.format.map(|format| format.content) else {
            panic!("no schema");
        };
        let members = schema.get("properties").and_then(Json::as_object).unwrap();
        let names: Vec<_> = members.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["b", "a"]);
    }

    #[test]
    fn request_without_input_loads_the_model() {
        for body in [json!({"model": "m"}), json!({"model": "m", "messages": []})] {
            assert_eq!(chat(&body).unwrap().chat, None);
        }
        assert_eq!(generate(&json!({"model": "m"})).unwrap().prompt, "");
    }

    #[test]
    fn last_message_of_the_assistant_is_continued() {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
        assert!(chat(&body).unwrap().chat.unwrap().continues);
    }

    #[test]
    fn prompt_becomes_chat_or_text() {
        let body = json!({"model": "m", "prompt": "Hi", "system": "Be terse.", "suffix": "", "template": "",
                          "context": [], "images": []});
        let request = generate(&body).unwrap();
        assert_eq!(request.ignored, IgnoredFields::default());
        assert_eq!(request.suffix, None);
        let messages = request.clone().into_chat().messages;
        assert_eq!(
            messages.iter().map(text_of).collect::<Vec<_>>(),
            [Some("Be terse."), Some("Hi")]
        );
        let (text, options) = request.into_text();
        assert_eq!(text, "Be terse.\nHi");
        assert_eq!(options.max_tokens, Some(usize::MAX));
        let raw =
            json!({"model": "m", "prompt": "Hi", "system": "x", "raw": true, "options": {"num_predict": 3}});
        let (text, options) = generate(&raw).unwrap().into_text();
        assert_eq!((text.as_str(), options.max_tokens), ("Hi", Some(3)));
        let gap = json!({"model": "m", "prompt": "a", "suffix": "b", "system": "x"});
        let gap = generate(&gap).unwrap();
        assert_eq!(gap.suffix.as_deref(), Some("b"));
        assert_eq!(gap.into_text().0, "a");
    }

    #[test]
    fn errors_name_the_field() {
        for (extra, param) in [
            (json!({"model": ""}), "model"),
            (json!({"format": "yaml"}), "format"),
            (json!({"keep_alive": []}), "keep_alive"),
            (json!({"think": 3}), "think"),
        ] {
            let mut body = json!({"model": "m"});
            for (name, value) in extra.as_object().unwrap() {
                body[name] = value.clone();
            }
            assert_eq!(chat(&body).unwrap_err(), param, "{extra}");
            assert_eq!(generate(&body).unwrap_err(), param, "{extra}");
        }
        for (name, value) in [
            ("suffix", json!(1)),
            ("template", json!("{{ .Prompt }}")),
            ("context", json!([1])),
            ("images", json!(["aGk="])),
            ("raw", json!("yes")),
            ("prompt", json!(["a"])),
        ] {
            let body = json!({"model": "m", name: value});
            assert_eq!(generate(&body).unwrap_err(), name);
        }
    }
}
