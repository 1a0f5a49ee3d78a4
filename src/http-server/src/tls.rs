//! TLS handshakes of servers: a timeout, a maximum number, and an answer to clients that send plain
//! HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{accept, carry, responder, without_delay};

/// Timeout of a handshake.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent handshakes of a server. Further clients wait.
const MAX_HANDSHAKES: usize = 256;
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
pub enum HandshakeError {
    #[error("the client closed the connection")]
    Closed,
    #[error("the client sent plain HTTP")]
    PlainHttp,
    #[error("the client did not finish within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("{0}")]
    Failed(io::Error),
}

/// Acceptor with a maximum number of concurrent handshakes. Clones share it.
#[derive(Clone)]
pub struct Handshakes {
    acceptor: TlsAcceptor,
    places: Arc<Semaphore>,
}

impl Handshakes {
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self {
            acceptor: TlsAcceptor::from(config),
            places: Arc::new(Semaphore::new(MAX_HANDSHAKES)),
        }
    }

    /// Performs the handshake of a connection.
    pub async fn accept(&self, mut stream: TcpStream) -> Result<TlsStream<TcpStream>, HandshakeError> {
        let _place = self.places.acquire().await;
        let handshake = async {
            let mut first = [0];
            match stream.peek(&mut first).await {
                Ok(0) => Err(HandshakeError::Closed),
                // Methods of HTTP are upper case. A TLS record starts with a control character.
                Ok(_) if first[0].is_ascii_uppercase() => Err(HandshakeError::PlainHttp),
                Ok(_) => Ok(()),
                Err(err) => Err(HandshakeError::Failed(err)),
            }
        };
        match tokio::time::timeout(TIMEOUT, handshake).await {
            Ok(Ok(())) => {}
            Ok(Err(err)) => {
                if matches!(err, HandshakeError::PlainHttp) {
                    // The client may already be gone.
                    let _ = answer_plain(&mut stream).await;
                }
                return Err(err);
            }
            Err(_) => return Err(HandshakeError::Timeout),
        }
        match tokio::time::timeout(TIMEOUT, self.acceptor.accept(stream)).await {
            Ok(outcome) => outcome.map_err(HandshakeError::Failed),
            Err(_) => Err(HandshakeError::Timeout),
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
            let Some(outcome) = stop.run_until_cancelled(handshakes.accept(stream)).await else {
                return;
            };
            match outcome {
                Ok(stream) => {
                    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
                    let peer = PeerCertificates(shown.to_vec().into());
                    carry(stream, responder(router, Some(from), Some(peer)), &stop).await;
                }
                // Checks of the port open and close a connection.
                Err(HandshakeError::Closed) => {}
                Err(err) => info!(client = %from, error = %err, "TLS handshake failed"),
            }
        }
    };
    accept(without_delay(listener), &stop, connection).await;
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;

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
        let (outcome, read) = tokio::join!(handshakes.accept(server), client.read_to_string(&mut answer));
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
            let outcome = handshakes.accept(server).await;
            assert!(matches!(outcome, Err(HandshakeError::Timeout)), "{outcome:?}");
        }
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
