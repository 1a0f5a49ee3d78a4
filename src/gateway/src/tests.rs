mod errors;
mod keys;
mod ollama;
mod queueing;
mod routing;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures::StreamExt;
use http::StatusCode;
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use rooflet_api::conditions::{Truth, condition_type, set_condition};
use rooflet_api::meta::REVISION_LABEL;
use rooflet_api::v1alpha1::*;
use rooflet_api::wire::{REPLICA_ID_HEADER, RETRYABLE_HEADER, RUNNING_HEADER};
use rooflet_inference_api::openai::origins::{AllowedOrigins, OriginRules};
use rooflet_proxy::{BodyRoom, MAX_KEPT_BODY_BYTES, Proxy, Upstream};
use rooflet_telemetry::recorder::Recorder;
use rooflet_testing::within;

/// Builds a deployment from `namespace/name serves=NAME wanted=N message=text-with-dashes
/// has=CONDITION=STATUS waits=TIME queue=N falls-back-to=NAME hedges=TIME started=SECONDS
/// traffic=REVISION:PERCENT,…`.
pub(crate) fn deployment(line: &str) -> ModelDeployment {
    let number = |key: &str| field(line, key).map(|n| n.parse::<i32>().expect("a number"));
    let mut routing = json!({
        "queueTimeout": field(line, "waits"),
        "maxQueuedRequests": number("queue"),
        "fallbacks": field(line, "falls-back-to").into_iter().collect::<Vec<_>>(),
    });
    if let Some(after) = field(line, "hedges") {
        routing["hedging"] = json!({ "after": after });
    }
    let spec = json!({
        "model": { "source": "local://guide" },
        "replicas": number("wanted").unwrap_or(1),
        "serving": { "name": field(line, "serves") },
        "routing": routing,
    });
    let (namespace, name) = key(line);
    let mut deployment = ModelDeployment::new(&name, serde_json::from_value(spec).expect("valid"));
    deployment.metadata.namespace = Some(namespace);
    let mut status = ModelDeploymentStatus::default();
    ready(
        &mut status.conditions,
        "False",
        &field(line, "message").unwrap_or_default().replace('-', " "),
    );
    if let Some((kind, truth)) = field(line, "has").and_then(|condition| condition.split_once('=')) {
        let condition = Condition {
            type_: kind.to_owned(),
            status: truth.to_owned(),
            ..status.conditions[0].clone()
        };
        status.conditions.push(condition);
    }
    status.last_start = field(line, "started").map(|seconds| LastStart {
        source: "local://guide".to_owned(),
        began_at: Time(jiff::Timestamp::UNIX_EPOCH),
        seconds: seconds.parse().expect("a number"),
    });
    let shares = field(line, "traffic")
        .into_iter()
        .flat_map(|shares| shares.split(','));
    status.traffic = shares
        .map(|share| share.split_once(':').expect("a revision and a percentage"))
        .map(|(revision, weight)| TrafficShare {
            revision: revision.to_owned(),
            weight: weight.parse().expect("a number"),
        })
        .collect();
    deployment.status = Some(status);
    deployment
}

/// Builds a replica from `namespace/name serves=NAME on=NODE ready rows=4 of=REVISION unplaced
/// weighs=BYTES keeps=TIME`.
pub(crate) fn replica(line: &str) -> ModelReplica {
    let (namespace, name) = key(line);
    let spec = json!({
        "model": { "source": "local://guide" },
        "serving": {
            "name": field(line, "serves").unwrap_or("guide"),
            "keepAlive": field(line, "keeps"),
            "maxConcurrency": field(line, "rows").map_or(4, |n| n.parse::<i32>().expect("a number")),
        },
        "nodeName": field(line, "on"),
    });
    let mut replica = ModelReplica::new(&name, serde_json::from_value(spec).expect("valid"));
    replica.metadata.namespace = Some(namespace);
    let revision = field(line, "of").map(|name| (REVISION_LABEL.to_owned(), name.to_owned()));
    replica.metadata.labels = Some(revision.into_iter().collect());
    let weighs = |bytes: &str| AdmissionStatus {
        memory: MemoryWorking {
            weights_bytes: bytes.parse().expect("a number"),
            ..MemoryWorking::default()
        },
        ..AdmissionStatus::default()
    };
    let mut status = ModelReplicaStatus {
        admission: field(line, "weighs").map(weighs),
        ..ModelReplicaStatus::default()
    };
    let is_ready = line.split_whitespace().any(|word| word == "ready");
    ready(
        &mut status.conditions,
        if is_ready { "True" } else { "False" },
        "",
    );
    if line.split_whitespace().any(|word| word == "unplaced") {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let kind = condition_type::SCHEDULED;
        set_condition(
            &mut status.conditions,
            kind,
            Truth::False,
            "InsufficientMemory",
            "",
            None,
            now,
        );
    }
    replica.status = Some(status);
    replica
}

