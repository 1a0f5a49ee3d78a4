//! Several watches on one connection, because browsers open only a few connections to a server
//! without TLS.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use http::header::CONTENT_TYPE;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::api_proxy::{api_path, send};
use super::error::WebError;
use super::signed_in::SignedIn;

/// Maximum number of watches per connection.
const MAX_WATCHES: usize = 16;
/// Maximum size of an event, in bytes. Objects have at most 3 MiB.
const MAX_LINE_BYTES: usize = 8 << 20;
/// Interval of the empty lines after the first, by which the page detects a broken connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const LINES: &str = "application/x-ndjson";

/// Handler of `GET /proxy/watch`.
pub(crate) async fn watch(
    Extension(signed_in): Extension<Arc<SignedIn>>,
    request: Request,
) -> Result<Response, WebError> {
    let paths = paths(request.uri().query().unwrap_or_default())?;
    let watches = paths.into_iter().enumerate();
    let watches = watches.map(|(number, path)| one_watch(number, path, Arc::clone(&signed_in)).boxed());
    let lines = stream::select_all(watches).map(Some);
    let lines = stream::select(lines.chain(stream::once(async { None })), keep_alive().map(Some));
    let lines = lines.take_while(|line| std::future::ready(line.is_some()));
    let lines = lines
        .filter_map(std::future::ready)
        .map(Ok::<_, std::convert::Infallible>);
    let body = Body::from_stream(lines.take_until(signed_in.ended.clone().cancelled_owned()));
    Ok(([(CONTENT_TYPE, LINES)], body).into_response())
}

/// Returns the paths of the watches in a query.
fn paths(query: &str) -> Result<Vec<String>, WebError> {
    let invalid = |what: String| WebError::InvalidRequest(what);
    let mut paths = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let value = pair.strip_prefix("path=");
        let value = value.ok_or_else(|| invalid("the query may contain only `path`".to_owned()))?;
        let path = percent_decode_str(value).decode_utf8();
        let path = path.map_err(|_| invalid("a path is not UTF-8".to_owned()))?;
        let path = api_path(&path)?;
        let joint = if path.contains('?') { '&' } else { '?' };
        paths.push(format!("{path}{joint}watch=true"));
    }
    match paths.len() {
        1..=MAX_WATCHES => Ok(paths),
        count => Err(invalid(format!(
            "the query has {count} paths: it must have 1 to {MAX_WATCHES}"
        ))),
    }
}

/// Returns an empty line at once, by which the page detects a proxy that holds the stream back, and
/// then one in each interval.
fn keep_alive() -> impl Stream<Item = Bytes> + Send {
    let line = || Bytes::from_static(b"\n");
    let later = stream::repeat_with(line).then(|line| async move {
        tokio::time::sleep(KEEP_ALIVE).await;
        line
    });
    stream::once(async move { line() }).chain(later)
}

/// Returns the lines of one watch, until it ends.
fn one_watch(number: usize, path: String, signed_in: Arc<SignedIn>) -> impl Stream<Item = Bytes> + Send {
    stream::once(async move {
        let response = send(&signed_in, http::Request::new(kube::client::Body::empty()), &path).await;
        match response {
            Err(err) => unreachable(number, &err.to_string()),
            Ok(response) if response.status().is_success() => {
                let open = line(&json!({"watch": number, "status": response.status().as_u16()}));
                let events = events(number, Body::new(response.into_body()).into_data_stream());
                stream::once(async move { open }).chain(events).boxed()
            }
            Ok(response) => rejected(number, response).await,
        }
    })
    .flatten()
}

fn unreachable(number: usize, message: &str) -> BoxStream<'static, Bytes> {
    let body = json!({"error": {"reason": "UpstreamUnreachable", "message": message}});
    let line = line(&json!({"watch": number, "status": 502, "body": body}));
    stream::once(async move { line }).boxed()
}

async fn rejected(number: usize, response: http::Response<kube::client::Body>) -> BoxStream<'static, Bytes> {
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(Body::new(response.into_body()), MAX_LINE_BYTES).await;
    let body = body.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
    let line = line(&json!({"watch": number, "status": status, "body": body}));
    stream::once(async move { line }).boxed()
}

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

