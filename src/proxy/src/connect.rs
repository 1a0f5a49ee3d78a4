//! Destinations of requests, and connections to them.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tower::Service;

use rooflet_base::local_network::explain;

/// Idle time after which a TCP connection is probed, to detect hosts that disappeared.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// Scheme of URIs that carry a socket path to the connector. They are used only in this module.
const UNIX_SCHEME: &str = "unix";

/// Server to which requests are forwarded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Upstream {
    /// Plain HTTP over TCP.
    Tcp(Authority),
    /// Plain HTTP over a Unix socket.
    Unix(Utf8PathBuf),
}

/// Reason why a text is not the base URL of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a base URL such as http://10.0.0.7:7780: scheme http, a host, no path")]
pub struct ParseUpstreamError(String);

impl Upstream {
    pub fn unix(path: impl AsRef<Utf8Path>) -> Self {
        Self::Unix(path.as_ref().to_owned())
    }

    /// Returns the URI that identifies the upstream in the connection pool and the connector.
    pub(super) fn uri(&self, path: &PathAndQuery) -> Uri {
        let (scheme, authority) = match self {
            Self::Tcp(authority) => (Scheme::HTTP, authority.clone()),
            Self::Unix(socket) => (
                Scheme::from_str(UNIX_SCHEME).expect("a valid scheme"),
                // A path can contain characters that an authority cannot, so it is hexadecimal. An
                // empty path, which no socket has, becomes a name that cannot be decoded, so that
                // the connection fails.
                Authority::from_str(&hex::encode(socket.as_str())).unwrap_or(Authority::from_static("x")),
            ),
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
            Self::Tcp(authority) => {
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
            Upstream::Tcp(authority) => authority.host(),
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

/// Connector for both kinds of upstreams.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        tcp.set_keepalive_interval(Some(TCP_KEEPALIVE / 3));
        tcp.set_keepalive_retries(Some(3));
        Self { tcp, timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Box<dyn std::error::Error + Send + Sync>;
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
        let connecting = self.tcp.call(uri);
        Box::pin(async move { Ok(Stream::Tcp(in_time(limit, connecting).await?)) })
    }
}

async fn in_time<T, E>(
    limit: Duration,
    connecting: impl Future<Output = Result<T, E>>,
) -> Result<T, Box<dyn std::error::Error + Send + Sync>>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match tokio::time::timeout(limit, connecting).await {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(_) => Err(ConnectUpstreamError::Timeout(limit).into()),
    }
}

/// Connection to either kind of upstream.
pub(super) enum Stream {
    Tcp(TokioIo<TcpStream>),
    Unix(TokioIo<UnixStream>),
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
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
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
    fn socket_path_round_trips_as_authority() {
        let upstream = Upstream::unix("/tmp/a dir/ü@b.sock");
        let uri = upstream.uri(&PathAndQuery::from_static("/v1/models?x=1"));
        assert_eq!(uri.path_and_query().expect("a path").as_str(), "/v1/models?x=1");
        let path = hex::decode(uri.host().expect("a host")).expect("hex");
        assert_eq!(path, "/tmp/a dir/ü@b.sock".as_bytes());
    }
}
