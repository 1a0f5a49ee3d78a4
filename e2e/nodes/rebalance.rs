//! `rooflet rebalance` on two simulated Macs that are half full, and a model that needs a whole
//! Mac.

use serde_json::Value;

use crate::harness::{Cluster, eventually};

const FLEET: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
models:
  - {name: small, model: tinyllama-1.1b, quantization: mlx4}
  - {name: large, model: qwen3-8b, quantization: mlx4}
";

/// Returns the manifest of a deployment. The model `large` reserves nearly all of a Mac's
/// allocatable memory.
fn deployment(name: &str, model: &str, rest: &str) -> String {
    format!(
        "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {{name: {name}}}
spec:
  model: {{source: 'local://{model}'}}
  {rest}
"
    )
}

#[test]
fn move_frees_memory_for_an_unschedulable_model() {
    let Some(cluster) = Cluster::simulated(FLEET, &[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let apart = "placement: {strategy: Spread}";
    for name in ["left", "right"] {
        kubectl.apply(&deployment(name, "small", apart)).ok();
        kubectl
            .run(&format!("wait --for=condition=Ready mdep/{name} --timeout=60s"))
            .ok();
    }
    let whole = "serving: {contextTokens: 8192, maxConcurrency: 4}";
    kubectl.apply(&deployment("large", "large", whole)).ok();
    eventually("`large` has no node", || {
        let listed = kubectl.json("mrep -l rooflet.dev/deployment=large")?;
        let conditions = listed["items"][0]["status"]["conditions"].as_array();
        let is_waiting =
            |condition: &Value| condition["type"] == "Scheduled" && condition["status"] == "False";
        match conditions.into_iter().flatten().any(is_waiting) {
            true => Ok(()),
            false => Err(listed.to_string()),
        }
    });

    let proposed = cluster.rooflet("rebalance");
    let printed = String::from_utf8_lossy(&proposed.stdout).into_owned();
    assert!(proposed.status.success(), "{proposed:?}");
    assert!(printed.contains(", makes room for default/large-"), "{printed}");
    assert!(printed.contains("Nothing was changed"), "{printed}");

    let made = cluster.rooflet("rebalance --apply --timeout=60s");
    let printed = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(made.status.success() && printed.contains(": moved; "), "{made:?}");
    for name in ["large", "left", "right"] {
        kubectl
            .run(&format!("wait --for=condition=Ready mdep/{name} --timeout=60s"))
            .ok();
    }
    let again = cluster.rooflet("rebalance");
    assert!(
        String::from_utf8_lossy(&again.stdout).starts_with("No moves are proposed"),
        "{again:?}"
    );
}
