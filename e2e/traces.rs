//! Traces and metrics of a request through gateway, agent and worker, received by an OTLP
//! collector.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{Fleet, Http, Options, eventually, repository};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const QUESTION: &str = "What is rooflet?";

/// OTLP collector that stores all request bodies.
struct Collector {
    url: String,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound address"));
        let bodies: Arc<Mutex<Vec<Value>>> = Arc::default();
        let collected = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let collected = Arc::clone(&collected);
                std::thread::spawn(move || collect(stream, &collected));
            }
        });
        Self { url, bodies }
    }

    /// Returns the received spans of one trace.
    fn spans(&self, trace: &str) -> Vec<Value> {
        let bodies = self.bodies.lock().expect("no panic under the lock");
        let resources = bodies.iter().flat_map(|body| each(body, "resourceSpans"));
        let scopes = resources.flat_map(|resource| each(&resource, "scopeSpans"));
        let spans = scopes.flat_map(|scope| each(&scope, "spans"));
        spans.filter(|span| span["traceId"] == trace).collect()
    }

    /// Returns the number of measurements in the last received state of a service's histogram.
    fn measured(&self, service: &str, histogram: &str) -> u64 {
        let bodies = self.bodies.lock().expect("no panic under the lock");
        let resources = bodies.iter().flat_map(|body| each(body, "resourceMetrics"));
        let name = json!({"key": "service.name", "value": {"stringValue": service}});
        let mut of_service =
            resources.filter(|resource| each(&resource["resource"], "attributes").contains(&name));
        let Some(last) = of_service.next_back() else {
            return 0;
        };
        let metrics = each(&last, "scopeMetrics")
            .into_iter()
            .flat_map(|scope| each(&scope, "metrics"));
        let points = metrics
            .filter(|metric| metric["name"] == histogram)
            .flat_map(|metric| each(&metric["histogram"], "dataPoints"));
        points
            .map(|point| {
                point["count"]
                    .as_str()
                    .expect("a number as text")
                    .parse::<u64>()
                    .expect("a number")
            })
            .sum()
    }

    fn everything(&self) -> String {
        json!(*self.bodies.lock().expect("no panic under the lock")).to_string()
    }
}

fn each(value: &Value, name: &str) -> Vec<Value> {
    value[name].as_array().cloned().unwrap_or_default()
}

