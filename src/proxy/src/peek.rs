//! Reads the `model` of a JSON request for routing, without changing the bytes.

use std::sync::Arc;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::error::Category;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use rooflet_inference_api::openai;
use rooflet_inference_api::openai::body::MAX_BODY_BYTES;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_inference_api::openai::top_level::TopLevel;

/// Maximum total size of kept bodies: 64 of the largest.
pub const MAX_KEPT_BODY_BYTES: usize = 64 * MAX_BODY_BYTES;

/// Memory budget for kept bodies. Clones share it.
#[derive(Debug, Clone)]
pub struct BodyRoom {
    bytes: usize,
    free: Arc<Semaphore>,
}

impl BodyRoom {
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes,
            free: Arc::new(Semaphore::new(bytes)),
        }
    }

    /// Returns the total bytes of kept bodies.
    pub fn kept(&self) -> usize {
        self.bytes - self.free.available_permits()
    }

    /// Reserves `bytes`. Never waits: requests that each hold a part and wait for more could block
    /// each other forever.
    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, PeekError> {
        let permits = u32::try_from(bytes).map_err(|_| PeekError::NoRoom)?;
        let free = Arc::clone(&self.free);
        free.try_acquire_many_owned(permits)
            .map_err(|_| PeekError::NoRoom)
    }
}

/// Request body with its model.
#[derive(Debug)]
pub struct Peeked {
    pub model: String,
    /// Unchanged body. Cloning is cheap, so the request can be sent again.
    pub body: Bytes,
    /// Returned to the budget on drop.
    _room: OwnedSemaphorePermit,
}

impl Peeked {
    /// Returns the body with another model name.
    pub fn for_model(&self, model: &str) -> Bytes {
        let top: Option<TopLevel<'_>> = serde_json::from_slice(&self.body).ok();
        let Some(raw) = top.and_then(|top| top.get("model")) else {
            return self.body.clone();
        };
        // `raw` points into `body`.
        let start = raw.get().as_ptr().addr() - self.body.as_ptr().addr();
        let end = start + raw.get().len();
        let name = serde_json::Value::from(model).to_string();
        [&self.body[..start], name.as_bytes(), &self.body[end..]]
            .concat()
            .into()
    }
}

/// Reason why a request cannot be routed by its body.
#[derive(Debug, thiserror::Error)]
pub enum PeekError {
    #[error("the request body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the memory budget for request bodies is exhausted")]
    NoRoom,
    #[error("the request body is not valid JSON: {0}")]
    Json(String),
    #[error("the request body must be a JSON object")]
    NotAnObject,
    #[error("the request has no `model`")]
    NoModel,
    #[error("the `model` of the request is not a string")]
    ModelType,
    #[error("reading the request body")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Returns the error for a client of an OpenAI endpoint.
impl From<PeekError> for openai::ApiError {
    fn from(err: PeekError) -> Self {
        match err {
            PeekError::TooLarge { limit } => Self::request_too_large(limit),
            PeekError::NoRoom => Self::unavailable(
                ErrorCode::ServerOverloaded,
                "The server's memory budget for request bodies is exhausted. Please try again shortly.",
            ),
            PeekError::Json(problem) => Self::invalid_json(&problem),
            PeekError::NotAnObject => Self::invalid_json("the body must be a JSON object"),
            PeekError::NoModel => Self::missing("model"),
            PeekError::ModelType => Self::invalid_value("model", "'model' must be a string."),
            PeekError::Read(_) => Self::invalid_json("the body is incomplete"),
        }
    }
}

/// Reads `body`, at most `limit` bytes, and extracts `model`. Reserves memory for received bytes,
/// not for the announced length.
pub async fn peek_model(body: Body, limit: usize, room: &BodyRoom) -> Result<Peeked, PeekError> {
    let mut body = Limited::new(body, limit);
    let (mut taken, mut read) = (room.take(0)?, BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|err| match err.is::<LengthLimitError>() {
            true => PeekError::TooLarge { limit },
            false => PeekError::Read(err),
        })?;
        if let Ok(data) = frame.into_data() {
            taken.merge(room.take(data.len())?);
            read.extend_from_slice(&data);
        }
    }
    let body = read.freeze();
    Ok(Peeked {
        model: model_of(&body)?,
        body,
        _room: taken,
    })
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
    fn finds_model_at_any_position() {
        check(r#"{"model":"guide"}"#, "guide");
        check(
            r#" {"messages":[{"model":"not-me","content":"\ud83d\ude00"}],"model":"a/b"} "#,
            "a/b",
        );
        check(r#"{"model":"a","model":"b"}"#, "b");
    }

    #[test]
    fn rejects_body_without_valid_model() {
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

    async fn peek(body: &'static str, limit: usize) -> Result<Peeked, PeekError> {
        peek_model(Body::from(body), limit, &BodyRoom::new(MAX_KEPT_BODY_BYTES)).await
    }

    #[tokio::test]
    async fn for_model_replaces_only_the_model() {
        let body = r#"{ "x" : [1, {"model":"inner"}], "model" : "ns\/guide" , "y":"é" }"#;
        let peeked = peek(body, body.len()).await.expect("a model");
        assert_eq!(peeked.model, "ns/guide");
        let expect = body.replace(r#""ns\/guide""#, r#""gu\"ide""#);
        assert_eq!(peeked.for_model("gu\"ide"), expect.as_bytes());
    }

    #[tokio::test]
    async fn rejects_body_above_the_limit() {
        let body = r#"{"model":"guide"}"#;
        let peeked = peek(body, body.len()).await.expect("just fits");
        assert_eq!(peeked.body, body.as_bytes());
        let refused = peek(body, body.len() - 1).await;
        assert!(
            matches!(refused, Err(PeekError::TooLarge { limit: 16 })),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn rejects_body_above_the_remaining_budget() {
        let body = r#"{"model":"guide"}"#;
        let room = BodyRoom::new(2 * body.len());
        let peek = || peek_model(Body::from(body), body.len(), &room);
        let first = peek().await.expect("room for two");
        let second = peek().await.expect("room for two");
        assert_eq!(room.kept(), 2 * body.len());
        let refused = peek().await;
        assert!(matches!(refused, Err(PeekError::NoRoom)), "{refused:?}");
        drop(second);
        let long = format!(r#"{{"model":"guide","prompt":"{}"}}"#, "x".repeat(body.len()));
        let refused = peek_model(Body::from(long), 1000, &room).await;
        assert!(matches!(refused, Err(PeekError::NoRoom)), "{refused:?}");
        assert_eq!(room.kept(), body.len(), "a rejected body releases its memory");
        drop((peek().await.expect("room again"), first));
        assert_eq!(room.kept(), 0);
    }
}
