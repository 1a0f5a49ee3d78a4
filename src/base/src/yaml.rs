//! The only module that knows the YAML crate. Documents come out as JSON values, errors with line
//! and column.
//!
//! Scalars follow YAML 1.1 where Kubernetes' own tools do (`012` is octal ten, `yes` is a boolean).

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The largest YAML text that is read, in bytes: what the Kubernetes API accepts as a body.
pub const MAX_YAML_BYTES: usize = 3 << 20;

/// Why a YAML text could not be read or written. `Display` names line and column.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    #[error("the YAML text has {0} bytes; at most {MAX_YAML_BYTES} are read")]
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

/// Reads every non-empty document of a YAML stream.
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

/// Reads one YAML document into `T`.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    read_one(text, options())
}

/// Reads one YAML document into a `T` that deals with keys that occur twice: it is given every one
/// of them.
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

/// Writes a value as one YAML document.
pub fn to_string<T: Serialize>(value: &T) -> Result<String, YamlError> {
    serde_saphyr::to_string(value).map_err(|err| YamlError::Write(err.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_a_stream_of_documents() {
        let got = documents("a: 1\n---\n---\nb: [x, yes]\n").expect("valid YAML");
        assert_eq!(got, [json!({"a": 1}), json!({"b": ["x", true]})]);
    }

    #[test]
    fn octal_is_read_as_yaml_1_1_does() {
        assert_eq!(documents("mode: 012").expect("valid YAML"), [json!({"mode": 10})]);
    }

    #[test]
    fn an_error_names_the_line() {
        let err = documents("a: 1\nb: [1, 2\n")
            .expect_err("unclosed sequence")
            .to_string();
        assert!(err.contains("line 2") || err.contains("line 3"), "{err}");
    }

    #[test]
    fn what_is_written_reads_back() {
        let value = json!({"a": "012", "b": ["yes", "null", "1.5"], "c": {"d": "x: y\nz"}, "e": ""});
        assert_eq!(
            documents(&to_string(&value).expect("serialises")).expect("valid"),
            [value]
        );
    }
}
