//! Endpoints of Ollama's API that do not depend on a model, and the paths of those that do.

use axum::extract::Request;
use axum::routing::{any, get};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::openai::ApiError;

/// Paths of POST requests with a model in the body.
pub const BY_MODEL: [&str; 5] = [
    "/api/chat",
    "/api/embed",
    "/api/embeddings",
    "/api/generate",
    "/api/show",
];

/// Paths that show nothing of models and clients.
pub const OPEN_PATHS: [&str; 2] = ["/", VERSION_PATH];

const VERSION_PATH: &str = "/api/version";

/// Release of Ollama whose API this server implements. Clients compare this number with the release
/// that they require, so that rooflet's own version is of no use here.
const API_VERSION: &str = "0.12.11";

/// Paths with which clients change the set of models.
const MANAGEMENT: [&str; 6] = [
    "/api/blobs/{digest}",
    "/api/copy",
    "/api/create",
    "/api/delete",
    "/api/pull",
    "/api/push",
];

/// Adds the endpoints that do not depend on a model.
pub fn with_common<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    let routes = routes.route("/", get(root)).route(VERSION_PATH, get(version));
    let add = |routes: Router<S>, path: &str| routes.route(path, any(unsupported));
    MANAGEMENT.into_iter().fold(routes, add)
}

/// Handles `GET /` and `HEAD /`. Clients search for a server with this request, and some compare the
/// text.
async fn root() -> &'static str {
    "Ollama is running"
}

async fn version() -> Json<Value> {
    Json(json!({"version": API_VERSION}))
}

async fn unsupported(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::unsupported(
        "path",
        format!(
            "{path} is not supported by this server: its models come from ModelDeployments. To add, change or delete a \
             model, an administrator runs `kubectl apply` or `kubectl delete` for a ModelDeployment."
        ),
    )
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use tower::ServiceExt as _;

    use super::*;

    async fn answer(method: &str, path: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::empty()).unwrap();
        let response = with_common(Router::new()).oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Ollama's own response to `GET /`.
    #[tokio::test]
    async fn clients_find_the_server() {
        assert_eq!(answer("GET", "/").await, (200, "Ollama is running".to_owned()));
        assert_eq!(answer("HEAD", "/").await, (200, String::new()));
        let (status, body) = answer("GET", "/api/version").await;
        assert_eq!(status, 200);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["version"].as_str().unwrap().split('.').count(), 3);
    }

    #[tokio::test]
    async fn rejects_management_with_remedy() {
        for (method, path) in [
            ("POST", "/api/pull"),
            ("DELETE", "/api/delete"),
            ("HEAD", "/api/blobs/sha256:0"),
            ("POST", "/api/create"),
        ] {
            let (status, body) = answer(method, path).await;
            assert_eq!(status, 400, "{path}");
            assert!(method == "HEAD" || body.contains("ModelDeployment"), "{body}");
        }
    }
}
