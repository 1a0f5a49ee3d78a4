//! Common parts of the API servers of worker, agent and gateway: the URLs with a model, and
//! responses for unknown URLs and methods.

use axum::extract::Request;
use axum::response::IntoResponse as _;
use axum::routing::get;
use axum::{Json, Router};
use tower_http::catch_panic::CatchPanicLayer;

use super::{ApiError, body};

/// Paths of POST requests with a model in the body.
pub const BY_MODEL: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/detokenize",
    "/tokenize",
];

/// Returns the operation of a path, as named by OpenTelemetry's conventions for GenAI.
pub fn operation(path: &str) -> Option<&'static str> {
    match path {
        "/v1/chat/completions" | "/v1/responses" | "/v1/messages" | "/api/chat" => Some("chat"),
        "/v1/completions" | "/api/generate" => Some("text_completion"),
        "/v1/embeddings" | "/api/embed" | "/api/embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// Completes the routes of a server: a known URL with another method returns 405 with `Allow`, any
/// other URL returns 404, and a panic becomes an error of its request.
pub fn with_fallbacks<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes
        .route("/version", get(version))
        .fallback(unknown_url)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(
            |_panic: Box<dyn std::any::Any + Send>| {
                ApiError::server_error("The server failed on this request.").into_response()
            },
        ))
        .layer(axum::middleware::from_fn(body::middleware))
}

/// Handles `GET /version`, with vLLM's body.
async fn version() -> Json<serde_json::Value> {
    Json(serde_json::json!({"version": env!("CARGO_PKG_VERSION")}))
}

async fn unknown_url(request: Request) -> ApiError {
    ApiError::unknown_url(request.method().as_str(), request.uri().path())
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::method_not_allowed(request.method().as_str(), request.uri().path())
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::routing::post;
    use serde_json::Value;
    use tower::ServiceExt as _;

    use super::*;

    async fn panics() -> &'static str {
        panic!("on purpose")
    }

    async fn answer(method: &str, path: &str) -> (u16, Option<String>, Value) {
        let routes = Router::new()
            .route("/v1/models", get(|| async { "models" }))
            .route("/v1/completions", post(|| async { "answer" }))
            .route("/panics", post(panics));
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::from("no JSON")).expect("a request");
        let response = with_fallbacks(routes).oneshot(request).await.expect("an answer");
        let status = response.status().as_u16();
        let allow = response.headers().get("allow");
        let allow = allow.map(|value| value.to_str().expect("text").to_owned());
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("whole");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        (status, allow, body["error"]["code"].clone())
    }

    #[tokio::test]
    async fn distinguishes_unknown_urls_methods_and_panics() {
        let check = async |method, path, status: u16, allow: Option<&str>, code: &str| {
            let expect = (status, allow.map(str::to_owned), Value::from(code));
            assert_eq!(answer(method, path).await, expect, "{method} {path}");
        };
        for method in ["GET", "PUT", "PATCH", "DELETE"] {
            check(method, "/v1/completions", 405, Some("POST"), "method_not_allowed").await;
        }
        check("POST", "/v1/models", 405, Some("GET,HEAD"), "method_not_allowed").await;
        for method in ["GET", "POST", "DELETE"] {
            check(method, "/v1/nothing", 404, None, "unknown_url").await;
        }
        check("POST", "/panics", 500, None, "server_error").await;
        assert_eq!(answer("HEAD", "/v1/models").await.0, 200);
        assert_eq!(answer("HEAD", "/v1/completions").await.0, 405);
        assert_eq!(answer("HEAD", "/v1/nothing").await.0, 404);
    }
}
