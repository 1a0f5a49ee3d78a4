//! A stream whose head goes to the client before its first token: while nothing of it has been said, another replica may
//! still take the request over, and the client sees no more of that than comments.

use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::future::BoxFuture;
use futures::stream;
use http::Uri;
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior};

use super::answer::Tracked;
use super::outcome::NoAnswer;
use rooflet_inference_api::anthropic;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::kept::RESPONSES_PATH;

/// A client waits so long for the head of a stream whose replica has begun to answer.
pub(crate) const HEAD_AFTER: Duration = Duration::from_secs(1);
/// Silence after which something is sent; common proxies give up after 30 to 60 seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const COMMENT: Bytes = Bytes::from_static(b": keepalive\n\n");
/// No error of a replica is as long.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// The answer, once it is known whose it is.
pub(crate) type Settling = BoxFuture<'static, Result<Tracked, NoAnswer>>;

enum State {
    Settling(Settling, Interval),
    Settled(Box<Tracked>),
    Over,
}

/// A body of comments until the answer has its first token, of the answer from then on. `uri` tells how errors look.
pub(crate) fn body(settling: Settling, uri: Uri) -> Body {
    let mut beat = tokio::time::interval(KEEP_ALIVE);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begun = (State::Settling(settling, beat), uri);
    Body::from_stream(stream::unfold(begun, |(mut state, uri)| async move {
        loop {
            match state {
                State::Settling(mut settling, mut beat) => {
                    let outcome = tokio::select! {
                        outcome = &mut settling => outcome,
                        _ = beat.tick() => return Some((Ok(COMMENT), (State::Settling(settling, beat), uri))),
                    };
                    match outcome {
                        Ok(tracked) => state = State::Settled(Box::new(tracked)),
                        Err(no_answer) => {
                            let said = told(no_answer, uri.path()).await;
                            return Some((Ok(said), (State::Over, uri)));
                        }
                    }
                }
                State::Settled(mut tracked) => {
                    let frame = tracked.frame().await?;
                    match frame.map(|frame| frame.into_data()) {
                        Ok(Ok(data)) => return Some((Ok(data), (State::Settled(tracked), uri))),
                        // Trailers, of which server-sent events have none.
                        Ok(Err(_)) => state = State::Settled(tracked),
                        Err(err) => return Some((Err(err), (State::Over, uri))),
                    }
                }
                State::Over => return None,
            }
        }
    }))
}

/// The error as the last that the stream says.
async fn told(no_answer: NoAnswer, path: &str) -> Bytes {
    let body = match no_answer {
        NoAnswer::Refused(err) => shaped(&err, path),
        NoAnswer::Said(response) => {
            let is_stream = response.status().is_success();
            let read = Limited::new(response.into_body(), MAX_ERROR_BYTES)
                .collect()
                .await;
            let read = read.ok().map(http_body_util::Collected::to_bytes);
            if let Some(frames) = read.clone().filter(|_| is_stream) {
                return frames;
            }
            let body = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            body.unwrap_or_else(|| {
                shaped(
                    &ApiError::server_error("The replica failed on this request."),
                    path,
                )
            })
        }
    };
    frames(&body, path)
}

fn shaped(err: &ApiError, path: &str) -> Value {
    match path.starts_with(anthropic::error::PATH) {
        true => anthropic::error::body(err),
        false => err.body(),
    }
}

fn frames(body: &Value, path: &str) -> Bytes {
    let text = match path {
        path if path.starts_with(anthropic::error::PATH) => format!("event: error\ndata: {body}\n\n"),
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
    async fn an_error_has_the_form_of_its_stream() {
        let error = || NoAnswer::Refused(ApiError::rate_limit_exceeded("busy", 7));
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
        ] {
            let said = String::from_utf8(told(error(), path).await.to_vec()).unwrap();
            assert!(said.starts_with(begins) && said.ends_with(ends), "{path}: {said}");
            assert!(said.contains("\"message\":\"busy\""), "{path}: {said}");
        }
    }
}
