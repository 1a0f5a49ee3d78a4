//! HTTP server of the gateway: routes and handlers.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use http::{HeaderMap, StatusCode, header};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::keys::{self, KeyIdentity};
use super::ollama;
use super::routes::Gateway;
use rooflet_http_server as connection;
use rooflet_inference_api::anthropic;
use rooflet_inference_api::ollama::{error as ollama_error, routes as ollama_routes};
use rooflet_inference_api::openai::origins::OriginRules;
use rooflet_inference_api::openai::routes::{BY_MODEL, with_fallbacks};
use rooflet_inference_api::openai::{ApiError, headers, openapi};

pub(super) fn router(gateway: Arc<Gateway>, origin_rules: Arc<OriginRules>) -> Router {
    let routes = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/v1/responses/{id}", get(kept).delete(kept))
        .route("/v1/responses/{id}/input_items", get(kept))
        .route("/openapi.json", get(openapi::show))
        .route("/health", get(ping))
        .route("/ping", get(ping).post(ping))
        .route("/load", get(load))
        .route("/ready", get(ready))
        .route("/metrics", get(show_metrics));
    let by_model = |routes: Router<_>, path: &str| routes.route(path, post(forward));
    let routes = BY_MODEL.into_iter().fold(routes, by_model);
    let routes = ollama_routes::BY_MODEL.into_iter().fold(routes, by_model);
    let keys = gateway.keys().clone();
    with_fallbacks(routes.merge(ollama::routes()))
        .layer(axum::middleware::from_fn_with_state(keys, keys::middleware))
        .layer(axum::middleware::from_fn_with_state(
            origin_rules,
            headers::middleware,
        ))
        .layer(axum::middleware::from_fn(anthropic::error::reshape))
        .layer(axum::middleware::from_fn(ollama_error::reshape))
        .with_state(gateway)
}

/// Serves until `stop`, then waits for the responses in progress.
pub(super) async fn run(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    gateway: Arc<Gateway>,
    origin_rules: Arc<OriginRules>,
    stop: CancellationToken,
) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, tls = tls.is_some(), "gateway listening");
    }
    let router = router(gateway, origin_rules);
    match tls {
        Some(tls) => connection::serve_tls(listener, tls, router, stop).await,
        None => connection::serve_tcp(listener, router, stop).await,
    }
}

async fn forward(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    gateway.forward(request).await
}

async fn models(
    State(gateway): State<Arc<Gateway>>,
    identity: Option<Extension<Arc<KeyIdentity>>>,
) -> Response {
    gateway.models(identity.as_ref().map(|Extension(identity)| &**identity))
}

async fn model(
    State(gateway): State<Arc<Gateway>>,
    identity: Option<Extension<Arc<KeyIdentity>>>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    gateway.model(&name, identity.as_ref().map(|Extension(identity)| &**identity))
}

async fn kept(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    gateway.kept(request, &id).await
}

async fn ping() -> &'static str {
    "ok\n"
}

/// Handles `GET /load`: the number of requests in progress, in vLLM's format.
async fn load(State(gateway): State<Arc<Gateway>>) -> Json<serde_json::Value> {
    Json(serde_json::json!({"server_load": gateway.load()}))
}

async fn ready(State(gateway): State<Arc<Gateway>>) -> (StatusCode, Cow<'static, str>) {
    if gateway.is_ready() {
        let body = match gateway.anonymous_address() {
            None => "ok\n".into(),
            Some(address) => format!(
                "ok\nwarning: AnonymousAccess: every client that reaches {address} can send requests \
                 (--allow-anonymous)\n"
            )
            .into(),
        };
        (StatusCode::OK, body)
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not connected to the API server yet\n".into(),
        )
    }
}

async fn show_metrics(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let (format, text) = gateway.render_metrics(accept);
    ([(header::CONTENT_TYPE, format)], text)
}
