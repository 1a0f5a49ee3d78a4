//! The agent's HTTP server: proxy to the workers' sockets, worker logs, and an OpenAI endpoint for
//! the node's models.

mod callers;
mod ollama;
mod stalled;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use futures::{FutureExt, StreamExt};
use http::header::CONTENT_TYPE;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode, Uri};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use self::callers::Callers;
use super::manifests::ManifestSet;
use super::replica::ReplicaKey;
use super::workers::{Endpoint, Endpoints};
use crate::config::AgentConfig;
use crate::connection::ConnectionState;
use crate::reports::Reports;
use crate::workers::in_flight::InFlightCounts;
use crate::workers::pacing::Pacing;
use rooflet_api::wire::{
    CHIP_SHARE_HEADER, GATEWAY_LOG_PATH, REPLICA_ID_HEADER, RETRYABLE_HEADER, behind_proxy,
};
use rooflet_base::error::Chain;
use rooflet_base::latest::Latest;
use rooflet_base::metrics::{Registry, TEXT_FORMAT, render};
use rooflet_base::task::Tasks;
use rooflet_host::Host;
use rooflet_http_server as connection;
use rooflet_inference_api::anthropic;
use rooflet_inference_api::ollama::model_name::without_default_tag;
use rooflet_inference_api::ollama::{error as ollama_error, routes as ollama_routes};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::body::MAX_BODY_BYTES;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_inference_api::openai::models::{Model, ModelList};
use rooflet_inference_api::openai::origins::OriginRules;
use rooflet_inference_api::openai::routes::{BY_MODEL, with_fallbacks};
use rooflet_inference_api::openai::stored_reference::{RESPONSES_PATH, StoredReference};
use rooflet_inference_api::openai::{headers, openapi};
use rooflet_process::logs::{From, Log, stream};
use rooflet_proxy::{BodyRoom, ForwardError, Proxy, peek_model};

/// Maximum of `tailLines`.
const MAX_TAIL_LINES: usize = 1_000_000;

/// State of the request handlers. Clones share everything.
#[derive(Clone)]
pub(crate) struct App {
    pub node: Arc<str>,
    pub endpoints_rx: watch::Receiver<Endpoints>,
    pub reports_rx: watch::Receiver<Arc<Reports>>,
    pub manifests_rx: Option<watch::Receiver<Arc<ManifestSet>>>,
    pub proxy: Proxy,
    pub body_room: BodyRoom,
    pub registry: Registry,
    /// Round-robin counter over the replicas of a model.
    pub turn: Arc<AtomicUsize>,
    pub in_flight: InFlightCounts,
    /// Connection to the API server, if the agent has one.
    pub connection: Option<ConnectionState>,
    pub pacing: Pacing,
    /// Log of a gateway on this machine.
    pub gateway_log: Option<Log>,
    pub stop: CancellationToken,
}

/// Starts the HTTP server as an agent task.
pub(super) fn serve(tasks: &Tasks, listener: TcpListener, app: App, config: &AgentConfig) {
    let advertised = config.endpoint.parse().ok();
    let advertised = advertised.and_then(|url: Uri| Some(url.host()?.to_owned()));
    let names = advertised.into_iter().chain([Host::Native.identity().hostname]);
    let origin_rules = OriginRules::new(config.allowed_origins.clone(), listener.local_addr().ok(), names);
    let mut router = router(app, origin_rules);
    let tls = config.tls.clone();
    let callers = tls
        .as_ref()
        .and_then(|tls| Some(Callers::new(tls.fleet.clone()?, tls.audit.clone())));
    if let Some(callers) = callers {
        router = router.layer(axum::middleware::from_fn_with_state(callers, callers::authorize));
    }
    tasks.spawn("http", move |stop| {
        Box::pin(async move {
            // Open connections end with their clients or with the process: a stream must not delay
            // the agent's shutdown.
            let served = async {
                match tls {
                    Some(tls) => connection::serve_tls(listener, tls.config, router, stop.clone()).await,
                    None => connection::serve_tcp(listener, router, stop.clone()).await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = served => {}
            }
            Ok::<_, Infallible>(())
        })
    });
}

pub(crate) fn router(app: App, origin_rules: Arc<OriginRules>) -> Router {
    let routes = Router::new()
        .route("/v1/models", get(list_models))
        .route("/v1/models/{*model}", get(show_model))
        .route("/openapi.json", get(openapi::show))
        .route("/health", get(health))
        .route("/ping", get(health).post(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics));
    let by_model = |routes: Router<_>, path: &str| routes.route(path, post(route_by_model));
    let routes = BY_MODEL.into_iter().fold(routes, by_model);
    let routes = ollama_routes::BY_MODEL.into_iter().fold(routes, by_model);
    let api = with_fallbacks(routes.merge(ollama::routes()));
    Router::new()
        .route("/replicas/{namespace}/{name}/proxy/{*path}", any(proxy_replica))
        .route("/replicas/{namespace}/{name}/logs", get(logs))
        .route(GATEWAY_LOG_PATH, get(gateway_log))
        .merge(api)
        .layer(axum::middleware::from_fn_with_state(
            origin_rules,
            headers::middleware,
        ))
        .layer(axum::middleware::from_fn(anthropic::error::reshape))
        .layer(axum::middleware::from_fn(ollama_error::reshape))
        .with_state(app)
}

impl App {
    fn endpoint(&self, key: &ReplicaKey) -> Option<Endpoint> {
        self.endpoints_rx.latest().get(key).cloned()
    }

    /// Returns the replicas that serve a model, in round-robin order.
    fn serving(&self, model: &str) -> Vec<(ReplicaKey, Endpoint)> {
        let endpoints = self.endpoints_rx.latest();
        let mut serving: Vec<_> = endpoints
            .iter()
            .filter(|(_, endpoint)| endpoint.serving_name == model)
            .map(|(key, endpoint)| (key.clone(), endpoint.clone()))
            .collect();
        if !serving.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % serving.len();
            serving.rotate_left(turn);
        }
        serving
    }
}

