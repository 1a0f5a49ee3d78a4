//! Reads the `model` of a JSON request, to route by it, and keeps the bytes as they came.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;

/// The largest request body that is taken, in bytes: some million tokens of text.
pub(crate) const MAX_REQUEST_BODY_BYTES: usize = 16 << 20;

/// A request body, and the model that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peeked {
    pub(crate) model: String,
    /// The body, unchanged; cheap to clone, so that a request can be sent again.
    pub(crate) body: Bytes,
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
    #[error("you must provide a `model` parameter: the name of a served model, as a string")]
    NoModel,
    #[error("reading the request body")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl PeekError {
    /// A CamelCase word for metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "BodyTooLarge",
            Self::Json(_) | Self::NotAnObject => "InvalidJson",
            Self::NoModel => "MissingModel",
            Self::Read(_) => "ClientClosed",
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
    /// Everything else in the body is checked for syntax and skipped without being kept.
    #[derive(Deserialize)]
    struct Request {
        #[serde(default)]
        model: serde_json::Value,
    }
    let request: Request = serde_json::from_slice(body).map_err(|err| match err.classify() {
        serde_json::error::Category::Data if !starts_an_object(body) => PeekError::NotAnObject,
        serde_json::error::Category::Data
        | serde_json::error::Category::Eof
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Io => PeekError::Json(err.to_string()),
    })?;
    if !starts_an_object(body) {
        // A sequence also reads as a struct.
        return Err(PeekError::NotAnObject);
    }
    match request.model.as_str() {
        Some(model) if !model.is_empty() => Ok(model.to_owned()),
        Some(_) | None => Err(PeekError::NoModel),
    }
}

fn starts_an_object(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'{')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expect: &str) {
        let got = match model_of(body.as_bytes()) {
            Ok(model) => model,
            Err(err) => err.reason().to_owned(),
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
    }

    #[test]
    fn a_body_without_a_model_is_told_what_is_missing() {
        check("{}", "MissingModel");
        check(r#"{"model":null}"#, "MissingModel");
        check(r#"{"model":7}"#, "MissingModel");
        check(r#"{"model":""}"#, "MissingModel");
        check("", "InvalidJson");
        check("[\"x\"]", "InvalidJson");
        check("7", "InvalidJson");
        check(r#"{"model":"a""#, "InvalidJson");
        check(r#"{"model":"a"} trailing"#, "InvalidJson");
        check(r#"{"model":"a","messages":[}"#, "InvalidJson");
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
