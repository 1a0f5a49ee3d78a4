//! History of deployments and nodes: of the controller in this process, and of Prometheus.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::api_proxy::get;
use super::error::WebError;
use super::prometheus::{Subject, parse_hours};
use super::signed_in::SignedIn;
use super::state::Web;
use super::upstreams::object_name;

/// Hours of the controller's history.
const DAY: u64 = 24;

/// Handler of `GET /proxy/history/deployments/NAMESPACE/NAME`, for users who may read the deployment.
pub(crate) async fn of_deployment(
    State(web): State<Arc<Web>>,
    Extension(signed_in): Extension<Arc<SignedIn>>,
    Path((namespace, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Response, WebError> {
    let (namespace, name) = (object_name(&namespace)?, object_name(&name)?);
    let path = format!("/apis/rooflet.dev/v1alpha1/namespaces/{namespace}/modeldeployments/{name}");
    let subject = Subject::Deployment { namespace, name };
    answer(&web, &signed_in, query.as_deref(), &path, subject).await
}

/// Handler of `GET /proxy/history/nodes/NODE`, for users who may read the FleetNode.
pub(crate) async fn of_node(
    State(web): State<Arc<Web>>,
    Extension(signed_in): Extension<Arc<SignedIn>>,
    Path(node): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, WebError> {
    let node = object_name(&node)?;
    let path = format!("/apis/rooflet.dev/v1alpha1/fleetnodes/{node}");
    answer(&web, &signed_in, query.as_deref(), &path, Subject::Node(node)).await
}

async fn answer(
    web: &Web,
    signed_in: &SignedIn,
    query: Option<&str>,
    path: &str,
    subject: Subject<'_>,
) -> Result<Response, WebError> {
    let hours = hours(query.unwrap_or_default())?;
    let object = match get(signed_in, path).await? {
        Ok(object) => object,
        Err(response) => return Ok(response),
    };
    // Prometheus has no controller's history of the time before its start, and no UIDs.
    let found = match (hours, &web.history, &web.prometheus) {
        (None, Some(history), _) => {
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            let found = match subject {
                Subject::Deployment { .. } => history.of(uid),
                Subject::Node(_) => history.of_node(uid),
            };
            found.ok_or_else(|| {
                WebError::NotFound("the history has no value yet: retry in a minute".to_owned())
            })?
        }
        (_, _, Some(prometheus)) => {
            let hours = hours.unwrap_or(DAY);
            prometheus.history(subject, hours, web.clock.now()).await?
        }
        (Some(_), _, None) => {
            return Err(WebError::NotFound(
                "this server queries no Prometheus: start it with --prometheus-url".to_owned(),
            ));
        }
        (None, None, None) => {
            return Err(WebError::NotFound(
                "this server keeps no history, because it has no controller: set --prometheus-url".to_owned(),
            ));
        }
    };
    Ok(Json(found).into_response())
}

/// Returns the hours in the query of a request. `None`: the default.
fn hours(query: &str) -> Result<Option<u64>, WebError> {
    match query.split_once('=') {
        None if query.is_empty() => Ok(None),
        Some(("hours", hours)) => parse_hours(hours).map(Some),
        None | Some(_) => Err(WebError::InvalidRequest(
            "the query must be empty or `hours=N`".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_empty_or_has_hours() {
        assert_eq!(hours(""), Ok(None));
        assert_eq!(hours("hours=168"), Ok(Some(168)));
        for wrong in ["hours", "hours=", "hours=a", "hours=1&query=up", "query=up", "="] {
            hours(wrong).unwrap_err();
        }
    }
}
