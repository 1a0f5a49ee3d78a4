//! TLS handshakes of servers: a timeout, a maximum number, and an answer to clients that send plain
//! HTTP. Renegotiation does not exist: rustls rejects it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::info;

use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;

use crate::log_limit::LogLimit;
use crate::places::Places;
use crate::{accept, carry, responder, without_delay};

/// Timeout of a handshake.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent handshakes of a server. Further clients displace others.
const MAX_HANDSHAKES: usize = 1024;
/// Limits of the request that is read and discarded, so that the client receives the answer.
const MAX_DISCARDED_BYTES: u64 = 64 << 10;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
const PLAIN_ANSWER: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
     connection: close\r\ncontent-length: 62\r\n\r\n\
     This port accepts only HTTPS. Use https:// instead of http://\n";

/// Certificates that the client of a connection presented and the handshake verified; the client's
/// own certificate is the first. An extension of requests.
#[derive(Debug, Clone)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// Reason why a connection was not secured.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("the client closed the connection")]
    Closed,
    #[error("the client sent plain HTTP")]
    PlainHttp,
    #[error("the client did not finish within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("too many handshakes are unfinished, most of them from the network of this client")]
    Displaced,
    #[error("{0}")]
    Failed(io::Error),
}

/// Acceptor with a maximum number of concurrent handshakes. Clones share it.
#[derive(Clone)]
pub struct Handshakes {
    acceptor: TlsAcceptor,
    places: Places,
    log: Arc<Mutex<LogLimit>>,
}

impl Handshakes {
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self::with_places(config, MAX_HANDSHAKES)
    }

    fn with_places(config: Arc<ServerConfig>, places: usize) -> Self {
        Self {
            acceptor: TlsAcceptor::from(config),
            places: Places::new(places),
            log: Arc::new(Mutex::new(LogLimit::new(Clock::System.instant()))),
        }
    }

    /// Performs the handshake of a connection. Returns `None` if it failed, which is logged.
    pub async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        // An error means that the client has closed the connection.
        let client = stream.peer_addr().ok()?;
        match self.secure(stream, client.ip()).await {
            Ok(stream) => Some(stream),
            // Checks of the port open and close a connection.
            Err(HandshakeError::Closed) => None,
            Err(err) => {
                let written = lock(&self.log).admit(Clock::System.instant());
                if let Some(suppressed) = written {
                    info!(client = %client, error = %err, suppressed, "TLS handshake failed");
                }
                None
            }
        }
    }

    async fn secure(
        &self,
        stream: TcpStream,
        client: IpAddr,
    ) -> Result<TlsStream<TcpStream>, HandshakeError> {
        let place = self.places.take(client);
        tokio::select! {
            outcome = tokio::time::timeout(TIMEOUT, self.shake_hands(stream)) => {
                outcome.unwrap_or(Err(HandshakeError::Timeout))
            }
            () = place.displaced() => Err(HandshakeError::Displaced),
        }
    }

    async fn shake_hands(&self, mut stream: TcpStream) -> Result<TlsStream<TcpStream>, HandshakeError> {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(0) => Err(HandshakeError::Closed),
            // Methods of HTTP are upper case. A TLS record starts with a control character.
            Ok(_) if first[0].is_ascii_uppercase() => {
                // The client may already be gone.
                let _ = answer_plain(&mut stream).await;
                Err(HandshakeError::PlainHttp)
            }
            Ok(_) => self.acceptor.accept(stream).await.map_err(HandshakeError::Failed),
            Err(err) => Err(HandshakeError::Failed(err)),
        }
    }
}

async fn answer_plain(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(PLAIN_ANSWER.as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(MAX_DISCARDED_BYTES);
    let discarded = async { tokio::io::copy(&mut rest, &mut tokio::io::sink()).await };
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, discarded).await;
    Ok(())
}

/// Serves `router` over TLS until `stop`. Then no connection is accepted and in-flight responses
/// may finish. Handlers receive the client's address as `ConnectInfo`, and the client's certificates
/// as [`PeerCertificates`].
pub async fn serve_tls(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    router: Router,
    stop: CancellationToken,
) {
    let handshakes = Handshakes::new(config);
    let connection = |stream: TcpStream, from: SocketAddr| {
        let (handshakes, router, stop) = (handshakes.clone(), router.clone(), stop.clone());
        async move {
            let Some(Some(stream)) = stop.run_until_cancelled(handshakes.accept(stream)).await else {
                return;
            };
            let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let peer = PeerCertificates(shown.to_vec().into());
            carry(stream, responder(router, Some(from), Some(peer)), &stop).await;
        }
    };
    accept(without_delay(listener), &stop, connection).await;
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;
    use rustls::crypto::ring;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Returns a server's configuration with a self-signed certificate.
    fn config() -> Arc<ServerConfig> {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("supported versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key);
        Arc::new(config.expect("a key for the certificate"))
    }

    /// Returns both ends of a connection.
    async fn connect() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let client = TcpStream::connect(listener.local_addr().expect("bound"));
        let (client, accepted) = tokio::join!(client, listener.accept());
        (client.expect("connected"), accepted.expect("accepted").0)
    }

    #[tokio::test]
    async fn plain_http_is_answered() {
        let (mut client, server) = connect().await;
        client
            .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n\r\n")
            .await
            .expect("sent");
        let handshakes = Handshakes::new(config());
        let mut answer = String::new();
        let handshake = handshakes.secure(server, CLIENT);
        let (outcome, read) = tokio::join!(handshake, client.read_to_string(&mut answer));
        read.expect("an answer");
        assert_eq!(answer, PLAIN_ANSWER);
        assert!(matches!(outcome, Err(HandshakeError::PlainHttp)), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn handshake_that_does_not_end_is_aborted() {
        let handshakes = Handshakes::new(config());
        for sent in [&b""[..], b"\x16\x03\x01"] {
            let (mut client, server) = connect().await;
            client.write_all(sent).await.expect("sent");
            let outcome = handshakes.secure(server, CLIENT).await;
            assert!(matches!(outcome, Err(HandshakeError::Timeout)), "{outcome:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_clients_do_not_delay_another_client() {
        let handshakes = Handshakes::with_places(config(), 2);
        let (_first, server) = connect().await;
        let mut oldest = pin!(handshakes.secure(server, CLIENT));
        assert!(poll!(oldest.as_mut()).is_pending());
        let (_second, server) = connect().await;
        let mut newer = pin!(handshakes.secure(server, CLIENT));
        assert!(poll!(newer.as_mut()).is_pending());

        let (mut client, server) = connect().await;
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
            .await
            .expect("sent");
        let mut answer = String::new();
        let handshake = handshakes.secure(server, [192, 0, 2, 7].into());
        let answered = async { tokio::join!(handshake, client.read_to_string(&mut answer)) };
        let answered = tokio::time::timeout(TIMEOUT / 2, answered).await;
        answered.expect("no place is awaited").1.expect("an answer");
        assert_eq!(answer, PLAIN_ANSWER);
        let outcome = oldest.await;
        assert!(matches!(outcome, Err(HandshakeError::Displaced)), "{outcome:?}");
        assert!(poll!(newer.as_mut()).is_pending());
    }

    #[test]
    fn plain_answer_has_the_stated_length() {
        let (head, body) = PLAIN_ANSWER.split_once("\r\n\r\n").expect("a head and a body");
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{}",
            body.len()
        );
    }
}
