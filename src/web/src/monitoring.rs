//! Service discovery and metrics for Prometheus. One Prometheus that reaches this server, with one
//! token, finds and reads all processes of the fleet.
//!
//! Each request has a bearer token. The API server decides which objects the token may read.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header::{AUTHORIZATION, HOST};
use http::uri::Authority;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use serde::Serialize;
use serde_json::Value;

use super::api_proxy::{get, send, unreachable};
use super::error::WebError;
use super::forward;
use super::sign_in;
use super::signed_in::SignedIn;
use super::state::Web;
use super::upstreams::gateway_metrics;
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;

/// Start of the engine of simulated machines. Their workers have no metrics.
const SIMULATED_ENGINE: &str = "simulated ";
const METRICS: &str = "/monitoring/metrics";
const NODES: &str = "/apis/rooflet.dev/v1alpha1/fleetnodes";
const REPLICAS: &str = "/apis/rooflet.dev/v1alpha1/modelreplicas";

/// Admits requests with a bearer token that the API server accepts. Adds the user to the request.
pub(crate) async fn require_token(
    State(web): State<Arc<Web>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Result<Response, WebError> {
    let header = request.headers().get(AUTHORIZATION);
    let header = header.and_then(|value| value.to_str().ok());
    let token = header.and_then(|value| value.strip_prefix("Bearer "));
    let token = token.ok_or(WebError::TokenMissing)?.trim().to_owned();
    let known = lock(&web.scrapers).use_session(&token, &web.clock);
    let known = known.filter(|user| !user.ended.is_cancelled());
    let user = match known {
        Some(user) => user,
        None => sign_in::with_token(&web, token, from.ip()).await?,
    };
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

/// Process with metrics, in the format of Prometheus' HTTP service discovery.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Target {
    targets: [String; 1],
    labels: BTreeMap<String, String>,
}

/// Address of this server, as the client reaches it.
struct Address<'a> {
    scheme: &'static str,
    host: &'a str,
}

impl Address<'_> {
    fn target(&self, component: &str, path: &str, instance: &str) -> Target {
        let labels = [
            ("__scheme__", self.scheme),
            ("__metrics_path__", &format!("{METRICS}/{path}")),
            ("component", component),
            // All targets have the same address.
            ("instance", instance),
        ];
        let owned = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Target {
            targets: [self.host.to_owned()],
            labels: owned.into(),
        }
    }
}

impl Target {
    fn with(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }
}