pub(crate) fn node(name: &str, endpoint: &str, truth: &str) -> FleetNode {
    let mut node = FleetNode::new(name, FleetNodeSpec::default());
    let mut status = FleetNodeStatus {
        endpoint: Some(endpoint.to_owned()),
        ..FleetNodeStatus::default()
    };
    ready(&mut status.conditions, truth, "");
    node.status = Some(status);
    node
}

fn ready(
    conditions: &mut Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
    truth: &str,
    message: &str,
) {
    let truth = match truth {
        "True" => Truth::True,
        "False" => Truth::False,
        _ => Truth::Unknown,
    };
    let now = jiff::Timestamp::UNIX_EPOCH;
    set_condition(conditions, condition_type::READY, truth, "R", message, None, now);
}

fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn key(line: &str) -> (String, String) {
    let first = line.split_whitespace().next().expect("a key");
    let (namespace, name) = first.split_once('/').unwrap_or(("default", first));
    (namespace.to_owned(), name.to_owned())
}

/// Gateway under test, with its URL and routing table.
struct Fixture {
    tasks: Tasks,
    gateway: Arc<Gateway>,
    url: Upstream,
    table_tx: watch::Sender<Option<Arc<RoutingTable>>>,
    recorder: Recorder,
}

impl Fixture {
    async fn new() -> Self {
        let tasks = Tasks::new();
        let (table_tx, table_rx) = watch::channel(None);
        let registry = Registry::new();
        let metrics = GatewayMetrics::register(&registry).expect("a fresh registry");
        let recorder = Recorder::default();
        let tracer = recorder.measuring_tracer(Clock::System);
        let room = BodyRoom::new(MAX_KEPT_BODY_BYTES);
        let gateway = Gateway::new(table_rx, room, Clock::System, metrics, registry);
        let gateway = Arc::new(gateway.with_tracer(tracer));
        tasks.spawn_detached(gateway.dispatcher().clone().follow());
        let pages = OriginRules::new(AllowedOrigins::default(), None, []);
        let url = serve_router(&tasks, server::router(gateway.clone(), pages)).await;
        Self {
            tasks,
            gateway,
            url,
            table_tx,
            recorder,
        }
    }

    fn set_fleet(&self, deployments: &[&str], replicas: &[&str], nodes: &[(&str, &str)]) {
        let deployments: Vec<_> = deployments.iter().map(|line| deployment(line)).collect();
        let replicas: Vec<_> = replicas.iter().map(|line| replica(line)).collect();
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(name, endpoint)| node(name, endpoint, "True"))
            .collect();
        let table = RoutingTable::new(&deployments, &replicas, &nodes);
        self.table_tx.send_replace(Some(Arc::new(table)));
    }

    async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> Response {
        let request = Request::builder()
            .method(method)
            .body(body.into())
            .expect("valid");
        within(Proxy::new().forward(request, &self.url, &path.parse().expect("a path")))
            .await
            .expect("the gateway responds")
    }

    async fn chat(&self, body: Value) -> Response {
        self.send("POST", "/v1/chat/completions?x=1", body.to_string())
            .await
    }
}

async fn serve_router(tasks: &Tasks, router: Router) -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tasks.spawn_detached(async move {
        axum::serve(listener, router).await.expect("serves");
    });
    url.parse().expect("a base URL")
}

async fn json_of(response: Response) -> Value {
    let bytes = within(response.into_body().collect())
        .await
        .expect("whole")
        .to_bytes();
    serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("not JSON: {bytes:?}"))
}

/// Fake agent: requests that it received, and the response status of each replica.
#[derive(Default)]
struct Agent {
    received: Mutex<Vec<(String, String, Value)>>,
    statuses: Mutex<BTreeMap<String, u16>>,
    /// Replicas that respond only after a permit is added.
    held: Mutex<BTreeMap<String, Arc<Semaphore>>>,
    /// Whether each received request had the header of retryable requests.
    retryable: Mutex<Vec<bool>>,
}

