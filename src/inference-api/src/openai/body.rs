//! Middleware for request bodies, on every server of the API. It rejects unsupported encodings and
//! stalled bodies. After an error it drains the rest of the body, so that the client reads the
//! response instead of a connection reset.

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

/// Maximum size of a request body in bytes. A context of a million tokens is about 4 MB of text.
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// Maximum size of a drained body in bytes. Above it, the connection is closed.
const MAX_DRAINED_BYTES: usize = 128 << 20;
const MAX_DRAINING: Duration = Duration::from_secs(10);
/// Maximum time between two pieces of a body, as nginx's `client_body_timeout`.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Runs the middleware; see the module documentation.
pub async fn middleware(request: Request, next: Next) -> Response {
    // A client with `Expect: 100-continue` has not sent the body.
    let expects_continue = request.headers().contains_key(EXPECT);
    let encoding = encoding(request.headers());
    let (parts, body) = request.into_parts();
    let (reclaimed_tx, mut reclaimed_rx) = oneshot::channel();
    let is_stalled = Arc::new(AtomicBool::new(false));
    let body = Body::new(ReclaimedBody {
        body,
        silence: None,
        is_stalled: Arc::clone(&is_stalled),
        reclaim: Some(reclaimed_tx),
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
        && !expects_continue
        && let Ok(rest) = reclaimed_rx.try_recv()
    {
        drop(tokio::time::timeout(MAX_DRAINING, drain(rest)).await);
    }
    response
}

/// Returns the content encoding, unless it is `identity`.
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

/// Body that is sent back through `reclaim` when dropped, and fails if no data arrives for too
/// long.
struct ReclaimedBody {
    body: Body,
    /// Timer since the last piece.
    silence: Option<Pin<Box<Sleep>>>,
    is_stalled: Arc<AtomicBool>,
    reclaim: Option<oneshot::Sender<Body>>,
}

impl Drop for ReclaimedBody {
    fn drop(&mut self) {
        if let Some(reclaim) = self.reclaim.take() {
            drop(reclaim.send(std::mem::take(&mut self.body)));
        }
    }
}

impl http_body::Body for ReclaimedBody {
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

    /// Sends a body of zeros to a server that does not read it, and returns the response.
    async fn answer(headers: &str, bytes: usize) -> std::io::Result<String> {
        let reject = |_body: Body| async { ApiError::request_too_large(5) };
        let app = Router::new()
            .route("/", post(reject))
            .layer(axum::middleware::from_fn(middleware));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = axum::serve(listener, app);
        let exchange = async {
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
            answer = exchange => answer,
            _ = serving => unreachable!("the server does not stop"),
        }
    }

    #[tokio::test]
    async fn client_reads_error_despite_oversized_body() {
        let answer = answer("", 64 << 20).await.expect("no reset");
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("request_too_large"), "{answer}");
    }

    #[tokio::test]
    async fn rejects_encoded_body() {
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

    /// A pause of 30 seconds is accepted, one of more than 60 seconds is not.
    #[tokio::test(start_paused = true)]
    async fn times_out_stalled_body_but_not_slow_body() {
        async fn answer(pause: Duration) -> Response {
            let app = Router::new()
                .route(
                    "/",
                    post(|body: axum::body::Bytes| async move { format!("{} bytes", body.len()) }),
                )
                .layer(axum::middleware::from_fn(middleware));
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

    /// With `Expect: 100-continue`, the error response ends the request.
    #[tokio::test]
    async fn does_not_drain_body_of_client_that_expects_continue() {
        let response = answer("expect: 100-continue\r\n", 5).await.expect("no reset");
        assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    }
}
