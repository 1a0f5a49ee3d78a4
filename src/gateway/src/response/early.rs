//! Stream whose head is sent to the client before its first token.
//!
//! Until the first token, the gateway may retry the request on another replica. The client receives
//! only comments meanwhile.

use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::future::{self, BoxFuture};
use futures::stream::{self, StreamExt as _};
use http::Uri;
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior};

use super::body::Tracked;
use super::outcome::ModelError;
use rooflet_inference_api::anthropic;
use rooflet_inference_api::ollama;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::stored_reference::RESPONSES_PATH;

/// Delay between the head of a replica's stream and its early delivery to the client.
pub(crate) const HEAD_AFTER: Duration = Duration::from_secs(1);
/// Interval of keep-alive comments. Common proxies close idle connections after 30 to 60 seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_COMMENT: Bytes = Bytes::from_static(b": keepalive\n\n");
/// White space before a line of JSON.
const KEEP_ALIVE_SPACE: Bytes = Bytes::from_static(b" ");
/// Maximum bytes of a replica's error body.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Future of the response, which resolves at the first token.
pub(crate) type Pending = BoxFuture<'static, Result<Tracked, ModelError>>;

enum State {
    Pending(Pending, Interval),
    Streaming(Box<Tracked>),
    Over,
}

/// Returns a body that begins with a comment, has more comments until the first token, and then the
/// response.
///
/// The path of `uri` determines the format of errors.
pub(crate) fn body(pending: Pending, uri: Uri) -> Body {
    let mut keep_alive = tokio::time::interval(KEEP_ALIVE);
    keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A first tick is not always ready before the response.
    keep_alive.reset();
    let first = stream::once(future::ready(Ok(keep_alive_frame(uri.path()))));
    let start = (State::Pending(pending, keep_alive), uri);
    let rest = stream::unfold(start, |(mut state, uri)| async move {
        loop {
            match state {
                State::Pending(mut pending, mut keep_alive) => {
                    let outcome = tokio::select! {
                        _ = keep_alive.tick() => return Some((Ok(keep_alive_frame(uri.path())), (State::Pending(pending, keep_alive), uri))),
                        outcome = &mut pending => outcome,
                    };
                    match outcome {
                        Ok(tracked) => state = State::Streaming(Box::new(tracked)),
                        Err(model_error) => {
                            let event = error_event(model_error, uri.path()).await;
                            return Some((Ok(event), (State::Over, uri)));
                        }
                    }
                }
                State::Streaming(mut tracked) => {
                    let frame = tracked.frame().await?;
                    match frame.map(|frame| frame.into_data()) {
                        Ok(Ok(data)) => return Some((Ok(data), (State::Streaming(tracked), uri))),
                        // Ignore trailers: server-sent events have none.
                        Ok(Err(_)) => state = State::Streaming(tracked),
                        Err(err) => return Some((Err(err), (State::Over, uri))),
                    }
                }
                State::Over => return None,
            }
        }
    });
    Body::from_stream(first.chain(rest))
}

fn keep_alive_frame(path: &str) -> Bytes {
    match ollama::error::is_path(path) {
        true => KEEP_ALIVE_SPACE,
        false => KEEP_ALIVE_COMMENT,
    }
}

/// Returns the error as the last event of the stream.
async fn error_event(model_error: ModelError, path: &str) -> Bytes {
    let body = match model_error {
        ModelError::Rejected(err) => error_body(&err, path),
        ModelError::Response(response) => {
            let is_stream = response.status().is_success();
            let read = Limited::new(response.into_body(), MAX_ERROR_BYTES)
                .collect()
                .await;
            let read = read.ok().map(http_body_util::Collected::to_bytes);
            if let Some(error_frames) = read.clone().filter(|_| is_stream) {
                return error_frames;
            }
            let body = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            body.unwrap_or_else(|| {
                error_body(
                    &ApiError::server_error("The replica failed to process this request."),
                    path,
                )
            })
        }
    };
    error_frames(&body, path)
}

fn error_body(err: &ApiError, path: &str) -> Value {
    match path {
        path if path.starts_with(anthropic::error::PATH) => anthropic::error::body(err),
        path if ollama::error::is_path(path) => ollama::error::body(err),
        _ => err.body(),
    }
}

fn error_frames(body: &Value, path: &str) -> Bytes {
    let text = match path {
        path if path.starts_with(anthropic::error::PATH) => format!("event: error\ndata: {body}\n\n"),
        path if ollama::error::is_path(path) => format!("{body}\n"),
        RESPONSES_PATH => {
            let error = &body["error"];
            let event = json!({
                "type": "error",
                "code": error["code"],
                "message": error["message"],
                "param": error["param"],
                "sequence_number": 0,
            });
            format!("event: error\ndata: {event}\n\n")
        }
        _ => format!("data: {body}\n\ndata: [DONE]\n\n"),
    };
    Bytes::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn formats_errors_for_each_api() {
        let error = || ModelError::Rejected(ApiError::rate_limit_exceeded("busy", 7));
        for (path, begins, ends) in [
            (
                "/v1/chat/completions",
                "data: {\"error\":{",
                "}}\n\ndata: [DONE]\n\n",
            ),
            ("/v1/messages", "event: error\ndata: {", "}\n\n"),
            (
                "/v1/responses",
                "event: error\ndata: {",
                ",\"type\":\"error\"}\n\n",
            ),
            ("/api/chat", "{\"error\":\"busy\"", "}\n"),
        ] {
            let event = String::from_utf8(error_event(error(), path).await.to_vec()).unwrap();
            assert!(
                event.starts_with(begins) && event.ends_with(ends),
                "{path}: {event}"
            );
            assert!(event.contains(":\"busy\""), "{path}: {event}");
        }
    }
}
