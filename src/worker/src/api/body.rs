//! Request bodies: size limits, and processing of long bodies on blocking threads.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use http::StatusCode;

use crate::api::app::App;
use rooflet_inference_api::openai::ApiError;
pub(crate) use rooflet_inference_api::openai::body::MAX_BODY_BYTES;

/// Maximum total size of the long bodies that are tokenized concurrently. Tokenization needs up to
/// about 400 bytes of memory per byte of the body.
pub(crate) const MAX_CONCURRENT_LONG_BODY_BYTES: usize = 4 << 20;

/// Maximum size of a body that is processed on a connection thread. Longer bodies are processed on
/// blocking threads, so that they do not delay other connections.
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

/// Runs `work` on a body of `body_bytes` bytes. If `long` is set, the work runs on a blocking
/// thread and waits until [`MAX_CONCURRENT_LONG_BODY_BYTES`] permits it.
pub(crate) async fn run_blocking_if<T: Send + 'static>(
    long: bool,
    body_bytes: usize,
    app: &Arc<App>,
    work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if !long {
        return work(app);
    }
    let bytes = u32::try_from(body_bytes.min(MAX_CONCURRENT_LONG_BODY_BYTES)).unwrap_or(u32::MAX);
    let permit = Arc::clone(&app.long_body_permits).acquire_many_owned(bytes).await;
    let app = Arc::clone(app);
    tokio::task::spawn_blocking(move || {
        // The thread holds the permit until its work is done, even if the client disconnects.
        let _permit = permit;
        work(&app)
    })
    .await
    .unwrap_or_else(|_| Err(ApiError::server_error("The server failed on this request.")))
}
