//! Parsing of request bodies: JSON, YAML 1.1 or protobuf, with detection of duplicate fields.

use serde_json::Value;

use crate::endpoints::negotiate::Encoding;
use rooflet_apimachinery::protobuf::{self, DecodeProtobufError};
use rooflet_base::json_syntax;
use rooflet_base::yaml;
use rooflet_schema::strict;
use rooflet_schema::strict::StrictJson;

/// Length of a body excerpt in error messages.
const SUMMARY_BYTES: usize = 30;

/// Parsed body before decoding.
#[derive(Debug)]
pub(crate) struct Body {
    pub value: Value,
    /// Paths of duplicate fields. The last value is used.
    pub duplicates: Vec<String>,
}

/// Error of a body in the wrong encoding. Its text follows `json parse error: ` or `yaml: `.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseBodyError {
    #[error("{0}")]
    Syntax(String),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Utf8(#[from] std::str::Utf8Error),
    #[error(transparent)]
    Yaml(#[from] yaml::YamlError),
    #[error(transparent)]
    Protobuf(#[from] DecodeProtobufError),
}

/// Parses a body.
pub(crate) fn parse(bytes: &[u8], encoding: Encoding) -> Result<Body, ParseBodyError> {
    let StrictJson { value, duplicates } = match encoding {
        Encoding::Json => parse_json(bytes)?,
        Encoding::Yaml => {
            let text = std::str::from_utf8(bytes)?;
            yaml::from_str_with_repeated_keys(text)?
        }
        Encoding::Protobuf => parse_json(&protobuf::to_json(bytes)?)?,
    };
    Ok(Body { value, duplicates })
}

fn parse_json(bytes: &[u8]) -> Result<StrictJson, ParseBodyError> {
    strict::parse(bytes).map_err(|err| match json_syntax::syntax_error(bytes) {
        Some(text) => ParseBodyError::Syntax(text),
        None => ParseBodyError::Json(err),
    })
}

/// Returns the start of a body for an error message: text if it looks like JSON, otherwise
/// hexadecimal.
pub(crate) fn summary(bytes: &[u8]) -> String {
    let (head, tail) = bytes.split_at(bytes.len().min(SUMMARY_BYTES));
    let ellipsis = if tail.is_empty() { "" } else { " ..." };
    match bytes.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{ellipsis}", String::from_utf8_lossy(head)),
        Some(_) => format!("{}{ellipsis}", hex::encode(head)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reports_duplicates_and_keeps_the_last_value() {
        let body = parse(
            br#"{"a":{"b":1,"b":2},"l":[{"c":1},{"c":1,"c":3}]}"#,
            Encoding::Json,
        )
        .expect("JSON");
        assert_eq!(body.value, json!({"a": {"b": 2}, "l": [{"c": 1}, {"c": 3}]}));
        assert_eq!(body.duplicates, ["a.b", "l[1].c"]);
    }

    #[test]
    fn parses_yaml_like_json() {
        let body = parse(
            b"a: {b: 1, b: 2.0}\nl: [1e2, -0.0, 0.5]\na: {b: 3}\n",
            Encoding::Yaml,
        )
        .expect("YAML");
        assert_eq!(body.value, json!({"a": {"b": 3}, "l": [100, 0, 0.5]}));
        assert_eq!(body.duplicates, ["a.b", "a"]);
    }

    #[test]
    fn rejects_empty_and_malformed_bodies() {
        assert_eq!(
            parse(b" ", Encoding::Json).expect_err("empty").to_string(),
            "unexpected end of JSON input"
        );
        assert!(parse(b"{\"a\":1} x", Encoding::Json).is_err());
        assert!(parse(b"{", Encoding::Json).is_err());
    }

    #[test]
    fn summary_is_truncated() {
        assert_eq!(summary(b""), "<empty>");
        assert_eq!(summary(b"{\"a\":1}"), "{\"a\":1}");
        assert_eq!(summary(b"xyz"), "78797a");
        assert_eq!(summary(&[b'{'; 40]), format!("{} ...", "{".repeat(30)));
    }
}
