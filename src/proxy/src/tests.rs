use super::*;
use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, StatusCode};
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::BodyExt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use rooflet_base::task::Tasks;
use rooflet_testing::TempDir;
use rooflet_testing::within;

async fn serve(tasks: &Tasks, router: Router) -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let upstream = format!("http://{}", listener.local_addr().expect("bound"));
    tasks.spawn_detached(async move {
        axum::serve(listener, router).await.expect("serves");
    });
    upstream.parse().expect("a base URL")
}

fn request(body: Body) -> Request {
    Request::builder().method("POST").body(body).expect("valid")
}

fn path(path: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(path)
}

async fn text(response: Response) -> String {
    let bytes = within(response.into_body().collect())
        .await
        .expect("a whole body")
        .to_bytes();
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Upstream that returns the received request.
async fn echo(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let host = parts.headers[HOST].to_str().expect("ASCII").to_owned();
    let expect = parts.headers.contains_key("expect");
    let body = body.collect().await.expect("a body").to_bytes();
    let text = format!(
        "{} {} host={host} expect={expect} body={}",
        parts.method,
        parts.uri,
        String::from_utf8_lossy(&body)
    );
    Response::builder()
        .status(StatusCode::IM_A_TEAPOT)
        .header("connection", "x-secret")
        .header("x-secret", "1")
        .header("x-kept", "2")
        .body(text.into())
        .expect("valid")
}

#[tokio::test]
async fn rewrites_request_and_keeps_response() {
    let tasks = Tasks::new();
    let upstream = serve(&tasks, Router::new().fallback(any(echo))).await;
    let mut request = request(Body::from("hello"));
    *request.uri_mut() = "/replicas/default/r/proxy/v1/x?y=1".parse().expect("a path");
    request
        .headers_mut()
        .insert("expect", HeaderValue::from_static("100-continue"));
    let response = within(Proxy::new().forward(request, &upstream, &path("/v1/x?y=1")))
        .await
        .expect("answered");
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(response.headers()["x-kept"], "2");
    assert!(!response.headers().contains_key("x-secret"));
    let authority = upstream.to_string().replace("http://", "");
    assert_eq!(
        text(response).await,
        format!("POST /v1/x?y=1 host={authority} expect=false body=hello")
    );
}

#[tokio::test]
async fn forwards_to_unix_socket() {
    let tasks = Tasks::new();
    let directory = TempDir::new();
    let socket = directory.path().join("w.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    tasks.spawn_detached(async move {
        axum::serve(listener, Router::new().fallback(any(echo)))
            .await
            .expect("serves");
    });
    let proxy = Proxy::new();
    for _ in 0..2 {
        let response =
            within(proxy.forward(request(Body::empty()), &Upstream::unix(&socket), &path("/ready")))
                .await
                .expect("answered");
        assert_eq!(
            text(response).await,
            "POST /ready host=localhost expect=false body="
        );
    }
}

/// Upstream that sends the test's bytes and reports when the client disconnects.
fn streaming() -> (Router, mpsc::Sender<Result<Bytes, std::io::Error>>) {
    let (chunk_tx, chunk_rx) = mpsc::channel(1);
    let chunk_rx = Arc::new(Mutex::new(Some(chunk_rx)));
    let handler = move || async move {
        let chunk_rx = chunk_rx.lock().expect("not poisoned").take().expect("asked once");
        Body::from_stream(ReceiverStream::new(chunk_rx))
    };
    (Router::new().route("/stream", post(handler)), chunk_tx)
}

#[tokio::test]
async fn forwards_chunks_immediately() {
    let tasks = Tasks::new();
    let (router, chunk_tx) = streaming();
    let upstream = serve(&tasks, router).await;
    let response = within(Proxy::new().forward(request(Body::empty()), &upstream, &path("/stream")))
        .await
        .expect("the head arrives before the first chunk");
    let mut body = response.into_body().into_data_stream();
    for chunk in ["data: 1\n\n", "data: 2\n\n"] {
        chunk_tx.send(Ok(Bytes::from(chunk))).await.expect("read");
        let got = within(body.next()).await.expect("a chunk").expect("no error");
        assert_eq!(got, chunk);
    }
    drop(chunk_tx);
    assert!(within(body.next()).await.is_none());
}

#[tokio::test]
async fn dropping_the_response_cancels_the_upstream() {
    let tasks = Tasks::new();
    let (router, chunk_tx) = streaming();
    let upstream = serve(&tasks, router).await;
    let response = within(Proxy::new().forward(request(Body::empty()), &upstream, &path("/stream")))
        .await
        .expect("answered");
    drop(response);
    within(chunk_tx.closed()).await;
}

