//! Error body of Anthropic's API:
//! `{"type": "error", "error": {"type", "message"}, "request_id"}`.

use axum::Json;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};

use crate::openai::ApiError;
use crate::openai::headers::REQUEST_ID;
use rooflet_api::wire::behind_proxy;

/// Path below which clients expect this error body.
pub const PATH: &str = "/v1/messages";

/// Parameter with which newer clients request that the server stores the conversation.
pub(super) const THREAD: &str = "thread";

/// Returns the body of an error, also sent as an event of a stream.
pub fn body(err: &ApiError) -> Value {
    let kind = match err.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    let message = match err.overrun {
        // Clients detect this wording and shorten the conversation.
        Some(overrun) => format!(
            "prompt is too long: {} tokens > {} maximum",
            overrun.prompt_tokens, overrun.context_tokens
        ),
        None => err.message.clone(),
    };
    let mut body = json!({"type": "error", "error": {"type": kind, "message": message}});
    if err.param.as_deref() == Some(THREAD) {
        // With these details, clients continue without a stored conversation.
        body["error"]["details"] =
            json!({"error_code": "thread_unsupported_request", "unsupported": [THREAD]});
    }
    body
}

/// Converts errors of this server to Anthropic's body, on Anthropic's paths (middleware). Status
/// and headers stay. It must wrap the middleware that rejects origins and adds request ids.
pub async fn reshape(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_anthropic = behind_proxy(path)
        .unwrap_or(path)
        .strip_prefix(PATH)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut response = next.run(request).await;
    if is_anthropic && let Some(err) = response.extensions_mut().remove::<ApiError>() {
        let mut body = body(&err);
        let id = response.headers().get(REQUEST_ID);
        if let Some(id) = id.and_then(|id| id.to_str().ok()) {
            body["request_id"] = id.into();
        }
        let (mut head, _) = response.into_parts();
        let (own, body) = Json(body).into_response().into_parts();
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
    use crate::openai::error::Overrun;
    use crate::openai::headers::middleware;
    use crate::openai::origins::{AllowedOrigins, OriginRules};

    const OWN: &str = "http://localhost";

    async fn answer(path: &str, origin: &str) -> (u16, Option<String>, Value) {
        let rules = OriginRules::new(AllowedOrigins::default(), None, []);
        let fails = || async { ApiError::rate_limit_exceeded("busy", 7) };
        let app = Router::new()
            .route("/v1/messages", get(fails))
            .route("/v1/messages/count_tokens", get(fails))
            .route("/v1/messagesx", get(fails))
            .route("/replicas/{namespace}/{name}/proxy/{*path}", get(fails))
            .layer(axum::middleware::from_fn_with_state(rules, middleware))
            .layer(axum::middleware::from_fn(reshape));
        let request = Request::builder()
            .uri(path)
            .header(REQUEST_ID, "req_7")
            .header("origin", origin)
            .body(Body::empty())
            .unwrap();
        let response = app.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let header = response.headers().get("retry-after");
        let header = header.map(|value| value.to_str().unwrap().to_owned());
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, header, serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn overlong_prompt_has_the_wording_that_clients_detect() {
        let overrun = Overrun {
            prompt_tokens: 41_317,
            is_exact: true,
            context_tokens: 4096,
        };
        let body = body(&ApiError::context_length_exceeded("messages", overrun, true));
        assert_eq!(
            body["error"],
            json!({"type": "invalid_request_error", "message": "prompt is too long: 41317 tokens > 4096 maximum"})
        );
    }

    #[tokio::test]
    async fn path_determines_the_error_body() {
        let seven = || Some("7".to_owned());
        let theirs = json!({"type": "error", "error": {"type": "rate_limit_error", "message": "busy"}, "request_id": "req_7"});
        assert_eq!(answer("/v1/messages", OWN).await, (429, seven(), theirs.clone()));
        assert_eq!(
            answer("/v1/messages/count_tokens?beta=true", OWN).await,
            (429, seven(), theirs.clone())
        );
        let (status, _, refused) = answer("/v1/messages", "https://evil.example").await;
        assert_eq!(
            (status, &refused["error"]["type"], &refused["request_id"]),
            (403, &json!("permission_error"), &json!("req_7"))
        );
        let (_, _, proxied) = answer("/replicas/default/guide/proxy/v1/messages?beta=true", OWN).await;
        assert_eq!(proxied, theirs);
        for path in [
            "/v1/messagesx",
            "/replicas/default/guide/proxy/v1/completions",
            "/replicas/default/guide/proxy/proxy/v1/messages",
        ] {
            let (status, header, body) = answer(path, OWN).await;
            assert_eq!(
                (status, header, &body["error"]["code"]),
                (429, seven(), &json!("rate_limit_exceeded")),
                "{path}"
            );
        }
    }
}