impl Agent {
    /// Makes the replica respond to one request per added permit.
    fn hold(&self, replica: &str) -> Arc<Semaphore> {
        let permits = Arc::new(Semaphore::new(0));
        self.held
            .lock()
            .expect("ok")
            .insert(replica.to_owned(), permits.clone());
        permits
    }

    fn received(&self) -> Vec<String> {
        let received = self.received.lock().expect("ok");
        received.iter().map(|(replica, _, _)| replica.clone()).collect()
    }
}

async fn agent(tasks: &Tasks, agent: Arc<Agent>) -> String {
    async fn answer(
        State(agent): State<Arc<Agent>>,
        Path((namespace, replica, _)): Path<(String, String, String)>,
        request: Request,
    ) -> Response {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().expect("a path").to_string();
        let body = body.collect().await.expect("a body").to_bytes();
        let mut body: Value = match body.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&body).expect("JSON"),
        };
        if let Some(replica_id) = parts.headers.get(REPLICA_ID_HEADER) {
            body["replica_id"] = json!(replica_id.to_str().expect("ASCII"));
        }
        let is_retryable = parts.headers.contains_key(RETRYABLE_HEADER);
        agent.retryable.lock().expect("ok").push(is_retryable);
        let status = agent.statuses.lock().expect("ok").get(&replica).copied();
        agent
            .received
            .lock()
            .expect("ok")
            .push((format!("{namespace}/{replica}"), path, body));
        let held = agent.held.lock().expect("ok").get(&replica).cloned();
        if let Some(permits) = held {
            permits.acquire().await.expect("open").forget();
        }
        if parts.uri.path().ends_with("/api/ps") {
            let is_loaded = !replica.starts_with("unloaded");
            let models = is_loaded.then(|| json!({"expires_at": "2026-03-01T10:00:00Z"}));
            return axum::Json(json!({"models": models.as_slice()})).into_response();
        }
        let status = StatusCode::from_u16(status.unwrap_or(200)).expect("valid");
        (status, [(RUNNING_HEADER, "1")], format!("from {replica}")).into_response()
    }
    let router = Router::new()
        .route("/replicas/{namespace}/{replica}/proxy/{*path}", any(answer))
        .with_state(agent);
    serve_router(tasks, router).await.to_string()
}

async fn text(response: Response) -> String {
    let bytes = within(response.into_body().collect())
        .await
        .expect("whole")
        .to_bytes();
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[tokio::test]
async fn forwards_request_unchanged_to_replica_of_model() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    fixture.set_fleet(
        &["guide", "other"],
        &["guide-1 on=a ready", "other-1 serves=other on=a ready"],
        &[("a", &url)],
    );
    let body = json!({"model": "guide", "messages": [{"role": "user", "content": "hi"}], "n": 1.0});
    let response = fixture.chat(body.clone()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(text(response).await, "from guide-1");
    let received = agent_log.received.lock().expect("ok").clone();
    let path = "/replicas/default/guide-1/proxy/v1/chat/completions?x=1".to_owned();
    assert_eq!(received, [("default/guide-1".to_owned(), path, body)]);
}

#[tokio::test]
async fn ambiguous_name_requires_namespace() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    fixture.set_fleet(
        &["blue/guide", "red/guide", "red/solo"],
        &[
            "blue/g on=a ready",
            "red/g on=a ready",
            "red/s serves=solo on=a ready",
        ],
        &[("a", &url)],
    );
    let refused = fixture.chat(json!({"model": "guide"})).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let message = json_of(refused).await["error"]["message"].to_string();
    assert!(message.contains("blue/guide, red/guide"), "{message}");

    let answered = fixture.chat(json!({"model": "red/guide"})).await;
    assert_eq!(answered.status(), StatusCode::OK);
    let (replica, _, body) = agent_log.received.lock().expect("ok").pop().expect("asked");
    assert_eq!(
        (replica.as_str(), body),
        ("red/g", json!({"model": "guide"})),
        "the worker gets the name without namespace"
    );
    let listed = json_of(fixture.send("GET", "/v1/models", Body::empty()).await).await;
    let ids: Vec<_> = listed["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|m| m["id"].clone())
        .collect();
    assert_eq!(ids, ["blue/guide", "red/guide", "solo"]);
    let one = fixture.send("GET", "/v1/models/red/guide", Body::empty()).await;
    assert_eq!(json_of(one).await["id"], "red/guide");
}

#[tokio::test]
async fn retries_on_another_replica_before_the_response() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let statuses = [("busy", 429), ("lost", 404), ("sad", 503)];
    let statuses = statuses.map(|(replica, status)| (replica.to_owned(), status));
    *agent_log.statuses.lock().expect("ok") = statuses.into();
    for other in [
        "dead on=dead ready",
        "busy on=a ready",
        "lost on=a ready",
        "sad on=a ready",
    ] {
        fixture.set_fleet(
            &["guide"],
            &[other, "good on=a ready"],
            &[("a", &url), ("dead", "http://127.0.0.1:1")],
        );
        for _ in 0..4 {
            let response = fixture.chat(json!({"model": "guide"})).await;
            assert_eq!(response.status(), StatusCode::OK, "{other}");
            assert_eq!(text(response).await, "from good");
        }
    }
    // Without another replica, the gateway returns the replica's own response.
    fixture.set_fleet(&["guide"], &["busy on=a ready"], &[("a", &url)]);
    let response = fixture.chat(json!({"model": "guide"})).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!response.headers().contains_key(RUNNING_HEADER));
    assert_eq!(response.headers()["x-rooflet-replica"], "default/busy");
    assert_eq!(text(response).await, "from busy");
    fixture.set_fleet(
        &["guide waits=50ms"],
        &["dead on=dead ready"],
        &[("dead", "http://127.0.0.1:1")],
    );
    let response = fixture.chat(json!({"model": "guide"})).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(json_of(response).await["error"]["code"], "model_unavailable");
    assert_eq!(fixture.gateway.dispatcher().in_flight(), 0);
}

