//! Simulated fleets: on a virtual clock (`rooflet simulate`), and with real agents (`--simulate`).

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

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
fn same_seed_prints_the_same_bytes() {
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
fn simulated_macs_join_and_answer() {
    let Some(cluster) = Cluster::simulated(FLEET, &[]) else {
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
        .expect("a response");
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.text.contains("\"simulated\""), "{}", answer.text);
    // Predictions use data sheets. Latency is measured and reported as for any worker.
    let node = kubectl.json("mac studio-1").expect("the node");
    assert_eq!(node["status"]["nodeInfo"]["operatingSystem"], "simulated");
    assert!(node["status"]["speed"].is_null(), "{}", node["status"]["speed"]);
    let replicas = kubectl.json("mrep").expect("a list");
    for replica in replicas["items"].as_array().expect("a list") {
        assert_eq!(
            replica["status"]["admission"]["speed"]["basis"], "Nominal",
            "{replica}"
        );
    }
    eventually("the measured latency in a replica's status", || {
        let replicas = kubectl.json("mrep")?["items"].clone();
        let mut measured = replicas.as_array().into_iter().flatten();
        match measured.find(|one| one["status"]["measured"]["requests"] == 1) {
            Some(one) => {
                let reported = &one["status"]["measured"];
                let rate = reported["tokensPerSecond"]
                    .as_str()
                    .and_then(|rate| rate.parse::<f64>().ok());
                let predicted = reported["predicted"]["tokensPerSecond"]["p50"].as_f64();
                match rate.zip(predicted) {
                    // A loaded test machine may be slower than predicted.
                    Some((rate, predicted)) if rate > predicted / 2.0 && rate < predicted * 1.1 => Ok(()),
                    Some(_) | None => Err(reported.to_string()),
                }
            }
            None => Err("no replica has measured anything".to_owned()),
        }
    });
}

const TWO_MODELS: &str = "
fleet: {macs: [{name: studio, chip: M4 Max, gpuCores: 40, memory: 64Gi, count: 3}]}
models:
  - {name: good, model: qwen3-4b, quantization: mlx4}
  - {name: bad, model: qwen3-4b, quantization: mlx4, slower: 3}
";

const CANARY: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: draft}
spec:
  replicas: 2
  model: {source: 'local://MODEL'}
  serving: {contextTokens: 2048, maxConcurrency: 2}
  strategy:
    type: Canary
    canary: {steps: [{setWeight: 50}, {analysis: {}}]}
";

/// The reports of simulated workers suffice for a canary analysis.
#[test]
fn analysis_aborts_a_slow_revision_on_simulated_macs() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("fleet.yaml");
    std::fs::write(&file, TWO_MODELS).expect("written");
    let Some(cluster) = Cluster::start(&[&format!("--simulate={}", file.display())]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    kubectl.apply(&CANARY.replace("MODEL", "good")).ok();
    eventually("a good revision", || {
        match kubectl.json("mdep draft")?["status"]["ready"] == "2/2" {
            true => Ok(()),
            false => Err("not ready".to_owned()),
        }
    });
    kubectl.apply(&CANARY.replace("MODEL", "bad")).ok();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let answer = cluster
                        .gateway
                        .try_chat("draft", "Who are you?")
                        .expect("a response");
                    assert_eq!(answer.status, 200, "{}", answer.text);
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("the abort of the bad revision", || {
                let status = kubectl.json("mdep draft")?["status"]["rollout"].clone();
                match status["aborted"]["reason"] == "AnalysisFailed" {
                    true => Ok(()),
                    false => Err(status.to_string()),
                }
            });
        }));
        done.store(true, Ordering::SeqCst);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

const FAULTS: &str = "
fleet:
  macs: [{name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 4}]
models: [{name: qwen3-8b-4bit, model: qwen3-8b, quantization: mlx4}]
faults:
  - {at: 15s, for: 24h, isolate: {node: mini-2}}
  - {at: 20s, for: 3s, crash: {node: mini-3}}
  - {at: 1s, for: 24h, onBattery: {node: mini-4}}
