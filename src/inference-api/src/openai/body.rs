//! Request bodies at every server of the API: encodings that are not read are refused, clients that
//! stop sending are not waited for, and what a refused client is still sending is taken, so that it
//! reads the answer instead of a connection that was reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, EXPECT};
use http::{HeaderMap, HeaderValue};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::ApiError;

/// The largest body of a request, in bytes. A context of a million tokens is about 4 MB of text.
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// The most that is read only to be thrown away. Who sends more finds the connection closed.
const MAX_DRAINED_BYTES: usize = 128 << 20;
const MAX_DRAINING: Duration = Duration::from_secs(10);
/// Between two pieces of a body, as nginx's `client_body_timeout`.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// See the module's text.
pub async fn settle(request: Request, next: Next) -> Response {
    // Who asks first whether to send has not begun.
    let waits = request.headers().contains_key(EXPECT);
    let encoding = encoding(request.headers());
    let (parts, body) = request.into_parts();
    let (back_tx, mut back_rx) = oneshot::channel();
    let is_stalled = Arc::new(AtomicBool::new(false));
    let body = Body::new(Lent {
        body,
        silence: None,
        is_stalled: Arc::clone(&is_stalled),
        back: Some(back_tx),
    });
    let request = Request::from_parts(parts, body);
    let response = match encoding {
        None => next.run(request).await,
        Some(encoding) => {
            drop(request);
            let mut response = ApiError::unsupported_encoding(&encoding).into_response();
            let identity = HeaderValue::from_static("identity");
            response.headers_mut().insert(ACCEPT_ENCODING, identity);
            response
        }
    };
    if is_stalled.load(Ordering::Relaxed) {
        return ApiError::request_timeout(MAX_SILENCE).into_response();
    }
    let status = response.status();
    if (status.is_client_error() || status.is_server_error())
        && !waits
        && let Ok(rest) = back_rx.try_recv()
    {
        drop(tokio::time::timeout(MAX_DRAINING, drain(rest)).await);
    }
    response
}

/// What the body is encoded with, unless it is as it is.
fn encoding(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let mut names = values.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let names = names.find(|name| !matches!(name.trim().to_ascii_lowercase().as_str(), "" | "identity"))?;
    Some(names.into_owned())
}

async fn drain(mut body: Body) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > MAX_DRAINED_BYTES {
            return;
        }
    }
}

/// A body that comes back from whoever lets go of it, and fails where nothing comes for too long.
struct Lent {
    body: Body,
    /// Since the last piece.
    silence: Option<Pin<Box<Sleep>>>,
    is_stalled: Arc<AtomicBool>,
    back: Option<oneshot::Sender<Body>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(back) = self.back.take() {
            drop(back.send(std::mem::take(&mut self.body)));
        }
    }
}

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            self.silence = None;
            return frame;
        }
        let silence = self
            .silence
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(MAX_SILENCE)));
        ready!(silence.as_mut().poll(context));
        self.is_stalled.store(true, Ordering::Relaxed);
        let err = io::Error::from(io::ErrorKind::TimedOut);
        Poll::Ready(Some(Err(axum::Error::new(err))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::post;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tower::ServiceExt as _;

    use super::*;

    /// Sends a body of so many zeros to a server that reads none of it, then reads the answer.
    async fn answer(headers: &str, bytes: usize) -> std::io::Result<String> {
        let refuse = |_body: Body| async { ApiError::request_too_large(5) };
        let app = Router::new()
            .route("/", post(refuse))
            .layer(axum::middleware::from_fn(settle));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = axum::serve(listener, app);
        let asking = async {
            let mut stream = TcpStream::connect(address).await?;
            let head = format!(
                "POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{headers}content-length: {bytes}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            let part = vec![0; 1 << 20];
            for _ in 0..bytes / part.len() {
                stream.write_all(&part).await?;
            }
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok(answer)
        };
        tokio::select! {
            answer = asking => answer,
            _ = serving => unreachable!("it serves on"),
        }
    }

    #[tokio::test]
    async fn a_client_that_sends_far_too_much_reads_why_it_is_refused() {
        let answer = answer("", 64 << 20).await.expect("no reset");
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("request_too_large"), "{answer}");
    }

    #[tokio::test]
    async fn encoded_bodies_are_refused_by_name() {
        let refused = answer("content-encoding: gzip\r\n", 1 << 20)
            .await
            .expect("no reset");
        assert!(refused.starts_with("HTTP/1.1 415 "), "{refused}");
        assert!(
            refused.contains("accept-encoding: identity") && refused.contains("gzip"),
            "{refused}"
        );
        let plain = answer("content-encoding: identity\r\n", 1 << 20)
            .await
            .expect("no reset");
        assert!(plain.starts_with("HTTP/1.1 413 "), "{plain}");
    }

    /// Half a minute between two pieces is slow, more than a minute is nothing.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_sending_is_told_and_a_slow_one_is_not() {
        async fn answer(pause: Duration) -> Response {
            let app = Router::new()
                .route(
                    "/",
                    post(|body: axum::body::Bytes| async move { format!("{} bytes", body.len()) }),
                )
                .layer(axum::middleware::from_fn(settle));
            let pieces = futures::stream::unfold(0, move |at| async move {
                tokio::time::sleep(pause).await;
                (at < 4).then_some((Ok::<_, io::Error>("piece"), at + 1))
            });
            let request = Request::post("/").body(Body::from_stream(pieces));
            app.oneshot(request.expect("a request"))
                .await
                .expect("infallible")
        }
        let slow = answer(Duration::from_secs(30)).await;
        assert_eq!(slow.status(), 200);
        let stopped = answer(Duration::from_secs(3600)).await;
        assert_eq!(stopped.status(), 408);
        let body = stopped.into_body().collect().await.expect("a body").to_bytes();
        let body = String::from_utf8_lossy(&body);
        assert!(
            body.contains("request_timeout") && body.contains("60 seconds"),
            "{body}"
        );
    }

    /// It waits for leave to send: the answer is its leave to stop.
    #[tokio::test]
    async fn a_client_that_asked_first_is_answered_at_once() {
        let asked = answer("expect: 100-continue\r\n", 5).await.expect("no reset");
        assert!(asked.starts_with("HTTP/1.1 413 "), "{asked}");
    }
}
