//! Lists of the node's models in the format of Ollama's API.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use super::App;
use rooflet_base::latest::Latest;
use rooflet_inference_api::ollama::models::{ListedModel, ModelFacts, ModelList, RunningList, RunningModel};
use rooflet_inference_api::ollama::routes::with_common;

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
    let models = models(&app).into_iter();
    let running = models.map(|(name, (_, facts))| RunningModel::new(&name, &name, &facts));
    Json(RunningList {
        models: running.collect(),
    })
}
