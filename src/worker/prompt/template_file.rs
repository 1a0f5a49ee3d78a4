//! Where a model's directory has its chat template.

use camino::Utf8Path;
use serde_json::Value;

use super::{MAX_CONFIG_BYTES, PromptError};
use crate::model_dir::read_optional;
use crate::text::template::{ChatTemplate, source_in};

pub(super) fn read_json(dir: &Utf8Path, file: &'static str) -> Result<Option<Value>, PromptError> {
    let text = read_optional(dir, file, MAX_CONFIG_BYTES).map_err(|err| PromptError::Read { err })?;
    text.map(|text| serde_json::from_str(&text).map_err(|err| PromptError::InvalidJson { file, err }))
        .transpose()
}

/// A file of its own goes before `tokenizer_config.json`, as in the reference.
pub(super) fn load_template(
    dir: &Utf8Path,
    tokenizer_config: Option<&Value>,
) -> Result<Option<ChatTemplate>, PromptError> {
    const OWN: &str = "chat_template.jinja";
    const OLD: &str = "chat_template.json";
    const SHARED: &str = "tokenizer_config.json";
    let invalid = |err| PromptError::Template { err };
    let own = read_optional(dir, OWN, MAX_CONFIG_BYTES).map_err(|err| PromptError::Read { err })?;
    let old = || match read_json(dir, OLD)? {
        Some(config) => Ok(source_in(OLD, &config)
            .map_err(invalid)?
            .map(|source| (OLD, source))),
        None => Ok(None),
    };
    let shared = || match tokenizer_config {
        Some(config) => Ok(source_in(SHARED, config)
            .map_err(invalid)?
            .map(|source| (SHARED, source))),
        None => Ok(None),
    };
    let found = match own {
        Some(source) => Some((OWN, source)),
        None => match shared()? {
            Some(found) => Some(found),
            None => old()?,
        },
    };
    found
        .map(|(file, source)| ChatTemplate::compile(file, &source).map_err(invalid))
        .transpose()
}
