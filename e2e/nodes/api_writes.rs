//! Number of writes that a new deployment causes at the API server.

use std::fmt::Write as _;

use crate::harness::{ApiWrites, Cluster, eventually};

/// Number of deployments. All fit on the fleet.
const DEPLOYMENTS: usize = 20;
/// Maximum number of writes per deployment with one replica, from its creation until it is Ready,
/// events and conflicts included. The load of the control plane is proportional to this number.
const MAX_WRITES: f64 = 21.0;
/// Number of reads without another write after which the fleet counts as settled.
const QUIET_READS: usize = 25;
const FLEET: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 32Gi, count: 6}
    - {name: pro, chip: M4 Pro, gpuCores: 20, memory: 48Gi, count: 4}
models:
  - {name: qwen3-0.6b, model: qwen3-0.6b, quantization: mlx4}
";

#[test]
fn new_deployment_causes_few_writes() {
    let Some(cluster) = Cluster::simulated(FLEET, &[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let ready_nodes = "wait --for=condition=Ready mac --all --timeout=120s";
    eventually("the simulated Macs", || {
        let nodes = kubectl.json("mac")?["items"].as_array().map_or(0, Vec::len);
        (nodes == 10).then_some(()).ok_or(format!("{nodes} nodes"))
    });
    kubectl.run(ready_nodes).ok();
    let writes = || ApiWrites::parse(&kubectl.run("get --raw /metrics").ok());
    let settled = || {
        let (mut known, mut unchanged) = (writes(), 0);
        eventually("a time without writes", || {
            let now = writes();
            unchanged = if now == known { unchanged + 1 } else { 0 };
            known = now;
            (unchanged >= QUIET_READS)
                .then_some(())
                .ok_or(format!("{known:?}"))
        });
        known
    };
    let before = settled();
    let mut manifests = String::new();
    for number in 0..DEPLOYMENTS {
        write!(
            manifests,
            "---
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {{name: small-{number:02}}}
spec:
  model: {{source: 'local://qwen3-0.6b'}}
  serving: {{contextTokens: 1024, maxConcurrency: 1}}
"
        )
        .expect("a string accepts text");
    }
    kubectl.apply(&manifests).ok();
    kubectl
        .run("wait --for=condition=Ready mdep --all --timeout=180s")
        .ok();
    let writes = settled().since(&before);
    let per_deployment = writes.total() as f64 / DEPLOYMENTS as f64;
    eprintln!(
        "{per_deployment:.1} writes per deployment: {:?}",
        writes.most_frequent_first()
    );
    assert!(per_deployment <= MAX_WRITES, "{per_deployment}: {writes:?}");
}