#[tokio::test]
async fn does_not_retry_bad_requests() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let statuses = ["g1", "g2"].map(|replica| (replica.to_owned(), 400));
    *agent_log.statuses.lock().expect("ok") = statuses.into();
    fixture.set_fleet(&["guide"], &["g1 on=a ready", "g2 on=a ready"], &[("a", &url)]);
    let response = fixture.chat(json!({"model": "guide"})).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(agent_log.received.lock().expect("ok").len(), 1);
}

#[tokio::test]
async fn spreads_load_over_ready_replicas_of_reporting_nodes() {
    let fixture = Fixture::new().await;
    let agent_log = Arc::new(Agent::default());
    let url = agent(&fixture.tasks, agent_log.clone()).await;
    let replicas: Vec<_> = [
        "g1 on=a ready",
        "g2 on=a ready",
        "g3 on=a",
        "g4 on=silent ready",
        "g5 ready",
    ]
    .into_iter()
    .map(replica)
    .collect();
    let nodes = [node("a", &url, "True"), node("silent", &url, "Unknown")];
    let table = RoutingTable::new(&[deployment("guide")], &replicas, &nodes);
    fixture.table_tx.send_replace(Some(Arc::new(table)));
    for _ in 0..6 {
        assert_eq!(
            fixture.chat(json!({"model": "guide"})).await.status(),
            StatusCode::OK
        );
    }
    let mut count = BTreeMap::new();
    for (replica, _, _) in agent_log.received.lock().expect("ok").iter() {
        *count.entry(replica.clone()).or_insert(0) += 1;
    }
    let expect = [("default/g1".to_owned(), 3), ("default/g2".to_owned(), 3)];
    assert_eq!(count, expect.into());
}

type Chunks = mpsc::Sender<std::result::Result<Bytes, std::io::Error>>;

async fn streaming_fixture() -> (Fixture, Chunks) {
    let fixture = Fixture::new().await;
    let (chunk_tx, chunk_rx) = mpsc::channel(1);
    let chunk_rx = Arc::new(Mutex::new(Some(chunk_rx)));
    let router = Router::new().fallback(any(move || async move {
        let chunk_rx = chunk_rx.lock().expect("ok").take().expect("asked once");
        Body::from_stream(ReceiverStream::new(chunk_rx))
    }));
    let url = serve_router(&fixture.tasks, router).await.to_string();
    fixture.set_fleet(&["guide"], &["g1 on=a ready", "g2 on=a ready"], &[("a", &url)]);
    (fixture, chunk_tx)
}

