//! Lists of models in the format of Ollama's API, and its model names.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Extension, Json, Router};
use http::StatusCode;
use jiff::Timestamp;

use super::keys::KeyIdentity;
use super::routes::Gateway;
use crate::routing::table::{Model, RoutingTable};
use rooflet_inference_api::ollama::error::is_path;
use rooflet_inference_api::ollama::model_name::without_default_tag;
use rooflet_inference_api::ollama::models::{ListedModel, ModelFacts, ModelList, RunningList, RunningModel};
use rooflet_inference_api::ollama::routes::with_common;
use rooflet_inference_api::openai::ApiError;

pub(super) fn routes() -> Router<Arc<Gateway>> {
    let routes = Router::new()
        .route("/api/tags", get(list))
        .route("/api/ps", get(running));
    with_common(routes)
}

impl Gateway {
    /// Returns the requested model. On Ollama's paths, its name may have the default tag.
    pub(super) fn find_at<'t>(
        &self,
        path: &str,
        table: &'t RoutingTable,
        requested: &str,
        identity: Option<&KeyIdentity>,
    ) -> Result<&'t Model, ApiError> {
        let found = self.find(table, requested, identity);
        match (&found, without_default_tag(requested)) {
            (Err(err), Some(bare)) if err.status == StatusCode::NOT_FOUND && is_path(path) => {
                match self.find(table, bare, identity) {
                    // The error contains the name of the request.
                    Err(other) if other.status == StatusCode::NOT_FOUND => found,
                    other => other,
                }
            }
            _ => found,
        }
    }
}

/// Returns the name of a model that is unique in the fleet.
fn identity_of(model: &Model) -> String {
    format!("{}/{}", model.namespace, model.name)
}

fn facts(model: &Model) -> ModelFacts {
    let loaded = model.loaded.as_ref();
    let facts = loaded.map(|loaded| ModelFacts {
        architecture: loaded.architecture.clone(),
        parameters: loaded.parameters,
        weights_bytes: loaded.weights_bytes,
        context_tokens: loaded.context_tokens.into(),
        ..ModelFacts::default()
    });
    facts.unwrap_or_default()
}

async fn list(
    State(gateway): State<Arc<Gateway>>,
    identity: Option<Extension<Arc<KeyIdentity>>>,
) -> Result<Json<ModelList>, ApiError> {
    let table = gateway.table()?;
    let identity = identity.as_ref().map(|Extension(identity)| &**identity);
    let listed = Gateway::permitted(&table, identity).map(|(name, model)| {
        let created = Timestamp::from_second(model.created).unwrap_or_default();
        ListedModel::new(&name, &identity_of(model), created.to_string(), &facts(model))
    });
    Ok(Json(ModelList {
        models: listed.collect(),
    }))
}

async fn running(
    State(gateway): State<Arc<Gateway>>,
    identity: Option<Extension<Arc<KeyIdentity>>>,
) -> Result<Json<RunningList>, ApiError> {
    let table = gateway.table()?;
    let identity = identity.as_ref().map(|Extension(identity)| &**identity);
    let ready = Gateway::permitted(&table, identity).filter(|(_, model)| !model.replicas.is_empty());
    let running = ready.map(|(name, model)| RunningModel::new(&name, &identity_of(model), &facts(model)));
    Ok(Json(RunningList {
        models: running.collect(),
    }))
}
