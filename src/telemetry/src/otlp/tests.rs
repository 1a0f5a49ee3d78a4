//! Export to a collector in the same process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use serde_json::Value as Body;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::meter::Instrument;
use crate::trace::{INPUT_TOKENS, OPERATION, REQUEST_MODEL};

struct Collector {
    url: String,
    received: mpsc::UnboundedReceiver<(HeaderMap, Body)>,
    tasks: Tasks,
}

impl Collector {
    /// Starts a collector that responds with `status`, but never responds to the first `slow`
    /// requests.
    async fn start(status: StatusCode, slow: usize) -> Self {
        // Fails if another test of the process has already installed the provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        let (received_tx, received) = mpsc::unbounded_channel();
        let slow = Arc::new(std::sync::atomic::AtomicUsize::new(slow));
        let collect = async move |State(()): State<()>, headers: HeaderMap, Json(body): Json<Body>| {
            let _ = received_tx.send((headers, body));
            let left = slow.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if left.is_ok() {
                std::future::pending::<()>().await;
            }
            status
        };
        let router = Router::new().route("/v1/{signal}", post(collect)).with_state(());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let tasks = Tasks::new();
        tasks.spawn_unjoined(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, received, tasks }
    }

    fn tracer(&self, more: &[(&str, &str)], stop: CancellationToken) -> Tracer {
        let lookup = |name: &str| match name {
            "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(self.url.clone()),
            _ => more
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned()),
        };
        let settings = TraceSettings::read("rooflet-worker", lookup).unwrap().unwrap();
        let spans = start_spans(settings, stop, &self.tasks).unwrap();
        Tracer::new(Some(spans), None, Clock::System)
    }

    /// Returns a tracer that exports measurements only.
    fn measuring_tracer(&self, interval: &str, stop: CancellationToken) -> Tracer {
        let lookup = |name: &str| match name {
            "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(self.url.clone()),
            "OTEL_METRIC_EXPORT_INTERVAL" => Some(interval.to_owned()),
            "OTEL_EXPORTER_OTLP_TIMEOUT" => Some("300".to_owned()),
            _ => None,
        };
        let settings = MetricSettings::read("rooflet-worker", lookup).unwrap().unwrap();
        let meter = start_metrics(settings, stop, &self.tasks).unwrap();
        Tracer::new(None, Some(meter), Clock::System)
    }

    /// Waits until the first data point of a histogram has this count.
    async fn points(&mut self, name: &str, count: &str) -> Body {
        let points = async {
            loop {
                let (_, body) = self.next().await;
                let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array();
                let found = metrics.unwrap().iter().find(|metric| metric["name"] == name);
                let points = &found.unwrap()["histogram"]["dataPoints"];
                if points[0]["count"] == count {
                    return found.unwrap().clone();
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), points)
            .await
            .expect("in time")
    }

    async fn next(&mut self) -> (HeaderMap, Body) {
        let next = tokio::time::timeout(Duration::from_secs(30), self.received.recv()).await;
        next.expect("in time").expect("the collector is there")
    }
}

/// JSON mapping of opentelemetry-proto 1.
#[tokio::test]
async fn exports_spans_in_otlp_json() {
    let mut collector = Collector::start(StatusCode::OK, 0).await;
    let fast = [
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20k"),
    ];
    let tracer = collector.tracer(&fast, CancellationToken::new());
    let root = tracer.server("chat tiny".to_owned(), &HeaderMap::new()).unwrap();
    root.set("gen_ai.operation.name", "chat");
    root.add("gen_ai.usage.output_tokens", 3);
    root.add("gen_ai.usage.output_tokens", 4);
    root.push("gen_ai.response.finish_reasons", "stop");
    root.set("gen_ai.request.temperature", 0.5);
    let end = Clock::System.instant();
    root.interval("queue", end - Duration::from_millis(5), end, vec![]);
    root.fail("500");
    let context = root.context().unwrap();
    drop(root);
    let (headers, body) = collector.next().await;
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["authorization"], "Bearer k");
    let resource = &body["resourceSpans"][0];
    let name = serde_json::json!({"key": "service.name", "value": {"stringValue": "rooflet-worker"}});
    let attributes = resource["resource"]["attributes"].as_array().unwrap();
    assert!(attributes.contains(&name), "{attributes:?}");
    let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
    let [queue, root] = &spans[..] else {
        panic!("{spans:#?}");
    };
    let (trace, id) = (
        root["traceId"].as_str().unwrap(),
        root["spanId"].as_str().unwrap(),
    );
    assert_eq!(context.to_header(), format!("00-{trace}-{id}-01"));
    assert_eq!(root["parentSpanId"].as_str().unwrap_or_default(), "");
    assert_eq!((&root["kind"], &root["status"]["code"]), (&2.into(), &2.into()));
    let attribute = |name: &str| {
        let all = root["attributes"].as_array().unwrap();
        all.iter().find(|attribute| attribute["key"] == name).unwrap()["value"].clone()
    };
    assert_eq!(attribute("gen_ai.operation.name")["stringValue"], "chat");
    assert_eq!(attribute("gen_ai.usage.output_tokens")["intValue"], "7");
    assert_eq!(attribute("gen_ai.request.temperature")["doubleValue"], 0.5);
    let reasons = attribute("gen_ai.response.finish_reasons");
    assert_eq!(reasons["arrayValue"]["values"][0]["stringValue"], "stop");
    assert_eq!(queue["parentSpanId"], root["spanId"]);
    assert_eq!((&queue["kind"], &queue["status"]["code"]), (&1.into(), &0.into()));
    let nanos = |span: &Body, name: &str| span[name].as_str().unwrap().parse::<i128>().unwrap();
    let took = nanos(queue, "endTimeUnixNano") - nanos(queue, "startTimeUnixNano");
    assert!((4_000_000..=5_000_000).contains(&took), "{took}");
}

