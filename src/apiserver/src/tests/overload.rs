//! Requests beyond the in-flight limits: rejection and retry.

use std::num::NonZeroU32;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::kube_client::client;
use super::{DEADLINE, InFlightLimits, Options, TestServer};
use rooflet_testing::ApiResponse;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BODY: &str = r#"{"metadata":{"name":"slow"}}"#;

/// Starts a server with a limit of one read and one write request.
async fn limited_server() -> TestServer {
    let one = NonZeroU32::new(1).expect("1 is not 0");
    TestServer::start_with(Options {
        in_flight: InFlightLimits {
            requests: one,
            mutating_requests: one,
        },
        ..Options::default()
    })
    .await
}

/// Starts a request without sending its body.
async fn start_request(server: &TestServer, method: &str) -> TcpStream {
    start_request_as(server, method, &server.token).await
}

async fn start_request_as(server: &TestServer, method: &str, token: &str) -> TcpStream {
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    let head = format!(
        "{method} {CONFIG_MAPS} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        BODY.len()
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

async fn finish_request(mut stream: TcpStream) -> String {
    stream.write_all(BODY.as_bytes()).await.expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    response
}

async fn until_busy(server: &TestServer, attempt: impl AsyncFn() -> ApiResponse) -> ApiResponse {
    let busy = async {
        loop {
            let got = attempt().await;
            if got.code == 429 {
                return got;
            }
        }
    };
    let rejected = tokio::time::timeout(DEADLINE, busy).await.expect("in time");
    assert_eq!(rejected.headers["retry-after"], "1");
    assert_eq!(rejected.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(rejected.body, "Too many requests, please try again later.\n");
    assert_eq!(server.get("/livez").await.code, 200, "health has no limit");
    rejected
}

/// Returns the number of requests with these labels.
async fn count(server: &TestServer, labels: &str) -> u64 {
    let text = server.get("/metrics").await.body;
    let line = format!("rooflet_apiserver_requests_total{{{labels}}} ");
    let lines = text.as_str().unwrap_or_default().lines();
    let count = lines.into_iter().find_map(|text| text.strip_prefix(&line));
    count.and_then(|count| count.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn unauthenticated_requests_do_not_count_towards_the_limit() {
    let server = limited_server().await;
    let _unauthenticated = start_request_as(&server, "POST", "wrong").await;
    let rejected = async {
        while count(&server, r#"code="401",resource="configmaps",verb="create""#).await == 0 {
            tokio::task::yield_now().await;
        }
    };
    let rejected = tokio::time::timeout(DEADLINE, rejected).await;
    assert!(rejected.is_ok(), "rejected before the body is sent");
    let got = server
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "x"}}))
        .await;
    assert_eq!(got.code, 201, "{got:?}");
}

#[tokio::test]
async fn request_beyond_the_limit_receives_429_with_retry_after() {
    let server = limited_server().await;
    let write = start_request(&server, "POST").await;
    let named = |name: &str| json!({"metadata": {"name": name}});
    until_busy(&server, async || server.post(CONFIG_MAPS, &named("quick")).await).await;
    assert_eq!(
        server.get(CONFIG_MAPS).await.code,
        200,
        "reads have a separate limit"
    );
    let response = finish_request(write).await;
    assert!(response.starts_with("HTTP/1.1 201"), "{response}");
    assert_eq!(server.post(CONFIG_MAPS, &named("later")).await.code, 201);

    let read = start_request(&server, "GET").await;
    until_busy(&server, async || server.get(CONFIG_MAPS).await).await;
    let mut watch = server.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    assert_eq!(server.post(CONFIG_MAPS, &named("third")).await.code, 201);
    assert!(watch.brief().await.starts_with("ADDED"), "watches have no limit");
    let response = finish_request(read).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(server.get(CONFIG_MAPS).await.code, 200);
}

#[tokio::test]
async fn client_library_retries_by_itself() {
    let server = limited_server().await;
    let api: Api<ConfigMap> = Api::namespaced(client(&server), "default");
    let write = start_request(&server, "POST").await;
    until_busy(&server, async || {
        server
            .post(CONFIG_MAPS, &json!({"metadata": {"name": "x"}}))
            .await
    })
    .await;
    let rejected = || count(&server, r#"code="429",resource="configmaps",verb="create""#);
    let before = rejected().await;
    let object: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "patient"}})).expect("a ConfigMap");
    let params = PostParams::default();
    let create = api.create(&params, &object);
    let release = async {
        while rejected().await == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        finish_request(write).await
    };
    let (created, response) = tokio::time::timeout(DEADLINE, async { tokio::join!(create, release) })
        .await
        .expect("in time");
    assert!(response.starts_with("HTTP/1.1 201"), "{response}");
    assert_eq!(
        created.expect("created after a retry").metadata.name.as_deref(),
        Some("patient")
    );
}
