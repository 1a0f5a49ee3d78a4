//! Request bodies: size limits, and processing of long bodies on blocking threads within a memory
//! budget.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use http::StatusCode;
use tokio::sync::OwnedSemaphorePermit;

use crate::api::app::App;
use rooflet_inference_api::openai::ApiError;
pub(crate) use rooflet_inference_api::openai::body::MAX_BODY_BYTES;

/// Maximum total size of the long bodies that are parsed and tokenized concurrently. Parsing and
/// tokenizing need up to about 400 bytes of memory per byte of the body. A larger body is processed
/// alone.
pub(crate) const MAX_CONCURRENT_LONG_BODY_BYTES: usize = 4 << 20;

/// Maximum size of a body that is processed on a connection thread. Longer bodies are processed on
/// blocking threads, so that they do not delay other connections.
const MAX_INLINE_BYTES: usize = 16 << 10;

/// Minimum size of a body after which the process returns freed memory to the system.
const RELEASING_BYTES: usize = 1 << 20;

/// Share of the memory budget of a body whose request is parsed but not validated.
#[derive(Debug)]
pub(crate) struct BodyShare {
    body_bytes: usize,
    /// `None` for a short body.
    permit: Option<OwnedSemaphorePermit>,
}

fn accept(body: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    body.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            ApiError::request_too_large(MAX_BODY_BYTES)
        } else {
            ApiError::invalid_json("the body ended early.")
        }
    })
}

/// Parses a body. A long body waits for its share of the memory budget and is parsed on a blocking
/// thread. The caller keeps the share until the parsed request is validated and dropped; see
/// [`BodyShare::run`].
pub(crate) async fn parse<T: Send + 'static>(
    body: Result<Bytes, BytesRejection>,
    app: &Arc<App>,
    parse: impl FnOnce(&App, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, BodyShare), ApiError> {
    let body = accept(body)?;
    let body_bytes = body.len();
    if body_bytes <= MAX_INLINE_BYTES {
        let permit = None;
        return Ok((parse(app, &body)?, BodyShare { body_bytes, permit }));
    }
    let permit = acquire(app, body_bytes).await;
    let work = move |app: &App| parse(app, &body);
    let (parsed, permit) = run_blocking(app, body_bytes, permit, work).await?;
    Ok((parsed, BodyShare { body_bytes, permit }))
}

impl BodyShare {
    /// Runs `work`, which consumes the parsed request, and releases the share. The work runs on a
    /// blocking thread if the body is long or `long` is set.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        long: bool,
        app: &Arc<App>,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Self { body_bytes, permit } = self;
        let permit = match permit {
            Some(permit) => Some(permit),
            None if long => acquire(app, body_bytes).await,
            None => return work(app),
        };
        run_blocking(app, body_bytes, permit, work)
            .await
            .map(|(done, _)| done)
    }
}

async fn acquire(app: &App, body_bytes: usize) -> Option<OwnedSemaphorePermit> {
    let bytes = u32::try_from(body_bytes.min(MAX_CONCURRENT_LONG_BODY_BYTES)).unwrap_or(u32::MAX);
    // The semaphore is never closed.
    Arc::clone(&app.long_body_permits)
        .acquire_many_owned(bytes)
        .await
        .ok()
}

/// Runs `work` on a blocking thread, which holds the permit until the work is done, even if the
/// client disconnects.
async fn run_blocking<T: Send + 'static>(
    app: &Arc<App>,
    body_bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
    work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Option<OwnedSemaphorePermit>), ApiError> {
    let app = Arc::clone(app);
    tokio::task::spawn_blocking(move || {
        let done = work(&app);
        if body_bytes >= RELEASING_BYTES {
            rooflet_host::release_freed_memory();
        }
        done.map(|done| (done, permit))
    })
    .await
    .unwrap_or_else(|_| Err(ApiError::server_error("The server failed on this request.")))
}
