//! Requests to the API server, the gateway and agents.

use http::header::{ACCEPT, AUTHORIZATION};

use super::upstream::VIEWER_TOKEN;
use super::*;

/// Returns the next chunk of a stream, or `None` at its end.
async fn chunk(response: &mut Response) -> Option<String> {
    let chunk = within(response.chunk()).await.expect("a chunk");
    chunk.map(|chunk| String::from_utf8(chunk.to_vec()).expect("text"))
}

/// Sends a line to the first watch, once it is open.
async fn deliver(page: &Page, line: &str) {
    within(async {
        while !page.upstream.send(0, line) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn request_has_the_credential_of_the_user_and_only_listed_headers() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let request = browser
        .request(
            Method::PATCH,
            "/proxy/api/apis/g/v1/namespaces/a/things/b?dryRun=All&x=%2F",
        )
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/merge-patch+json")
        .header(AUTHORIZATION, "Bearer other")
        .header("impersonate-user", "root")
        .body(r#"{"a":1}"#);
    let response = send(request).await;
    assert_eq!(response.status(), 200);
    let received = page.upstream.last();
    assert_eq!(received.method, Method::PATCH);
    assert_eq!(received.path, "/apis/g/v1/namespaces/a/things/b?dryRun=All&x=%2F");
    assert_eq!(received.body, r#"{"a":1}"#);
    assert_eq!(received.headers[AUTHORIZATION], format!("Bearer {ADMIN_TOKEN}"));
    assert_eq!(received.headers[CONTENT_TYPE], "application/merge-patch+json");
    for name in ["cookie", "impersonate-user", CSRF, "origin"] {
        assert!(!received.headers.contains_key(name), "{name}");
    }
    assert!(!text_of(response).await.contains(ADMIN_TOKEN));
}

#[tokio::test]
async fn write_without_csrf_token_is_not_forwarded() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let before = page.upstream.last().path;
    for (method, path) in [
        (Method::POST, "/proxy/api/api/v1/namespaces"),
        (Method::DELETE, "/proxy/api/api/v1/namespaces/a"),
        (Method::POST, "/proxy/openai/v1/chat/completions"),
    ] {
        let request = page.request(method, path).header(COOKIE, &browser.cookie);
        is_error(send(request).await, (403, "CsrfTokenMissing")).await;
    }
    assert_eq!(page.upstream.last().path, before);
}

#[tokio::test]
async fn denial_of_the_api_server_reaches_the_page() {
    let page = Page::start().await;
    let response = page.post_session(&json!({ "token": VIEWER_TOKEN })).await;
    let cookie = response.headers()[SET_COOKIE].to_str().expect("text").to_owned();
    let csrf = json_of(response).await["csrfToken"]
        .as_str()
        .expect("a token")
        .to_owned();
    let delete = page.request(Method::DELETE, "/proxy/api/api/v1/namespaces/a");
    let response = send(delete.header(COOKIE, cookie).header(CSRF, csrf)).await;
    assert_eq!(response.status(), 403);
    let status = json_of(response).await;
    assert_eq!(
        (&status["kind"], &status["reason"]),
        (&json!("Status"), &json!("Forbidden"))
    );
}

#[tokio::test]
async fn paths_outside_the_kubernetes_api_are_not_forwarded() {
    let page = Page::start().await;
    let browser = page.browser().await;
    for path in [
        "/proxy/api/metrics",
        "/proxy/api/api/%2e%2e/metrics",
        "/proxy/openai/metrics",
    ] {
        is_error(browser.get(path).await, (400, "InvalidRequest")).await;
    }
    let large = browser
        .request(Method::POST, "/proxy/api/api")
        .body("a".repeat(4 << 20));
    is_error(send(large).await, (413, "RequestTooLarge")).await;
}

#[tokio::test]
async fn session_ends_if_the_api_server_rejects_its_credential() {
    let page = Page::start().await;
    let browser = page.browser().await;
    page.upstream.rejects_tokens.store(true, Ordering::Relaxed);
    is_error(browser.get("/proxy/api/api").await, (401, "CredentialExpired")).await;
    page.upstream.rejects_tokens.store(false, Ordering::Relaxed);
    is_error(browser.get("/proxy/api/api").await, (401, "NotSignedIn")).await;
    page.browser().await;
}

#[tokio::test]
async fn watch_is_streamed_and_ends_with_the_session() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let mut watch = browser.get("/proxy/api/api/v1/events?watch=true").await;
    for line in ["{\"a\":1}\n", "{\"b\":2}\n"] {
        assert!(page.upstream.send(0, line));
        assert_eq!(chunk(&mut watch).await.as_deref(), Some(line));
    }
    let sign_out = send(browser.request(Method::DELETE, "/session")).await;
    assert_eq!(sign_out.status(), 204);
    assert_eq!(chunk(&mut watch).await, None);
}

#[tokio::test]
async fn combined_watch_has_the_events_of_all_watches() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let mut watch = browser
        .get("/proxy/watch?path=%2Fapi%2Fv1%2Fa%3Fx%3D1&path=/api/v1/b%3FresourceVersion%3D1")
        .await;
    assert_eq!(watch.headers()[CONTENT_TYPE], "application/x-ndjson");
    // The first line shows the page that no proxy holds the stream back.
    assert_eq!(chunk(&mut watch).await.as_deref(), Some("\n"));
    let mut answers = Vec::new();
    for _ in 0..2 {
        let line = chunk(&mut watch).await.expect("a line");
        answers.push(serde_json::from_str::<Value>(&line).expect("JSON"));
    }
    answers.sort_by_key(|answer| answer["watch"].as_u64());
    assert_eq!(answers[0], json!({"watch": 0, "status": 200}));
    assert_eq!(
        (&answers[1]["watch"], &answers[1]["status"]),
        (&json!(1), &json!(410))
    );
    assert_eq!(answers[1]["body"]["reason"], "Expired");
    for line in ["{\"type\":\"ADDED\"}\n", "{\"type\":\"DELETED\"}\n"] {
        deliver(&page, line).await;
        let expect = format!("{{\"watch\":0,\"event\":{}}}\n", line.trim());
        assert_eq!(chunk(&mut watch).await, Some(expect));
    }
    page.upstream.end_watches();
    let line = chunk(&mut watch).await.expect("a line");
    let end: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(end["watch"], 0);
    assert_eq!(end["end"], "the API server ended the watch");
    assert_eq!(chunk(&mut watch).await, None);
}

#[tokio::test]
async fn abandoned_watch_is_cancelled_at_the_api_server() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let mut watch = browser.get("/proxy/watch?path=/api/v1/a").await;
    assert_eq!(chunk(&mut watch).await.as_deref(), Some("\n"));
    deliver(&page, "{}\n").await;
    chunk(&mut watch).await.expect("a line");
    drop(watch);
    within(async {
        while page.upstream.send(0, "{}\n") {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn unreachable_api_server_is_reported_and_does_not_end_the_session() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let content = std::fs::read_to_string(&page.kubeconfig).expect("readable");
    let unused = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let closed = unused.local_addr().expect("bound").to_string();
    drop(unused);
    let address = rooflet_base::mutex::lock(&page.upstream.address).clone();
    std::fs::write(&page.kubeconfig, content.replace(&address, &closed)).expect("writable");
    let response = page.post_session(&json!({ "token": ADMIN_TOKEN })).await;
    is_error(response, (502, "UpstreamUnreachable")).await;
    assert_eq!(browser.get("/proxy/api/api").await.status(), 200);
}

#[tokio::test]
async fn gateway_receives_the_key_of_the_request_only() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let chat = || {
        browser
            .request(Method::POST, "/proxy/openai/v1/chat/completions")
            .json(&json!({"model": "a"}))
    };
    let response = send(chat().header("x-rooflet-api-key", "sk-rf-1")).await;
    assert_eq!(response.headers()["x-rooflet-replica"], "default/a-0");
    assert!(!response.headers().contains_key(SET_COOKIE));
    let received = page.upstream.last();
    assert_eq!(received.path, "/v1/chat/completions");
    assert_eq!(received.headers[AUTHORIZATION], "Bearer sk-rf-1");
    assert_eq!(received.body, r#"{"model":"a"}"#);
    send(chat()).await;
    let received = page.upstream.last();
    assert!(!received.headers.contains_key(AUTHORIZATION), "{received:?}");
    assert!(!received.headers.contains_key(COOKIE), "{received:?}");
    let metrics = browser.get("/proxy/metrics/gateway").await;
    assert_eq!(text_of(metrics).await, "GET /metrics\n");
}

#[tokio::test]
async fn server_without_gateway_reports_it() {
    let page = Page::with_gateway(false).await;
    let browser = page.browser().await;
    assert_eq!(json_of(browser.get("/session").await).await["gateway"], false);
    is_error(browser.get("/proxy/openai/v1/models").await, (404, "NotFound")).await;
}

#[tokio::test]
async fn logs_and_metrics_come_from_the_agent_of_the_node() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let metrics = browser.get("/proxy/metrics/agents/mini-1").await;
    assert_eq!(text_of(metrics).await, "GET /metrics\n");
    let metrics = browser.get("/proxy/metrics/replicas/default/a-0").await;
    assert_eq!(
        text_of(metrics).await,
        "GET /replicas/default/a-0/proxy/metrics\n"
    );
    let forbidden = browser.get("/proxy/metrics/replicas/secret/a-0").await;
    assert_eq!(forbidden.status(), 403);
    let log = browser
        .get("/proxy/logs/default/a-0?follow=true&tailLines=5")
        .await;
    assert_eq!(
        text_of(log).await,
        "GET /replicas/default/a-0/logs?follow=true&tailLines=5\n"
    );
    assert!(!page.upstream.last().headers.contains_key(AUTHORIZATION));
    for path in [
        "/proxy/metrics/agents/other",
        "/proxy/metrics/agents/..",
        "/proxy/metrics/agents/a%2Fb",
        "/proxy/metrics/replicas/default/pending",
        "/proxy/metrics/replicas/default/%2e%2e",
        "/proxy/logs/default/pending",
        "/proxy/logs/default/%2e%2e",
    ] {
        is_error(browser.get(path).await, (404, "NotFound")).await;
    }
}

#[tokio::test]
async fn history_is_that_of_a_deployment_that_the_user_may_read() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let path = |name: &str| format!("/proxy/history/deployments/{name}");
    let found = browser.get(&path("default/a")).await;
    assert_eq!(json_of(found).await, json!({"start": 60}));
    is_error(browser.get(&path("default/new")).await, (404, "NotFound")).await;
    is_error(browser.get(&path("default/%2e%2e")).await, (404, "NotFound")).await;
    assert_eq!(browser.get(&path("secret/a")).await.status(), 403);
    is_error(page.get(&path("default/a")).await, (401, "NotSignedIn")).await;
    let without = Page::with_gateway(false).await;
    let browser = without.browser().await;
    is_error(browser.get(&path("default/a")).await, (404, "NotFound")).await;
}

#[tokio::test]
async fn history_of_a_node_is_that_of_the_controller() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let found = browser.get("/proxy/history/nodes/mini-1").await;
    assert_eq!(json_of(found).await, json!({ "times": [60] }));
    is_error(browser.get("/proxy/history/nodes/new").await, (404, "NotFound")).await;
    is_error(
        page.get("/proxy/history/nodes/mini-1").await,
        (401, "NotSignedIn"),
    )
    .await;
}