/// Forwards a request for one replica to its worker without changes.
async fn proxy_replica(
    State(app): State<App>,
    Path((namespace, name, _)): Path<(String, String, String)>,
    mut request: Request,
) -> Response {
    let key = ReplicaKey::new(namespace, name);
    let Some(endpoint) = app.endpoint(&key) else {
        return ApiError::unavailable(
            ErrorCode::ModelUnavailable,
            format!("No replica {key} runs on this node."),
        )
        .into_response();
    };
    let Some(upstream) = endpoint.upstream else {
        return ApiError::unavailable(
            ErrorCode::ModelUnavailable,
            format!("Replica {key} has no worker now."),
        )
        .into_response();
    };
    let path = behind_proxy(request.uri().path());
    let Some(path) = path.and_then(|path| path_and_query(path, request.uri())) else {
        return ApiError::unknown_url(request.method().as_str(), request.uri().path()).into_response();
    };
    // Only the agent may set this header.
    request.headers_mut().remove(CHIP_SHARE_HEADER);
    let is_retryable = request.headers_mut().remove(RETRYABLE_HEADER).is_some();
    if is_retryable && endpoint.stalled {
        return ApiError::unavailable(
            ErrorCode::ModelUnavailable,
            format!("The worker of replica {key} makes no progress."),
        )
        .into_response();
    }
    if request.method() == Method::POST {
        app.pacing.request_started(&key);
    }
    let in_flight = app.in_flight.begin(&key);
    let mut until_stalled = match is_retryable {
        true => stalled::until_stalled(app.endpoints_rx.clone(), key.clone()),
        false => std::future::pending().boxed(),
    };
    tokio::select! {
        biased;
        outcome = app.proxy.forward(request, &upstream, &path) => match outcome {
            Ok(response) if is_retryable => {
                in_flight.finish_with(stalled::limit_preamble(response, until_stalled))
            }
            Ok(response) => in_flight.finish_with(response),
            Err(err) => forward_failed(&err),
        },
        () = &mut until_stalled => {
            info!(replica = %key, "worker makes no progress, returning a request for retry");
            ApiError::worker_failed().into_response()
        }
    }
}

fn path_and_query(path: &str, uri: &Uri) -> Option<PathAndQuery> {
    match uri.query() {
        Some(query) => format!("{path}?{query}").parse().ok(),
        None => path.parse().ok(),
    }
}

/// Converts a failed forward to a response. A worker that received the request gets a status of its
/// own, because the request itself may have ended the worker.
fn forward_failed(err: &ForwardError) -> Response {
    debug!(reason = err.reason(), error = %Chain(err), "worker did not answer");
    let error = if err.nothing_was_sent() {
        ApiError::unavailable(
            ErrorCode::ModelUnavailable,
            "The model's worker does not respond. Retry shortly.",
        )
    } else {
        ApiError::worker_failed()
    };
    error.into_response()
}

