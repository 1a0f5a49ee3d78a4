//! Service discovery for Prometheus, alert rules and dashboards, with a real Prometheus.
//!
//! `cargo xtask monitoring` provides Prometheus.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::keys;
use super::web_page::{self, Browser};
use crate::harness::{Cluster, Http, HttpResponse, Process, eventually, free_port, not_run, repository};

const FLEET: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
    - {name: owned, chip: M4, gpuCores: 10, memory: 16Gi, count: 1}
  # The node has the condition QuietHours.
  quietHours: {owned: '00:00-24:00'}
models:
  - {name: qwen3-8b-4bit, model: qwen3-8b, quantization: mlx4}
";

/// Deployment with a throughput floor and objectives, and one whose requests the gateway rejects.
const DEPLOYMENTS: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: chat}
spec:
  model: {source: 'local://qwen3-8b-4bit'}
  serving: {contextTokens: 4096, maxConcurrency: 2}
  objectives: {decodeTokensPerSecond: 1, timeToFirstToken: {max: 60s, atPromptTokens: 2000}}
  strategy: {rollingUpdate: {minThroughput: 1}}
---
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: idle}
spec:
  replicas: 0
  model: {source: 'local://qwen3-8b-4bit'}
  serving: {contextTokens: 4096}
";

/// Deployment whose replicas an admission policy denies, so that writes of the controller fail.
const DENIED: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: deny-replicas}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [rooflet.dev], apiVersions: [v1alpha1], operations: [CREATE], resources: [modelreplicas]}
  validations:
    - expression: object.metadata.labels['rooflet.dev/deployment'] != 'denied'
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: deny-replicas}
spec: {policyName: deny-replicas, validationActions: [Deny]}
"#;
const DENIED_DEPLOYMENT: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: denied}
spec:
  model: {source: 'local://qwen3-8b-4bit'}
  serving: {contextTokens: 4096}
";
/// Number of requests after which an agent reports the measured speed of a replica.
const REQUESTS_FOR_SPEED: usize = 10;

/// Starts three simulated Macs with one replica, and a real node that serves the guide.
fn fleet(args: &[&str]) -> Option<(Cluster, Process)> {
    let cluster = Cluster::simulated(FLEET, args)?;
    let agent = cluster.agent("real-1", &[]);
    cluster.kubectl.apply(DEPLOYMENTS).ok();
    let guide = repository("examples/guide.yaml");
    cluster.kubectl.run(&format!("apply -f {}", guide.display())).ok();
    let ready = "wait --for=condition=Ready mdep/chat mdep/guide --timeout=180s";
    cluster.kubectl.run(ready).ok();
    cluster.gateway.chat("chat", "hello");
    Some((cluster, agent))
}

fn client(cluster: &Cluster, token: &str) -> Http {
    Http::new(cluster.web.clone()).with_header("Authorization", &format!("Bearer {token}"))
}

#[test]
fn read_only_token_finds_and_reads_all_processes() {
    let Some((cluster, _agent)) = fleet(&[]) else {
        return;
    };
    let token = cluster.kubectl.monitoring_token();
    let http = client(&cluster, &token);
    let targets = http.get("/monitoring/targets").expect("a response").json();
    let mut instances = BTreeSet::new();
    for target in targets.as_array().expect("a list") {
        let labels = &target["labels"];
        let path = labels["__metrics_path__"].as_str().expect("a path");
        let metrics = http.get(path).expect("a response");
        assert_eq!(metrics.status, 200, "{path}: {}", metrics.text);
        let prefix = match labels["component"].as_str() {
            Some("control-plane") => "rooflet_apiserver_requests_total",
            Some("gateway") => "rooflet_gateway_requests_total",
            Some("agent") => "rooflet_agent_replicas",
            Some("worker") => "rooflet_worker_running_requests",
            _ => panic!("unknown component: {target}"),
        };
        assert!(metrics.text.contains(prefix), "{path} has no {prefix}");
        let expiry = "rooflet_certificate_expiry_timestamp_seconds{certificate=\"apiserver\"}";
        assert_eq!(
            metrics.text.contains(expiry),
            labels["component"] == "control-plane",
            "{path}"
        );
        instances.insert(labels["instance"].as_str().expect("a name").to_owned());
    }
    for expect in [
        "control-plane",
        "gateway",
        "mini-1",
        "mini-2",
        "owned-1",
        "real-1",
    ] {
        assert!(instances.contains(expect), "{expect}: {instances:?}");
    }
    let workers: Vec<_> = instances.iter().filter(|name| name.contains('/')).collect();
    assert!(
        workers.len() == 1 && workers[0].starts_with("default/guide-"),
        "{instances:?}"
    );

    // The token cannot write, and another account cannot read.
    let verbs = ["create", "patch", "delete"];
    for verb in verbs {
        let question = format!("auth can-i {verb} fleetnodes --as=system:serviceaccount:default:prometheus");
        cluster.kubectl.run(&question).expect_failure();
    }
    cluster.kubectl.run("create serviceaccount other").ok();
    let other = cluster.kubectl.run("create token other").ok();
    let http = client(&cluster, other.trim());
    for path in [
        "/monitoring/targets",
        "/monitoring/metrics/control-plane",
        "/monitoring/metrics/gateway",
        "/monitoring/metrics/agents/mini-1",
    ] {
        assert_eq!(http.get(path).expect("a response").status, 403, "{path}");
    }
}