#[tokio::test]
async fn longer_history_is_that_of_prometheus_for_users_who_may_read_the_object() {
    let page = Page::start().await;
    page.clock.advance(std::time::Duration::from_secs(1_000_000_000));
    let browser = page.browser().await;
    let path = |name: &str| format!("/proxy/history/deployments/{name}?hours=168");
    let found = json_of(browser.get(&path("default/a")).await).await;
    // 720 intervals of 840 seconds are a week.
    assert_eq!(found["stepSeconds"], 840);
    let speeds = found["series"]["measuredTokensPerSecond"]
        .as_array()
        .expect("values");
    assert_eq!(
        (speeds.len(), &speeds[719], &speeds[720]),
        (721, &json!(null), &json!(36.5))
    );
    let sent = page.upstream.received();
    let sent: Vec<_> = sent
        .iter()
        .filter(|sent| sent.path.starts_with("/prometheus"))
        .collect();
    assert_eq!(sent.len(), 7, "one query for each series");
    for query in sent {
        assert!(
            query
                .path
                .contains("namespace%3D%22default%22%2Cdeployment%3D%22a%22"),
            "{}",
            query.path
        );
        assert!(query.headers.get(COOKIE).is_none());
    }
    let node = json_of(browser.get("/proxy/history/nodes/mini-1?hours=720").await).await;
    assert_eq!(node["series"]["decodeBytesPerSecond"][720], 36.5);

    let before = page.upstream.received().len();
    assert_eq!(browser.get(&path("secret/a")).await.status(), 403);
    is_error(browser.get(&path("default/%22%7D")).await, (404, "NotFound")).await;
    for wrong in ["hours=0", "hours=2161", "hours=1&query=up", "query=up"] {
        let path = format!("/proxy/history/deployments/default/a?{wrong}");
        is_error(browser.get(&path).await, (400, "InvalidRequest")).await;
    }
    let asked = page.upstream.received().split_off(before);
    assert!(
        asked.iter().all(|sent| !sent.path.starts_with("/prometheus")),
        "{asked:?}"
    );
    let without = Page::with_gateway(false).await;
    let other = without.browser().await;
    is_error(other.get(&path("default/a")).await, (404, "NotFound")).await;
}