#[tokio::test]
async fn drops_spans_while_the_collector_hangs() {
    let mut collector = Collector::start(StatusCode::OK, 1).await;
    let small = [
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "2"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
    ];
    let stop = CancellationToken::new();
    let tracer = collector.tracer(&small, stop.clone());
    drop(tracer.server("first".to_owned(), &HeaderMap::new()));
    collector.next().await;
    for number in 0..100 {
        drop(tracer.server(number.to_string(), &HeaderMap::new()));
    }
    let (_, body) = collector.next().await;
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
        .as_array()
        .unwrap();
    assert_eq!(spans.len(), 2, "as many as there was room for");
}

fn request(tracer: &Tracer) {
    let span = tracer.server("chat tiny".to_owned(), &HeaderMap::new()).unwrap();
    span.set(OPERATION, "chat");
    span.set(REQUEST_MODEL, "tiny");
    span.set(INPUT_TOKENS, 20_usize);
    span.measure(Instrument::TimeToFirstToken, Duration::from_millis(15));
}

/// JSON mapping of opentelemetry-proto 1.
#[tokio::test]
async fn exports_measurements_in_otlp_json() {
    let mut collector = Collector::start(StatusCode::OK, 0).await;
    let tracer = collector.measuring_tracer("20", CancellationToken::new());
    request(&tracer);
    request(&tracer);
    let metric = collector.points("gen_ai.server.time_to_first_token", "2").await;
    assert_eq!(
        (&metric["unit"], &metric["histogram"]["aggregationTemporality"]),
        (&"s".into(), &2.into())
    );
    let point = &metric["histogram"]["dataPoints"][0];
    let attribute =
        |name: &str, value: &str| serde_json::json!({"key": name, "value": {"stringValue": value}});
    let attributes = serde_json::json!([
        attribute("gen_ai.operation.name", "chat"),
        attribute("gen_ai.request.model", "tiny"),
    ]);
    assert_eq!(point["attributes"], attributes);
    assert_eq!(
        (&point["sum"], &point["min"], &point["max"]),
        (&0.03.into(), &0.015.into(), &0.015.into())
    );
    let bounds = point["explicitBounds"].as_array().unwrap();
    let counts = point["bucketCounts"].as_array().unwrap();
    assert_eq!(counts.len(), bounds.len() + 1);
    let within = bounds.iter().position(|bound| *bound == 0.02).unwrap();
    assert_eq!(counts[within], "2");
    let nanos = |name: &str| point[name].as_str().unwrap().parse::<i128>().unwrap();
    assert!(nanos("startTimeUnixNano") < nanos("timeUnixNano"));
    let usage = collector.points("gen_ai.client.token.usage", "2").await;
    let point = &usage["histogram"]["dataPoints"][0];
    assert_eq!((&usage["unit"], &point["sum"]), (&"{token}".into(), &40.0.into()));
    assert_eq!(point["attributes"][2], attribute("gen_ai.token.type", "input"));
}

#[tokio::test]
async fn repeats_rejected_measurements_and_exports_the_last_at_shutdown() {
    let mut collector = Collector::start(StatusCode::SERVICE_UNAVAILABLE, 0).await;
    let tracer = collector.measuring_tracer("20", CancellationToken::new());
    request(&tracer);
    collector.points("gen_ai.server.request.duration", "1").await;
    request(&tracer);
    collector.points("gen_ai.server.request.duration", "2").await;

    let stop = CancellationToken::new();
    let tracer = collector.measuring_tracer("600000", stop.clone());
    (0..3).for_each(|_| request(&tracer));
    stop.cancel();
    collector.points("gen_ai.server.request.duration", "3").await;
    collector.tasks.cancel();
}

#[tokio::test]
async fn exports_remaining_spans_at_shutdown() {
    let mut collector = Collector::start(StatusCode::SERVICE_UNAVAILABLE, 0).await;
    let stop = CancellationToken::new();
    let tracer = collector.tracer(&[], stop.clone());
    drop(tracer.server("last".to_owned(), &HeaderMap::new()));
    stop.cancel();
    let (_, body) = collector.next().await;
    assert_eq!(
        body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"],
        "last"
    );
    collector.tasks.cancel();
    assert_eq!(collector.tasks.join(Duration::from_secs(30)).await, Ok(()));
}
