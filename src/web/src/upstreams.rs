//! Requests to the gateway and to agents.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::api_proxy::get;
use super::error::WebError;
use super::forward;
use super::signed_in::SignedIn;
use super::state::Web;
use rooflet_base::error::Chain;
use rooflet_proxy::{Proxy, Upstream};

/// Prefix of the paths that are forwarded to the gateway.
pub(crate) const OPENAI_PREFIX: &str = "/proxy/openai";
/// Request header with the API key of the gateway.
const API_KEY: HeaderName = HeaderName::from_static("x-rooflet-api-key");
const SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");

/// Handler of `/proxy/openai/PATH`.
pub(crate) async fn openai(
    State(web): State<Arc<Web>>,
    Extension(signed_in): Extension<Arc<SignedIn>>,
    request: Request,
) -> Result<Response, WebError> {
    let path = request.uri().path_and_query().map_or("", |path| path.as_str());
    let path = path.strip_prefix(OPENAI_PREFIX).unwrap_or_default();
    if !path.starts_with("/v1/") {
        return Err(WebError::InvalidRequest(
            "the path must begin with /v1/".to_owned(),
        ));
    }
    let path = path
        .parse()
        .map_err(|_| WebError::InvalidRequest("the path is not valid".to_owned()))?;
    let (parts, body) = request.into_parts();
    let mut upstream = Request::new(body);
    *upstream.method_mut() = parts.method;
    *upstream.headers_mut() = forward::request_headers(&parts.headers, &[SESSION_ID]);
    if let Some(key) = parts.headers.get(API_KEY) {
        let mut value = HeaderValue::from_bytes(&[b"Bearer ", key.as_bytes()].concat())
            .map_err(|_| WebError::InvalidRequest("the API key is not valid".to_owned()))?;
        value.set_sensitive(true);
        upstream.headers_mut().insert(AUTHORIZATION, value);
    }
    to_gateway(&web, &signed_in, upstream, &path).await
}

/// Handler of `GET /proxy/metrics/gateway`.
pub(crate) async fn gateway_metrics(
    State(web): State<Arc<Web>>,
    Extension(signed_in): Extension<Arc<SignedIn>>,
    headers: HeaderMap,
) -> Result<Response, WebError> {
    let path = PathAndQuery::from_static("/metrics");
    to_gateway(&web, &signed_in, reading(&headers), &path).await
}

/// Returns a GET request without its path. `headers` are those of the client, which may accept another format
/// of metrics.
fn reading(headers: &HeaderMap) -> Request {
    let mut request = Request::new(Body::empty());
    *request.headers_mut() = forward::request_headers(headers, &[]);
    request
}

async fn to_gateway(
    web: &Web,
    signed_in: &SignedIn,
    request: Request,
    path: &PathAndQuery,
) -> Result<Response, WebError> {
    let gateway = web.upstreams.gateway.as_ref();
    let (proxy, upstream) =
        gateway.ok_or_else(|| WebError::NotFound("this server forwards to no gateway".to_owned()))?;
    forwarded(proxy, upstream, "the gateway", signed_in, request, path).await
}

/// Handler of `GET /proxy/metrics/agents/NODE`.
pub(crate) async fn agent_metrics(
    State(web): State<Arc<Web>>,
    Extension(signed_in): Extension<Arc<SignedIn>>,
    Path(node): Path<String>,
    headers: HeaderMap,
) -> Result<Response, WebError> {
    to_agent(&web, &signed_in, &node, "/metrics", &headers).await
}

/// Handler of the metrics of a replica's worker.
pub(crate) async fn replica_metrics(
    State(web): State<Arc<Web>>,
    Extension(signed_in): Extension<Arc<SignedIn>>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, WebError> {
    let (namespace, name) = (object_name(&namespace)?, object_name(&name)?);
    let node = match replica_node(&signed_in, namespace, name).await? {
        Ok(node) => node,
        Err(response) => return Ok(response),
    };
    let path = format!("/replicas/{namespace}/{name}/proxy/metrics");
    to_agent(&web, &signed_in, &node, &path, &headers).await
}

/// Handler of `GET /proxy/logs/NAMESPACE/REPLICA`.
pub(crate) async fn replica_log(
    State(web): State<Arc<Web>>,
    Extension(signed_in): Extension<Arc<SignedIn>>,
    Path((namespace, name)): Path<(String, String)>,
    request: Request,
) -> Result<Response, WebError> {
    let (namespace, name) = (object_name(&namespace)?, object_name(&name)?);
    let node = match replica_node(&signed_in, namespace, name).await? {
        Ok(node) => node,
        Err(response) => return Ok(response),
    };
    let query = request.uri().query().unwrap_or_default();
    let log = format!("/replicas/{namespace}/{name}/logs?{query}");
    to_agent(&web, &signed_in, &node, &log, request.headers()).await
}

/// Returns the node of a replica, or the API server's response if it does not return the replica.
async fn replica_node(
    signed_in: &SignedIn,
    namespace: &str,
    name: &str,
) -> Result<Result<String, Response>, WebError> {
    let path = format!("/apis/rooflet.dev/v1alpha1/namespaces/{namespace}/modelreplicas/{name}");
    let replica = match get(signed_in, &path).await? {
        Ok(replica) => replica,
        Err(response) => return Ok(Err(response)),
    };
    let node = replica["spec"]["nodeName"].as_str().map(str::to_owned);
    node.map(Ok)
        .ok_or_else(|| WebError::NotFound(format!("the replica {name} has no node yet")))
}

/// Sends a GET request to the agent of a node that the user may read.
async fn to_agent(
    web: &Web,
    signed_in: &SignedIn,
    node: &str,
    path: &str,
    headers: &HeaderMap,
) -> Result<Response, WebError> {
    let node = object_name(node)?;
    let object = format!("/apis/rooflet.dev/v1alpha1/fleetnodes/{node}");
    let object = match get(signed_in, &object).await? {
        Ok(object) => object,
        Err(response) => return Ok(response),
    };
    let endpoint = object["status"]["endpoint"].as_str().unwrap_or_default();
    let upstream = Upstream::of_node(endpoint, node)
        .map_err(|_| WebError::NotFound(format!("the agent of {node} has not reported its endpoint")))?;
    let path = path
        .parse()
        .map_err(|_| WebError::InvalidRequest("the query is not valid".to_owned()))?;
    let agents = &web.upstreams.agents;
    forwarded(agents, &upstream, "the agent", signed_in, reading(headers), &path).await
}

async fn forwarded(
    proxy: &Proxy,
    upstream: &Upstream,
    name: &'static str,
    signed_in: &SignedIn,
    request: Request,
    path: &PathAndQuery,
) -> Result<Response, WebError> {
    let response = proxy.forward(request, upstream, path).await;
    let response = response.map_err(|err| WebError::UpstreamUnreachable {
        upstream: name,
        what: Chain(&err).to_string(),
    })?;
    let (head, body) = response.into_parts();
    Ok(forward::response(head.status, &head.headers, body, &signed_in.ended).into_response())
}

/// Checks that a name of an object contains no characters with a meaning in paths.
pub(crate) fn object_name(name: &str) -> Result<&str, WebError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_name = !name.is_empty() && name.bytes().all(is_plain) && !name.starts_with('.');
    is_name
        .then_some(name)
        .ok_or_else(|| WebError::NotFound("the path contains no valid name".to_owned()))
}
