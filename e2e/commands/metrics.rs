//! Metrics of the fleet's objects, as Prometheus reads them.

use crate::harness::{Cluster, Http, eventually, free_port};

const FLEET: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
models:
  - {name: qwen3-8b-4bit, model: qwen3-8b, quantization: mlx4}
";

const CHAT: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: chat}
spec:
  model: {source: 'local://qwen3-8b-4bit'}
  serving: {contextTokens: 4096, maxConcurrency: 2}
";

#[test]
fn fleet_metrics_agree_with_kubectl() {
    let address = format!("127.0.0.1:{}", free_port());
    let listen = format!("--metrics-listen={address}");
    let Some(cluster) = Cluster::simulated(FLEET, &[&listen]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    kubectl.apply(CHAT).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/chat --timeout=180s")
        .ok();
    let replicas = kubectl.run("get mrep -o jsonpath={.items[*].metadata.name}").ok();
    let field = |path: &str| kubectl.run(&format!("get {path}")).ok().trim().to_owned();
    let node = field("mrep -o jsonpath={.items[0].spec.nodeName}");
    let chip = field(&format!("mac {node} -o jsonpath={{.status.chip.name}}"));
    let nominal = field(&format!(
        "mac {node} -o jsonpath={{.status.dataSheet.memoryBytesPerSecond}}"
    ));
    let nominal: f64 = nominal.parse().expect("a number");
    let scraper = Http::new(format!("http://{address}"));
    let expected = [
        format!("rooflet_node_info{{agent_version=\"0.1.0\",chip=\"{chip}\","),
        format!("rooflet_node_condition{{condition=\"Ready\",node=\"{node}\",status=\"True\"}} 1\n"),
        format!("rooflet_node_bandwidth_bytes_per_second{{kind=\"nominal\",node=\"{node}\"}} {nominal}\n"),
        "rooflet_deployment_replicas{deployment=\"chat\",namespace=\"default\",state=\"ready\"} 1\n"
            .to_owned(),
        format!(
            "rooflet_replica_phase{{deployment=\"chat\",namespace=\"default\",node=\"{node}\",phase=\"Ready\",replica=\"{}\"}} 1\n",
            replicas.trim()
        ),
    ];
    eventually("the samples", || {
        let metrics = scraper.get("/metrics")?.text;
        let missing = expected.iter().find(|sample| !metrics.contains(sample.as_str()));
        missing.map_or(Ok(()), |missing| Err(format!("{missing} not in:\n{metrics}")))
    });

    kubectl.run("delete mdep/chat").ok();
    eventually("the samples of a deleted deployment to disappear", || {
        let metrics = scraper.get("/metrics")?.text;
        match metrics.contains("deployment=\"chat\"") {
            true => Err(metrics),
            false => Ok(()),
        }
    });
}