/// Returns a program of the directory that `cargo xtask monitoring` provides.
fn prometheus() -> Option<PathBuf> {
    let directory = std::env::var_os("ROOFLET_PROMETHEUS_DIR");
    if directory.is_none() {
        not_run("the Prometheus that `cargo xtask monitoring` provides");
    }
    Some(Path::new(&directory?).join("prometheus"))
}

/// Query of a panel.
struct Query {
    at: String,
    text: String,
}

/// Returns the queries of all dashboards, for all values of their variables.
fn queries() -> Vec<Query> {
    let directory = repository("manifests/monitoring/dashboards");
    let mut queries = Vec::new();
    for entry in std::fs::read_dir(directory).expect("the dashboards") {
        let path = entry.expect("a readable directory").path();
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let dashboard: Value = serde_json::from_str(&text).expect("JSON");
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let variables: Vec<_> = list(&dashboard["templating"]["list"]);
        for panel in list(&dashboard["panels"]) {
            for target in list(&panel["targets"]) {
                let query = target["expr"].as_str().expect("a query");
                let mut text = query.replace("$__rate_interval", "5m");
                for variable in &variables {
                    let name = variable["name"].as_str().expect("a name");
                    text = text.replace(&format!("\"${name}\""), "\".*\"");
                }
                let [dashboard, panel] =
                    [&dashboard, &panel].map(|of| of["title"].as_str().expect("a title"));
                let at = format!("{dashboard}: {panel}");
                queries.push(Query { at, text });
            }
        }
    }
    assert!(queries.len() > 20, "{} queries", queries.len());
    queries
}

/// Clients of the gateway, with the events that fill the panels.
struct Traffic {
    with_key: Http,
    with_invalid_key: Http,
}

impl Traffic {
    fn new(cluster: &Cluster) -> Self {
        let secret = keys::key(cluster, "create team-a");
        let with = |key: &str| {
            cluster
                .gateway
                .with_header("authorization", &format!("Bearer {key}"))
        };
        Self {
            with_key: with(&secret),
            with_invalid_key: with("sk-rf-wrong"),
        }
    }

    /// Sends a request with a short answer.
    fn ask(client: &Http, model: &str) -> Result<HttpResponse, String> {
        let messages = json!([{"role": "user", "content": "What is rooflet?"}]);
        let body = json!({"model": model, "messages": messages, "max_tokens": 8});
        client.post("/v1/chat/completions", &body)
    }

    /// Sends requests that succeed, one that is rejected and one that is denied.
    fn round(&self) -> Result<(), String> {
        let expect = |client, model, status| match Self::ask(client, model)? {
            response if response.status == status => Ok(()),
            response => Err(format!("{model}: {} {}", response.status, response.text)),
        };
        expect(&self.with_key, "chat", 200)?;
        expect(&self.with_key, "guide", 200)?;
        expect(&self.with_key, "idle", 503)?;
        expect(&self.with_invalid_key, "chat", 401)
    }
}

