//! Lists of models in the format of Ollama's API, and its model names.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Extension, Json, Router};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::StatusCode;
use jiff::Timestamp;

use super::keys::KeyIdentity;
use super::routes::{Gateway, worker_path};
use crate::routing::table::{Model, Replica, RoutingTable};
use rooflet_inference_api::ollama::error::is_path;
use rooflet_inference_api::ollama::model_name::without_default_tag;
use rooflet_inference_api::ollama::models::{
    ListedModel, MAX_RUNNING_BYTES, ModelFacts, ModelList, NEVER, RunningList, RunningModel, residency,
};
use rooflet_inference_api::ollama::routes::with_common;
use rooflet_inference_api::openai::ApiError;

/// Timeout of a worker for its list of running models.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of workers that are queried at the same time.
const MAX_QUERIES: usize = 64;

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
    let mut models = Vec::new();
    for (name, model) in ready {
        if let Some(end) = gateway.residency_of(model).await {
            models.push(RunningModel::new(&name, &identity_of(model), &facts(model)).until(end));
        }
    }
    Ok(Json(RunningList { models }))
}

impl Gateway {
    /// Returns the end of the model's residency. `None` if no replica has loaded the model.
    async fn residency_of(&self, model: &Model) -> Option<String> {
        if model.replicas.iter().any(|replica| !replica.unloads) {
            return Some(NEVER.to_owned());
        }
        let query = |replica: &Replica| {
            let (upstream, path) = (replica.upstream.clone(), worker_path(&replica.target, "/api/ps"));
            async move {
                let list = self
                    .proxy()
                    .get(&upstream, &path, MAX_RUNNING_BYTES, RUNNING_TIMEOUT);
                list.await
            }
        };
        let lists = stream::iter(model.replicas.iter().map(query)).buffer_unordered(MAX_QUERIES);
        let lists: Vec<Bytes> = lists.filter_map(std::future::ready).collect().await;
        residency(lists.iter().map(|list| &**list))
    }
}
