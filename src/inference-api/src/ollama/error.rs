//! Error body of Ollama's API: `{"error": "message"}`.

use axum::Json;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::openai::ApiError;
use rooflet_api::wire::behind_proxy;

/// Prefix of the paths of this API.
const PREFIX: &str = "/api/";

/// Returns true for a path of this API, also behind an agent's proxy.
pub fn is_path(path: &str) -> bool {
    behind_proxy(path).unwrap_or(path).starts_with(PREFIX)
}

/// Returns the body of an error, also sent as the last line of a stream.
pub fn body(err: &ApiError) -> Value {
    json!({"error": err.message})
}

/// Converts errors of this server to Ollama's body, on Ollama's paths (middleware). Status and
/// headers stay. It must wrap the middleware that rejects origins.
pub async fn reshape(request: Request, next: Next) -> Response {
    let is_ollama = is_path(request.uri().path());
    let mut response = next.run(request).await;
    if is_ollama && let Some(err) = response.extensions_mut().remove::<ApiError>() {
        let (mut head, _) = response.into_parts();
        let (own, body) = Json(body(&err)).into_response().into_parts();
        head.headers.extend(own.headers);
        head.headers.remove(http::header::CONTENT_LENGTH);
        response = Response::from_parts(head, body);
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::routing::get;
    use tower::ServiceExt as _;

    use super::*;

    async fn answer(path: &str) -> (u16, Option<String>, Value) {
        let fails = || async { ApiError::rate_limit_exceeded("busy", 7) };
        let app = Router::new()
            .route("/api/chat", get(fails))
            .route("/apix", get(fails))
            .route("/replicas/{namespace}/{name}/proxy/{*path}", get(fails))
            .layer(axum::middleware::from_fn(reshape));
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let header = response.headers().get("retry-after");
        let header = header.map(|value| value.to_str().unwrap().to_owned());
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, header, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn path_determines_the_error_body() {
        for path in ["/api/chat", "/replicas/default/guide/proxy/api/chat?a=b"] {
            assert_eq!(
                answer(path).await,
                (429, Some("7".to_owned()), json!({"error": "busy"})),
                "{path}"
            );
        }
        for path in ["/apix", "/replicas/default/guide/proxy/v1/completions"] {
            assert!(answer(path).await.2["error"].is_object(), "{path}");
        }
    }
}
