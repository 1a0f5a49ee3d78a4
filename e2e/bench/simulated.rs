//! Benchmark of 200 simulated Macs with real agents in one server: time from apply to ready.

use std::time::Instant;

use crate::control::{DEPLOYMENTS, NODES, Plane, REPLICAS, deployment};
use crate::harness::Scratch;
use crate::resident::Usage;
use crate::stats::{head, row};

const MACS: usize = 200;
const FLEET: &str = "
fleet:
  macs:
    - {name: air, chip: M4, gpuCores: 10, memory: 16Gi, count: 100}
    - {name: pro, chip: M4 Pro, gpuCores: 20, memory: 48Gi, count: 70}
    - {name: max, chip: M4 Max, gpuCores: 40, memory: 64Gi, count: 30}
models:
  - {name: qwen3-4b, model: qwen3-4b, quantization: mlx4}
";

pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(measure());
}

async fn measure() {
    let scratch = Scratch::new();
    let simulate = format!("--simulate={}", scratch.write("fleet.yaml", FLEET).display());
    let began = Instant::now();
    let plane = Plane::start(scratch, &["--roles=apiserver,controller", &simulate]).await;
    plane.ready(NODES, MACS).await;
    let joined = began.elapsed().as_secs_f64();
    let resident = || Usage::of(plane.server.pid()).resident_bytes >> 20;
    let idle = resident();
    let applied = Instant::now();
    plane.post(DEPLOYMENTS, &deployment("one", 1)).await;
    plane.ready(REPLICAS, 1).await;
    let one = applied.elapsed().as_secs_f64();
    let applied = Instant::now();
    plane.post(DEPLOYMENTS, &deployment("many", MACS - 1)).await;
    plane.ready(REPLICAS, MACS).await;
    let many = applied.elapsed().as_secs_f64();
    head(&[
        "simulated Macs",
        "all joined after, s",
        "one replica: apply to ready, s",
        "199 replicas, s",
        "server RSS without replicas, MiB",
        "with, MiB",
    ]);
    row(&[
        MACS.to_string(),
        format!("{joined:.1}"),
        format!("{one:.1}"),
        format!("{many:.1}"),
        idle.to_string(),
        resident().to_string(),
    ]);
}
