//! Router of the worker's HTTP server, and handlers for models, health, load, status and metrics.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::api::app::App;
use crate::api::body::MAX_BODY_BYTES;
use crate::api::completions;
use crate::api::embeddings;
use crate::api::messages;
use crate::api::ollama;
use crate::api::responses;
use crate::api::spans;
use crate::api::tokenize;
use rooflet_api::wire::{CHIP_SHARE_HEADER, WorkerPhase, WorkerStatus};
use rooflet_base::metrics;
use rooflet_inference_api::anthropic;
use rooflet_inference_api::ollama::error as ollama_error;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::headers;
use rooflet_inference_api::openai::models::{Model, ModelList};
use rooflet_inference_api::openai::openapi;
use rooflet_inference_api::openai::origins::OriginRules;
use rooflet_inference_api::openai::routes::with_fallbacks;

pub(crate) fn router(app: Arc<App>, origin_rules: Arc<OriginRules>) -> Router {
    let routes = Router::new()
        .route("/v1/chat/completions", post(completions::chat))
        .route("/v1/completions", post(completions::text))
        .route("/v1/responses", post(responses::create))
        .route(
            "/v1/responses/{id}",
            get(responses::show).delete(responses::delete),
        )
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .merge(ollama::routes())
        .route("/openapi.json", get(openapi::show))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/load", get(load))
        .route("/health", get(health))
        .route("/ping", get(health).post(health))
        .route("/ready", get(ready))
        .route("/status", get(status))
        .route("/metrics", get(metrics_text))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    with_fallbacks(routes)
        .layer(axum::middleware::from_fn_with_state(
            origin_rules,
            headers::middleware,
        ))
        .layer(axum::middleware::from_fn(anthropic::error::reshape))
        .layer(axum::middleware::from_fn(ollama_error::reshape))
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&app),
            spans::trace_request,
        ))
        .with_state(app)
}

async fn models(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(ModelList::new(vec![app.model_card()]))
}

async fn model(State(app): State<Arc<App>>, Path(requested): Path<String>) -> Result<Json<Model>, ApiError> {
    app.check_model(&requested)?;
    Ok(Json(app.model_card()))
}

/// Handles the liveness check: fails if the engine thread has exited, or makes no progress although
/// it has work.
async fn health(State(app): State<Arc<App>>) -> Response {
    if !app.engine.is_running() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the engine has ended\n").into_response();
    }
    if app.engine.state().is_stalled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the engine makes no progress\n").into_response();
    }
    "ok\n".into_response()
}

/// Handles `GET /load`: the number of requests that the engine runs or queues, in vLLM's format.
async fn load(State(app): State<Arc<App>>) -> Json<Value> {
    let requests = app.engine.state().requests();
    Json(json!({"server_load": requests.running + requests.queued}))
}

/// Handles `GET /tokenizer_info`. `/tokenize` and `/detokenize` already return prompts that the
/// chat template renders, so the endpoint has no separate switch.
async fn tokenizer_info(State(app): State<Arc<App>>) -> Json<Value> {
    Json(app.prompter.tokenizer_info())
}

async fn ready(State(app): State<Arc<App>>) -> Response {
    if !app.engine.is_running() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the engine has ended\n").into_response();
    }
    match app.engine.state().phase() {
        WorkerPhase::Ready => "ok\n".into_response(),
        WorkerPhase::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading\n").into_response(),
        WorkerPhase::Warming => (StatusCode::SERVICE_UNAVAILABLE, "warming\n").into_response(),
    }
}

async fn status(State(app): State<Arc<App>>, headers: HeaderMap) -> Json<WorkerStatus> {
    let state = app.engine.state();
    let share = headers
        .get(CHIP_SHARE_HEADER)
        .and_then(|share| share.to_str().ok());
    if let Some(share) = share.and_then(|share| share.parse().ok()) {
        state.allowance().allow(share);
    }
    Json(WorkerStatus {
        phase: state.phase(),
        engine: state.engine(),
        model: state.model(),
        memory: state.memory(),
        requests: state.requests(),
        measured: state.measured(),
        stalled: !app.engine.is_running() || state.is_stalled(),
    })
}

async fn metrics_text(State(app): State<Arc<App>>, headers: HeaderMap) -> impl IntoResponse {
    let state = app.engine.state();
    let requests = state.requests();
    app.metrics.update_gauges(
        requests.running,
        requests.queued,
        state.memory(),
        state.kv_cache_usage(),
    );
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let (format, text) = metrics::exposition(&app.registry, accept);
    ([(header::CONTENT_TYPE, format)], text)
}