#[tokio::test]
async fn failure_of_prometheus_is_reported_with_its_reason() {
    let page = Page::start().await;
    page.clock.advance(std::time::Duration::from_secs(1_000_000_000));
    let browser = page.browser().await;
    let path = "/proxy/history/nodes/mini-1?hours=24";
    let token = page.directory.path().join("prometheus-token");
    std::fs::write(&token, "other").expect("writable");
    let text = text_of(browser.get(path).await).await;
    assert!(
        text.contains("UpstreamUnreachable") && text.contains("--prometheus-token-file"),
        "{text}"
    );
    std::fs::remove_file(&token).expect("deletable");
    let text = text_of(browser.get(path).await).await;
    assert!(
        text.contains("reading --prometheus-token-file") && !text.contains("other"),
        "{text}"
    );
}

#[tokio::test]
async fn preview_ends_when_the_client_disconnects() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let preview = |body: &'static str| browser.request(Method::POST, "/proxy/preview").body(body);
    let started = within(async {
        while ENDLESS_PREVIEWS.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    });
    // The client disconnects when its future is dropped.
    tokio::select! {
        answer = preview("endless").send() => panic!("{answer:?}"),
        () = started => {}
    }
    // The session computes one preview at a time.
    assert_eq!(within(send(preview("a change"))).await.status(), 200);
}

