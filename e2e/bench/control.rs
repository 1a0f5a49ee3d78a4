//! Control plane benchmark with 1,000 and 10,000 Macs: the API server in one process, controller
//! and gateway in another.
//!
//! No agents run. The benchmark writes their FleetNodes, statuses and Lease renewals over the same
//! API, so no replica becomes ready. The statuses are copied from simulated Macs.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::join;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::apiserver::Api;
use crate::harness::{ApiWrites, Process, Scratch, eventually, free_port};
use crate::resident::Usage;
use crate::stats::{Samples, head, milliseconds, row};

const FLEETS: [usize; 2] = [1_000, 10_000];
/// Interval of a node's Lease renewals, as in the agent.
const RENEWAL: Duration = Duration::from_secs(10);
/// Maximum number of concurrent writes of this benchmark.
const WRITERS: usize = 32;
/// Period in which only renewals happen.
const QUIET: Duration = Duration::from_secs(30);
/// Number of deployments with one replica that are applied one by one.
const APPLIED: usize = 40;
/// Pause between two of these deployments.
const BETWEEN: Duration = Duration::from_millis(250);
/// Replicas of the deployment that is applied at the end.
const BURST: usize = 1_000;
/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(120);

const KINDS: &str = "
fleet:
  macs:
    - {name: air, chip: M4, gpuCores: 10, memory: 16Gi, count: 1}
    - {name: pro, chip: M4 Pro, gpuCores: 20, memory: 48Gi, count: 1}
    - {name: max, chip: M4 Max, gpuCores: 40, memory: 64Gi, count: 1}
    - {name: ultra, chip: M3 Ultra, gpuCores: 80, memory: 256Gi, count: 1}
models:
  - {name: qwen3-4b, model: qwen3-4b, quantization: mlx4}
  - {name: qwen3-8b, model: qwen3-8b, quantization: mlx4}
  - {name: qwen3-14b, model: qwen3-14b, quantization: mlx4}
  - {name: qwen3-30b-a3b, model: qwen3-30b-a3b, quantization: mlx4}
";

pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let kinds = runtime.block_on(kinds());
    head(&[
        "Macs without agents",
        "controller CPU, % of a core",
        "API server CPU, % of a core",
        "RSS, MiB: controller",
        "API server",
        "apply to bound, ms",
        "99th percentile, ms",
        "1,000 replicas bound, s",
        "reconcile: deployments, ms",
        "binder, ms",
        "node lifecycle, ms",
    ]);
    for nodes in FLEETS {
        runtime.block_on(measure(nodes, &kinds));
    }
}

/// Returns a FleetNode of each kind of Mac, as written by the agent of a simulated Mac.
async fn kinds() -> Vec<Value> {
    let scratch = Scratch::new();
    let fleet = scratch.write("fleet.yaml", KINDS);
    let simulate = format!("--simulate={}", fleet.display());
    let plane = Plane::start(scratch, &["--roles=apiserver,controller", &simulate]).await;
    plane.ready(NODES, 4).await
}

/// A running API server.
pub(crate) struct Plane {
    api: Api,
    port: u16,
    pub(crate) server: Process,
    /// Dropped last, because the processes write into it.
    scratch: Scratch,
}

impl Plane {
    pub(crate) async fn start(scratch: Scratch, args: &[&str]) -> Self {
        let port = free_port();
        let (data_dir, kubeconfig) = (scratch.join("data"), scratch.join("kubeconfig"));
        let mut all = vec![
            "server".to_owned(),
            format!("--data-dir={}", data_dir.display()),
            format!("--listen=127.0.0.1:{port}"),
            format!("--kubeconfig-out={}", kubeconfig.display()),
        ];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let server = Process::start(all, &scratch.join("server.log"));
        eventually("the kubeconfig", || {
            kubeconfig.is_file().then_some(()).ok_or_else(|| server.log())
        });
        Self {
            api: Api::new(&data_dir, port),
            port,
            server,
            scratch,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}/{path}", self.port)
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let body = self.api.done(self.api.client.get(self.url(path))).await;
        serde_json::from_slice(&body).expect("JSON")
    }

    /// Returns the numbers of write requests since the start of the server.
    pub(crate) async fn writes(&self) -> ApiWrites {
        let body = self.api.done(self.api.client.get(self.url("metrics"))).await;
        ApiWrites::parse(&String::from_utf8_lossy(&body))
    }

