//! Requests that wait for their first token at a stalled worker. If another replica can serve such a
//! request, the agent ends it, so that the gateway retries.

use axum::body::Body;
use axum::response::Response;
use futures::future::BoxFuture;
use futures::{FutureExt, stream};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::watch;

use crate::replica::ReplicaKey;
use crate::workers::Endpoints;
use rooflet_inference_api::openai::preamble::{MAX_PREAMBLE_BYTES, is_preamble, is_stream};

/// Error of a response body that ends before its first token.
#[derive(Debug, thiserror::Error)]
#[error("the worker makes no progress")]
struct WorkerStalled;

/// Future that resolves when the replica's worker is stalled.
pub(super) type UntilStalled = BoxFuture<'static, ()>;

pub(super) fn until_stalled(mut endpoints_rx: watch::Receiver<Endpoints>, key: ReplicaKey) -> UntilStalled {
    async move {
        let is_stalled = |endpoints: &Endpoints| endpoints.get(&key).is_some_and(|one| one.stalled);
        if endpoints_rx.wait_for(is_stalled).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
    .boxed()
}

/// Makes a streamed response fail if `until_stalled` resolves before the first token.
pub(super) fn limit_preamble(response: Response, until_stalled: UntilStalled) -> Response {
    if !is_stream(response.headers()) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let start = (body, Some(until_stalled), Vec::new());
    let frames = stream::unfold(start, |(mut body, mut until_stalled, mut preamble)| async move {
        let frame = match &mut until_stalled {
            None => body.frame().await,
            Some(stalled) => tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = stalled => {
                    let failed = Err(axum::Error::new(WorkerStalled));
                    return Some((failed, (Body::empty(), None, Vec::new())));
                }
            },
        }?;
        if until_stalled.is_some()
            && let Some(data) = frame.as_ref().ok().and_then(|frame| frame.data_ref())
        {
            preamble.extend_from_slice(data);
            if preamble.len() > MAX_PREAMBLE_BYTES || !is_preamble(&preamble) {
                (until_stalled, preamble) = (None, Vec::new());
            }
        }
        Some((frame, (body, until_stalled, preamble)))
    });
    Response::from_parts(parts, Body::new(StreamBody::new(frames)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{BodyDataStream, Bytes};
    use futures::StreamExt;
    use futures::channel::{mpsc, oneshot};
    use http::header::CONTENT_TYPE;
    use rooflet_testing::within;

    const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    const COMMENT: &str = ": keepalive\n\n";
    const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

    /// Streamed response of a worker.
    struct Stream {
        body: BodyDataStream,
        chunks_tx: mpsc::UnboundedSender<Result<Bytes, axum::Error>>,
        stall_tx: oneshot::Sender<()>,
    }

    fn stream() -> Stream {
        let (chunks_tx, chunks_rx) = mpsc::unbounded();
        let (stall_tx, stall_rx) = oneshot::channel();
        let response = Response::builder()
            .header(CONTENT_TYPE, "text/event-stream; charset=utf-8")
            .body(Body::from_stream(chunks_rx))
            .expect("valid");
        let response = limit_preamble(response, stall_rx.map(drop).boxed());
        Stream {
            body: response.into_body().into_data_stream(),
            chunks_tx,
            stall_tx,
        }
    }

    impl Stream {
        async fn pass(&mut self, chunk: &'static str) {
            let sent = Bytes::from_static(chunk.as_bytes());
            self.chunks_tx.unbounded_send(Ok(sent.clone())).expect("open");
            let received = within(self.body.next())
                .await
                .expect("a chunk")
                .expect("no error");
            assert_eq!(received, sent);
        }
    }

    #[tokio::test]
    async fn stream_without_a_token_fails_when_the_worker_stalls() {
        let mut stream = stream();
        stream.pass(ROLE).await;
        stream.pass(COMMENT).await;
        stream.stall_tx.send(()).expect("open");
        let failed = within(stream.body.next()).await.expect("a result");
        failed.expect_err("the worker is stalled");
    }

    #[tokio::test]
    async fn stream_with_a_token_continues_when_the_worker_stalls() {
        let mut stream = stream();
        stream.pass(ROLE).await;
        stream.pass(TOKEN).await;
        let (ended_tx, _) = oneshot::channel();
        std::mem::replace(&mut stream.stall_tx, ended_tx).send(()).ok();
        stream.pass(TOKEN).await;
        drop(stream.chunks_tx);
        assert!(within(stream.body.next()).await.is_none());
    }
}
