//! Headers of every response: the request id and CORS. Requests of origins that are not allowed are
//! rejected before any other processing.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, VARY,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use uuid::Uuid;

use super::origins::OriginRules;

/// OpenAI's header of the request id. Clients may set it.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Anthropic's header of the request id.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Limit of OpenAI's API.
const MAX_ID_BYTES: usize = 512;

const ANY: HeaderValue = HeaderValue::from_static("*");

/// Answers CORS preflight requests, and sets a request id on every other request and its response
/// (middleware).
pub async fn middleware(State(rules): State<Arc<OriginRules>>, mut request: Request, next: Next) -> Response {
    let origin = rules.check(&request);
    if let (Ok(origin), &Method::OPTIONS) = (&origin, request.method()) {
        return readable(preflight_response(&request), origin.as_ref());
    }
    let from_client = request
        .headers()
        .get(REQUEST_ID)
        .filter(|id| is_usable(id))
        .cloned();
    let id = from_client.unwrap_or_else(|| {
        let id = format!("req_{}", Uuid::new_v4().simple());
        HeaderValue::from_str(&id).expect("the id consists of letters and digits")
    });
    // The next server uses the same id.
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let mut response = match origin {
        Ok(origin) => readable(next.run(request).await, origin.as_ref()),
        Err(err) => err.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
    headers.insert(REQUEST_ID, id);
    response
}

/// Permits a page of this origin to read the response.
fn readable(mut response: Response, origin: Option<&HeaderValue>) -> Response {
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, ANY);
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
    response
}

/// Returns true if the id is safe in headers and logs.
fn is_usable(id: &HeaderValue) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

fn preflight_response(request: &Request) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    // `*` would exclude `Authorization`.
    let requested = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, requested.cloned().unwrap_or(ANY));
    headers.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST, DELETE, OPTIONS"),
    );
    // One day in seconds.
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    response
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::post;
    use tower::ServiceExt as _;

    use super::*;
    use crate::openai::origins::AllowedOrigins;

    async fn answer(request: http::request::Builder) -> Response {
        let echo_id = |request: Request| async move {
            let id = request.headers()[REQUEST_ID].to_str().expect("text").to_owned();
            (StatusCode::BAD_REQUEST, id)
        };
        let rules = OriginRules::new(AllowedOrigins::default(), None, []);
        let app = Router::new()
            .route("/v1/chat/completions", post(echo_id))
            .layer(axum::middleware::from_fn_with_state(rules, middleware));
        let request = request.uri("/v1/chat/completions").body(Body::empty());
        app.oneshot(request.expect("a request")).await.expect("an answer")
    }

    /// Preflight request of the Fetch standard, with the headers of OpenAI's client.
    #[tokio::test]
    async fn allowed_origin_may_read_responses() {
        let preflight = |origin| {
            Request::builder()
                .method("OPTIONS")
                .header("origin", origin)
                .header("access-control-request-method", "POST")
                .header(
                    "access-control-request-headers",
                    "authorization,content-type,x-stainless-os",
                )
        };
        let own = "http://localhost:3000";
        let allowed = answer(preflight(own)).await;
        assert_eq!(allowed.status(), 204);
        assert_eq!(allowed.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], own);
        let names = &allowed.headers()[ACCESS_CONTROL_ALLOW_HEADERS];
        assert_eq!(names, "authorization,content-type,x-stainless-os");
        let post = |origin| Request::builder().method("POST").header("origin", origin);
        let failed = answer(post(own)).await;
        assert_eq!(failed.status(), 400, "errors are readable, too");
        assert_eq!(failed.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], own);
        assert_eq!(failed.headers()[VARY], "Origin");
        for request in [preflight("https://evil.example"), post("https://evil.example")] {
            let response = answer(request).await;
            assert_eq!(response.status(), 403);
            assert!(response.headers().contains_key(REQUEST_ID));
            assert!(!response.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
            let body = axum::body::to_bytes(response.into_body(), 1000)
                .await
                .expect("a body");
            assert!(
                String::from_utf8_lossy(&body).contains("origin_not_allowed"),
                "{body:?}"
            );
        }
        let program = answer(Request::builder().method("POST")).await;
        assert_eq!(program.status(), 400);
        assert!(!program.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
    }

    #[tokio::test]
    async fn keeps_valid_request_id() {
        let id = async |from_client: Option<&str>| {
            let request = Request::builder().method("POST");
            let request = from_client
                .into_iter()
                .fold(request, |request, id| request.header(REQUEST_ID, id));
            let answer = answer(request).await;
            let returned = answer.headers()[REQUEST_ID].to_str().expect("text").to_owned();
            assert_eq!(answer.headers()[ANTHROPIC_REQUEST_ID], returned);
            let forwarded = axum::body::to_bytes(answer.into_body(), 1000)
                .await
                .expect("a body");
            assert_eq!(forwarded, returned);
            returned
        };
        assert_eq!(id(Some("mine-7")).await, "mine-7");
        let (one, other) = (id(None).await, id(Some(&"x".repeat(600))).await);
        assert!(one.starts_with("req_") && other.starts_with("req_") && one != other);
    }
}
