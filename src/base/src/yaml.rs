//! YAML parser and writer. Only this module depends on the YAML crate. Documents become JSON
//! values; errors contain line and column.
//!
//! Scalars follow YAML 1.1 like the Kubernetes tools: `012` is octal 10, `yes` is a boolean.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum size of a YAML text in bytes, equal to the body limit of the Kubernetes API.
pub const MAX_YAML_BYTES: usize = 3 << 20;

/// Parse or write error. `Display` includes line and column.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    #[error("the YAML text has {0} bytes; the limit is {MAX_YAML_BYTES} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Parse(String),
    #[error("writing YAML: {0}")]
    Write(String),
}

fn options() -> serde_saphyr::Options {
    let mut options = serde_saphyr::Options::default();
    options.legacy_octal_numbers = true;
    options
}

/// Parses all non-empty documents of a YAML stream.
pub fn documents(text: &str) -> Result<Vec<Value>, YamlError> {
    if text.len() > MAX_YAML_BYTES {
        return Err(YamlError::TooLarge(text.len()));
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options())
        .map_err(|err| YamlError::Parse(err.to_string()))?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

/// Parses one document into `T`.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    read_one(text, options())
}

/// Parses one document into a `T` that handles duplicate keys: it receives each of them.
pub fn from_str_with_repeated_keys<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    let mut options = options();
    options.duplicate_keys = serde_saphyr::DuplicateKeyPolicy::LastWins;
    read_one(text, options)
}

fn read_one<T: DeserializeOwned>(text: &str, options: serde_saphyr::Options) -> Result<T, YamlError> {
    if text.len() > MAX_YAML_BYTES {
        return Err(YamlError::TooLarge(text.len()));
    }
    serde_saphyr::from_str_with_options(text, options).map_err(|err| YamlError::Parse(err.to_string()))
}

/// Writes a value as one document.
pub fn to_string<T: Serialize>(value: &T) -> Result<String, YamlError> {
    serde_saphyr::to_string(value).map_err(|err| YamlError::Write(err.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parses_a_stream_of_documents() {
        let got = documents("a: 1\n---\n---\nb: [x, yes]\n").expect("valid YAML");
        assert_eq!(got, [json!({"a": 1}), json!({"b": ["x", true]})]);
    }

    #[test]
    fn octal_is_read_as_yaml_1_1_does() {
        assert_eq!(documents("mode: 012").expect("valid YAML"), [json!({"mode": 10})]);
    }

    #[test]
    fn error_contains_the_line() {
        let err = documents("a: 1\nb: [1, 2\n")
            .expect_err("unclosed sequence")
            .to_string();
        assert!(err.contains("line 2") || err.contains("line 3"), "{err}");
    }

    #[test]
    fn written_yaml_parses_to_the_same_value() {
        let value = json!({"a": "012", "b": ["yes", "null", "1.5"], "c": {"d": "x: y\nz"}, "e": ""});
        assert_eq!(
            documents(&to_string(&value).expect("serialises")).expect("valid"),
            [value]
        );
    }
}