/// Routes a request to a replica that serves the requested model.
async fn route_by_model(State(app): State<App>, request: Request) -> Response {
    let Some(path) = path_and_query(request.uri().path(), request.uri()) else {
        return ApiError::unknown_url("POST", request.uri().path()).into_response();
    };
    let (parts, body) = request.into_parts();
    let peeked = match peek_model(body, MAX_BODY_BYTES, &app.body_room).await {
        Ok(peeked) => peeked,
        Err(err) => return ApiError::into_response(err.into()),
    };
    let requested_path = parts.uri.path();
    let mut serving = app.serving(&peeked.model);
    if serving.is_empty()
        && ollama_error::is_path(requested_path)
        && let Some(bare) = without_default_tag(&peeked.model)
    {
        serving = app.serving(bare);
    }
    if serving.is_empty() {
        return ApiError::model_not_found(&peeked.model).into_response();
    }
    let kept = requested_path
        .starts_with(RESPONSES_PATH)
        .then(|| StoredReference::of(&peeked.body));
    if let Err(not_found) = retain_storing_replica(&mut serving, kept.flatten().as_ref()) {
        return not_found.into_response();
    }
    let mut last = None;
    for (key, upstream) in serving
        .iter()
        .filter(|(_, endpoint)| endpoint.ready)
        .filter_map(|(key, endpoint)| Some((key, endpoint.upstream.as_ref()?)))
    {
        let mut request = Request::from_parts(parts.clone(), Body::from(peeked.body.clone()));
        if requested_path == RESPONSES_PATH
            && let Ok(replica_id) = HeaderValue::from_str(&format!("{:016x}", key.id()))
        {
            request.headers_mut().insert(REPLICA_ID_HEADER, replica_id);
        }
        app.pacing.request_started(key);
        let in_flight = app.in_flight.begin(key);
        match app.proxy.forward(request, upstream, &path).await {
            Ok(response) => return in_flight.end_with(response),
            // If nothing was sent, this replica cannot have started the request, so another replica
            // may serve it.
            Err(err) if err.nothing_was_sent() => last = Some(err),
            Err(err) => return forward_failed(&err),
        }
    }
    match last {
        Some(err) => forward_failed(&err),
        None => ApiError::model_loading(&peeked.model).into_response(),
    }
}

/// Removes all replicas except the one that stores the response that the request continues.
fn retain_storing_replica<E>(
    serving: &mut Vec<(ReplicaKey, E)>,
    kept: Option<&StoredReference>,
) -> Result<(), ApiError> {
    let replica_id = kept
        .and_then(StoredReference::replica_id)
        .filter(|replica_id| *replica_id != 0);
    let Some((kept, replica_id)) = kept.zip(replica_id) else {
        return Ok(());
    };
    serving.retain(|(key, _)| key.id() == replica_id);
    match serving.is_empty() {
        true => Err(kept.not_found()),
        false => Ok(()),
    }
}

fn models(app: &App) -> Vec<Model> {
    let endpoints = app.endpoints_rx.latest();
    let mut seen = BTreeSet::new();
    endpoints
        .values()
        .filter(|endpoint| endpoint.ready && seen.insert(endpoint.serving_name.clone()))
        .map(|endpoint| {
            let created = endpoint.started.map_or(0, |started| started.as_second());
            let context = endpoint
                .context_tokens
                .and_then(|tokens| usize::try_from(tokens).ok());
            Model::new(endpoint.serving_name.clone(), created, context)
        })
        .collect()
}

async fn list_models(State(app): State<App>) -> Json<ModelList> {
    Json(ModelList::new(models(&app)))
}

async fn show_model(State(app): State<App>, Path(name): Path<String>) -> Response {
    match models(&app).into_iter().find(|model| model.id == name) {
        Some(model) => Json(model).into_response(),
        None => ApiError::model_not_found(&name).into_response(),
    }
}

/// Query parameters of the log endpoint, named like those of Pod logs in Kubernetes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogQuery {
    #[serde(default)]
    follow: bool,
    tail_lines: Option<usize>,
}

async fn logs(
    State(app): State<App>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<LogQuery>,
) -> Response {
    let key = ReplicaKey::new(namespace, name);
    let Some(endpoint) = app.endpoint(&key) else {
        let exists = app.reports_rx.latest().replicas.contains_key(&key);
        let message = match exists {
            true => {
                format!(
                    "replica {key} has not been started yet and has no log; see its conditions for the reason\n"
                )
            }
            false => format!("no replica {key} on node {}\n", app.node),
        };
        return (StatusCode::NOT_FOUND, message).into_response();
    };
    let (mut endpoints_rx, stop) = (app.endpoints_rx.clone(), app.stop.clone());
    // A followed log ends when its replica or the agent ends.
    let gone = async move {
        tokio::select! {
            () = stop.cancelled() => {}
            _ = endpoints_rx.wait_for(|endpoints| !endpoints.contains_key(&key)) => {}
        }
    };
    send_log(&endpoint.log, &query, gone)
}

