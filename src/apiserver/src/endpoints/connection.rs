//! Connections: TLS, HTTP/1.1 and HTTP/2, limits, and an orderly end.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::header;
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use crate::endpoints::handlers::{Admitted, Api};
use crate::endpoints::reply::{self, Reply};
use crate::endpoints::request::{Certificates, Query, Request};
use crate::status::ApiError;
use rooflet_http_server::{accept, carry, without_delay};

/// What a real server reads of a body.
const BODY_MAX_BYTES: usize = 3 << 20;
/// How much of a refused body is thrown away, at most for `DRAIN_TIMEOUT`, before the answer is
/// sent.
const DRAIN_MAX_BYTES: usize = 64 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that sends its body slower than this is cut off.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(60);
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers whoever connects, until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    api: Arc<Api>,
    stop: CancellationToken,
) {
    let acceptor = tls.map(|config| TlsAcceptor::from(with_alpn(config)));
    let connection = |stream, _| {
        let (api, acceptor, stop) = (Arc::clone(&api), acceptor.clone(), stop.clone());
        async move {
            api.metrics.connections.inc();
            connection(stream, acceptor, &api, &stop).await;
            api.metrics.connections.dec();
        }
    };
    accept(without_delay(listener), &stop, connection).await;
}

fn with_alpn(config: Arc<rustls::ServerConfig>) -> Arc<rustls::ServerConfig> {
    if !config.alpn_protocols.is_empty() {
        return config;
    }
    let mut config = (*config).clone();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    api: &Arc<Api>,
    stop: &CancellationToken,
) {
    let Some(acceptor) = acceptor else {
        return requests(stream, Certificates::default(), api, stop).await;
    };
    let handshake = tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, acceptor.accept(stream));
    let Some(shaken) = stop.run_until_cancelled(handshake).await else {
        return;
    };
    match shaken {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let certificates = shown.to_vec().into();
            requests(stream, certificates, api, stop).await;
        }
        Ok(Err(err)) => debug!(error = %err, "TLS handshake failed"),
        Err(_) => debug!("TLS handshake took too long"),
    }
}

async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    certificates: Certificates,
    api: &Arc<Api>,
    stop: &CancellationToken,
) {
    let answer = |request| {
        let (api, certificates) = (Arc::clone(api), Arc::clone(&certificates));
        async move { answer(&api, certificates, request).await }
    };
    carry(stream, answer, stop).await;
}

/// Answers one request; a panic becomes a 500 and harms nobody else.
async fn answer(api: &Api, certificates: Certificates, request: http::Request<Incoming>) -> Reply {
    let (parts, mut body) = request.into_parts();
    let mut request = Request {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: Query::parse(parts.uri.query().unwrap_or_default()),
        headers: parts.headers,
        body: Bytes::new(),
        certificates,
    };
    let admitted = async {
        let admitted = api.admit(&request)?;
        Ok::<_, ApiError>((admitted, read(&mut body).await?))
    };
    let (Admitted { user, place: _place }, bytes) = match admitted.await {
        Ok(admitted) => admitted,
        Err(err) => {
            if !request.headers.contains_key(header::EXPECT) {
                drain(body).await;
            }
            return reply::error(&err, request.wants_pretty());
        }
    };
    request.body = bytes;
    let path = request.path.clone();
    AssertUnwindSafe(api.handle(request, user))
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            error!(path, "a request handler panicked");
            reply::error(&ApiError::internal("the request handler panicked"), false)
        })
}

/// Throws away what a client still sends, within bounds: it would not see the answer if the
/// connection closed under it.
async fn drain(body: Incoming) {
    let mut rest = Limited::new(body, DRAIN_MAX_BYTES);
    let thrown_away = async { while let Some(Ok(_)) = rest.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, thrown_away).await;
}

async fn read(body: &mut Incoming) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::too_large(&format!("limit is {BODY_MAX_BYTES}"));
    if body.size_hint().lower() > BODY_MAX_BYTES as u64 {
        return Err(too_large());
    }
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    match tokio::time::timeout(BODY_READ_TIMEOUT, Limited::new(body, BODY_MAX_BYTES).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(err)) if err.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(err)) => Err(ApiError::bad_request(format!("reading the body failed: {err}"))),
        Err(_) => Err(ApiError::bad_request("the body did not arrive in time")),
    }
}

/// A listener that the caller bound without a runtime.
pub(crate) fn listener(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
