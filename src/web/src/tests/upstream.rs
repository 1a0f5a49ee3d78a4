//! Fake of API server, gateway and agent in one server. It records requests, and answers watches
//! with the events that a test sends.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use rooflet_base::mutex::lock;

pub(super) const ADMIN: &str = "admin";
pub(super) const ADMIN_TOKEN: &str = "rooflet_admin-secret";
pub(super) const PROMETHEUS_TOKEN: &str = "prometheus-secret";
pub(super) const VIEWER_TOKEN: &str = "viewer-secret";

/// Received request.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

#[derive(Default)]
pub(super) struct Upstream {
    pub(super) address: Mutex<String>,
    received: Mutex<Vec<Received>>,
    /// Senders of the open watches, in order of their start.
    watches: Mutex<Vec<mpsc::UnboundedSender<String>>>,
    pub(super) rejects_tokens: std::sync::atomic::AtomicBool,
}

impl Upstream {
    pub(super) fn received(&self) -> Vec<Received> {
        lock(&self.received).clone()
    }

    pub(super) fn last(&self) -> Received {
        lock(&self.received).last().cloned().expect("a request")
    }

    /// Sends a line to the watch with this number. Returns false if it is not open, or if nothing reads it.
    pub(super) fn send(&self, watch: usize, line: &str) -> bool {
        let watches = lock(&self.watches);
        watches
            .get(watch)
            .is_some_and(|watch| watch.send(line.to_owned()).is_ok())
    }

    /// Ends all watches.
    pub(super) fn end_watches(&self) {
        lock(&self.watches).clear();
    }
}

pub(super) fn router(upstream: Arc<Upstream>) -> Router {
    Router::new().fallback(answer).with_state(upstream)
}

fn status(code: StatusCode, reason: &str) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "message": reason, "code": code.as_u16()});
    (code, Json(status)).into_response()
}

async fn answer(State(upstream): State<Arc<Upstream>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("a body");
    let path = parts.uri.path_and_query().expect("a path").to_string();
    let received = Received {
        method: parts.method,
        path: path.clone(),
        headers: parts.headers,
        body: String::from_utf8(bytes.to_vec()).expect("text"),
    };
    lock(&upstream.received).push(received.clone());
    if path.starts_with("/v1/") || path.starts_with("/metrics") || path.starts_with("/replicas/") {
        let secret = [("set-cookie", "a=b"), ("x-rooflet-replica", "default/a-0")];
        return (secret, format!("{} {path}\n", received.method)).into_response();
    }
    if let Some(query) = path.strip_prefix("/prometheus/api/v1/query_range?") {
        return range(&upstream, query);
    }
    let token = received
        .headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let is_rejected = upstream.rejects_tokens.load(std::sync::atomic::Ordering::Relaxed);
    let user = match token.and_then(|value| value.strip_prefix("Bearer ")) {
        Some(ADMIN_TOKEN) if !is_rejected => ADMIN,
        Some(VIEWER_TOKEN) if !is_rejected => "viewer",
        Some(_) => return status(StatusCode::UNAUTHORIZED, "Unauthorized"),
        None => "system:anonymous",
    };
    if path == "/apis/authentication.k8s.io/v1/selfsubjectreviews?" || path.ends_with("selfsubjectreviews") {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
            "metadata": {}, "status": {"userInfo": {"username": user, "groups": ["a", "b"]}}});
        return (StatusCode::CREATED, Json(review)).into_response();
    }
    if path.contains("selfsubjectaccessreviews") {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "metadata": {}, "spec": {}, "status": {"allowed": user == "viewer"}});
        return (StatusCode::CREATED, Json(review)).into_response();
    }
    if path.contains("/namespaces/secret/") || (user == "viewer" && received.method != Method::GET) {
        return status(StatusCode::FORBIDDEN, "Forbidden");
    }
    if path.contains("watch=true") {
        if path.contains("resourceVersion=1&") {
            return status(StatusCode::GONE, "Expired");
        }
        let (lines_tx, lines_rx) = mpsc::unbounded_channel::<String>();
        lock(&upstream.watches).push(lines_tx);
        let lines = futures::stream::unfold(lines_rx, |mut lines_rx| async move {
            let line = lines_rx.recv().await?;
            Some((Ok::<_, Infallible>(line), lines_rx))
        });
        return Body::from_stream(lines).into_response();
    }
    Json(object(&upstream, &path)).into_response()
}

/// Answers as Prometheus does: with one value at the end of the range.
fn range(upstream: &Upstream, query: &str) -> Response {
    let last = upstream.last();
    let expected = format!("Bearer {PROMETHEUS_TOKEN}");
    if last
        .headers
        .get(AUTHORIZATION)
        .is_none_or(|token| token != &*expected)
    {
        return (StatusCode::UNAUTHORIZED, "Unauthorized\n").into_response();
    }
    let end = query.split('&').find_map(|pair| pair.strip_prefix("end="));
    let end: u64 = end.and_then(|end| end.parse().ok()).expect("an end");
    let result = json!([{"metric": {}, "values": [[end, "36.5"]]}]);
    Json(json!({"status": "success", "data": {"resultType": "matrix", "result": result}})).into_response()
}

fn object(upstream: &Upstream, path: &str) -> Value {
    let endpoint = format!("http://{}", lock(&upstream.address));
    match path {
        "/apis/rooflet.dev/v1alpha1/fleetnodes" => {
            json!({"items": [{"metadata": {"name": "mini-1"}, "status": {"endpoint": endpoint}}]})
        }
        "/apis/rooflet.dev/v1alpha1/modelreplicas" => {
            json!({"items": [{"metadata": {"namespace": "default", "name": "a-0"},
                "spec": {"nodeName": "mini-1"}, "status": {"phase": "Ready"}}]})
        }
        "/apis/rooflet.dev/v1alpha1/fleetnodes/mini-1" => {
            json!({"metadata": {"uid": "mac"}, "status": {"endpoint": endpoint}})
        }
        "/apis/rooflet.dev/v1alpha1/namespaces/default/modeldeployments/a" => {
            json!({"metadata": {"uid": "1"}})
        }
        "/apis/rooflet.dev/v1alpha1/namespaces/default/modeldeployments/new" => {
            json!({"metadata": {"uid": "2"}})
        }
        "/apis/rooflet.dev/v1alpha1/namespaces/default/modelreplicas/a-0" => {
            json!({"spec": {"nodeName": "mini-1"}})
        }
        "/apis/rooflet.dev/v1alpha1/namespaces/default/modelreplicas/pending" => json!({"spec": {}}),
        _ => json!({ "path": path }),
    }
}
