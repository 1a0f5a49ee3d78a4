//! Fleets that do not exist: on a virtual clock, and over the real protocol.

use std::process::Command;

use crate::harness::{Cluster, eventually, repository, rooflet};

const FLEET: &str = "
fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 8}
    - {name: studio, chip: M4 Max, gpuCores: 40, memory: 64Gi, count: 2}
models:
  - {name: qwen3-8b-4bit, model: qwen3-8b, quantization: mlx4}
";

const CHAT: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: chat}
spec:
  replicas: 5
  model: {source: 'local://qwen3-8b-4bit'}
  serving: {contextTokens: 4096, maxConcurrency: 2}
";

#[test]
fn the_same_seed_prints_the_same_bytes() {
    let simulate = |seed: &str| {
        let scenario = repository("examples/simulation/faults.yaml");
        let output = Command::new(rooflet())
            .arg("simulate")
            .arg(scenario)
            .args(["--seed", seed, "--output", "json"])
            .output()
            .expect("the binary starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    };
    assert_eq!(simulate("3"), simulate("3"));
    assert_ne!(simulate("3"), simulate("4"));
}

#[test]
fn simulated_macs_join_and_answer_and_are_never_taken_for_measured_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("fleet.yaml");
    std::fs::write(&file, FLEET).expect("written");
    let Some(cluster) = Cluster::start(&[&format!("--simulate={}", file.display())]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    eventually("ten simulated Macs", || {
        let listed = kubectl.json("mac -l rooflet.dev/simulated=true")?["items"].clone();
        let nodes = listed.as_array().cloned().unwrap_or_default();
        let ready = |node: &&serde_json::Value| {
            let conditions = node["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            conditions
                .iter()
                .any(|one| one["type"] == "Ready" && one["status"] == "True")
        };
        match nodes.iter().filter(ready).count() {
            10 => Ok(()),
            count => Err(format!("{count} are ready")),
        }
    });
    kubectl.apply(CHAT).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/chat --timeout=180s")
        .ok();
    let answer = cluster
        .gateway
        .try_chat("chat", "Who are you?")
        .expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.text.contains("\"simulated\""), "{}", answer.text);
    // Speed is predicted from data sheets, and nothing is shown as measured.
    let node = kubectl.json("mac studio-1").expect("it is there");
    assert_eq!(node["status"]["nodeInfo"]["operatingSystem"], "simulated");
    assert!(node["status"]["probe"].is_null(), "{}", node["status"]["probe"]);
    let replicas = kubectl.json("mrep").expect("they are there");
    for replica in replicas["items"].as_array().expect("a list") {
        assert!(replica["status"]["measured"].is_null(), "{replica}");
        assert_eq!(
            replica["status"]["admission"]["speed"]["basis"], "Nominal",
            "{replica}"
        );
    }
}
