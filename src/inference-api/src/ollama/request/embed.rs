//! Requests of `/api/embed`, and of the older `/api/embeddings`.

use serde_json::Value;

use super::ignore_unknown;
use crate::ollama::ignored::IgnoredFields;
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
    pub ignored: IgnoredFields,
}

impl EmbedRequest {
    /// Parses a request of `/api/embed`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        Self::parse_with(body, &["dimensions", "input", "truncate"], |fields, ignored| {
            if fields
                .integer("dimensions", 0, usize::MAX)?
                .is_some_and(|size| size > 0)
            {
                let message = "'dimensions' is not supported by this server: embeddings have the size of the model's \
                               hidden states.";
                return Err(ApiError::unsupported("dimensions", message));
            }
            if fields.boolean("truncate")? == Some(true) {
                ignored.add("truncate".to_owned());
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
            match inputs.as_slice() {
                [only] if only.is_empty() => Ok(Vec::new()),
                _ => Ok(inputs),
            }
        })
    }

    /// Parses a request of `/api/embeddings`.
    pub fn parse_single(body: &[u8]) -> Result<Self, ApiError> {
        Self::parse_with(body, &["prompt"], |fields, _| {
            let prompt = fields.text("prompt")?.filter(|prompt| !prompt.is_empty());
            Ok(prompt.map(str::to_owned).into_iter().collect())
        })
    }

    fn parse_with(
        body: &[u8],
        names: &[&str],
        texts: impl FnOnce(&Fields, &mut IgnoredFields) -> Result<Vec<String>, ApiError>,
    ) -> Result<Self, ApiError> {
        let (_, fields) = Fields::split(body, &[])?;
        let mut ignored = IgnoredFields::default();
        options::ignore_all(&fields, &mut ignored)?;
        options::check_keep_alive(&fields, &mut ignored)?;
        ignore_unknown(&fields, &[COMMON, names], &mut ignored);
        Ok(Self {
            model: parse_model(&fields)?,
            inputs: texts(&fields, &mut ignored)?
                .into_iter()
                .map(Prompt::Text)
                .collect(),
            ignored,
        })
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
        for empty in [json!(null), json!(""), json!([])] {
            assert!(inputs(&json!({"model": "m", "input": empty})).unwrap().is_empty());
        }
        let single = br#"{"model": "m", "prompt": "a", "options": {"num_ctx": 1}, "keep_alive": 0}"#;
        let single = EmbedRequest::parse_single(single).unwrap();
        assert_eq!(single.inputs, [Prompt::Text("a".to_owned())]);
        let mut ignored = IgnoredFields::default();
        ignored.add("options.num_ctx".to_owned());
        ignored.add("keep_alive".to_owned());
        assert_eq!(single.ignored, ignored);
    }

    #[test]
    fn errors_name_the_field() {
        for (body, param) in [
            (json!({"input": "a"}), "model"),
            (json!({"model": "m", "input": 1}), "input"),
            (json!({"model": "m", "input": [1]}), "input"),
            (
                json!({"model": "m", "input": "a", "dimensions": 64}),
                "dimensions",
            ),
            (json!({"model": "m", "input": "a", "options": 1}), "options"),
        ] {
            assert_eq!(inputs(&body).unwrap_err(), param, "{body}");
        }
    }
}