/// Returns the log of the gateway on this machine.
async fn gateway_log(State(app): State<App>, Query(query): Query<LogQuery>) -> Response {
    match app.gateway_log.filter(|log| log.path().exists()) {
        Some(log) => send_log(&log, &query, app.stop.cancelled_owned()),
        None => {
            let message = format!("node {} has no log of a gateway\n", app.node);
            (StatusCode::NOT_FOUND, message).into_response()
        }
    }
}

/// Returns the bytes of a log. A followed log ends with `gone`.
fn send_log(log: &Log, query: &LogQuery, gone: impl Future<Output = ()> + Send + 'static) -> Response {
    let from = query
        .tail_lines
        .map_or(From::Start, |lines| From::LastLines(lines.min(MAX_TAIL_LINES)));
    let reader = match log.read(from) {
        Ok(reader) => reader,
        Err(err) => {
            let message = format!("reading `{}`: {err}\n", log.path());
            return (StatusCode::INTERNAL_SERVER_ERROR, message).into_response();
        }
    };
    let bytes = stream(reader, query.follow).take_until(Box::pin(gone));
    (
        [(CONTENT_TYPE, "text/plain; charset=utf-8")],
        Body::from_stream(bytes),
    )
        .into_response()
}

/// Returns the agent's state with a summary of its replicas and manifests.
async fn health(State(app): State<App>) -> Response {
    let reports = app.reports_rx.latest();
    let replicas: Vec<_> = reports
        .replicas
        .iter()
        .map(|(key, report)| {
            let ready = report
                .status
                .conditions
                .iter()
                .find(|condition| condition.type_ == "Ready");
            json!({
                "namespace": key.namespace,
                "name": key.name,
                "model": report.replica.spec.serving_name,
                "phase": report.status.phase,
                "reason": ready.map(|ready| &ready.reason),
                "message": ready.map(|ready| &ready.message),
                "restarts": report.status.restarts,
            })
        })
        .collect();
    let mut health = json!({ "status": "ok", "node": &*app.node, "replicas": replicas });
    if let Some(connection) = &app.connection {
        health["apiServer"] = connection.to_json();
    }
    if let Some(manifests_rx) = &app.manifests_rx {
        let manifests = manifests_rx.latest();
        health["manifests"] =
            json!({ "deployments": manifests.replicas.len(), "problems": manifests.problems });
    }
    Json(health).into_response()
}

/// Returns 200 if at least one model is ready.
async fn ready(State(app): State<App>) -> (StatusCode, &'static str) {
    let endpoints = app.endpoints_rx.latest();
    match endpoints.values().any(|endpoint| endpoint.ready) {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "no model is ready yet\n"),
    }
}

