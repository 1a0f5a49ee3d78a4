//! Quantised KV caches, from `spec.serving.kvCache` to the worker.

use crate::harness::{Fleet, Kubectl, Options, Scratch, copy_guide, eventually, processes_with, repository};

fn deployment(model: &str, bits: u32) -> String {
    format!(
        "
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata: {{name: {model}}}
spec:
  model: {{source: 'local://{model}'}}
  serving: {{contextTokens: 512, promptLookupTokens: 8, kvCache: {{bits: {bits}, diskSize: '0'}}}}
"
    )
}

/// Returns the memory that a ready replica reserves for its caches, in bytes.
fn reserved(kubectl: &Kubectl, bits: u32) -> u64 {
    eventually(&format!("a worker with {bits} bits"), || {
        let list = kubectl.json("mrep")?;
        let replicas = list["items"].as_array().cloned().unwrap_or_default();
        let [replica] = &replicas[..] else {
            return Err(format!("{} replicas", replicas.len()));
        };
        let requested = &replica["spec"]["serving"]["kvCache"]["bits"];
        let status = &replica["status"];
        let bytes = status["admission"]["memory"]["kvBytes"].as_u64();
        bytes
            .filter(|_| *requested == bits && status["phase"] == "Ready")
            .ok_or_else(|| replica.to_string())
    })
}

#[test]
fn quantised_caches_are_reserved_and_served() {
    let scratch = Scratch::new();
    let models = scratch.join("models");
    copy_guide(&models.join("guide"));
    let windows = models.join("gemma3");
    std::fs::create_dir_all(&windows).expect("writable");
    for file in std::fs::read_dir(repository("e2e/fixtures/models/gemma3")).expect("readable") {
        let file = file.expect("readable");
        std::fs::copy(file.path(), windows.join(file.file_name())).expect("writable");
    }
    let fleet = Fleet::with(Options {
        model_dir: Some(models.clone()),
        ..Options::default()
    });
    let Some(kubectl) = fleet.kubectl() else { return };

    // Keys and values of 4 layers, 2 KV heads and 32 elements in 32 bits; 4 requests of 512 tokens.
    kubectl.apply(&deployment("guide", 16)).ok();
    let elements = 2 * 4 * 2 * 32 * 512 * 4;
    assert_eq!(reserved(&kubectl, 16), elements * 4);
    assert!(fleet.gateway.chat("guide", "What is rooflet?").len() > 10);

    // With a scale and a bias of 32 bits for 32 elements, each element takes 10 bits.
    kubectl.apply(&deployment("guide", 8)).ok();
    assert_eq!(reserved(&kubectl, 8), elements * 10 / 8);
    let models = models.display().to_string();
    let quantised = processes_with(&[&models, " worker ", "--kv-bits 8 --prompt-lookup-tokens 8"]);
    assert_eq!(quantised.len(), 1, "{quantised:?}");
    assert!(fleet.gateway.chat("guide", "What is rooflet?").len() > 10);

    // Unsupported models are rejected with the cause, and other numbers of bits by the API.
    kubectl.apply(&deployment("gemma3", 8)).ok();
    eventually("a condition with the cause", || {
        let found = kubectl.json("mdep gemma3")?;
        let reported = found["status"]["conditions"].to_string();
        if reported.contains("keep a sliding window") {
            Ok(())
        } else {
            Err(reported)
        }
    });
    let error = kubectl.apply(&deployment("guide", 5)).expect_failure();
    assert!(error.contains("spec.serving.kvCache.bits"), "{error}");
}