    /// Waits until `count` objects of a collection are ready, and returns all its objects.
    pub(crate) async fn ready(&self, collection: &str, count: usize) -> Vec<Value> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let list = self.get(collection).await;
            let objects = list["items"].as_array().cloned().unwrap_or_default();
            let is_ready = |object: &&Value| {
                let conditions = object["status"]["conditions"].as_array();
                conditions
                    .into_iter()
                    .flatten()
                    .any(|one| one["type"] == "Ready" && one["status"] == "True")
            };
            let ready = objects.iter().filter(is_ready).count();
            if ready == count {
                return objects;
            }
            let log = self.server.log();
            assert!(
                Instant::now() < deadline,
                "{ready} of {count} {collection}: {log}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) {
        self.api
            .done(self.api.client.post(self.url(path)).json(body))
            .await;
    }

    pub(crate) async fn patch(&self, path: &str, change: &Value) {
        let request = self
            .api
            .client
            .patch(self.url(path))
            .header(CONTENT_TYPE, "application/merge-patch+json")
            .body(change.to_string());
        self.api.done(request).await;
    }

    async fn join(&self, number: usize, kinds: &[Value]) {
        let (name, kind) = (node(number), &kinds[number % kinds.len()]);
        let meta = json!({"name": name, "labels": {"kubernetes.io/hostname": name}});
        let body =
            json!({"apiVersion": kind["apiVersion"], "kind": kind["kind"], "metadata": meta, "spec": {}});
        self.post(NODES, &body).await;
        let change = json!({"status": kind["status"]});
        self.patch(&format!("{NODES}/{name}/status"), &change).await;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": lease(number)},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now()},
        });
        self.post(LEASES, &lease).await;
    }

    /// Renews the Leases of all joined nodes every [`RENEWAL`]. Never returns.
    async fn renew(&self, nodes: usize, joined: &Cell<usize>) {
        let began = Instant::now();
        let due = |turn: usize| RENEWAL.mul_f64(turn as f64 / nodes as f64);
        let renewals = futures::stream::iter(0..).map(|turn: usize| async move {
            tokio::time::sleep(due(turn).saturating_sub(began.elapsed())).await;
            // The last WRITERS nodes may still be joining, in any order.
            let (number, joined) = (turn % nodes, joined.get());
            if number + WRITERS < joined || joined == nodes {
                let change = json!({"spec": {"renewTime": now()}});
                self.patch(&format!("{LEASES}/{}", lease(number)), &change).await;
            }
        });
        renewals.buffer_unordered(WRITERS).for_each(|()| async {}).await;
    }

    /// Sends the deployment of every replica that is bound, with the time.
    pub(crate) async fn watch_bindings(&self, bound: mpsc::UnboundedSender<(String, Instant)>) {
        let list = self.get(&format!("{REPLICAS}?limit=1")).await;
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .expect("a list has a resourceVersion");
        let url = self.url(&format!("{REPLICAS}?watch=true&resourceVersion={version}"));
        let mut response = self.api.client.get(url).send().await.expect("a watch");
        let (mut bytes, mut known) = (Vec::new(), HashSet::new());
        while let Some(chunk) = response.chunk().await.expect("an open watch") {
            let at = Instant::now();
            bytes.extend_from_slice(&chunk);
            while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = bytes.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).expect("an event");
                let object = &event["object"];
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let deployment = object["metadata"]["labels"]["rooflet.dev/deployment"].as_str();
                if object["spec"]["nodeName"].is_string() && known.insert(name) {
                    let reported = bound.send((deployment.unwrap_or_default().to_owned(), at));
                    if reported.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

pub(crate) const NODES: &str = "apis/rooflet.dev/v1alpha1/fleetnodes";
pub(crate) const REPLICAS: &str = "apis/rooflet.dev/v1alpha1/modelreplicas";
const LEASES: &str = "apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
pub(crate) const DEPLOYMENTS: &str = "apis/rooflet.dev/v1alpha1/namespaces/default/modeldeployments";

fn node(number: usize) -> String {
    format!("mac-{number:05}")
}

fn lease(number: usize) -> String {
    format!("fleetnode-{}", node(number))
}

/// Returns the current time as a Kubernetes MicroTime.
fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string()
}

pub(crate) fn deployment(name: &str, replicas: usize) -> Value {
    json!({
        "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "model": {"source": "local://qwen3-4b"},
            "serving": {"contextTokens": 4096, "maxConcurrency": 2},
            "objectives": {"decodeTokensPerSecond": 5},
        },
    })
}

