//! Files of a model directory that contain chat templates and the special tokens for them.

use camino::Utf8Path;
use serde_json::{Map, Value};

use super::{MAX_CONFIG_BYTES, PromptError};
use rooflet_artifact::model_dir::read_optional;
use rooflet_model::checkpoint::TOOL_USE_FILE;
use rooflet_text::template::{ChatTemplate, Sources, sources_in};
use rooflet_text::tokenizer::token_text;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// A model's chat templates.
pub(super) struct Templates {
    pub(super) default: ChatTemplate,
    /// Separate template for conversations with tools.
    pub(super) tool_use: Option<ChatTemplate>,
}

pub(super) fn read_json(dir: &Utf8Path, file: &'static str) -> Result<Option<Value>, PromptError> {
    read(dir, file)?
        .map(|text| serde_json::from_str(&text).map_err(|err| PromptError::InvalidJson { file, err }))
        .transpose()
}

/// Reads `tokenizer_config.json`. If that file has no `added_tokens_decoder`, the tokens of
/// `special_tokens_map.json` replace its own, as in transformers.
pub(super) fn read_tokenizer_config(dir: &Utf8Path) -> Result<Option<Value>, PromptError> {
    let config = read_json(dir, TOKENIZER_CONFIG)?;
    let lists_added_tokens = |config: &Map<String, Value>| config.contains_key("added_tokens_decoder");
    let Some(Value::Object(tokens)) = read_json(dir, "special_tokens_map.json")? else {
        return Ok(config);
    };
    match config {
        Some(Value::Object(mut config)) if !lists_added_tokens(&config) => {
            config.extend(
                tokens
                    .into_iter()
                    .filter(|(_, value)| token_text(value).is_some()),
            );
            Ok(Some(Value::Object(config)))
        }
        None => Ok(Some(Value::Object(tokens))),
        Some(config) => Ok(Some(config)),
    }
}

fn read(dir: &Utf8Path, file: &'static str) -> Result<Option<String>, PromptError> {
    read_optional(dir, file, MAX_CONFIG_BYTES).map_err(|err| PromptError::Read { err })
}

/// Loads the chat templates. Template files have precedence over `tokenizer_config.json`, as in
/// transformers.
pub(super) fn load_templates(
    dir: &Utf8Path,
    tokenizer_config: Option<&Value>,
) -> Result<Option<Templates>, PromptError> {
    const TEMPLATE_FILE: &str = "chat_template.jinja";
    const LEGACY_FILE: &str = "chat_template.json";
    let invalid = |err| PromptError::Template { err };
    let in_json = |file, config: Option<&Value>| match config {
        Some(config) => Ok(sources_in(file, config)
            .map_err(invalid)?
            .map(|sources| (file, sources))),
        None => Ok(None),
    };
    let found = match read(dir, TEMPLATE_FILE)? {
        Some(default) => {
            let tool_use = None;
            Some((TEMPLATE_FILE, Sources { default, tool_use }))
        }
        None => match in_json(TOKENIZER_CONFIG, tokenizer_config)? {
            Some(found) => Some(found),
            None => in_json(LEGACY_FILE, read_json(dir, LEGACY_FILE)?.as_ref())?,
        },
    };
    let Some((file, sources)) = found else {
        return Ok(None);
    };
    let tool_use = match read(dir, TOOL_USE_FILE)? {
        Some(source) => Some((TOOL_USE_FILE, source)),
        None => sources.tool_use.map(|source| (file, source)),
    };
    let compile =
        |(file, source): (&'static str, String)| ChatTemplate::compile(file, &source).map_err(invalid);
    Ok(Some(Templates {
        default: compile((file, sources.default))?,
        tool_use: tool_use.map(compile).transpose()?,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use rooflet_testing::TempDir;

    fn dir(files: &[(&str, &str)]) -> TempDir {
        let dir = TempDir::new();
        std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn special_tokens_map_replaces_tokens_unless_added_tokens_are_listed() {
        let read = |config: &str| {
            let tokens =
                r#"{"bos_token": {"content": "b"}, "unk_token": "u", "additional_special_tokens": ["x"]}"#;
            let dir = dir(&[
                ("tokenizer_config.json", config),
                ("special_tokens_map.json", tokens),
            ]);
            read_tokenizer_config(dir.path()).unwrap().unwrap()
        };
        assert_eq!(
            read(r#"{"bos_token": "a", "eos_token": "e"}"#),
            json!({"bos_token": {"content": "b"}, "eos_token": "e", "unk_token": "u"})
        );
        let listed = json!({"bos_token": "a", "added_tokens_decoder": {}});
        assert_eq!(read(&listed.to_string()), listed);
    }

    #[test]
    fn tool_use_template_is_read_from_its_file_or_from_config() {
        let sources = |files: &[(&str, &str)], config: Option<&Value>| {
            let dir = dir(files);
            let found = load_templates(dir.path(), config).unwrap();
            let Templates { default, tool_use } = found.unwrap();
            let source = |template: &ChatTemplate| template.source().to_owned();
            (source(&default), tool_use.as_ref().map(source))
        };
        let own = ("chat_template.jinja", "own");
        let beside = ("additional_chat_templates/tool_use.jinja", "own for tools");
        let config = json!({"chat_template": [
            {"name": "default", "template": "shared"}, {"name": "tool_use", "template": "shared for tools"}]});
        let with = |default: &str, tool_use: Option<&str>| (default.to_owned(), tool_use.map(str::to_owned));
        assert_eq!(sources(&[own, beside], None), with("own", Some("own for tools")));
        assert_eq!(sources(&[own], Some(&config)), with("own", None));
        assert_eq!(
            sources(&[], Some(&config)),
            with("shared", Some("shared for tools"))
        );
        assert_eq!(
            sources(&[beside], Some(&config)),
            with("shared", Some("own for tools"))
        );
    }
}