#[tokio::test]
async fn dropping_the_future_cancels_the_upstream() {
    struct Dropped(#[expect(dead_code, reason = "the drop is observed")] mpsc::Sender<()>);
    let tasks = Tasks::new();
    let (begun_tx, mut begun_rx) = mpsc::channel(1);
    let (alive_tx, mut alive_rx) = mpsc::channel(1);
    let alive = Arc::new(Mutex::new(Some(alive_tx)));
    let handler = move || async move {
        let _dropped = Dropped(alive.lock().expect("not poisoned").take().expect("asked once"));
        begun_tx.send(()).await.expect("the test waits");
        std::future::pending::<()>().await;
    };
    let upstream = serve(&tasks, Router::new().route("/hang", post(handler))).await;
    let proxy = Proxy::new();
    let hang = path("/hang");
    let forward = proxy.forward(request(Body::from("{}")), &upstream, &hang);
    tokio::select! {
        _ = forward => panic!("the upstream never responds"),
        begun = within(begun_rx.recv()) => assert_eq!(begun, Some(())),
    }
    assert_eq!(within(alive_rx.recv()).await, None, "the handler was dropped");
}

#[tokio::test]
async fn disconnecting_client_cancels_the_upstream() {
    let tasks = Tasks::new();
    let (router, chunk_tx) = streaming();
    let upstream = serve(&tasks, router).await;
    let proxy = Proxy::new();
    let front = Router::new().fallback(any(move |request: Request| async move {
        proxy
            .forward(request, &upstream, &path("/stream"))
            .await
            .expect("answered")
    }));
    let front = serve(&tasks, front).await;
    let response = within(Proxy::new().forward(request(Body::from("{}")), &front, &path("/")))
        .await
        .expect("answered");
    chunk_tx.send(Ok(Bytes::from("x"))).await.expect("read");
    let mut body = response.into_body().into_data_stream();
    assert!(within(body.next()).await.is_some());
    drop(body);
    within(chunk_tx.closed()).await;
}

#[tokio::test]
async fn truncated_response_is_an_error() {
    let tasks = Tasks::new();
    let (router, chunk_tx) = streaming();
    let upstream = serve(&tasks, router).await;
    let response = within(Proxy::new().forward(request(Body::empty()), &upstream, &path("/stream")))
        .await
        .expect("answered");
    chunk_tx.send(Ok(Bytes::from("half"))).await.expect("read");
    chunk_tx
        .send(Err(std::io::Error::other("the engine failed")))
        .await
        .expect("read");
    assert!(within(response.into_body().collect()).await.is_err());
}

#[tokio::test]
async fn distinguishes_refused_connection_from_closed_one() {
    let tasks = Tasks::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let gone = Upstream::Tcp(address.to_string().parse().expect("an authority"));
    let err = within(Proxy::new().forward(request(Body::empty()), &gone, &path("/")))
        .await
        .expect_err("no listener");
    assert!(
        err.nothing_was_sent() && err.reason() == "ConnectFailed",
        "{err:?}"
    );

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let closing = format!("http://{}", listener.local_addr().expect("bound"))
        .parse()
        .expect("a base URL");
    tasks.spawn_detached(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 1024])
            .await
            .expect("a request");
    });
    let err = within(Proxy::new().forward(request(Body::from("x")), &closing, &path("/")))
        .await
        .expect_err("it hangs up");
    assert!(
        !err.nothing_was_sent() && err.reason() == "UpstreamClosed",
        "{err:?}"
    );
}

#[tokio::test]
async fn broken_request_body_is_a_client_error() {
    let tasks = Tasks::new();
    let upstream = serve(&tasks, Router::new().fallback(any(echo))).await;
    let broken = Body::from_stream(futures::stream::iter([
        Ok(Bytes::from("a")),
        Err(std::io::Error::other("reset")),
    ]));
    let err = within(Proxy::new().forward(request(broken), &upstream, &path("/")))
        .await
        .expect_err("the body fails");
    assert_eq!(err.reason(), "ClientClosed", "{err:?}");
}

#[tokio::test]
async fn connection_attempt_times_out() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .expect("a free port");
    let listener = socket.listen(1).expect("listens");
    let address = listener.local_addr().expect("bound");
    // Fills the backlog of the listener: after that the kernel delays further connections.
    let mut waiting = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
    {
        waiting.push(stream);
    }
    let upstream = Upstream::Tcp(address.to_string().parse().expect("an authority"));
    let proxy = Proxy::with(Duration::from_millis(100), None);
    let err = within(proxy.forward(request(Body::empty()), &upstream, &path("/")))
        .await
        .expect_err("no accept");
    assert_eq!(err.reason(), "ConnectTimeout", "{err:?}");
    drop(listener);
}

#[tokio::test]
async fn reuses_connections() {
    let tasks = Tasks::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let router = Router::new().route(
        "/who",
        get(|ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() }),
    );
    tasks.spawn_detached(async move {
        axum::serve(
            listener,
            router.into_make_service_with_connect_info::<SocketAddr>(),
        )
        .await
        .expect("serves");
    });
    let upstream = url.parse().expect("a base URL");
    let proxy = Proxy::new();
    let mut peers = std::collections::BTreeSet::new();
    for _ in 0..10 {
        let request = Request::builder().body(Body::empty()).expect("valid");
        let response = within(proxy.forward(request, &upstream, &path("/who")))
            .await
            .expect("answered");
        peers.insert(text(response).await);
    }
    assert!(peers.len() < 10, "one connection per request: {peers:?}");
}
