//! Connections of every HTTP server in the binary: maximum number, timeouts, and graceful shutdown.
//!
//! Invariants:
//! - A connection whose client sends no request, or reads no response, within a timeout is closed.
//! - After `stop`, no new connection is accepted, and in-flight responses finish.

mod audit;
mod denial_limits;
mod guesses;
mod log_limit;
mod places;
mod stall;
mod tls;
mod unread;

pub use audit::{DenialAudit, Denied, SUPPRESSED, audit_text};
pub use denial_limits::DenialLimits;
pub use guesses::Guesses;
pub use log_limit::LogLimit;
pub use tls::{Handshakes, PeerCertificates, serve_tls};

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::serve::{Listener, ListenerExt as _};
use axum::{BoxError, Router};
use futures::future::BoxFuture;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use tracing::debug;

use self::stall::Unstalled;
use self::unread::{Bodies, LOOKS, Watched};

/// Maximum number of connections. Agents, controllers and client pools hold one or two each.
/// Further connections wait until others close.
const MAX_CONNECTIONS: usize = 16_384;
/// Timeout for the head of a request, from the start of the connection or the end of the previous
/// response. Clients close idle connections earlier (Go and Rust after 90 s), so no request arrives
/// on a connection that is being closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout for a client that reads nothing, and over HTTP/2 for each response. Unread data is held
/// in memory.
const WRITE_TIMEOUT: Duration = Duration::from_secs(120);
/// Concurrent requests on one HTTP/2 connection: client-go opens one stream per watch.
const HTTP2_STREAMS_MAX: u32 = 1_000;
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);

/// Serves `router` until `stop`. Then no connection is accepted and in-flight responses may finish.
/// Handlers receive the client's address as [`ConnectInfo`].
pub async fn serve_tcp(listener: TcpListener, router: Router, stop: CancellationToken) {
    serve(without_delay(listener), router, Some, stop).await;
}

/// Disables Nagle's algorithm, so that tokens and short responses are sent immediately.
pub fn without_delay(listener: TcpListener) -> impl Listener<Io = TcpStream, Addr = SocketAddr> {
    listener.tap_io(|stream| {
        if let Err(err) = stream.set_nodelay(true) {
            debug!(error = %err, "failed to set TCP_NODELAY");
        }
    })
}

/// Like [`serve_tcp`], without client addresses.
pub async fn serve_unix(listener: UnixListener, router: Router, stop: CancellationToken) {
    serve(listener, router, |_| None, stop).await;
}

async fn serve<L: Listener>(
    listener: L,
    router: Router,
    address: impl Fn(L::Addr) -> Option<SocketAddr>,
    stop: CancellationToken,
) {
    let connection = |io, from| {
        let (answer, stop) = (responder(router.clone(), address(from), None), stop.clone());
        async move { carry(io, answer, &stop).await }
    };
    accept(listener, &stop, connection).await;
}

/// Returns the function that answers the requests of one connection.
fn responder(
    router: Router,
    from: Option<SocketAddr>,
    peer: Option<PeerCertificates>,
) -> impl Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> {
    move |request| {
        let mut request = request.map(Body::new);
        if let Some(from) = from {
            request.extensions_mut().insert(ConnectInfo(from));
        }
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        let answer = router.clone().oneshot(request);
        Box::pin(async move {
            let Ok(answer) = answer.await;
            answer
        })
    }
}