/// The fake API server has no lists of deployments and revisions, so these objects are null.
#[tokio::test]
async fn preview_is_computed_from_the_objects_that_the_user_reads() {
    let page = Page::start().await;
    let browser = page.browser().await;
    let preview = |body: &'static str| browser.request(Method::POST, "/proxy/preview").body(body);
    let response = send(preview("a change")).await;
    assert_eq!(response.status(), 200);
    let answer = json_of(response).await;
    assert_eq!(answer["nodes"][0]["metadata"]["name"], "mini-1");
    assert_eq!(answer["change"], 8);
    let kinds = [
        "fleetnodes",
        "modeldeployments",
        "modelrevisions",
        "modelreplicas",
        "apikeys",
    ];
    let received = page.upstream.received();
    let read = received.iter().rev().take(kinds.len()).rev();
    for (kind, request) in kinds.iter().zip(read) {
        assert_eq!(request.method, Method::GET);
        assert_eq!(request.path, format!("/apis/rooflet.dev/v1alpha1/{kind}"));
        assert_eq!(request.headers[AUTHORIZATION], format!("Bearer {ADMIN_TOKEN}"));
    }
    is_error(send(preview("wrong")).await, (400, "InvalidRequest")).await;
    let without_token = page.request(Method::POST, "/proxy/preview");
    let without_token = without_token.header(COOKIE, &browser.cookie).body("a change");
    is_error(send(without_token).await, (403, "CsrfTokenMissing")).await;
}

#[tokio::test]
async fn catalogue_is_for_signed_in_users() {
    let page = Page::start().await;
    is_error(page.get("/proxy/catalogue").await, (401, "NotSignedIn")).await;
    let response = page.browser().await.get("/proxy/catalogue").await;
    assert_eq!(response.status(), 200);
    assert_eq!(json_of(response).await["macs"][0]["chip"], "Apple M4");
}
