//! `/api/tags`, `/api/ps` and `/api/show`: facts about the model of this worker.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use jiff::{Timestamp, Unit};
use serde_json::{Map, json};

use super::check_model;
use crate::api::app::App;
use crate::api::body;
use rooflet_api::wire::WorkerPhase;
use rooflet_inference_api::ollama::models::{
    Details, ListedModel, ModelFacts, ModelList, NEVER, RunningList, RunningModel, ShownModel,
};
use rooflet_inference_api::ollama::request::show::ShowRequest;
use rooflet_inference_api::openai::ApiError;

/// Returns the facts with the context that the engine supports now.
fn current(app: &App) -> ModelFacts {
    app.files.with_context(app.prompter.context_tokens() as u64)
}

fn started(app: &App) -> String {
    Timestamp::from_second(app.started)
        .unwrap_or_default()
        .to_string()
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    let facts = current(&app);
    let model = ListedModel::new(&app.name, &app.name, started(&app), &facts);
    Json(ModelList { models: vec![model] })
}

pub(super) async fn running(State(app): State<Arc<App>>) -> Json<RunningList> {
    let residency = app.engine.residency();
    let is_loaded = app.engine.state().phase() == WorkerPhase::Ready && residency.is_loaded();
    let model = is_loaded.then(|| {
        let expires_at = residency
            .expires_at()
            .and_then(|end| end.round(Unit::Second).ok())
            .map_or_else(|| NEVER.to_owned(), |end| end.to_string());
        RunningModel::new(&app.name, &app.name, &current(&app)).until(expires_at)
    });
    Json(RunningList {
        models: model.into_iter().collect(),
    })
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ShownModel>, ApiError> {
    let (request, _share) = body::parse(body, &app, |_, body| ShowRequest::parse(body)).await?;
    check_model(&app, &request.model)?;
    let facts = current(&app);
    let architecture = &facts.architecture;
    let mut model_info = Map::new();
    for (name, value) in [
        ("general.architecture".to_owned(), json!(architecture)),
        ("general.basename".to_owned(), json!(app.name)),
        ("general.parameter_count".to_owned(), json!(facts.parameters)),
        (format!("{architecture}.block_count"), json!(app.files.layers)),
        (
            format!("{architecture}.context_length"),
            json!(facts.context_tokens),
        ),
        (
            format!("{architecture}.embedding_length"),
            json!(app.files.hidden),
        ),
    ] {
        model_info.insert(name, value);
    }
    let template = app.prompter.chat_template();
    let capabilities = [
        ("completion", true),
        ("tools", template.is_some()),
        ("insert", app.prompter.can_infill()),
        ("thinking", app.prompter.has_reasoning()),
    ];
    Ok(Json(ShownModel {
        modelfile: format!(
            "# Models of rooflet come from ModelDeployments.\nFROM {}\n",
            app.name
        ),
        parameters: app.prompter.default_parameters(),
        template: template.unwrap_or_default().to_owned(),
        details: Details::new(&facts),
        model_info,
        capabilities: capabilities
            .into_iter()
            .filter_map(|(name, is_supported)| is_supported.then_some(name))
            .collect(),
        modified_at: started(&app),
    }))
}
