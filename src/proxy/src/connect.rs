//! Destinations of requests, and connections to them.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;
use tracing::info;

use rooflet_base::local_network::explain;

/// Idle time after which a TCP connection is probed, to detect hosts that disappeared.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// Schemes of URIs that carry a socket path, or an address and a node, to the connector. They are
/// used only in this module.
const UNIX_SCHEME: &str = "unix";
const NODE_SCHEME: &str = "node";
/// Separates address and node in a URI. Neither contains it.
const SEPARATOR: char = ' ';
const REVOKED: &str = "the certificate of the agent is revoked";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Server to which requests are forwarded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Upstream {
    /// Plain HTTP over TCP.
    Tcp(Authority),
    /// HTTP over TLS to the agent of `node`, whose certificate must be that of the node.
    Node { authority: Authority, node: String },
    /// Plain HTTP over a Unix socket.
    Unix(Utf8PathBuf),
}

/// Reason why a text is not the base URL of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a base URL such as http://10.0.0.7:7780: scheme http, a host, no path")]
pub struct ParseUpstreamError(String);

impl Upstream {
    /// Parses the base URL of a node's agent.
    pub fn of_node(url: &str, node: &str) -> Result<Self, ParseUpstreamError> {
        match url.strip_prefix("https://") {
            Some(rest) => match format!("http://{rest}").parse() {
                Ok(Self::Tcp(authority)) => Ok(Self::Node {
                    authority,
                    node: node.to_owned(),
                }),
                Ok(_) | Err(_) => Err(ParseUpstreamError(url.to_owned())),
            },
            None => url.parse(),
        }
    }

    pub fn unix(path: impl AsRef<Utf8Path>) -> Self {
        Self::Unix(path.as_ref().to_owned())
    }

    /// Returns the URI that identifies the upstream in the connection pool and the connector.
    pub(super) fn uri(&self, path: &PathAndQuery) -> Uri {
        // A path can contain characters that an authority cannot, so it is hexadecimal. An empty
        // path, which no socket has, becomes a name that cannot be decoded, so that the connection
        // fails.
        let encoded =
            |text: &str| Authority::from_str(&hex::encode(text)).unwrap_or(Authority::from_static("x"));
        let scheme = |name: &str| Scheme::from_str(name).expect("a valid scheme");
        let (scheme, authority) = match self {
            Self::Tcp(authority) => (Scheme::HTTP, authority.clone()),
            // Connections are not shared between nodes that have the same address.
            Self::Node { authority, node } => {
                let both = format!("{authority}{SEPARATOR}{node}");
                (scheme(NODE_SCHEME), encoded(&both))
            }
            Self::Unix(socket) => (scheme(UNIX_SCHEME), encoded(socket.as_str())),
        };
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(scheme);
        parts.authority = Some(authority);
        parts.path_and_query = Some(path.clone());
        Uri::from_parts(parts).expect("scheme, authority and path are set")
    }

    /// Returns the value of the `Host` header.
    pub(super) fn host(&self) -> HeaderValue {
        match self {
            Self::Tcp(authority) | Self::Node { authority, .. } => {
                HeaderValue::from_str(authority.as_str()).expect("an authority is plain ASCII")
            }
            Self::Unix(_) => HeaderValue::from_static("localhost"),
        }
    }
}

impl FromStr for Upstream {
    type Err = ParseUpstreamError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseUpstreamError(url.to_owned());
        let parts = url.parse::<Uri>().map_err(|_| refuse())?.into_parts();
        let plain_path = parts.path_and_query.is_none_or(|path| path.as_str() == "/");
        match (parts.scheme, parts.authority) {
            (Some(scheme), Some(authority))
                if scheme == Scheme::HTTP && plain_path && !authority.as_str().contains('@') =>
            {
                Ok(Self::Tcp(authority))
            }
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) => write!(f, "http://{authority}"),
            Self::Node { authority, node } => write!(f, "https://{authority} (node {node})"),
            Self::Unix(path) => write!(f, "socket {path}"),
        }
    }
}

/// Reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectUpstreamError {
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Io(String),
}

impl ConnectUpstreamError {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "ConnectTimeout",
            Self::Io(_) => "ConnectFailed",
        }
    }

    /// Extracts the connector's error. The pool returns it by reference, so its text is copied.
    pub(super) fn new(err: &hyper_util::client::legacy::Error, upstream: &Upstream) -> Self {
        let host = match upstream {
            Upstream::Tcp(authority) | Upstream::Node { authority, .. } => authority.host(),
            Upstream::Unix(_) => "localhost",
        };
        let mut source = std::error::Error::source(err);
        while let Some(err) = source {
            if let Some(Self::Timeout(limit)) = err.downcast_ref() {
                return Self::Timeout(*limit);
            }
            if let Some(io) = err.downcast_ref::<io::Error>() {
                return Self::Io(explain(io, host));
            }
            if err.source().is_none() {
                return Self::Io(err.to_string());
            }
            source = err.source();
        }
        Self::Io(err.to_string())
    }
}

/// TLS to the agents of the fleet.
#[derive(Clone)]
pub struct AgentTls {
    config: Arc<ClientConfig>,
    is_revoked: Arc<IsRevoked>,
}

/// Returns whether a certificate of an agent is revoked.
type IsRevoked = dyn Fn(&CertificateDer<'_>) -> bool + Send + Sync;

impl AgentTls {
    /// `config` verifies that the certificate belongs to the node, which is the server name of the connection.
    /// Open connections are closed before their next request if `is_revoked` returns true for their certificate.
    pub fn new(
        config: Arc<ClientConfig>,
        is_revoked: impl Fn(&CertificateDer<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            config,
            is_revoked: Arc::new(is_revoked),
        }
    }
}

impl fmt::Debug for AgentTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentTls")
    }
}

/// Connector for all kinds of upstreams.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    /// `None` if this process has no certificate for agents.
    tls: Option<AgentTls>,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(timeout: Duration, tls: Option<AgentTls>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        tcp.set_keepalive_interval(Some(TCP_KEEPALIVE / 3));
        tcp.set_keepalive_retries(Some(3));
        Self { tcp, tls, timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let limit = self.timeout;
        if uri.scheme_str() == Some(UNIX_SCHEME) {
            return Box::pin(async move {
                let path = hex::decode(uri.host().unwrap_or_default())?;
                let path = String::from_utf8(path)?;
                let stream = in_time(limit, UnixStream::connect(path)).await?;
                Ok(Stream::Unix(TokioIo::new(stream)))
            });
        }
        if uri.scheme_str() == Some(NODE_SCHEME) {
            let (mut tcp, tls) = (self.tcp.clone(), self.tls.clone());
            return Box::pin(in_time(limit, async move {
                let both = String::from_utf8(hex::decode(uri.host().unwrap_or_default())?)?;
                let (authority, node) = both.split_once(SEPARATOR).unwrap_or_default();
                let name = ServerName::try_from(node.to_owned())?;
                let tls = tls.ok_or("this process has no client certificate for the agents of the fleet")?;
                let stream = tcp.call(format!("http://{authority}").parse()?).await?;
                let connector = TlsConnector::from(tls.config);
                let connected = connector.connect(name, stream.into_inner()).await;
                let stream = connected.inspect_err(|err| {
                    if is_revocation(err) {
                        info!(
                            node,
                            address = authority,
                            reason = REVOKED,
                            "connection to an agent refused"
                        );
                    }
                })?;
                let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
                let certificate = certificates.first().ok_or("the agent has no certificate")?;
                Ok::<_, BoxError>(Stream::Tls(Box::new(TlsConnection {
                    certificate: certificate.clone().into_owned(),
                    node: node.to_owned(),
                    address: authority.to_owned(),
                    stream: TokioIo::new(stream),
                    is_revoked: tls.is_revoked,
                })))
            }));
        }
        let connecting = self.tcp.call(uri);
        Box::pin(async move { Ok(Stream::Tcp(in_time(limit, connecting).await?)) })
    }
}