/// Splits the body of a watch into events.
struct Events {
    number: usize,
    body: BodyDataStream,
    buffer: BytesMut,
    /// Bytes at the start of the buffer that contain no end of a line.
    searched: usize,
    is_over: bool,
}

fn events(number: usize, body: BodyDataStream) -> BoxStream<'static, Bytes> {
    let events = Events {
        number,
        body,
        buffer: BytesMut::new(),
        searched: 0,
        is_over: false,
    };
    stream::unfold(events, |mut events| async move {
        let line = events.next_line().await?;
        Some((line, events))
    })
    .boxed()
}

impl Events {
    /// Returns the next line for the page, or `None` after the last.
    async fn next_line(&mut self) -> Option<Bytes> {
        loop {
            if self.is_over {
                return None;
            }
            if let Some(event) = self.take_event() {
                if event.is_empty() {
                    continue;
                }
                let head = format!("{{\"watch\":{},\"event\":", self.number);
                return Some([head.as_bytes(), &event, b"}\n"].concat().into());
            }
            let reason = match self.body.next().await {
                Some(Ok(chunk)) if self.buffer.len() + chunk.len() <= MAX_LINE_BYTES => {
                    self.buffer.extend_from_slice(&chunk);
                    continue;
                }
                Some(Ok(_)) => format!("an event exceeds {MAX_LINE_BYTES} bytes"),
                Some(Err(err)) => format!("the connection was interrupted: {err}"),
                None => "the API server ended the watch".to_owned(),
            };
            self.is_over = true;
            return Some(line(&json!({"watch": self.number, "end": reason})));
        }
    }

    /// Removes the first complete line from the buffer.
    fn take_event(&mut self) -> Option<BytesMut> {
        let unsearched = self.buffer[self.searched..].iter();
        let Some(end) = unsearched.clone().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let mut event = self.buffer.split_to(self.searched + end + 1);
        event.truncate(event.len() - 1);
        self.searched = 0;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use rooflet_testing::within;

    use super::*;

    #[test]
    fn query_has_up_to_16_encoded_paths() {
        let got = paths("path=%2Fapi%2Fv1%2Fevents&path=/apis/a/v1/bs%3FresourceVersion%3D5%26x%3Dy%20z");
        let expect = [
            "/api/v1/events?watch=true",
            "/apis/a/v1/bs?resourceVersion=5&x=y z&watch=true",
        ];
        assert_eq!(got.expect("valid"), expect);
        paths(&"path=/api&".repeat(16)).unwrap();
        for invalid in [
            "",
            "&",
            "path=",
            "path=/metrics",
            "path=/api&other=1",
            "path=%FF",
            &"path=/api&".repeat(17),
        ] {
            paths(invalid).unwrap_err();
        }
    }

    async fn lines(chunks: &'static [&'static str]) -> Vec<String> {
        let chunks = stream::iter(chunks).map(|chunk| Ok::<_, Infallible>(*chunk));
        let body = Body::from_stream(chunks).into_data_stream();
        let lines = within(events(3, body).collect::<Vec<_>>()).await;
        let text = lines
            .into_iter()
            .map(|line| String::from_utf8(line.to_vec()).expect("text"));
        text.collect()
    }

    #[tokio::test]
    async fn events_are_split_at_the_ends_of_lines() {
        let end = "{\"end\":\"the API server ended the watch\",\"watch\":3}\n";
        assert_eq!(lines(&[]).await, [end]);
        let got = lines(&["{\"a\":1}\n{\"b\"", ":", "2}\n", "\n{\"c\":3}\n{\"cut"]).await;
        let expect = [
            "{\"watch\":3,\"event\":{\"a\":1}}\n",
            "{\"watch\":3,\"event\":{\"b\":2}}\n",
            "{\"watch\":3,\"event\":{\"c\":3}}\n",
            end,
        ];
        assert_eq!(got, expect);
    }
}
