//! Where a model's directory has its chat templates.

use camino::Utf8Path;
use serde_json::Value;

use super::{MAX_CONFIG_BYTES, PromptError};
use crate::model_dir::read_optional;
use crate::text::template::{ChatTemplate, Sources, sources_in};

/// A model's chat templates.
pub(super) struct Templates {
    pub(super) default: ChatTemplate,
    /// The one for conversations with tools, where the model has two.
    pub(super) tool_use: Option<ChatTemplate>,
}

pub(super) fn read_json(dir: &Utf8Path, file: &'static str) -> Result<Option<Value>, PromptError> {
    read(dir, file)?
        .map(|text| serde_json::from_str(&text).map_err(|err| PromptError::InvalidJson { file, err }))
        .transpose()
}

fn read(dir: &Utf8Path, file: &'static str) -> Result<Option<String>, PromptError> {
    read_optional(dir, file, MAX_CONFIG_BYTES).map_err(|err| PromptError::Read { err })
}

/// Files of their own go before `tokenizer_config.json`, as in the reference.
pub(super) fn load_templates(
    dir: &Utf8Path,
    tokenizer_config: Option<&Value>,
) -> Result<Option<Templates>, PromptError> {
    const OWN: &str = "chat_template.jinja";
    const OWN_TOOL_USE: &str = "additional_chat_templates/tool_use.jinja";
    const OLD: &str = "chat_template.json";
    const SHARED: &str = "tokenizer_config.json";
    let invalid = |err| PromptError::Template { err };
    let in_json = |file, config: Option<&Value>| match config {
        Some(config) => Ok(sources_in(file, config)
            .map_err(invalid)?
            .map(|sources| (file, sources))),
        None => Ok(None),
    };
    let found = match read(dir, OWN)? {
        Some(default) => {
            let tool_use = None;
            Some((OWN, Sources { default, tool_use }))
        }
        None => match in_json(SHARED, tokenizer_config)? {
            Some(found) => Some(found),
            None => in_json(OLD, read_json(dir, OLD)?.as_ref())?,
        },
    };
    let Some((file, sources)) = found else {
        return Ok(None);
    };
    let tool_use = match read(dir, OWN_TOOL_USE)? {
        Some(source) => Some((OWN_TOOL_USE, source)),
        None => sources.tool_use.map(|source| (file, source)),
    };
    let compile =
        |(file, source): (&'static str, String)| ChatTemplate::compile(file, &source).map_err(invalid);
    Ok(Some(Templates {
        default: compile((file, sources.default))?,
        tool_use: tool_use.map(compile).transpose()?,
    }))
}
