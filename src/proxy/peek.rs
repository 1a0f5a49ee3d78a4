//! Reads the `model` of a JSON request, to route by it, and keeps the bytes as they came.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::error::Category;

use crate::openai;
use crate::openai::top_level::TopLevel;

/// A request body, and the model that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peeked {
    pub(crate) model: String,
    /// The body, unchanged; cheap to clone, so that a request can be sent again.
    pub(crate) body: Bytes,
}

impl Peeked {
    /// The body as it came, but for another model.
    pub(crate) fn for_model(&self, model: &str) -> Bytes {
        let top: Option<TopLevel<'_>> = serde_json::from_slice(&self.body).ok();
        let Some(raw) = top.and_then(|top| top.get("model")) else {
            return self.body.clone();
        };
        // `raw` is a part of `body`.
        let start = raw.get().as_ptr().addr() - self.body.as_ptr().addr();
        let end = start + raw.get().len();
        let name = serde_json::Value::from(model).to_string();
        [&self.body[..start], name.as_bytes(), &self.body[end..]]
            .concat()
            .into()
    }
}

/// Why a request cannot be routed by its body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeekError {
    #[error("the request body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the request body is not valid JSON: {0}")]
    Json(String),
    #[error("the request body must be a JSON object")]
    NotAnObject,
    #[error("the request names no `model`")]
    NoModel,
    #[error("the `model` of the request is not a string")]
    ModelType,
    #[error("reading the request body")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What a client of an OpenAI endpoint is told.
impl From<PeekError> for openai::ApiError {
    fn from(err: PeekError) -> Self {
        match err {
            PeekError::TooLarge { limit } => Self::request_too_large(limit),
            PeekError::Json(problem) => Self::invalid_json(&problem),
            PeekError::NotAnObject => Self::invalid_json("it must be a JSON object"),
            PeekError::NoModel => Self::missing("model"),
            PeekError::ModelType => Self::invalid_value("model", "'model' must be a string."),
            PeekError::Read(_) => Self::invalid_json("it ended early"),
        }
    }
}

/// Reads `body` whole, at most `limit` bytes, and finds `model` in it.
pub(crate) async fn peek_model(body: Body, limit: usize) -> Result<Peeked, PeekError> {
    let body = match Limited::new(body, limit).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(err) if err.downcast_ref::<LengthLimitError>().is_some() => {
            return Err(PeekError::TooLarge { limit });
        }
        Err(err) => return Err(PeekError::Read(err)),
    };
    let model = model_of(&body)?;
    Ok(Peeked { model, body })
}

fn model_of(body: &[u8]) -> Result<String, PeekError> {
    let top: TopLevel<'_> = serde_json::from_slice(body).map_err(|err| match err.classify() {
        Category::Data => PeekError::NotAnObject,
        Category::Io | Category::Syntax | Category::Eof => PeekError::Json(err.to_string()),
    })?;
    let model = top.get("model").ok_or(PeekError::NoModel)?;
    match serde_json::from_str::<String>(model.get()) {
        Ok(model) if model.is_empty() => Err(PeekError::NoModel),
        Ok(model) => Ok(model),
        Err(_) => Err(PeekError::ModelType),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expect: &str) {
        let got = match model_of(body.as_bytes()) {
            Ok(model) => model,
            Err(err) => format!("{:?}", openai::ApiError::from(err).code.expect("a code")),
        };
        assert_eq!(got, expect, "{body}");
    }

    #[test]
    fn the_model_is_found_wherever_it_stands() {
        check(r#"{"model":"guide"}"#, "guide");
        check(
            r#" {"messages":[{"model":"not-me","content":"\ud83d\ude00"}],"model":"a/b"} "#,
            "a/b",
        );
        check(r#"{"model":"a","model":"b"}"#, "b");
    }

    #[test]
    fn a_body_without_a_model_is_told_what_is_missing() {
        check("{}", "MissingParameter");
        check(r#"{"model":null}"#, "MissingParameter");
        check(r#"{"model":""}"#, "MissingParameter");
        check(r#"{"model":7}"#, "InvalidValue");
        check(r#"{"model":["guide"]}"#, "InvalidValue");
        check("", "InvalidJson");
        check("[\"x\"]", "InvalidJson");
        check("7", "InvalidJson");
        check(r#"{"model":"a""#, "InvalidJson");
        check(r#"{"model":"a"} trailing"#, "InvalidJson");
        check(r#"{"model":"a","messages":[}"#, "InvalidJson");
    }

    #[test]
    fn only_the_model_is_replaced() {
        let body = r#"{ "x" : [1, {"model":"inner"}], "model" : "ns\/guide" , "y":"é" }"#;
        let peeked = Peeked {
            model: model_of(body.as_bytes()).expect("a model"),
            body: Bytes::from(body),
        };
        assert_eq!(peeked.model, "ns/guide");
        let expect = body.replace(r#""ns\/guide""#, r#""gu\"ide""#);
        assert_eq!(peeked.for_model("gu\"ide"), expect.as_bytes());
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_and_one_at_it_is_not() {
        let body = r#"{"model":"guide"}"#;
        let peeked = peek_model(Body::from(body), body.len()).await.expect("just fits");
        assert_eq!(peeked.body, body.as_bytes());
        let refused = peek_model(Body::from(body), body.len() - 1).await;
        assert!(
            matches!(refused, Err(PeekError::TooLarge { limit: 16 })),
            "{refused:?}"
        );
    }
}
