//! History of the deployments that the controller in this process keeps.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::api_proxy::get;
use super::error::WebError;
use super::signed_in::SignedIn;
use super::state::Web;
use super::upstreams::object_name;

/// Handler of `GET /proxy/history/deployments/NAMESPACE/NAME`, for users who may read the deployment.
pub(crate) async fn of_deployment(
    State(web): State<Arc<Web>>,
    Extension(signed_in): Extension<Arc<SignedIn>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, WebError> {
    let Some(history) = &web.history else {
        return Err(WebError::NotFound(
            "this server keeps no history, because it has no controller".to_owned(),
        ));
    };
    let (namespace, name) = (object_name(&namespace)?, object_name(&name)?);
    let path = format!("/apis/rooflet.dev/v1alpha1/namespaces/{namespace}/modeldeployments/{name}");
    let deployment = match get(&signed_in, &path).await? {
        Ok(deployment) => deployment,
        Err(response) => return Ok(response),
    };
    let uid = deployment["metadata"]["uid"].as_str().unwrap_or_default();
    let found = history.of(uid).ok_or_else(|| {
        WebError::NotFound(format!(
            "the history of {name} has no value yet: retry in a minute"
        ))
    })?;
    Ok(Json(found).into_response())
}
