//! Lists of the node's models in the format of Ollama's API.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use futures::future::join_all;
use http::uri::PathAndQuery;

use super::App;
use rooflet_base::latest::Latest;
use rooflet_inference_api::ollama::models::{
    ListedModel, MAX_RUNNING_BYTES, ModelFacts, ModelList, NEVER, RunningList, RunningModel, residency,
};
use rooflet_inference_api::ollama::routes::with_common;

/// Timeout of a worker for its list of running models.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn routes() -> Router<App> {
    let routes = Router::new()
        .route("/api/tags", get(list))
        .route("/api/ps", get(running));
    with_common(routes)
}

/// Returns the ready models: start time and facts by served name.
fn models(app: &App) -> BTreeMap<String, (String, ModelFacts)> {
    let (endpoints, reports) = (app.endpoints_rx.latest(), app.reports_rx.latest());
    let mut models = BTreeMap::new();
    for (key, endpoint) in endpoints.iter().filter(|(_, endpoint)| endpoint.ready) {
        let started = endpoint.started.unwrap_or_default().to_string();
        let loaded = reports
            .replicas
            .get(key)
            .and_then(|report| report.status.model.as_ref());
        let facts = loaded.map(|model| ModelFacts {
            architecture: model.architecture.clone(),
            parameters: model.parameters,
            weights_bytes: model.weights_bytes,
            context_tokens: model.context_tokens.into(),
            ..ModelFacts::default()
        });
        models
            .entry(endpoint.serving_name.clone())
            .or_insert((started, facts.unwrap_or_default()));
    }
    models
}

async fn list(State(app): State<App>) -> Json<ModelList> {
    let models = models(&app).into_iter();
    let listed = models.map(|(name, (started, facts))| ListedModel::new(&name, &name, started, &facts));
    Json(ModelList {
        models: listed.collect(),
    })
}

async fn running(State(app): State<App>) -> Json<RunningList> {
    let mut running = Vec::new();
    for (name, (_, facts)) in models(&app) {
        if let Some(end) = residency_of(&app, &name).await {
            running.push(RunningModel::new(&name, &name, &facts).until(end));
        }
    }
    Json(RunningList { models: running })
}

/// Returns the end of the model's residency. `None` if no replica has loaded the model.
async fn residency_of(app: &App, model: &str) -> Option<String> {
    let replicas = app.serving(model).into_iter();
    let ready: Vec<_> = replicas.filter(|(_, endpoint)| endpoint.ready).collect();
    if ready.iter().any(|(_, endpoint)| !endpoint.unloads) {
        return Some(NEVER.to_owned());
    }
    let path = PathAndQuery::from_static("/api/ps");
    let upstreams = ready
        .iter()
        .filter_map(|(_, endpoint)| endpoint.upstream.as_ref());
    let lists = join_all(
        upstreams.map(|upstream| app.proxy.get(upstream, &path, MAX_RUNNING_BYTES, RUNNING_TIMEOUT)),
    );
    let lists: Vec<Bytes> = lists.await.into_iter().flatten().collect();
    residency(lists.iter().map(|list| &**list))
}
