//! Requests of `/api/embed`, and of the older `/api/embeddings`.

use serde_json::Value;

use super::ignore_unknown;
use crate::ollama::ignored::IgnoredFields;
use crate::ollama::keep_alive::KeepAlive;
use crate::ollama::options;
use crate::openai::ApiError;
use crate::openai::request::fields::Fields;
use crate::openai::request::{Prompt, parse_model};

const MAX_INPUTS: usize = 2048;

/// Fields of both endpoints.
const COMMON: &[&str] = &["keep_alive", "model", "options"];

/// Request of both endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedRequest {
    pub model: String,
    /// Empty if the request only loads the model.
    pub inputs: Vec<Prompt>,
    /// Number of components of each embedding. At least 1.
    pub dimensions: Option<usize>,
    pub keep_alive: Option<KeepAlive>,
    pub ignored: IgnoredFields,
}

impl EmbedRequest {
    /// Parses a request of `/api/embed`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let names = &["dimensions", "input", "truncate"];
        Self::parse_with(body, names, |fields, request| {
            // 0 is the default of Ollama's clients.
            request.dimensions = fields
                .integer("dimensions", 0, usize::MAX)?
                .filter(|size| *size > 0);
            if fields.boolean("truncate")? == Some(true) {
                request.ignored.add("truncate".to_owned());
            }
            let expected = format!("a string or a list of at most {MAX_INPUTS} strings");
            let inputs = fields.read("input", &expected, |value| match value {
                Value::String(text) => Some(vec![text.clone()]),
                Value::Array(texts) if texts.len() <= MAX_INPUTS => texts
                    .iter()
                    .map(|text| text.as_str().map(str::to_owned))
                    .collect(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
            })?;
            let inputs = inputs.unwrap_or_default();
            // A single empty text loads the model.
            if !matches!(inputs.as_slice(), [only] if only.is_empty()) {
                request.inputs = inputs.into_iter().map(Prompt::Text).collect();
            }
            Ok(())
        })
    }

    /// Parses a request of `/api/embeddings`.
    pub fn parse_single(body: &[u8]) -> Result<Self, ApiError> {
        Self::parse_with(body, &["prompt"], |fields, request| {
            let prompt = fields.text("prompt")?.filter(|prompt| !prompt.is_empty());
            let text = |prompt: &str| Prompt::Text(prompt.to_owned());
            request.inputs = prompt.map(text).into_iter().collect();
            Ok(())
        })
    }

    fn parse_with(
        body: &[u8],
        names: &[&str],
        read: impl FnOnce(&Fields, &mut Self) -> Result<(), ApiError>,
    ) -> Result<Self, ApiError> {
        let (_, fields) = Fields::split(body, &[])?;
        let mut ignored = IgnoredFields::default();
        options::ignore_all(&fields, &mut ignored)?;
        let keep_alive = KeepAlive::parse(&fields)?;
        ignore_unknown(&fields, &[COMMON, names], &mut ignored);
        let mut request = Self {
            model: parse_model(&fields)?,
            inputs: Vec::new(),
            dimensions: None,
            keep_alive,
            ignored,
        };
        read(&fields, &mut request)?;
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn inputs(body: &Value) -> Result<Vec<String>, String> {
        let request =
            EmbedRequest::parse(body.to_string().as_bytes()).map_err(|err| err.param.unwrap_or_default())?;
        let text = |prompt: Prompt| match prompt {
            Prompt::Text(text) => text,
            Prompt::Tokens(_) => panic!("tokens"),
        };
        Ok(request.inputs.into_iter().map(text).collect())
    }

    #[test]
    fn parses_one_or_several_texts() {
        assert_eq!(inputs(&json!({"model": "m", "input": "a"})).unwrap(), ["a"]);
        assert_eq!(
            inputs(&json!({"model": "m", "input": ["a", "b"]})).unwrap(),
            ["a", "b"]
        );
        for (dimensions, expected) in [(json!(null), None), (json!(0), None), (json!(64), Some(64))] {
            let body = json!({"model": "m", "input": "a", "dimensions": dimensions}).to_string();
            assert_eq!(EmbedRequest::parse(body.as_bytes()).unwrap().dimensions, expected);
        }
        for empty in [json!(null), json!(""), json!([])] {
            assert!(inputs(&json!({"model": "m", "input": empty})).unwrap().is_empty());
        }
        let single = br#"{"model": "m", "prompt": "a", "options": {"num_ctx": 1}, "keep_alive": 0}"#;
        let single = EmbedRequest::parse_single(single).unwrap();
        assert_eq!(single.inputs, [Prompt::Text("a".to_owned())]);
        let mut ignored = IgnoredFields::default();
        ignored.add("options.num_ctx".to_owned());
        assert_eq!(single.ignored, ignored);
        assert_eq!(single.keep_alive, Some(KeepAlive::NONE));
    }

    #[test]
    fn errors_name_the_field() {
        for (body, param) in [
            (json!({"input": "a"}), "model"),
            (json!({"model": "m", "input": 1}), "input"),
            (json!({"model": "m", "input": [1]}), "input"),
            (
                json!({"model": "m", "input": "a", "dimensions": -1}),
                "dimensions",
            ),
            (json!({"model": "m", "input": "a", "options": 1}), "options"),
        ] {
            assert_eq!(inputs(&body).unwrap_err(), param, "{body}");
        }
    }
}