thermalTraces:
  - {node: mini-1, every: 12h, factors: [1.6, 2]}
";

/// Simulated machines report the scenario's faults as real machines would.
#[test]
fn faults_of_the_scenario_affect_simulated_macs() {
    let Some(cluster) = Cluster::simulated(FAULTS, &[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let condition = |node: &str, kind: &str, status: &str| {
        kubectl.wait_for_condition(&format!("mac {node}"), kind, status);
    };
    condition("mini-1", "ThermalPressure", "True");
    condition("mini-4", "OnBattery", "True");
    condition("mini-3", "Ready", "True");
    // The isolated node stops reporting. The node that crashed for a moment is ready again.
    condition("mini-2", "Ready", "Unknown");
    condition("mini-3", "Ready", "True");
}

const LAPTOP: &str = "
fleet:
  macs: [{name: book, chip: M4, gpuCores: 10, memory: 16Gi}]
models: [{name: small, model: tinyllama-1.1b, quantization: mlx4}]
faults:
  - {at: 1s, for: 24h, onBattery: {node: book-1}}
  - {at: 1s, for: 24h, lidClosed: {node: book-1}}
";

#[test]
fn closed_laptop_on_battery_serves_if_it_is_the_only_mac() {
    let Some(cluster) = Cluster::simulated(LAPTOP, &[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    kubectl.wait_for_condition("mac book-1", "OnBattery", "True");
    kubectl.wait_for_condition("mac book-1", "LidClosed", "True");
    let deployment = pooled("laptop", 1).replace(", nodeSelector: {pool: laptop}", "");
    kubectl.apply(&deployment).ok();
    kubectl
        .run("wait --for=condition=Ready mdep/laptop --timeout=180s")
        .ok();
}

const USERS_AND_DRIVERS: &str = "
fleet:
  macs:
    - {name: book, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 2}
    - {name: studio, chip: M4 Max, gpuCores: 40, memory: 64Gi}
    - {name: owned, chip: M4, gpuCores: 10, memory: 16Gi}
  labels: {book: {pool: books}, mini: {pool: minis}, studio: {pool: studios}}
  quietHours: {owned: '00:00-24:00'}
models: [{name: small, model: tinyllama-1.1b, quantization: mlx4}, {name: large, model: qwen3-8b, quantization: mlx4}]
faults:
  - {at: 1s, for: 24h, lidClosed: {node: book-1}}
  - {at: 1s, for: 24h, userPresent: {node: book-2}}
  - {at: 40s, for: 2s, kernelPanic: {node: mini-1}}
  - {at: 40s, wiredLeak: {node: studio-1, share: 0.25}}
  - {at: 70s, for: 3s, agentRestart: {node: studio-1}}
";

fn pooled(pool: &str, replicas: u32) -> String {
    format!(
        "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {{name: {pool}}}
spec:
  replicas: {replicas}
  model: {{source: 'local://small'}}
  serving: {{contextTokens: 1024}}
  placement: {{strategy: Spread, nodeSelector: {{pool: {pool}}}}}
"
    )
}

/// Actions of a Mac's user and faults of GPU drivers set conditions, which the scheduler and the
/// agents act on.
#[test]
fn scheduler_and_agents_react_to_users_and_driver_faults() {
    let Some(cluster) = Cluster::simulated(USERS_AND_DRIVERS, &[]) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    let ready_on = |pool: &str| -> Result<Vec<String>, String> {
        let listed = kubectl.json(&format!("mrep -l rooflet.dev/deployment={pool}"))?;
        let replicas = listed["items"].as_array().into_iter().flatten();
        let ready = replicas.filter(|replica| replica["status"]["phase"] == "Ready");
        let mut nodes: Vec<_> = ready
            .map(|replica| replica["spec"]["nodeName"].to_string())
            .collect();
        nodes.sort();
        Ok(nodes)
    };
    let wait_for = |pool: &str, nodes: &[&str]| {
        let nodes: Vec<_> = nodes.iter().map(|node| format!("\"{node}\"")).collect();
        eventually(&format!("{pool} on {nodes:?}"), || match ready_on(pool)? {
            ready if ready == nodes => Ok(()),
            others => Err(format!("{others:?}")),
        });
    };
    let events = |reason: &str| {
        let reported = kubectl.run(&format!("get events -A --field-selector reason={reason} -o json"));
        reported.ok()
    };
    for node in ["book-1", "book-2", "mini-1", "mini-2", "studio-1"] {
        eventually("a node", || kubectl.json(&format!("mac {node}")));
    }
    // All replicas are ready before the faults: the panic of a mini, and a worker on the studio
    // that is killed and leaves wired memory behind.
    let studios = pooled("studios", 1).replace("local://small", "local://large");
    kubectl.apply(&pooled("minis", 2)).ok();
    kubectl.apply(&studios).ok();
    wait_for("minis", &["mini-1", "mini-2"]);
    wait_for("studios", &["studio-1"]);
    eventually("the studio's worker is killed", || {
        let listed = kubectl.json("mrep -l rooflet.dev/deployment=studios")?;
        match &listed["items"][0]["status"]["lastTermination"]["signal"] {
            signal if *signal == 9 => Ok(()),
            other => Err(other.to_string()),
        }
    });
    kubectl.run("delete mdep studios").ok();

    // The scheduler prefers a Mac whose user is present to a Mac with a closed lid.
    kubectl.wait_for_condition("mac book-1", "LidClosed", "True");
    kubectl.wait_for_condition("mac book-2", "UserPresent", "True");
    kubectl.wait_for_condition("mac owned-1", "QuietHours", "True");
    kubectl.apply(&pooled("books", 1)).ok();
    wait_for("books", &["book-2"]);
    assert!(cluster.rooflet("cordon book-2").status.success());
    kubectl.run("scale mdep/books --replicas=2").ok();
    // With the other node cordoned, the scheduler uses the Mac with the closed lid.
    wait_for("books", &["book-1", "book-2"]);

    // After the panic, the model is quarantined on that node, and the other mini runs both
    // replicas.
    wait_for("minis", &["mini-2", "mini-2"]);
    let reported = eventually("the quarantine", || match events("Quarantined") {
        reported if reported.contains("completeMemory() prepare count underflow") => Ok(reported),
        others => Err(others),
    });
    assert!(
        reported.contains("a simulated engine on system build 0"),
        "{reported}"
    );

    // One minute after the last worker exited, the agent reports the leak. The agent was restarted
    // in between and kept its record of the wired memory before the first worker.
    kubectl.wait_for_condition("mac studio-1", "WiredMemoryLeaked", "True");
    kubectl.wait_for_condition("mac studio-1", "RebootRequired", "True");
    kubectl.apply(&studios).ok();
    let taint = "{rooflet.dev/reboot-required:NoSchedule}";
    kubectl.wait_for_message("mdep studios", "Scheduled", "False", taint);
}

#[test]
fn server_rejects_faults_that_require_a_modelled_control_plane() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("fleet.yaml");
    let stale = FAULTS.replace("crash: {node: mini-3}", "staleController: {}");
    std::fs::write(&file, stale).expect("written");
    let output = Command::new(rooflet())
        .args(["server", "--data-dir"])
        .arg(directory.path().join("data"))
        .arg("--simulate")
        .arg(&file)
        .output()
        .expect("the binary starts");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{printed}");
    assert!(
        printed.contains("faults[1].staleController: not supported with a real control plane"),
        "{printed}"
    );
    assert!(!directory.path().join("data").exists(), "nothing was started");
}

#[test]
fn simulate_rejects_faults_that_are_not_modelled() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("fleet.yaml");
    std::fs::write(&file, USERS_AND_DRIVERS).expect("written");
    let output = Command::new(rooflet())
        .arg("simulate")
        .arg(&file)
        .output()
        .expect("the binary starts");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{printed}");
    assert!(
        printed.contains("faults[2].kernelPanic: not modelled"),
        "{printed}"
    );
}
