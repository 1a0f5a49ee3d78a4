//! Preview of a change, computed from the objects that the user may read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::Value;

use super::api_proxy::get;
use super::error::WebError;
use super::signed_in::SignedIn;
use super::state::Web;

/// Plurals of the kinds that a preview requires, in the order of [`FleetObjects`].
const KINDS: [&str; 4] = [
    "fleetnodes",
    "modeldeployments",
    "modelrevisions",
    "modelreplicas",
];

/// Objects of the fleet, as arrays.
#[derive(Debug)]
pub struct FleetObjects {
    pub nodes: Value,
    pub deployments: Value,
    pub revisions: Value,
    pub replicas: Value,
    /// `None` if the API keys could not be listed, for example because the user may not list them.
    pub keys: Option<Value>,
}

/// Maximum number of previews that the server computes at the same time.
pub(crate) const MAX_PREVIEWS: usize = 2;
/// Time after which the preview ends, with the consequences computed until then.
const TIME_LIMIT: Duration = Duration::from_secs(10);

type Plan = dyn Fn(FleetObjects, &[u8], &dyn Fn() -> bool) -> Result<Value, String> + Send + Sync;

/// Function that returns the consequences of a change for these objects, or why it has none. The change is
/// the body of the request. The function ends early if the callback returns true.
#[derive(Clone)]
pub struct Planner(Arc<Plan>);

impl Planner {
    pub fn new(
        plan: impl Fn(FleetObjects, &[u8], &dyn Fn() -> bool) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(plan))
    }
}

impl fmt::Debug for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Planner")
    }
}

/// Handler of `POST /proxy/preview`, for users who may list the objects of the fleet. A session computes one
/// preview at a time. If the client disconnects, the preview ends.
pub(crate) async fn preview(
    State(web): State<Arc<Web>>,
    Extension(signed_in): Extension<Arc<SignedIn>>,
    change: Bytes,
) -> Result<Response, WebError> {
    let one_of_session = Arc::clone(&signed_in.preview).acquire_owned().await;
    let one_of_server = Arc::clone(&web.previews).acquire_owned().await;
    let mut lists = Vec::with_capacity(KINDS.len());
    for kind in KINDS {
        match get(&signed_in, &format!("/apis/rooflet.dev/v1alpha1/{kind}")).await? {
            Ok(mut list) => lists.push(list["items"].take()),
            Err(response) => return Ok(response),
        }
    }
    let keys = get(&signed_in, "/apis/rooflet.dev/v1alpha1/apikeys").await?;
    let [nodes, deployments, revisions, replicas] = <[Value; 4]>::try_from(lists).unwrap_or_default();
    let objects = FleetObjects {
        nodes,
        deployments,
        revisions,
        replicas,
        keys: keys.ok().map(|mut list| list["items"].take()),
    };
    let planner = web.planner.clone();
    let stop = web.stop.child_token();
    // The guard stops the preview when hyper drops this future because the client has disconnected.
    let guard = stop.clone().drop_guard();
    // Plans of a large fleet take longer than a task may occupy its thread.
    let mut plan = tokio::task::spawn_blocking(move || {
        let _permits = (one_of_session, one_of_server);
        (planner.0)(objects, &change, &|| stop.is_cancelled())
    });
    let planned = match tokio::time::timeout(TIME_LIMIT, &mut plan).await {
        Ok(planned) => planned,
        Err(_elapsed) => {
            drop(guard);
            plan.await
        }
    };
    let planned = planned.unwrap_or_else(|err| Err(format!("the preview failed: {err}")));
    let preview = planned.map_err(WebError::InvalidRequest)?;
    Ok(Json(preview).into_response())
}
