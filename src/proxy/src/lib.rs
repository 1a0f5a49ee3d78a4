//! A streaming HTTP/1.1 reverse proxy: the gateway reaches agents with it, and an agent reaches its
//! workers.
//!
//! Input: a request and its destination. Output: the upstream response, with its body not yet read.
//!
//! Invariants:
//! - Nothing is buffered beyond the sockets.
//! - Dropping the response, or the future that waits for it, closes the upstream connection. So a
//!   client that disconnects cancels its work at the worker.

mod connect;
mod headers;
mod peek;
#[cfg(test)]
mod tests;

use std::time::Duration;

use axum::body::{self, Body};
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{StatusCode, Version};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

pub use connect::{AgentTls, Upstream};
pub use peek::{BodyRoom, MAX_KEPT_BODY_BYTES, PeekError, peek_model};

use connect::{ConnectUpstreamError, Connector};

/// Timeout of connection attempts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that idle connections are kept. Shorter than the idle timeout of any server, so that reuse
/// is safe.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of idle connections per upstream.
const MAX_IDLE_PER_UPSTREAM: usize = 64;
/// Bytes per read from an upstream, and maximum size of its response head. Limits the memory of a
/// stream.
const MAX_READ_BUFFER_BYTES: usize = 256 << 10;

/// Reason why an upstream returned no response.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error("connecting to {upstream}")]
    Connect {
        upstream: Upstream,
        #[source]
        err: ConnectUpstreamError,
    },
    #[error("{upstream} closed the connection before it answered")]
    Upstream {
        upstream: Upstream,
        #[source]
        err: hyper_util::client::legacy::Error,
    },
    #[error("reading the client's request")]
    Client {
        #[source]
        err: hyper_util::client::legacy::Error,
    },
}

impl ForwardError {
    /// Returns the reason in CamelCase, for metrics and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect { err, .. } => err.reason(),
            Self::Upstream { .. } => "UpstreamClosed",
            Self::Client { .. } => "ClientClosed",
        }
    }

    /// Returns true if it is certain that the upstream received nothing of the request.
    pub fn nothing_was_sent(&self) -> bool {
        matches!(self, Self::Connect { .. })
    }

    fn new(upstream: &Upstream, err: hyper_util::client::legacy::Error) -> Self {
        let upstream = upstream.clone();
        if err.is_connect() {
            let err = ConnectUpstreamError::new(&err, &upstream);
            return Self::Connect { upstream, err };
        }
        let body_failed = std::error::Error::source(&err)
            .and_then(|source| source.downcast_ref::<hyper::Error>())
            .is_some_and(hyper::Error::is_user);
        if body_failed {
            Self::Client { err }
        } else {
            Self::Upstream { upstream, err }
        }
    }
}

/// Proxy with a connection pool. Clones share the pool.
#[derive(Clone)]
pub struct Proxy {
    client: Client<Connector, Body>,
}

impl Default for Proxy {
    fn default() -> Self {
        Self::new()
    }
}

impl Proxy {
    pub fn new() -> Self {
        Self::with(CONNECT_TIMEOUT, None)
    }

    /// Returns a proxy that also reaches agents over TLS.
    pub fn with_tls(tls: AgentTls) -> Self {
        Self::with(CONNECT_TIMEOUT, Some(tls))
    }

    fn with(timeout: Duration, tls: Option<AgentTls>) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_PER_UPSTREAM)
            .http1_max_buf_size(MAX_READ_BUFFER_BYTES)
            .build(Connector::new(timeout, tls));
        Self { client }
    }

    /// Sends `request` to `upstream` with the path `path`. Returns the response as soon as its head
    /// has arrived.
    ///
    /// There is no timeout after the connection is established, because the duration of a response
    /// depends on the request.
    pub async fn forward(
        &self,
        request: Request,
        upstream: &Upstream,
        path: &PathAndQuery,
    ) -> Result<Response, ForwardError> {
        let (mut parts, body) = request.into_parts();
        parts.uri = upstream.uri(path);
        parts.version = Version::HTTP_11;
        headers::remove_hop_by_hop(&mut parts.headers);
        headers::remove_expect(&mut parts.headers);
        headers::remove_origin(&mut parts.headers);
        parts.headers.insert(HOST, upstream.host());
        parts.extensions = http::Extensions::new();
        let response = self
            .client
            .request(Request::from_parts(parts, body))
            .await
            .map_err(|err| ForwardError::new(upstream, err))?;
        let (mut parts, body) = response.into_parts();
        headers::remove_hop_by_hop(&mut parts.headers);
        // Data that the pool adds for its own use is not forwarded.
        parts.extensions = http::Extensions::new();
        parts.version = Version::HTTP_11;
        Ok(Response::from_parts(parts, Body::new(body)))
    }

    /// Returns the body of a `GET` request. `None` if the upstream does not return status 200 and at most
    /// `max_bytes` within `timeout`.
    pub async fn get(
        &self,
        upstream: &Upstream,
        path: &PathAndQuery,
        max_bytes: usize,
        timeout: Duration,
    ) -> Option<Bytes> {
        let whole = async {
            let response = self.forward(Request::default(), upstream, path).await.ok()?;
            if response.status() != StatusCode::OK {
                return None;
            }
            body::to_bytes(response.into_body(), max_bytes).await.ok()
        };
        tokio::time::timeout(timeout, whole).await.ok().flatten()
    }
}
