//! Canary analysis with the real engine: a canary that is too slow is aborted, and no request
//! fails.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use crate::harness::{Cluster, Scratch, copy_guide, eventually};

const CANARY: &str = "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: guide}
spec:
  replicas: 2
  model: {source: 'local://MODEL'}
  serving: {contextTokens: 512}
  placement: {strategy: Spread}
  strategy:
    type: Canary
    canary: {steps: [{setWeight: 50}, {analysis: {}}]}
";

/// Ratio of the slow model's layers to those of the guide.
const DEPTH: usize = 8;

/// Repeats the layers of a model. Its answers become meaningless and slow.
fn deepen(model: &Path) {
    let file = model.join("model.safetensors");
    let bytes = std::fs::read(&file).expect("readable");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
    let (header, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).expect("small"));
    let header: Map<String, Value> = serde_json::from_slice(header).expect("a header");
    let config = model.join("config.json");
    let text = std::fs::read_to_string(&config).expect("readable");
    let mut parsed: Value = serde_json::from_str(&text).expect("JSON");
    let layers = usize::try_from(parsed["num_hidden_layers"].as_u64().expect("a number")).expect("small");
    parsed["num_hidden_layers"] = json!(layers * DEPTH);
    std::fs::write(&config, parsed.to_string()).expect("writable");

    let mut out = Map::new();
    let mut all = Vec::new();
    for (name, tensor) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let at = |index: usize| usize::try_from(tensor["data_offsets"][index].as_u64().expect("an offset"));
        let bytes = &data[at(0).expect("small")..at(1).expect("small")];
        let in_layer = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split_once('.'));
        let names: Vec<String> = match in_layer {
            Some((layer, rest)) => {
                let layer: usize = layer.parse().expect("a number");
                let copies = (0..DEPTH).map(|copy| copy * layers + layer);
                copies
                    .map(|layer| format!("model.layers.{layer}.{rest}"))
                    .collect()
            }
            None => vec![name.clone()],
        };
        for name in names {
            let mut tensor = tensor.clone();
            tensor["data_offsets"] = json!([all.len(), all.len() + bytes.len()]);
            all.extend_from_slice(bytes);
            out.insert(name, tensor);
        }
    }
    let header = serde_json::to_vec(&out).expect("JSON");
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(&file, [&length[..], &header, &all].concat()).expect("writable");
}

#[test]
fn analysis_aborts_a_slow_canary() {
    let models = Scratch::new();
    copy_guide(&models.join("guide"));
    copy_guide(&models.join("slow"));
    deepen(&models.join("slow"));
    // The simulated chips differ. The analysis compares the measured speeds of this machine without
    // predictions.
    let macs = [("air", "M4", "16Gi"), ("max", "M4 Max", "64Gi")];
    let Some((cluster, _agents)) = Cluster::with_simulated_chips(&macs, models.path()) else {
        return;
    };
    let kubectl = &cluster.kubectl;
    kubectl.apply(&CANARY.replace("MODEL", "guide")).ok();
    cluster.rollout_ok("status mdep/guide");

    let done = AtomicBool::new(false);
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let gateway = cluster.gateway.duplicate();
            let (done, sent) = (&done, &sent);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    // All prompts differ, because cached prefixes would shorten the time to first
                    // token.
                    let number = sent.fetch_add(1, Ordering::SeqCst);
                    let body = json!({
                        "model": "guide",
                        "prompt": format!("{number} is a number. What is rooflet, and what is it for?"),
                        "max_tokens": 64,
                        "ignore_eos": true,
                    });
                    let answer = gateway.post("/v1/completions", &body).expect("a response");
                    assert_eq!(answer.status, 200, "{}", answer.text);
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            kubectl.apply(&CANARY.replace("MODEL", "slow")).ok();
            let (success, printed) = cluster.rollout("status mdep/guide --timeout=170s");
            assert!(!success && printed.contains("back to revision 1"), "{printed}");
            eventually("both replicas of the first revision", || {
                let found = kubectl.json("mdep guide")?;
                match found["status"]["ready"] == "2/2" {
                    true => Ok(()),
                    false => Err(found["status"].to_string()),
                }
            });
            let aborted =
                kubectl.json("mdep guide").expect("the deployment exists")["status"]["rollout"]["aborted"]
                    .clone();
            assert_eq!(aborted["reason"], "AnalysisFailed");
            let why = aborted["message"].as_str().unwrap_or_default();
            assert!(
                why.contains(" tokens/s, ") && why.contains(" with the stable revision"),
                "{why}"
            );
        }));
        done.store(true, Ordering::SeqCst);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}
