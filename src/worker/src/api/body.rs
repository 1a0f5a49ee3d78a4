//! Bodies of requests: limits, and work on long ones apart from the threads that serve connections.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use http::StatusCode;

use crate::api::app::App;
use rooflet_inference_api::openai::ApiError;
pub(crate) use rooflet_inference_api::openai::body::MAX_BODY_BYTES;

/// Of long bodies together that are made tokens: that takes up to some 400 bytes of memory for
/// each.
pub(crate) const MAX_BYTES_AT_ONCE: usize = 4 << 20;

/// Longer bodies are tokenized on a thread of their own, so that they do not hold up other
/// connections.
pub(crate) const MAX_INLINE_BYTES: usize = 16 << 10;

pub(crate) fn accept(body: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    body.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            ApiError::request_too_large(MAX_BODY_BYTES)
        } else {
            ApiError::invalid_json("the body ended early.")
        }
    })
}

/// Does work on a body of so many bytes on a thread of its own where it takes `long`, and beside as
/// much other work as [`MAX_BYTES_AT_ONCE`] let.
pub(crate) async fn off_thread_if<T: Send + 'static>(
    long: bool,
    body_bytes: usize,
    app: &Arc<App>,
    work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if !long {
        return work(app);
    }
    let bytes = u32::try_from(body_bytes.min(MAX_BYTES_AT_ONCE)).unwrap_or(u32::MAX);
    let permit = Arc::clone(&app.long_work).acquire_many_owned(bytes).await;
    let app = Arc::clone(app);
    tokio::task::spawn_blocking(move || {
        // Until it is done, whether or not the client waits for it.
        let _permit = permit;
        work(&app)
    })
    .await
    .unwrap_or_else(|_| Err(ApiError::server_error("The server failed on this request.")))
}