async fn in_time<T, E>(limit: Duration, connecting: impl Future<Output = Result<T, E>>) -> Result<T, BoxError>
where
    E: Into<BoxError>,
{
    match tokio::time::timeout(limit, connecting).await {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(_) => Err(ConnectUpstreamError::Timeout(limit).into()),
    }
}

/// Connection to an upstream.
pub(super) enum Stream {
    Tcp(TokioIo<TcpStream>),
    Tls(Box<TlsConnection>),
    Unix(TokioIo<UnixStream>),
}

/// Connection to an agent.
pub(super) struct TlsConnection {
    stream: TokioIo<TlsStream<TcpStream>>,
    /// Certificate of the agent. The connection may be older than its revocation.
    certificate: CertificateDer<'static>,
    is_revoked: Arc<IsRevoked>,
    node: String,
    address: String,
}

impl TlsConnection {
    fn check_not_revoked(&self) -> io::Result<()> {
        if !(self.is_revoked)(&self.certificate) {
            return Ok(());
        }
        let (node, address) = (self.node.as_str(), self.address.as_str());
        info!(node, address, reason = REVOKED, "connection to an agent closed");
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, REVOKED))
    }
}

/// Returns whether a handshake failed because the certificate of the agent is revoked.
fn is_revocation(err: &io::Error) -> bool {
    let source = err.get_ref().and_then(|source| source.downcast_ref());
    matches!(
        source,
        Some(rustls::Error::InvalidCertificate(CertificateError::Revoked))
    )
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(connection) => Pin::new(&mut connection.stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(connection) => {
                connection.check_not_revoked()?;
                Pin::new(&mut connection.stream).poll_write(context, bytes)
            }
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(connection) => Pin::new(&mut connection.stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(connection) => Pin::new(&mut connection.stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_base_urls() {
        let upstream: Upstream = "http://127.0.0.1:7780".parse().expect("a base URL");
        assert_eq!(upstream.to_string(), "http://127.0.0.1:7780");
        assert_eq!("http://127.0.0.1:7780/".parse(), Ok(upstream));
        for bad in [
            "",
            "127.0.0.1:7780",
            "https://a:1",
            "http://a/b",
            "http://u@a",
            "/x",
            "http://",
        ] {
            assert!(bad.parse::<Upstream>().is_err(), "{bad}");
        }
    }

    #[test]
    fn url_of_a_node_is_http_or_https() {
        let of = |url: &str| Upstream::of_node(url, "mini-1").map(|upstream| upstream.to_string());
        assert_eq!(of("http://10.0.0.7:7500").as_deref(), Ok("http://10.0.0.7:7500"));
        assert_eq!(
            of("https://10.0.0.7:7500/").as_deref(),
            Ok("https://10.0.0.7:7500 (node mini-1)")
        );
        for bad in [
            "https://",
            "https://a/b",
            "https://u@a",
            "https://http://a",
            "ftp://a",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn connections_of_nodes_with_one_address_are_distinct() {
        let uri = |node: &str| {
            let upstream = Upstream::of_node("https://10.0.0.7:7500", node).expect("a URL");
            upstream.uri(&PathAndQuery::from_static("/"))
        };
        assert_ne!(uri("mini-1"), uri("mini-2"));
    }

    #[test]
    fn socket_path_round_trips_as_authority() {
        let upstream = Upstream::unix("/tmp/a dir/ü@b.sock");
        let uri = upstream.uri(&PathAndQuery::from_static("/v1/models?x=1"));
        assert_eq!(uri.path_and_query().expect("a path").as_str(), "/v1/models?x=1");
        let path = hex::decode(uri.host().expect("a host")).expect("hex");
        assert_eq!(path, "/tmp/a dir/ü@b.sock".as_bytes());
    }
}
