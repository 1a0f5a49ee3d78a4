//! A request that has been read, to be sent as often as it takes, and what its client is told beside the answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use tokio::sync::oneshot;

use super::ask::Ask;
use crate::headers;
use rooflet_base::mutex::lock;
use rooflet_telemetry::trace::OpenSpan;

/// Replicas that may break off or fail with a request in hand before it is not given to yet another one.
const MAX_BROKEN: usize = 3;

/// See the module.
pub(crate) struct Incoming {
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) ask: Ask,
    pub(crate) began: Instant,
    pub(crate) span: Option<Arc<OpenSpan>>,
    /// The model that is asked instead of the one that was asked for.
    pub(crate) fallback: Option<HeaderValue>,
    /// Where the head of a stream goes that may begin before its first token.
    head: Mutex<Option<oneshot::Sender<http::response::Parts>>>,
    /// How often a replica broke off that had the request.
    broken: AtomicUsize,
}

impl Incoming {
    pub(crate) fn new(
        parts: Parts,
        body: Bytes,
        ask: Ask,
        began: Instant,
        span: Option<Arc<OpenSpan>>,
        head_tx: oneshot::Sender<http::response::Parts>,
    ) -> Self {
        Self {
            parts,
            body,
            ask,
            began,
            span,
            fallback: None,
            head: Mutex::new(Some(head_tx)),
            broken: AtomicUsize::new(0),
        }
    }

    /// The request, to be sent once more. Its body was read whole, so its length is known.
    pub(crate) fn again(&self) -> Request {
        let mut parts = self.parts.clone();
        parts.headers.remove(CONTENT_LENGTH);
        Request::from_parts(parts, Body::from(self.body.clone()))
    }

    /// A replica has begun to answer. If it is a stream, it may be long without a token.
    pub(crate) fn begins(&self, response: &Response, headers: &HeaderMap) {
        let kind = response.headers().get(CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if !is_stream || !response.status().is_success() {
            return;
        }
        let waiting = lock(&self.head).take();
        if let Some(head_tx) = waiting {
            let (mut parts, ()) = Response::new(()).into_parts();
            parts.status = response.status();
            parts.headers = headers::of_early_stream(response.headers(), headers);
            drop(head_tx.send(parts));
        }
    }

    /// A replica broke off, or failed, with the request in hand.
    pub(crate) fn broke(&self) {
        self.broken.fetch_add(1, Ordering::Relaxed);
    }

    /// It may be the request that makes them fail.
    pub(crate) fn has_broken_enough(&self) -> bool {
        self.broken.load(Ordering::Relaxed) >= MAX_BROKEN
    }
}
