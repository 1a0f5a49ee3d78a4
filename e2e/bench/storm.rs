//! Benchmark of many changes at once: 2,000 deployments are applied to 200 simulated Macs with real
//! agents in one server, while another deployment is scaled again and again.

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::control::{DEPLOYMENTS, NODES, Plane, REPLICAS};
use crate::harness::{Scratch, free_port};
use crate::resident::Usage;
use crate::stats::{Samples, head, row};

const MACS: usize = 200;
/// Default number of deployments, and the environment variable of another number.
const STORM: usize = 2_000;
const STORM_VARIABLE: &str = "ROOFLET_STORM";
/// Maximum number of concurrent writes of this benchmark.
const WRITERS: usize = 8;
/// Pause between two changes of the scaled deployment.
const BETWEEN: Duration = Duration::from_secs(2);
/// Pause between two reads of the scaled deployment.
const POLL: Duration = Duration::from_millis(20);
/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(600);
const FLEET: &str = "
fleet:
  macs:
    - {name: air, chip: M4, gpuCores: 10, memory: 32Gi, count: 100}
    - {name: pro, chip: M4 Pro, gpuCores: 20, memory: 48Gi, count: 70}
    - {name: max, chip: M4 Max, gpuCores: 40, memory: 64Gi, count: 30}
models:
  - {name: qwen3-0.6b, model: qwen3-0.6b, quantization: mlx4}
";

pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure());
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "model": {"source": "local://qwen3-0.6b"},
            "serving": {"contextTokens": 1024, "maxConcurrency": 1},
        },
    })
}

async fn measure() {
    let storm_size = std::env::var(STORM_VARIABLE).map_or(STORM, |number| number.parse().expect("a number"));
    let scratch = Scratch::new();
    let simulate = format!("--simulate={}", scratch.write("fleet.yaml", FLEET).display());
    let gateway = format!("--gateway-listen=127.0.0.1:{}", free_port());
    let plane = Plane::start(scratch, &[&simulate, &gateway, "--web-listen=off"]).await;
    plane.ready(NODES, MACS).await;
    plane.post(DEPLOYMENTS, &deployment("scaled")).await;
    plane.ready(REPLICAS, 1).await;
    let (sender, mut bound) = mpsc::unbounded_channel();
    let before = Usage::with_simulated_workers(plane.server.pid());
    let writes_before = plane.writes().await;
    let storm = async {
        let began = Instant::now();
        let names = (0..storm_size).map(|number| format!("storm-{number:04}"));
        let post = |name: String| {
            let plane = &plane;
            async move { plane.post(DEPLOYMENTS, &deployment(&name)).await }
        };
        futures::stream::iter(names.map(post))
            .buffer_unordered(WRITERS)
            .for_each(|()| async {})
            .await;
        let created = Instant::now();
        let mut last = began;
        let mut left = storm_size;
        while left > 0 {
            let reported = tokio::time::timeout(TIMEOUT, bound.recv()).await;
            let (deployment, at): (String, Instant) = reported
                .unwrap_or_else(|_| panic!("{left} are not bound: {}", plane.server.log()))
                .expect("the watch is open");
            if deployment != "scaled" {
                left -= 1;
                last = at;
            }
        }
        (created - began, last.saturating_duration_since(created))
    };
    let mut seen = Vec::new();
    let scaling = async {
        for turn in 0.. {
            tokio::time::sleep(BETWEEN).await;
            let path = format!("{DEPLOYMENTS}/scaled");
            let began = Instant::now();
            let change = json!({"spec": {"replicas": 1 + (turn + 1) % 2}});
            plane.patch(&path, &change).await;
            loop {
                let scaled = plane.get(&path).await;
                if scaled["status"]["observedGeneration"] == scaled["metadata"]["generation"] {
                    break;
                }
                tokio::time::sleep(POLL).await;
            }
            seen.push(began.elapsed().as_secs_f64());
        }
    };
    let (creating, binding) = tokio::select! {
        times = storm => times,
        () = scaling => unreachable!("the loop never ends"),
        () = plane.watch_bindings(sender) => panic!("the watch ended: {}", plane.server.log()),
    };
    let after = Usage::with_simulated_workers(plane.server.pid());
    let writes = plane.writes().await.since(&writes_before);
    let per_deployment = |after: Usage, before: Usage| {
        format!(
            "{:.1}",
            (after.cpu - before.cpu).as_secs_f64() * 1e3 / storm_size as f64
        )
    };
    let seen = Samples::new(seen);
    head(&[
        "deployments",
        "creating, s",
        "last create to last bound, s",
        "CPU per deployment, ms: control plane and agents",
        "simulated workers",
        "a scale seen after, s",
        "largest, s",
    ]);
    row(&[
        storm_size.to_string(),
        format!("{:.1}", creating.as_secs_f64()),
        format!("{:.1}", binding.as_secs_f64()),
        per_deployment(after.0, before.0),
        per_deployment(after.1, before.1),
        format!("{seen:.2}"),
        format!("{:.2}", seen.quantile(1.0)),
    ]);
    println!();
    head(&["writes without Leases", "per deployment"]);
    let per_deployment = |count: u64| format!("{:.2}", count as f64 / storm_size as f64);
    row(&["all".to_owned(), per_deployment(writes.total())]);
    for (write, count) in writes.most_frequent_first() {
        row(&[write.to_owned(), per_deployment(count)]);
    }
}