#[tokio::test]
async fn forwards_stream_chunks_and_counts_the_request() {
    let (fixture, chunk_tx) = streaming_fixture().await;
    let response = fixture.chat(json!({"model": "guide", "stream": true})).await;
    assert_eq!(fixture.gateway.dispatcher().in_flight(), 1);
    let mut body = response.into_body().into_data_stream();
    for chunk in ["data: a\n\n", "data: b\n\n"] {
        chunk_tx.send(Ok(Bytes::from(chunk))).await.expect("read");
        assert_eq!(
            within(body.next()).await.expect("a chunk").expect("no error"),
            chunk
        );
    }
    drop(chunk_tx);
    assert!(within(body.next()).await.is_none());
    let metrics = text(fixture.send("GET", "/metrics", Body::empty()).await).await;
    assert!(
        metrics.contains("rooflet_gateway_requests_total{code=\"2xx\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("rooflet_gateway_time_to_first_byte_seconds_count 1"),
        "{metrics}"
    );
    assert!(!metrics.contains("guide"), "{metrics}");
}

#[tokio::test]
async fn client_disconnect_cancels_the_replicas_work() {
    let (fixture, chunk_tx) = streaming_fixture().await;
    let response = fixture.chat(json!({"model": "guide", "stream": true})).await;
    chunk_tx.send(Ok(Bytes::from("data: a\n\n"))).await.expect("read");
    drop(response);
    within(chunk_tx.closed()).await;
    // The connection closes shortly before the count decreases.
    within(async {
        while fixture.gateway.dispatcher().in_flight() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn counts_requests_of_disconnected_clients_as_cancelled() {
    let (fixture, chunk_tx) = streaming_fixture().await;
    let dispatcher = fixture.gateway.dispatcher();
    let leave = async |waits: &dyn Fn() -> bool| {
        let pending_response = fixture.chat(json!({"model": "guide", "stream": true}));
        let agent_log = async {
            while !waits() {
                tokio::task::yield_now().await;
            }
        };
        drop(within(futures::future::select(pin!(pending_response), pin!(agent_log))).await);
    };
    let all_are_gone = async || {
        let gone = async {
            loop {
                let metrics = fixture.gateway.render_metrics(None).1;
                if metrics.contains("rooflet_gateway_outstanding_requests 0\n") {
                    return metrics;
                }
                tokio::task::yield_now().await;
            }
        };
        within(gone).await
    };
    // During the response, in the queue, and before the response.
    let response = fixture.chat(json!({"model": "guide", "stream": true})).await;
    chunk_tx.send(Ok(Bytes::from("data: a\n\n"))).await.expect("read");
    drop(response);
    all_are_gone().await;
    fixture.set_fleet(&["guide"], &["g1 on=a"], &[("a", "http://127.0.0.1:1")]);
    leave(&|| dispatcher.queued() == 1).await;
    all_are_gone().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    fixture.set_fleet(&["guide"], &["g2 on=a ready"], &[("a", &url)]);
    leave(&|| dispatcher.in_flight() == 1).await;
    let metrics = all_are_gone().await;
    for line in [
        "rooflet_gateway_requests_total{code=\"cancelled\"} 3\n",
        "rooflet_gateway_request_seconds_count{code=\"cancelled\"} 3\n",
        "rooflet_gateway_model_errors_total{model=\"guide\",namespace=\"default\",reason=\"Cancelled\"} 3\n",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert!(!metrics.contains("2xx"), "{metrics}");
    let durations = fixture.recorder.measured("gen_ai.server.request.duration");
    let counts = durations
        .iter()
        .map(|measured| (measured.attributes.split(' ').next(), measured.count));
    assert_eq!(counts.collect::<Vec<_>>(), [(Some("cancelled"), 3)]);
}

#[tokio::test]
async fn does_not_retry_broken_stream_after_first_token() {
    let (fixture, chunk_tx) = streaming_fixture().await;
    let response = fixture.chat(json!({"model": "guide", "stream": true})).await;
    chunk_tx.send(Ok(Bytes::from("data: a\n\n"))).await.expect("read");
    let failure = Err(std::io::Error::other("the worker exited"));
    chunk_tx.send(failure).await.expect("read");
    // A second request would panic in the fake worker.
    assert!(within(response.into_body().collect()).await.is_err());
    let metrics = text(fixture.send("GET", "/metrics", Body::empty()).await).await;
    assert!(metrics.contains("rooflet_gateway_retries_total 0"), "{metrics}");
}
