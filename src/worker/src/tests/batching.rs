//! Batching: requests that share decode steps, KV cache memory, and prefill between decode steps.

use super::load::endless_request;
use super::*;
use rooflet_inference_api::openai::response::FinishReason;
use rooflet_model::config::FloatType;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::memory::{RUNTIME_OVERHEAD, activation_bytes};
use rooflet_roofline::predict::ModelCost;

/// Returns the value of a metric. `name` includes the labels, if any.
pub(super) fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.trim().parse().unwrap()
}

#[test]
fn concurrent_requests_share_decode_steps() {
    let (_dir, config, cue) = scripted::endless();
    let config = WorkerConfig {
        max_concurrency: 8,
        ..config
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let body = json!({"model": "tiny", "prompt": vec![vec![cue]; 8], "max_tokens": 1000});
            let answer = worker.post("/v1/completions", &body).await.json();
            assert_eq!(answer["usage"]["completion_tokens"], 8 * 1000);
            let metrics = worker.send("GET", "/metrics", "").await.body;
            let tokens = value(&metrics, "rooflet_worker_batch_rows_count");
            let rows = value(&metrics, "rooflet_worker_batch_rows_sum");
            assert_eq!(tokens, 8000.0);
            let between = value(&metrics, "rooflet_worker_inter_token_latency_seconds_count");
            assert_eq!(between, 8000.0 - 8.0, "one per token except the first tokens");
            assert!(rows / tokens > 7.5, "{rows} rows over {tokens} tokens");
            assert!(value(&metrics, "rooflet_worker_kv_cache_bytes{kind=\"limit\"}") > 0.0);
            for part in ["schedule", "build", "compute", "detokenize", "deliver", "prefill"] {
                let seconds = value(
                    &metrics,
                    &format!("rooflet_worker_step_seconds_total{{part=\"{part}\"}}"),
                );
                assert!(seconds > 0.0, "{part}");
            }
            let streams = worker.status().await.measured.streams.unwrap();
            assert!(streams > 7.5, "{streams}");
        })
    });
}

/// Sets the memory limit so that the KV cache has room for `tokens` tokens. A scripted model has
/// one layer with two heads of 16 elements, or 256 bytes per token. The cache grows in steps of 256
/// tokens.
pub(super) fn with_memory_for(tokens: u64, config: WorkerConfig) -> WorkerConfig {
    let ModelDir { shape, .. } = ModelDir::inspect(&config.model).unwrap();
    let ModelCost { dimensions, weights } = ModelCost::of_checkpoint(&shape, FloatType::F32);
    let context = config.context_tokens.unwrap() as u32;
    let activations = activation_bytes(&dimensions, context, KvBits::new(32));
    let fixed = RUNTIME_OVERHEAD + activations + weights.resident();
    WorkerConfig {
        memory_limit: Some(fixed + Bytes(256 * tokens)),
        ..config
    }
}

#[test]
fn request_waits_for_memory_of_its_maximum_length() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(with_memory_for(2560, config), |worker| {
        Box::pin(async move {
            // The batch has a free row for each request.
            let submit = |max_tokens| {
                let request = prompt::ValidRequest {
                    max_tokens,
                    ..endless_request(cue)
                };
                worker.app.engine.submit(request).unwrap()
            };
            let mut completions = [submit(1000), submit(2500), submit(100)];
            let mut done = Vec::new();
            for (index, completion) in completions.iter_mut().enumerate() {
                loop {
                    match completion.events.recv().await.expect("completion ends") {
                        crate::batch::event::Event::Piece(_) | crate::batch::event::Event::Embedding(_) => {}
                        crate::batch::event::Event::Done(end) => break done.push((index, end.reason)),
                        crate::batch::event::Event::Failed(message) => panic!("{message}"),
                    }
                }
                let metrics = worker.send("GET", "/metrics", "").await.body;
                let of = |kind: &str| {
                    value(
                        &metrics,
                        &format!("rooflet_worker_kv_cache_bytes{{kind=\"{kind}\"}}"),
                    )
                };
                assert!(
                    of("held") <= of("reserved") && of("reserved") <= of("limit"),
                    "{metrics}"
                );
            }
            assert_eq!(done, [0, 1, 2].map(|index| (index, FinishReason::Length)));
            // Each request runs alone. The third would fit together with the first, but must not
            // overtake the second.
            let metrics = worker.send("GET", "/metrics", "").await.body;
            assert_eq!(
                value(&metrics, "rooflet_worker_batch_rows_bucket{le=\"1\"}"),
                3600.0,
                "{metrics}"
            );
        })
    });
}

#[test]
fn memory_limit_reduces_context() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(with_memory_for(600, config), |worker| {
        Box::pin(async move {
            let models = worker.send("GET", "/v1/models", "").await.json();
            assert_eq!(models["data"][0]["max_model_len"], 512);
            let long = json!({"model": "tiny", "prompt": vec![cue; 512], "max_tokens": 1});
            let rejected = worker.post("/v1/completions", &long).await;
            assert_eq!(rejected.status, 400);
            assert_eq!(rejected.json()["error"]["code"], "context_length_exceeded");
            let rest = json!({"model": "tiny", "prompt": [cue], "max_tokens": 100_000});
            let answer = worker.post("/v1/completions", &rest).await.json();
            assert_eq!(answer["usage"]["total_tokens"], 512);
        })
    });
}

#[test]
fn worker_fails_without_memory_for_one_request() {
    let (_dir, config, _) = scripted::endless();
    let err = loading_error(with_memory_for(255, config));
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("ExceedsNodeMemory", ExitStatus::Config)
    );
    let message = err.termination_message().message;
    assert!(
        message.contains("too little memory for the KV cache of one request"),
        "{message}"
    );
}

/// The prefill of the long prompt takes minutes.
#[test]
fn short_request_finishes_during_long_prefill() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            let long = prompt::ValidRequest {
                prompt: vec![cue; 200_000],
                ..endless_request(cue)
            };
            let mut long = worker.app.engine.submit(long).unwrap();
            worker
                .wait_until("the long prefill runs", |status| status.requests.running == 1)
                .await;
            let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 20});
            let answer = worker.post("/v1/completions", &body).await;
            assert_eq!(answer.json()["usage"]["completion_tokens"], 20);
            assert!(long.events.try_recv().is_err(), "the long prefill is unfinished");
            assert_eq!(worker.status().await.requests.running, 1);
        })
    });
}