/// Stores the bodies of a connection's requests.
fn collect(stream: TcpStream, collected: &Mutex<Vec<Value>>) {
    let mut writer = stream.try_clone().expect("a second handle");
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().expect("a length");
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if length == 0 || reader.read_exact(&mut body).is_err() {
            return;
        }
        let body = serde_json::from_slice(&body).expect("JSON");
        collected.lock().expect("no panic under the lock").push(body);
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn one_trace_covers_gateway_agent_and_worker() {
    let collector = Collector::start();
    let fleet = Fleet::with(Options {
        args: vec![format!("--apply={}", repository("examples/guide.yaml").display())],
        env: vec![
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.clone()),
            ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
            ("OTEL_METRIC_EXPORT_INTERVAL", "50".to_owned()),
        ],
        ..Options::default()
    });
    eventually("an answer", || {
        match fleet.gateway.try_chat("guide", QUESTION)? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.text),
        }
    });
    let body = json!({"model": "guide", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 7,
                      "temperature": 0, "stream": true})
    .to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", fleet.gateway_port)).expect("the gateway listens");
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
         traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("the gateway reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("a response");
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("[DONE]"),
        "{answer}"
    );

    let named = |spans: &[Value], name: &str| spans.iter().find(|span| span["name"] == name).cloned();
    let names = [
        "POST /v1/chat/completions",
        "POST",
        "chat guide",
        "queue",
        "prefill",
        "decode",
    ];
    let [gateway, attempt, worker, queue, prefill, decode] = eventually("all spans", || {
        let spans = collector.spans(TRACE);
        let found = names.map(|name| named(&spans, name));
        match found.iter().all(Option::is_some) {
            true => Ok(found.map(Option::unwrap_or_default)),
            false => Err(format!("{spans:#?}")),
        }
    });
    assert_eq!(collector.spans(TRACE).len(), names.len());
    assert_eq!(gateway["parentSpanId"], "b7ad6b7169203331");
    assert_eq!(attempt["parentSpanId"], gateway["spanId"]);
    assert_eq!(
        worker["parentSpanId"], attempt["spanId"],
        "the agent forwards the trace context"
    );
    for part in [&queue, &prefill, &decode] {
        assert_eq!(part["parentSpanId"], worker["spanId"]);
    }
    let tokens = json!({"key": "gen_ai.usage.output_tokens", "value": {"intValue": "7"}});
    let attributes = worker["attributes"].as_array().expect("attributes");
    assert!(attributes.contains(&tokens), "{attributes:#?}");
    eventually("metrics of worker and gateway", || {
        let [worker, gateway, first_token] = [
            ("rooflet-worker", "gen_ai.server.request.duration"),
            ("rooflet-gateway", "gen_ai.server.request.duration"),
            ("rooflet-worker", "gen_ai.server.time_to_first_token"),
        ]
        .map(|(service, histogram)| collector.measured(service, histogram));
        // The gateway also counts requests that found no ready replica.
        match worker == 2 && gateway >= 2 && first_token == 2 {
            true => Ok(()),
            false => Err(format!("{worker} {gateway} {first_token}")),
        }
    });
    exemplars_link_to_the_trace(&fleet);
    assert!(
        !collector.everything().contains(QUESTION),
        "telemetry contains no prompts"
    );
}

/// Checks that the metrics of gateway and worker link to the trace, in the format for exemplars only.
fn exemplars_link_to_the_trace(fleet: &Fleet) {
    let gateway = format!("http://127.0.0.1:{}", fleet.gateway_port);
    let histograms = [
        "rooflet_gateway_request_seconds_bucket{code=\"2xx\",",
        "rooflet_gateway_time_to_first_byte_seconds_bucket{",
    ];
    exemplars_of(&Http::new(gateway), "/metrics", histograms);

    // The web page forwards the metrics of workers.
    let Some(kubectl) = fleet.kubectl() else {
        return;
    };
    let log = fleet.up.log();
    let link = log.lines().find_map(|line| line.strip_prefix("web page: "));
    let (page, _code) = link.expect(&log).split_once("/#code=").expect("a code");
    let authorization = format!("Bearer {}", kubectl.monitoring_token());
    let http = Http::new(page).with_header("authorization", &authorization);
    let targets = http.get("/monitoring/targets").expect("targets").json();
    let targets = targets.as_array().cloned().unwrap_or_default();
    let worker = targets
        .iter()
        .find(|target| target["labels"]["component"] == "worker");
    let path = worker.expect("a worker")["labels"]["__metrics_path__"].as_str();
    let histograms = [
        "rooflet_worker_time_to_first_token_seconds_bucket{",
        "rooflet_worker_request_duration_seconds_bucket{",
    ];
    exemplars_of(&http, path.expect("a path"), histograms);
}

fn exemplars_of(http: &Http, path: &str, histograms: [&str; 2]) {
    let link = format!("# {{trace_id=\"{TRACE}\"}} ");
    let formats = ["application/openmetrics-text; version=1.0.0", "text/plain"];
    let [linked, plain] = formats.map(|format| {
        let metrics = http.send_with("GET", path, &[("accept", format)], None);
        metrics.expect("metrics")
    });
    assert!(!plain.text.contains("trace_id"), "{}", plain.text);
    assert!(linked.text.ends_with("# EOF\n"), "{}", linked.text);
    for histogram in histograms {
        let mut lines = linked.text.lines().filter(|line| line.starts_with(histogram));
        assert!(
            lines.any(|line| line.contains(&link)),
            "{histogram}\n{}",
            linked.text
        );
    }
}