/// Accepts connections until `stop`, each in its own task. Returns when the last connection has
/// ended.
pub async fn accept<L: Listener, F>(
    mut listener: L,
    stop: &CancellationToken,
    connection: impl Fn(L::Io, L::Addr) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    loop {
        let place = stop.run_until_cancelled(Arc::clone(&places).acquire_owned());
        let Some(Ok(place)) = place.await else { break };
        let Some((io, from)) = stop.run_until_cancelled(listener.accept()).await else {
            break;
        };
        let connection = connection(io, from);
        connections.spawn(async move {
            let _place = place;
            connection.await;
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Serves one connection until the client closes it, a timeout expires, or `stop`: then in-flight
/// responses finish.
pub async fn carry<I, A, F, B>(io: I, answer: A, stop: &CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let asked = AtomicBool::new(false);
    let bodies = Arc::new(Bodies::default());
    let service = service_fn(|request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        // HTTP/1.1 has one response at a time, so a client that reads nothing stalls the
        // connection.
        let bodies = (request.version() == Version::HTTP_2).then(|| Arc::clone(&bodies));
        let answer = answer(request);
        async move {
            let answer = answer.await.map(|body| match bodies {
                Some(bodies) => bodies.watch(body),
                None => Watched::Plain(Box::pin(body)),
            });
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .keep_alive_interval(HTTP2_PING_INTERVAL);
    let mut connection =
        pin!(builder.serve_connection(TokioIo::new(Unstalled::new(io, WRITE_TIMEOUT)), service));
    // hyper's timer starts only after it has detected the HTTP version from the first bytes.
    let mut silence = pin!(tokio::time::sleep(HEAD_TIMEOUT));
    let (mut is_stopping, mut is_silent) = (false, true);
    let mut looks = tokio::time::interval(WRITE_TIMEOUT / LOOKS);
    let outcome = loop {
        tokio::select! {
            outcome = connection.as_mut() => break outcome,
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = looks.tick() => bodies.look(),
            () = silence.as_mut(), if is_silent => {
                is_silent = false;
                if !asked.load(Ordering::Relaxed) {
                    return debug!("connection closed without a request");
                }
            }
        }
    };
    if let Err(err) = outcome {
        debug!(error = %err, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::sync::mpsc;
    use tokio::sync::oneshot::{self, error::TryRecvError};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n";
    const SECOND: Duration = Duration::from_secs(1);

    fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        TaskTracker::new().spawn(task)
    }

    /// Returns the client side of a connection, and the task that serves it. The response to a
    /// request follows after one second.
    fn connect(stop: &CancellationToken) -> (DuplexStream, JoinHandle<()>) {
        let (client, server) = tokio::io::duplex(4096);
        let stop = stop.clone();
        let answer = |_request| async {
            tokio::time::sleep(SECOND).await;
            Response::new("done".to_owned())
        };
        (client, spawn(async move { carry(server, answer, &stop).await }))
    }

    /// Returns the bytes that the server sends before it closes the connection in time.
    async fn rest(client: &mut DuplexStream, limit: Duration) -> Option<String> {
        let mut text = String::new();
        let read = timeout(limit, client.read_to_string(&mut text)).await;
        read.ok().map(|read| {
            read.expect("text");
            text
        })
    }

    #[tokio::test(start_paused = true)]
    async fn closes_connection_without_complete_request_head() {
        let stop = CancellationToken::new();
        for sent in ["", "GET", "GET / HTTP/1.1\r\nhost: h\r\nx-slow: "] {
            let (mut client, _served) = connect(&stop);
            client.write_all(sent.as_bytes()).await.expect("sent");
            assert_eq!(rest(&mut client, HEAD_TIMEOUT - SECOND).await, None, "{sent:?}");
            assert_eq!(
                rest(&mut client, 2 * SECOND).await.as_deref(),
                Some(""),
                "{sent:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_idle_connection_within_head_timeout() {
        let stop = CancellationToken::new();
        let (mut client, _served) = connect(&stop);
        let mut read = [0; 4096];
        for _ in 0..3 {
            client.write_all(REQUEST).await.expect("sent");
            let bytes = client.read(&mut read).await.expect("an answer");
            assert!(read[..bytes].starts_with(b"HTTP/1.1 200"), "{bytes}");
            tokio::time::sleep(HEAD_TIMEOUT - SECOND).await;
        }
        assert_eq!(rest(&mut client, 2 * SECOND).await.as_deref(), Some(""));
    }

    #[tokio::test(start_paused = true)]
    async fn closes_connection_of_stalled_client_but_not_of_slow_client() {
        const LENGTH: usize = 60_000;
        for pause in [WRITE_TIMEOUT / 2, 2 * WRITE_TIMEOUT] {
            let (mut client, server) = tokio::io::duplex(4096);
            let answer = |_request| async { Response::new("x".repeat(LENGTH)) };
            let served = spawn(async move { carry(server, answer, &CancellationToken::new()).await });
            client.write_all(REQUEST).await.expect("sent");
            let (mut whole, mut part) = (0, [0; 4096]);
            while whole < LENGTH {
                tokio::time::sleep(pause).await;
                match client.read(&mut part).await.expect("read") {
                    0 => break,
                    bytes => whole += bytes,
                }
            }
            assert_eq!(whole >= LENGTH, pause < WRITE_TIMEOUT, "{pause:?}");
            drop(client);
            served.await.expect("served");
        }
    }

    /// Notified when a response ends.
    struct Over(Option<oneshot::Sender<()>>);

    impl Drop for Over {
        fn drop(&mut self) {
            if let Some(over) = self.0.take() {
                let _ = over.send(());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn aborts_unread_http2_response_but_not_idle_response() {
        let (client, server) = tokio::io::duplex(1 << 20);
        let (over_tx, mut over_rx) = mpsc::unbounded_channel();
        let answer = move |request: Request<Incoming>| {
            let (end_tx, end_rx) = oneshot::channel();
            drop(over_tx.send((request.uri().path().to_owned(), end_rx)));
            let over = Over(Some(end_tx));
            let is_silent = request.uri().path() == "/silent";
            let pieces = futures::stream::unfold(over, move |over| async move {
                if is_silent {
                    std::future::pending::<()>().await;
                }
                Some((Ok::<_, Infallible>(vec![b'x'; 16 << 10]), over))
            });
            async move { Response::new(Body::from_stream(pieces)) }
        };
        let stop = CancellationToken::new();
        let _served = spawn(async move { carry(server, answer, &stop).await });
        let (mut asker, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(64 << 10)
            .initial_connection_window_size(1 << 20)
            .handshake::<_, Body>(TokioIo::new(client))
            .await
            .expect("HTTP/2");
        let _carried = spawn(async move { connection.await.expect("carried") });
        let mut ask = |path: &str| {
            let request = Request::builder().uri(format!("http://h{path}"));
            asker.send_request(request.body(Body::empty()).expect("valid"))
        };
        let _unread = ask("/loud").await.expect("an answer");
        let (_, loud_ended) = over_rx.recv().await.expect("asked");
        let _silent = ask("/silent").await.expect("an answer");
        let (_, mut silent_ended) = over_rx.recv().await.expect("asked");
        let mut loud_ended = pin!(loud_ended);
        let early = timeout(WRITE_TIMEOUT - SECOND, loud_ended.as_mut()).await;
        assert!(early.is_err(), "not aborted before the timeout");
        let ended = timeout(WRITE_TIMEOUT / 2, loud_ended).await;
        ended.expect("in time").expect("reported");
        tokio::time::sleep(3 * WRITE_TIMEOUT).await;
        let stays = silent_ended.try_recv();
        assert!(matches!(stays, Err(TryRecvError::Empty)), "{stays:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_finishes_in_flight_responses_without_delay() {
        let stop = CancellationToken::new();
        let (mut busy, busy_served) = connect(&stop);
        let (mut idle, idle_served) = connect(&stop);
        busy.write_all(REQUEST).await.expect("sent");
        tokio::time::sleep(SECOND / 2).await;
        stop.cancel();
        assert_eq!(rest(&mut idle, SECOND / 4).await.as_deref(), Some(""));
        let answer = rest(&mut busy, SECOND).await.expect("closed");
        assert!(answer.ends_with("done"), "{answer}");
        busy_served.await.expect("served");
        idle_served.await.expect("served");
    }

    #[tokio::test]
    async fn handlers_receive_client_address_and_serving_ends_after_last_response() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let to = listener.local_addr().expect("bound");
        let who = get(|ConnectInfo(from): ConnectInfo<SocketAddr>| async move { from.to_string() });
        let stop = CancellationToken::new();
        let served = spawn(serve_tcp(listener, Router::new().route("/", who), stop.clone()));
        let mut client = TcpStream::connect(to).await.expect("accepted");
        let own = client.local_addr().expect("bound").to_string();
        client.write_all(REQUEST).await.expect("sent");
        let mut read = [0; 4096];
        let bytes = client.read(&mut read).await.expect("an answer");
        let text = String::from_utf8_lossy(&read[..bytes]);
        assert!(text.ends_with(&own), "{text} {own}");
        stop.cancel();
        served
            .await
            .expect("serving ends although the client stays connected");
    }
}
