//! More requests at once than the server takes: they are turned away, come again, and are answered.

use std::num::NonZeroU32;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::kube_client::client;
use super::{DEADLINE, InFlightLimits, Options, TestServer};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BODY: &str = r#"{"metadata":{"name":"slow"}}"#;

/// A server that takes one reading and one writing request at a time.
async fn narrow() -> TestServer {
    let one = NonZeroU32::new(1).expect("is not 0");
    TestServer::start_with(Options {
        in_flight: InFlightLimits {
            requests: one,
            mutating_requests: one,
        },
        ..Options::default()
    })
    .await
}

/// A request under way: its body has not been sent.
async fn begin(server: &TestServer, method: &str) -> TcpStream {
    begin_as(server, method, &server.token).await
}

async fn begin_as(server: &TestServer, method: &str, token: &str) -> TcpStream {
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let head = format!(
        "{method} {CONFIG_MAPS} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        BODY.len()
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

async fn finish(mut stream: TcpStream) -> String {
    stream.write_all(BODY.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

async fn until_busy(server: &TestServer, attempt: impl AsyncFn() -> super::Got) -> super::Got {
    let busy = async {
        loop {
            let got = attempt().await;
            if got.code == 429 {
                return got;
            }
        }
    };
    let turned_away = tokio::time::timeout(DEADLINE, busy).await.expect("in time");
    assert_eq!(turned_away.headers["retry-after"], "1");
    assert_eq!(turned_away.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(turned_away.body, "Too many requests, please try again later.\n");
    assert_eq!(server.get("/livez").await.code, 200, "health needs no place");
    turned_away
}

/// How many requests were answered so.
async fn count(server: &TestServer, labels: &str) -> u64 {
    let text = server.get("/metrics").await.body;
    let line = format!("rooflet_apiserver_requests_total{{{labels}}} ");
    let lines = text.as_str().unwrap_or_default().lines();
    let count = lines.into_iter().find_map(|text| text.strip_prefix(&line));
    count.and_then(|count| count.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn strangers_who_never_send_their_body_take_no_place() {
    let server = narrow().await;
    let _stranger = begin_as(&server, "POST", "wrong").await;
    let refused = async {
        while count(&server, r#"code="401",resource="configmaps",verb="create""#).await == 0 {
            tokio::task::yield_now().await;
        }
    };
    let refused = tokio::time::timeout(DEADLINE, refused).await;
    assert!(refused.is_ok(), "refused before the body is there");
    let got = server
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "x"}}))
        .await;
    assert_eq!(got.code, 201, "{got:?}");
}

#[tokio::test]
async fn one_request_too_many_is_told_to_come_again() {
    let server = narrow().await;
    let write = begin(&server, "POST").await;
    let named = |name: &str| json!({"metadata": {"name": name}});
    until_busy(&server, async || server.post(CONFIG_MAPS, &named("quick")).await).await;
    assert_eq!(
        server.get(CONFIG_MAPS).await.code,
        200,
        "reads have places of their own"
    );
    let said = finish(write).await;
    assert!(said.starts_with("HTTP/1.1 201"), "{said}");
    assert_eq!(server.post(CONFIG_MAPS, &named("later")).await.code, 201);

    let read = begin(&server, "GET").await;
    until_busy(&server, async || server.get(CONFIG_MAPS).await).await;
    let mut watch = server.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    assert_eq!(server.post(CONFIG_MAPS, &named("third")).await.code, 201);
    assert!(watch.brief().await.starts_with("ADDED"), "a watch needs no place");
    let said = finish(read).await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    assert_eq!(server.get(CONFIG_MAPS).await.code, 200);
}

#[tokio::test]
async fn the_client_library_comes_again_by_itself() {
    let server = narrow().await;
    let api: Api<ConfigMap> = Api::namespaced(client(&server), "default");
    let write = begin(&server, "POST").await;
    until_busy(&server, async || {
        server
            .post(CONFIG_MAPS, &json!({"metadata": {"name": "x"}}))
            .await
    })
    .await;
    let turned_away = || count(&server, r#"code="429",resource="configmaps",verb="create""#);
    let before = turned_away().await;
    let object: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "patient"}})).expect("a ConfigMap");
    let params = PostParams::default();
    let create = api.create(&params, &object);
    let release = async {
        while turned_away().await == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        finish(write).await
    };
    let (created, said) = tokio::time::timeout(DEADLINE, async { tokio::join!(create, release) })
        .await
        .expect("in time");
    assert!(said.starts_with("HTTP/1.1 201"), "{said}");
    assert_eq!(
        created.expect("created in the end").metadata.name.as_deref(),
        Some("patient")
    );
}