/// Handler of `GET /monitoring/targets`.
pub(crate) async fn targets(
    State(web): State<Arc<Web>>,
    Extension(user): Extension<Arc<SignedIn>>,
    request: Request,
) -> Result<Response, WebError> {
    let header = request.headers().get(HOST).and_then(|value| value.to_str().ok());
    let host = header.or_else(|| request.uri().authority().map(Authority::as_str));
    let address = Address {
        scheme: if web.has_tls { "https" } else { "http" },
        host: host.unwrap_or_default(),
    };
    let nodes = match get(&user, NODES).await? {
        Ok(nodes) => nodes,
        Err(response) => return Ok(response),
    };
    let replicas = match get(&user, REPLICAS).await? {
        Ok(replicas) => replicas,
        Err(response) => return Ok(response),
    };
    let mut targets = Vec::new();
    if web.has_api_server {
        targets.push(address.target("control-plane", "control-plane", "control-plane"));
    }
    if web.upstreams.has_gateway() {
        targets.push(address.target("gateway", "gateway", "gateway"));
    }
    targets.extend(of_fleet(&address, items(&nodes), items(&replicas)));
    Ok(Json(targets).into_response())
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the targets of agents that have reported an endpoint, and of Ready replicas.
fn of_fleet(address: &Address<'_>, nodes: &[Value], replicas: &[Value]) -> Vec<Target> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut targets = Vec::new();
    let mut simulated = Vec::new();
    for node in nodes {
        let name = text(&node["metadata"]["name"]);
        if text(&node["status"]["nodeInfo"]["engine"]).starts_with(SIMULATED_ENGINE) {
            simulated.push(name.clone());
        }
        if text(&node["status"]["endpoint"]).is_empty() {
            continue;
        }
        let mut target = address
            .target("agent", &format!("agents/{name}"), &name)
            .with("node", &name);
        let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
        for (label, value) in labels {
            target = target.with(
                &format!("__meta_rooflet_node_label_{}", plain(label)),
                &text(value),
            );
        }
        targets.push(target);
    }
    for replica in replicas {
        let [namespace, name] = ["namespace", "name"].map(|key| text(&replica["metadata"][key]));
        let node = text(&replica["spec"]["nodeName"]);
        if replica["status"]["phase"] != "Ready" || simulated.contains(&node) {
            continue;
        }
        let deployment = text(&replica["metadata"]["labels"][DEPLOYMENT_LABEL]);
        let path = format!("replicas/{namespace}/{name}");
        let target = address.target("worker", &path, &format!("{namespace}/{name}"));
        let target = target.with("namespace", &namespace).with("replica", &name);
        targets.push(target.with("deployment", &deployment).with("node", &node));
    }
    targets
}

/// Replaces characters that names of Prometheus' labels do not permit.
fn plain(label: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    label.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// Handler of `GET /monitoring/metrics/control-plane`. The API server decides whether the token may
/// read its metrics.
pub(crate) async fn control_plane(
    State(web): State<Arc<Web>>,
    Extension(user): Extension<Arc<SignedIn>>,
) -> Result<Response, WebError> {
    if !web.has_api_server {
        return Err(WebError::NotFound("this server has no API server".to_owned()));
    }
    let request = http::Request::new(kube::client::Body::empty());
    let (head, body) = send(&user, request, "/metrics").await?.into_parts();
    Ok(forward::response(head.status, &head.headers, body, &user.ended))
}

/// Handler of `GET /monitoring/metrics/gateway`, for tokens that may read `/metrics` of the API server.
pub(crate) async fn gateway(
    State(web): State<Arc<Web>>,
    Extension(user): Extension<Arc<SignedIn>>,
    headers: HeaderMap,
) -> Result<Response, WebError> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some("/metrics".to_owned()),
                verb: Some("get".to_owned()),
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(user.client.clone());
    let review = reviews.create(&PostParams::default(), &review).await;
    let review = review.map_err(|err| unreachable(&Chain(&err).to_string()))?;
    if !review.status.is_some_and(|status| status.allowed) {
        return Err(WebError::MetricsForbidden(user.user.clone()));
    }
    gateway_metrics(State(web), Extension(user), headers).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn targets_are_agents_with_endpoint_and_ready_replicas_with_an_engine() {
        let node = |name: &str, endpoint: &str, engine: &str| {
            json!({"metadata": {"name": name, "labels": {"rooflet.dev/chip": "M4", "site": "berlin"}},
                "status": {"endpoint": endpoint, "nodeInfo": {"engine": engine}}})
        };
        let nodes = [
            node("mini-1", "https://192.0.2.7:7500", "mlx 0.32.2"),
            node("new", "", ""),
            node("sim", "http://127.0.0.1:1", SIMULATED_ENGINE),
        ];
        let replica = |name: &str, node: &str, phase: &str| {
            json!({"metadata": {"namespace": "team", "name": name, "labels": {(DEPLOYMENT_LABEL): "a"}},
                "spec": {"nodeName": node}, "status": {"phase": phase}})
        };
        let replicas = [
            replica("a-1", "mini-1", "Ready"),
            replica("a-2", "mini-1", "Loading"),
            replica("a-3", "sim", "Ready"),
        ];
        let address = Address {
            scheme: "https",
            host: "192.0.2.2:7490",
        };
        let found = json!(of_fleet(&address, &nodes, &replicas));
        let agent = |name: &str| {
            json!({"targets": ["192.0.2.2:7490"], "labels": {"__scheme__": "https",
                "__metrics_path__": format!("/monitoring/metrics/agents/{name}"), "component": "agent",
                "instance": name, "node": name, "__meta_rooflet_node_label_rooflet_dev_chip": "M4",
                "__meta_rooflet_node_label_site": "berlin"}})
        };
        let worker = json!({"targets": ["192.0.2.2:7490"], "labels": {"__scheme__": "https",
            "__metrics_path__": "/monitoring/metrics/replicas/team/a-1", "component": "worker",
            "instance": "team/a-1", "namespace": "team", "replica": "a-1", "deployment": "a",
            "node": "mini-1"}});
        assert_eq!(found, json!([agent("mini-1"), agent("sim"), worker]));
    }
}
