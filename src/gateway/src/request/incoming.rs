//! Buffered request that the gateway may send to several replicas.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use tokio::sync::oneshot;

use super::info::RequestInfo;
use crate::access::AccessEntry;
use crate::headers;
use rooflet_base::mutex::lock;
use rooflet_inference_api::openai::preamble::is_stream;
use rooflet_telemetry::trace::OpenSpan;

/// Number of replicas that may fail while they process a request. After that, the gateway does not
/// retry the request: the request itself may cause the failures.
const MAX_FAILED_REPLICAS: usize = 3;

/// Buffered request; see the module documentation.
pub(crate) struct Incoming {
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) info: RequestInfo,
    pub(crate) began: Instant,
    pub(crate) span: Option<Arc<OpenSpan>>,
    pub(crate) access: AccessEntry,
    /// Fallback model that serves the request in place of the requested model.
    pub(crate) fallback: Option<HeaderValue>,
    /// Receives the response head of a stream before its first token.
    head: Mutex<Option<oneshot::Sender<http::response::Parts>>>,
    /// Number of replicas that failed while they processed the request.
    failed_replicas: AtomicUsize,
}

impl Incoming {
    pub(crate) fn new(
        parts: Parts,
        body: Bytes,
        info: RequestInfo,
        began: Instant,
        span: Option<Arc<OpenSpan>>,
        access: AccessEntry,
        head_tx: oneshot::Sender<http::response::Parts>,
    ) -> Self {
        Self {
            parts,
            body,
            info,
            began,
            span,
            access,
            fallback: None,
            head: Mutex::new(Some(head_tx)),
            failed_replicas: AtomicUsize::new(0),
        }
    }

    /// Returns a copy of the request with its complete body.
    pub(crate) fn to_request(&self) -> Request {
        let mut parts = self.parts.clone();
        parts.headers.remove(CONTENT_LENGTH);
        Request::from_parts(parts, Body::from(self.body.clone()))
    }

    /// Offers the head of a stream to the client, because its first token may take long.
    pub(crate) fn send_head(&self, response: &Response, headers: &HeaderMap) {
        if !is_stream(response.headers()) || !response.status().is_success() {
            return;
        }
        let head_tx = lock(&self.head).take();
        if let Some(head_tx) = head_tx {
            let (mut parts, ()) = Response::new(()).into_parts();
            parts.status = response.status();
            parts.headers = headers::of_early_stream(response.headers(), headers);
            drop(head_tx.send(parts));
        }
    }

    /// Records a failed attempt. `reached_worker` is true if the worker may have processed the request.
    pub(crate) fn record_failure(&self, reached_worker: bool) {
        if reached_worker {
            self.failed_replicas.fetch_add(1, Ordering::Relaxed);
        } else {
            self.access.set_unprocessed_attempt();
        }
    }

    /// Returns whether [`MAX_FAILED_REPLICAS`] replicas have failed.
    pub(crate) fn has_failed_too_often(&self) -> bool {
        self.failed_replicas.load(Ordering::Relaxed) >= MAX_FAILED_REPLICAS
    }
}
