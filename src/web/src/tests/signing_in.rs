//! Sign-in, sign-out, and the requests that need neither.

use super::*;
use crate::client_certificate::tests::{ALICE, ALICE_KEY};
use crate::failures::MAX_FAILURES;
use crate::sessions::{IDLE_TIMEOUT, LIFETIME};
use crate::sign_in_code::VALIDITY;
use crate::sign_in_link;

/// Returns the code of a new link.
async fn code(page: &Page) -> String {
    let source = KubeconfigSource::File(page.kubeconfig.clone());
    let link = sign_in_link(&source, &Clock::Manual(page.clock.clone())).await;
    let link = link.expect("a link");
    let code = link.strip_prefix(&format!("{}/#code=", page.url));
    code.expect(&link).to_owned()
}

#[tokio::test]
async fn token_signs_in_until_sign_out() {
    let page = Page::start().await;
    is_error(page.get("/session").await, (401, "NotSignedIn")).await;
    let response = page.post_session(&json!({ "token": ADMIN_TOKEN })).await;
    let cookie = response.headers()[SET_COOKIE].to_str().expect("text").to_owned();
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let session = text_of(response).await;
    assert!(!session.contains(ADMIN_TOKEN) && !cookie.contains(ADMIN_TOKEN));

    let browser = page.browser().await;
    let session: Value = json_of(browser.get("/session").await).await;
    assert_eq!(session["user"], ADMIN);
    assert_eq!(session["groups"], json!(["a", "b"]));
    assert_eq!(session["csrfToken"], browser.csrf);
    assert_eq!(session["expiresAt"], "1970-01-01T12:00:00Z");
    assert_eq!(session["gateway"], true);

    let sign_out = || {
        browser
            .page
            .request(Method::DELETE, "/session")
            .header(COOKIE, &browser.cookie)
    };
    is_error(send(sign_out()).await, (403, "CsrfTokenMissing")).await;
    is_error(
        send(sign_out().header(CSRF, "wrong")).await,
        (403, "CsrfTokenMissing"),
    )
    .await;
    let response = send(sign_out().header(CSRF, &browser.csrf)).await;
    assert_eq!(response.status(), 204);
    let cleared = response.headers()[SET_COOKIE].to_str().expect("text");
    assert!(cleared.contains("Max-Age=0"), "{cleared}");
    is_error(browser.get("/session").await, (401, "NotSignedIn")).await;
    is_error(browser.get("/proxy/api/api").await, (401, "NotSignedIn")).await;
}

#[tokio::test]
async fn code_signs_in_once_and_expires() {
    let page = Page::start().await;
    // Codes from the time of the start are rejected.
    page.clock.advance(std::time::Duration::from_secs(1));
    let first = code(&page).await;
    let response = page.post_session(&json!({ "code": first })).await;
    assert_eq!(response.status(), 200);
    assert_eq!(json_of(response).await["user"], ADMIN);
    is_error(
        page.post_session(&json!({ "code": first })).await,
        (401, "InvalidCode"),
    )
    .await;
    let late = code(&page).await;
    page.clock.advance(VALIDITY);
    is_error(
        page.post_session(&json!({ "code": late })).await,
        (401, "InvalidCode"),
    )
    .await;
}

