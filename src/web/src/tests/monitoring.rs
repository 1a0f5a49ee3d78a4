//! Service discovery and metrics for Prometheus.

use http::header::AUTHORIZATION;

use super::upstream::VIEWER_TOKEN;
use super::*;
use crate::failures::MAX_FAILURES;

/// Sends a request without `Origin`, as Prometheus does.
async fn get(page: &Page, path: &str, token: &str) -> Response {
    let request = page.client.get(format!("{}{path}", page.url));
    send(request.header(AUTHORIZATION, format!("Bearer {token}"))).await
}

#[tokio::test]
async fn gateway_and_workers_receive_the_formats_that_the_client_accepts() {
    let page = Page::start().await;
    let format = "application/openmetrics-text;version=1.0.0";
    for path in ["gateway", "replicas/default/a-0"] {
        let request = page.client.get(format!("{}/monitoring/metrics/{path}", page.url));
        let request = request.header(AUTHORIZATION, format!("Bearer {VIEWER_TOKEN}"));
        let response = send(request.header(http::header::ACCEPT, format)).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(
            page.upstream.last().headers[http::header::ACCEPT],
            format,
            "{path}"
        );
    }
}

#[tokio::test]
async fn token_finds_and_reads_all_processes() {
    let page = Page::start().await;
    let response = get(&page, "/monitoring/targets", VIEWER_TOKEN).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    let targets: Value = json_of(response).await;
    let targets = targets.as_array().expect("a list");
    let own = page.url.strip_prefix("http://").expect("an address");
    let mut found = Vec::new();
    for target in targets {
        assert_eq!(target["targets"], json!([own]));
        assert_eq!(target["labels"]["__scheme__"], "http");
        let path = target["labels"]["__metrics_path__"].as_str().expect("a path");
        let response = get(&page, path, VIEWER_TOKEN).await;
        assert_eq!(response.status(), 200, "{path}");
        let instance = target["labels"]["instance"].as_str().expect("a name").to_owned();
        found.push((instance, text_of(response).await));
        // Only the API server receives the token.
        let has_token = page.upstream.last().headers.contains_key(AUTHORIZATION);
        assert_eq!(
            has_token,
            target["labels"]["component"] == "control-plane",
            "{path}"
        );
    }
    let expected = [
        ("control-plane", "GET /metrics\n"),
        ("gateway", "GET /metrics\n"),
        ("mini-1", "GET /metrics\n"),
        ("default/a-0", "GET /replicas/default/a-0/proxy/metrics\n"),
    ];
    let expected = expected.map(|(instance, text)| (instance.to_owned(), text.to_owned()));
    assert_eq!(found, expected);
}

#[tokio::test]
async fn scraper_with_an_expired_token_prevents_no_sign_in() {
    let page = Page::start().await;
    let path = "/monitoring/targets";
    for _ in 0..MAX_FAILURES {
        assert_eq!(get(&page, path, "expired").await.status(), 401);
    }
    is_error(get(&page, path, "expired").await, (429, "TooManyFailures")).await;
    page.browser().await;
}

#[tokio::test]
async fn gateway_needs_the_permission_to_read_metrics() {
    let page = Page::start().await;
    let path = "/monitoring/metrics/gateway";
    assert_eq!(get(&page, path, VIEWER_TOKEN).await.status(), 200);
    let response = get(&page, path, ADMIN_TOKEN).await;
    is_error(response, (403, "MetricsForbidden")).await;
}

#[tokio::test]
async fn request_without_valid_token_is_rejected() {
    let page = Page::start().await;
    let browser = page.browser().await;
    for path in [
        "/monitoring/targets",
        "/monitoring/metrics/gateway",
        "/monitoring/metrics/agents/mini-1",
    ] {
        is_error(page.get(path).await, (401, "TokenMissing")).await;
        // The cookie of a session does not replace the token.
        is_error(browser.get(path).await, (401, "TokenMissing")).await;
        is_error(get(&page, path, "wrong").await, (401, "InvalidToken")).await;
    }
    // A token that the API server no longer accepts.
    assert_eq!(
        get(&page, "/monitoring/targets", VIEWER_TOKEN).await.status(),
        200
    );
    let rejects = |value| {
        let flag = &page.upstream.rejects_tokens;
        flag.store(value, std::sync::atomic::Ordering::Relaxed);
    };
    rejects(true);
    for reason in ["CredentialExpired", "InvalidToken"] {
        let response = get(&page, "/monitoring/targets", VIEWER_TOKEN).await;
        is_error(response, (401, reason)).await;
    }
    rejects(false);
    assert_eq!(
        get(&page, "/monitoring/targets", VIEWER_TOKEN).await.status(),
        200
    );
}