async fn metrics(State(app): State<App>) -> Response {
    ([(CONTENT_TYPE, TEXT_FORMAT)], render(&app.registry)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::wire::RUNNING_HEADER;
    use rooflet_proxy::Upstream;
    use rooflet_testing::within;

    #[tokio::test]
    async fn worker_that_received_the_request_gets_a_distinct_status() {
        let worker = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", worker.local_addr().expect("bound"));
        let upstream: Upstream = url.parse().expect("a base URL");
        let path = PathAndQuery::from_static("/v1/completions");
        let ask = || async {
            let (proxy, request) = (Proxy::new(), Request::new(Body::from("{}")));
            let asked = proxy.forward(request, &upstream, &path);
            forward_failed(&within(asked).await.expect_err("nobody answers")).status()
        };
        let dies = async {
            let (stream, _) = worker.accept().await.expect("a connection");
            stream.readable().await.expect("a request");
        };
        let (status, ()) = tokio::join!(ask(), dies);
        assert_eq!(status, StatusCode::BAD_GATEWAY);
        drop(worker);
        assert_eq!(ask().await, StatusCode::SERVICE_UNAVAILABLE);
    }

    /// Serves a worker that accepts requests and never responds.
    async fn hung_worker() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        Tasks::new().spawn_detached(async move {
            let mut connections = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.push(stream);
            }
        });
        url.parse().expect("a base URL")
    }

    fn ready(upstream: Upstream) -> Endpoint {
        Endpoint {
            serving_name: "guide".to_owned(),
            log: rooflet_process::logs::Log::new("/nonexistent".into()),
            upstream: Some(upstream),
            ready: true,
            stalled: false,
            unloads: false,
            context_tokens: None,
            started: None,
        }
    }

    fn app(endpoints_rx: watch::Receiver<Endpoints>) -> App {
        App {
            node: "mini-1".into(),
            endpoints_rx,
            reports_rx: watch::channel(Arc::default()).1,
            manifests_rx: None,
            proxy: Proxy::new(),
            body_room: BodyRoom::new(1 << 20),
            registry: Registry::new(),
            turn: Arc::default(),
            in_flight: InFlightCounts::default(),
            connection: None,
            pacing: Pacing::new(rooflet_base::clock::Clock::System),
            gateway_log: None,
            stop: CancellationToken::new(),
        }
    }

    fn completion() -> Request {
        let mut request = Request::new(Body::from(r#"{"model":"guide"}"#));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("/v1/completions");
        request
    }

    #[tokio::test]
    async fn requests_to_the_endpoint_of_the_agent_are_in_flight() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let worker = format!("http://{}", listener.local_addr().expect("bound"));
        Tasks::new().spawn_detached(async move {
            let router = Router::new().route("/v1/completions", post(|| async { "ok" }));
            axum::serve(listener, router).await.expect("serves");
        });
        let of = |upstream: Upstream| {
            let endpoints = [(ReplicaKey::new("default", "a"), ready(upstream))];
            app(watch::channel(Endpoints::new(endpoints.into())).1)
        };
        let served = of(worker.parse().expect("a base URL"));
        let response = within(route_by_model(State(served.clone()), completion())).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key(RUNNING_HEADER));
        assert!(!served.in_flight.is_empty(), "the body was not read");
        drop(response);
        assert!(served.in_flight.is_empty());

        let hung = of(hung_worker().await);
        let mut waiting = Box::pin(route_by_model(State(hung.clone()), completion()));
        within(async {
            while hung.in_flight.is_empty() {
                assert!(futures::poll!(&mut waiting).is_pending());
                tokio::task::yield_now().await;
            }
        })
        .await;
        drop(waiting);
        assert!(hung.in_flight.is_empty());
    }

    #[tokio::test]
    async fn stalled_worker_returns_retryable_requests() {
        let key = ReplicaKey::new("default", "a");
        let endpoint = ready(hung_worker().await);
        let endpoints = |stalled: bool| {
            let endpoint = Endpoint {
                ready: !stalled,
                stalled,
                ..endpoint.clone()
            };
            Endpoints::new([(key.clone(), endpoint)].into())
        };
        let (endpoints_tx, endpoints_rx) = watch::channel(endpoints(false));
        let app = app(endpoints_rx);
        let ask = |retryable: Option<&str>| {
            let mut request = Request::new(Body::from("{}"));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = Uri::from_static("/replicas/default/a/proxy/v1/completions");
            if let Some(value) = retryable.and_then(|value| HeaderValue::from_str(value).ok()) {
                request.headers_mut().insert(RETRYABLE_HEADER, value);
            }
            let path = Path(("default".to_owned(), "a".to_owned(), String::new()));
            Box::pin(proxy_replica(State(app.clone()), path, request))
        };
        let stalls = async {
            while app.in_flight.is_empty() {
                tokio::task::yield_now().await;
            }
            endpoints_tx.send_replace(endpoints(true));
        };
        let (waiting, ()) = within(async { tokio::join!(ask(Some("true")), stalls) }).await;
        assert_eq!(waiting.status(), StatusCode::BAD_GATEWAY);
        let later = within(ask(Some("true"))).await;
        assert_eq!(later.status(), StatusCode::SERVICE_UNAVAILABLE);
        // Without another replica, the request waits for the worker.
        let mut only = ask(None);
        assert!(futures::poll!(&mut only).is_pending());
        drop(only);
        assert!(app.in_flight.is_empty());
    }

    #[test]
    fn continued_responses_are_routed_to_the_replica_that_stores_them() {
        let key = |name: &str| ReplicaKey::new("default", name);
        let serving = || vec![(key("a"), 1), (key("b"), 2)];
        let id = |replica_id: u64| format!("resp_{replica_id:016x}00112233");
        let of = |id: String| {
            let body = json!({"previous_response_id": id}).to_string();
            let mut left = serving();
            let outcome = retain_storing_replica(&mut left, StoredReference::of(body.as_bytes()).as_ref());
            outcome.map(|()| left).map_err(|err| err.code)
        };
        assert_eq!(of(id(key("b").id())), Ok(vec![(key("b"), 2)]));
        // Ids from elsewhere contain no replica id; any worker may process them.
        assert_eq!(of(id(0)), Ok(serving()));
        assert_eq!(of("resp_1".to_owned()), Ok(serving()));
        let gone = Err(Some(ErrorCode::PreviousResponseNotFound));
        assert_eq!(of(id(7)), gone);
    }
}