#[tokio::test]
async fn wrong_sign_in_is_rejected_and_limited() {
    let page = Page::start().await;
    for body in [
        json!({}),
        json!({"token": 1}),
        json!({"token": "a", "code": "b"}),
        json!({"password": "a"}),
    ] {
        is_error(page.post_session(&body).await, (400, "InvalidRequest")).await;
    }
    let form = page.request(Method::POST, "/session").body(r#"{"token": "a"}"#);
    let form = form.header(CONTENT_TYPE, "text/plain");
    is_error(send(form).await, (400, "InvalidRequest")).await;
    let large = json!({"token": "a".repeat(70_000)});
    is_error(page.post_session(&large).await, (413, "RequestTooLarge")).await;

    let mut wrong = vec!["", "a\nb", "ü", "\u{0}"];
    wrong.resize(MAX_FAILURES as usize, "wrong-secret");
    for token in wrong {
        let response = page.post_session(&json!({ "token": token })).await;
        assert!(response.headers().get(SET_COOKIE).is_none());
        is_error(response, (401, "InvalidToken")).await;
    }
    let response = page.post_session(&json!({ "token": ADMIN_TOKEN })).await;
    assert_eq!(response.headers()["retry-after"], "60");
    is_error(response, (429, "TooManyFailures")).await;
    page.clock.advance(crate::failures::WINDOW);
    page.browser().await;
}

#[tokio::test]
async fn certificate_that_the_api_server_does_not_accept_is_rejected_and_limited() {
    let page = Page::start().await;
    let without_key = json!({ "certificate": ALICE });
    is_error(page.post_session(&without_key).await, (400, "InvalidRequest")).await;
    let both = json!({"certificate": ALICE, "token": ADMIN_TOKEN});
    is_error(page.post_session(&both).await, (400, "InvalidRequest")).await;
    // The fake has no TLS, so that it receives no certificate: the user is anonymous.
    let certificate = json!({ "certificate": format!("{ALICE}{ALICE_KEY}") });
    for _ in 0..MAX_FAILURES {
        let response = page.post_session(&certificate).await;
        assert!(response.headers().get(SET_COOKIE).is_none());
        is_error(response, (401, "InvalidCertificate")).await;
    }
    is_error(page.post_session(&certificate).await, (429, "TooManyFailures")).await;
}

#[tokio::test]
async fn session_ends_unused_and_after_its_lifetime() {
    let page = Page::start().await;
    let browser = page.browser().await;
    page.clock.advance(IDLE_TIMEOUT);
    is_error(browser.get("/session").await, (401, "NotSignedIn")).await;
    let browser = page.browser().await;
    for _ in 0..LIFETIME.as_secs() / (IDLE_TIMEOUT / 2).as_secs() - 1 {
        page.clock.advance(IDLE_TIMEOUT / 2);
        assert_eq!(browser.get("/session").await.status(), 200);
    }
    page.clock.advance(IDLE_TIMEOUT / 2);
    is_error(browser.get("/session").await, (401, "NotSignedIn")).await;
}

#[tokio::test]
async fn foreign_host_or_origin_is_rejected() {
    let page = Page::start().await;
    let browser = page.browser().await;
    for path in ["/", "/session", "/proxy/api/api"] {
        let request = browser.request(Method::GET, path).header(HOST, "evil.example");
        let request = request.build().expect("a request");
        let response = within(page.client.execute(request)).await.expect("a response");
        is_error(response, (421, "HostNotAllowed")).await;
    }
    let own = page.client.get(format!("{}/session", page.url));
    let own = own
        .header(HOST, "fleet.example:1")
        .header(COOKIE, &browser.cookie);
    assert_eq!(send(own).await.status(), 200, "a configured name");
    let sign_in = |origin: Option<&str>| {
        let request = page.client.post(format!("{}/session", page.url));
        let request = request.json(&json!({ "token": ADMIN_TOKEN }));
        match origin {
            Some(origin) => request.header(ORIGIN, origin),
            None => request,
        }
    };
    for origin in [Some("https://evil.example"), Some("null"), None] {
        is_error(send(sign_in(origin)).await, (403, "OriginNotAllowed")).await;
    }
    let read = page
        .client
        .get(format!("{}/proxy/api/api", page.url))
        .header(COOKIE, &browser.cookie)
        .header("sec-fetch-site", "same-site");
    is_error(send(read).await, (403, "OriginNotAllowed")).await;
}

#[tokio::test]
async fn responses_restrict_what_a_browser_may_do() {
    let page = Page::start().await;
    let browser = page.browser().await;
    for (path, is_page) in [
        ("/", true),
        ("/session", false),
        ("/proxy/api/api", false),
        ("/missing", false),
    ] {
        let response = browser.get(path).await;
        let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
        let policy = header("content-security-policy");
        assert!(policy.contains("default-src 'none'"), "{path} {policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
        assert_eq!(policy.contains("script-src 'self' 'sha256-"), is_page, "{path}");
        assert_eq!(policy.contains("style-src 'sha256-"), is_page, "{path}");
        assert_eq!(policy.contains("sandbox"), !is_page, "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "no-referrer");
        let cache = header("cache-control");
        assert_eq!(
            cache,
            if is_page {
                "no-cache"
            } else {
                "no-store, no-transform"
            }
        );
    }
}