async fn measure(nodes: usize, kinds: &[Value]) {
    let plane = Plane::start(Scratch::new(), &["--roles=apiserver"]).await;
    let metrics = format!("127.0.0.1:{}", free_port());
    let controller = Process::start(
        [
            "server".to_owned(),
            "--roles=controller".to_owned(),
            format!("--metrics-listen={metrics}"),
            format!("--kubeconfig={}", plane.scratch.join("kubeconfig").display()),
        ],
        &plane.scratch.join("controller.log"),
    );
    let joined = Cell::new(0);
    let (sender, mut bound) = mpsc::unbounded_channel();
    let measured = async {
        let join = |number| {
            let (plane, joined) = (&plane, &joined);
            async move {
                plane.join(number, kinds).await;
                joined.set(joined.get() + 1);
            }
        };
        futures::stream::iter((0..nodes).map(join))
            .buffer_unordered(WRITERS)
            .for_each(|()| async {})
            .await;
        // The controller finishes the work that joining caused.
        tokio::time::sleep(QUIET).await;
        let before = [Usage::of(controller.pid()), Usage::of(plane.server.pid())];
        tokio::time::sleep(QUIET).await;
        let after = [Usage::of(controller.pid()), Usage::of(plane.server.pid())];
        let busy =
            |which: usize| 100.0 * (after[which].cpu - before[which].cpu).as_secs_f64() / QUIET.as_secs_f64();
        let resident = |which: usize| after[which].resident_bytes >> 20;
        let mut latencies = Vec::new();
        for number in 0..APPLIED {
            let name = format!("single-{number}");
            let applied = Instant::now();
            plane.post(DEPLOYMENTS, &deployment(&name, 1)).await;
            let (reported, at) = tokio::time::timeout(TIMEOUT, bound.recv())
                .await
                .unwrap_or_else(|_| panic!("{name} is not bound: {}", controller.log()))
                .expect("the watch is open");
            assert_eq!(reported, name);
            latencies.push(milliseconds(at - applied));
            tokio::time::sleep(BETWEEN).await;
        }
        let metrics = plane.api.client.get(format!("http://{metrics}/metrics"));
        let reconciles =
            ReconcileMetrics(String::from_utf8_lossy(&plane.api.done(metrics).await).into_owned());
        let latencies = Samples::new(latencies);
        let applied = Instant::now();
        plane.post(DEPLOYMENTS, &deployment("burst", BURST)).await;
        let mut last = applied;
        for _ in 0..BURST {
            let reported = tokio::time::timeout(TIMEOUT, bound.recv()).await;
            (_, last) = reported
                .unwrap_or_else(|_| panic!("not all are bound: {}", controller.log()))
                .expect("the watch is open");
        }
        row(&[
            nodes.to_string(),
            format!("{:.1}", busy(0)),
            format!("{:.1}", busy(1)),
            resident(0).to_string(),
            resident(1).to_string(),
            format!("{:.0}", latencies.median()),
            format!("{:.0}", latencies.quantile(0.99)),
            format!("{:.1}", (last - applied).as_secs_f64()),
            reconciles.mean("deployment"),
            reconciles.mean("binder"),
            reconciles.mean("node-lifecycle"),
        ]);
    };
    let load = join(plane.renew(nodes, &joined), plane.watch_bindings(sender));
    tokio::select! {
        () = measured => {}
        _ = load => panic!("the load ended: {}", plane.server.log()),
    }
}

/// Metrics of the controller process as text.
struct ReconcileMetrics(String);

impl ReconcileMetrics {
    /// Returns the mean duration of a controller's reconciliations in milliseconds, and their
    /// number.
    fn mean(&self, controller: &str) -> String {
        let value = |name: &str| -> f64 {
            let series = format!("rooflet_reconcile_seconds_{name}{{controller=\"{controller}\"}} ");
            let line = self.0.lines().find_map(|line| line.strip_prefix(&series));
            line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
        };
        let count = value("count");
        format!("{:.1} ({count:.0} runs)", 1e3 * value("sum") / count.max(1.0))
    }
}