/// Reports whether the result of a query has a value. A quantile without observations is NaN.
fn has_data(found: &Value) -> bool {
    let results = found["data"]["result"].as_array();
    let mut values = results.into_iter().flatten().map(|result| &result["value"][1]);
    values.any(|value| value.as_str().is_some_and(|value| value != "NaN"))
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn prometheus_finds_the_fleet_and_every_panel_has_data() {
    let Some(program) = prometheus() else { return };
    let address = format!("127.0.0.1:{}", free_port());
    let page = format!("--prometheus-url=http://{address}");
    let Some((cluster, _agent)) = fleet(&[page.as_str()]) else {
        return;
    };
    let scratch = &cluster.scratch;
    let credentials = scratch.write("prometheus-token", &cluster.kubectl.monitoring_token());
    let rules = repository("manifests/monitoring/alerts.yaml");
    let authorization = format!("{{credentials_file: {}}}", credentials.display());
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: [{}]\n\
         scrape_configs:\n\
         - job_name: rooflet\n  authorization: {authorization}\n  http_sd_configs:\n  \
           - {{url: '{}/monitoring/targets', refresh_interval: 1s, authorization: {authorization}}}\n",
        rules.display(),
        cluster.web
    );
    let config = scratch.write("prometheus.yml", &config);
    let mut command = Command::new(program);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", scratch.join("tsdb").display()))
        .arg(format!("--web.listen-address={address}"));
    let server = Process::run(&mut command, &scratch.join("prometheus.log"));
    let http = Http::new(format!("http://{address}"));
    let get = |path: &str| match http.get(path) {
        Ok(response) if response.status == 200 => Ok(response.json()),
        Ok(response) => Err(format!("{path}: {} {}", response.status, response.text)),
        Err(why) => Err(format!("{why}\n{}", server.log())),
    };

    eventually("seven targets that are up", || {
        let found = get("/api/v1/targets?state=active")?;
        let targets = found["data"]["activeTargets"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let up = targets.iter().filter(|target| target["health"] == "up").count();
        match (targets.len(), up) {
            (7, 7) => Ok(()),
            _ => Err(found.to_string()),
        }
    });
    page_shows_the_history_of_prometheus(&cluster);
    cluster.kubectl.apply(DENIED).ok();
    cluster.kubectl.apply(DENIED_DEPLOYMENT).ok();
    let traffic = Traffic::new(&cluster);
    eventually("the key being valid", || traffic.round());
    for _ in 0..REQUESTS_FOR_SPEED {
        traffic.round().expect("the expected responses");
    }
    for query in queries() {
        let path = format!("/api/v1/query?query={}", encoded(&query.text));
        eventually(&format!("data of the panel {}", query.at), || {
            if has_data(&get(&path)?) {
                return Ok(());
            }
            // A rate needs a counter that increases between two scrapes.
            traffic.round()?;
            Err(query.text.clone())
        });
    }
    let rules = eventually("the rules", || {
        let found = get("/api/v1/rules")?;
        let rules = found["data"]["groups"][0]["rules"].as_array().cloned();
        let rules = rules.unwrap_or_default();
        let is_evaluated = rules.iter().all(|rule| rule["health"] == "ok");
        match is_evaluated && !rules.is_empty() {
            true => Ok(rules),
            false => Err(found.to_string()),
        }
    });
    for rule in rules {
        assert_ne!(rule["state"], "firing", "a healthy fleet has no alert: {rule}");
    }
}

/// Compares the history on the web page with the objects.
fn page_shows_the_history_of_prometheus(cluster: &Cluster) {
    let mut browser = Browser::new(&cluster.web);
    let session = browser.sign_in(&json!({ "token": web_page::token(cluster) }));
    assert_eq!(session.json()["prometheus"], true, "{}", session.text);
    let last = |path: &str, series: &str, expect: f64| {
        let path = format!("/proxy/history/{path}?hours=1");
        // The points are minutes, so that a point after the first scrape may be a minute away.
        eventually(&format!("{series} of {path}"), || {
            let found = browser.get(&path);
            let values = found.json()["series"][series]
                .as_array()
                .cloned()
                .unwrap_or_default();
            match values.last().and_then(Value::as_f64) {
                Some(value) if (value - expect).abs() <= 1e-6 * expect => Ok(()),
                _ => Err(found.text),
            }
        });
    };
    last("deployments/default/chat", "readyReplicas", 1.0);
    last("deployments/default/chat", "floorTokensPerSecond", 1.0);
    let node = cluster.kubectl.json("mac mini-1").expect("the node");
    let nominal = &node["status"]["dataSheet"]["memoryBytesPerSecond"];
    last(
        "nodes/mini-1",
        "nominalBytesPerSecond",
        nominal.as_f64().expect("a number"),
    );
}
