//! Connections: TLS, HTTP/1.1 and HTTP/2, limits, graceful shutdown.

use std::io;
use std::net::IpAddr;
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
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::audit::Identity;
use crate::endpoints::admission::Admitted;
use crate::endpoints::handlers::Api;
use crate::endpoints::negotiate::{self, Encoding};
use crate::endpoints::reply::{self, Reply};
use crate::endpoints::request::{Certificates, Query, Request};
use crate::status::ApiError;
use rooflet_http_server::{Handshakes, accept, carry, without_delay};

/// Maximum body size, as in kube-apiserver.
const BODY_MAX_BYTES: usize = 3 << 20;
/// Maximum size of a rejected body that is read and discarded, within `DRAIN_TIMEOUT`, before the
/// response is sent.
const DRAIN_MAX_BYTES: usize = 64 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to receive a body.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves connections until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    api: Arc<Api>,
    stop: CancellationToken,
) {
    let handshakes = tls.map(|config| Handshakes::new(with_alpn(config)));
    let connection = |stream: TcpStream, _| {
        let (api, handshakes, stop) = (Arc::clone(&api), handshakes.clone(), stop.clone());
        async move {
            api.metrics.connections.inc();
            connection(stream, handshakes, &api, &stop).await;
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
    handshakes: Option<Handshakes>,
    api: &Arc<Api>,
    stop: &CancellationToken,
) {
    let client = stream.peer_addr().ok().map(|address| address.ip());
    let Some(handshakes) = handshakes else {
        return requests(stream, client, Certificates::default(), api, stop).await;
    };
    let Some(Some(stream)) = stop.run_until_cancelled(handshakes.accept(stream)).await else {
        return;
    };
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates: Certificates = shown.to_vec().into();
    let revoked = async {
        match &api.users {
            Some(users) => users.revoked(&certificates).await,
            None => std::future::pending().await,
        }
    };
    // Closes watches too, which are authenticated only when they start.
    tokio::select! {
        () = requests(stream, client, Arc::clone(&certificates), api, stop) => {}
        () = revoked => info!("connection closed: the client's certificate is revoked"),
    }
}

async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: Option<IpAddr>,
    certificates: Certificates,
    api: &Arc<Api>,
    stop: &CancellationToken,
) {
    let respond = |request| {
        let (api, certificates) = (Arc::clone(api), Arc::clone(&certificates));
        async move { respond(&api, client, certificates, request).await }
    };
    carry(stream, respond, stop).await;
}

/// Handles one request. A panic of the handler results in status 500.
async fn respond(
    api: &Api,
    client: Option<IpAddr>,
    certificates: Certificates,
    request: http::Request<Incoming>,
) -> Reply {
    let received = api.engine.clock.now();
    let (parts, mut body) = request.into_parts();
    let mut request = Request {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: Query::parse(parts.uri.query().unwrap_or_default()),
        headers: parts.headers,
        body: Bytes::new(),
        certificates,
        client,
    };
    let mut identity = Identity::default();
    let admitted = async {
        let admitted = api.admit(&request, &mut identity)?;
        Ok::<_, ApiError>((admitted, read(&mut body).await?))
    };
    let (
        Admitted {
            user,
            permit: _permit,
        },
        bytes,
    ) = match admitted.await {
        Ok(admitted) => admitted,
        Err(err) => {
            if !request.headers.contains_key(header::EXPECT) {
                drain(body).await;
            }
            let mut reply = reply::error(
                &err,
                negotiate::error_encoding(request.accept()),
                request.is_pretty(),
            );
            api.audit(&request, &identity, client, received, &mut reply);
            return reply;
        }
    };
    request.body = bytes;
    let mut reply = AssertUnwindSafe(api.handle(&request, user))
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            error!(path = request.path, "request handler panicked");
            reply::error(
                &ApiError::internal("the request handler panicked"),
                Encoding::Json,
                false,
            )
        });
    api.audit(&request, &identity, client, received, &mut reply);
    reply
}

/// Discards the rest of a body, within limits. If the server closed the connection while the client
/// still sends, the client would not receive the response.
async fn drain(body: Incoming) {
    let mut rest = Limited::new(body, DRAIN_MAX_BYTES);
    let discarded = async { while let Some(Ok(_)) = rest.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, discarded).await;
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
        Err(_) => Err(ApiError::bad_request("timed out while reading the body")),
    }
}

/// Converts a listener that was bound outside of a runtime.
pub(crate) fn listener(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
