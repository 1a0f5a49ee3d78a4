//! Requests that share the engine: one batch, its memory, and prompts read between steps.

use super::load::endless_request;
use super::*;
use rooflet_inference_api::openai::response::FinishReason;
use rooflet_model::config::FloatType;
use rooflet_model::kv_cache::KvBits;
use rooflet_roofline::memory::{RUNTIME_OVERHEAD, activation_bytes};
use rooflet_roofline::predict::ModelCost;

/// The value of a metric without labels, or with those given.
pub(super) fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.trim().parse().unwrap()
}

#[test]
fn requests_are_computed_together() {
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
            assert_eq!(between, 8000.0 - 8.0, "one for each token but the first ones");
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

/// Caches of one layer, two heads of 16 elements: 256 bytes per token, in steps of 256 tokens.
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
fn a_request_waits_until_there_is_memory_for_all_of_it() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(with_memory_for(2560, config), |worker| {
        Box::pin(async move {
            // A row is free for each.
            let ask = |max_tokens| {
                let request = prompt::ValidRequest {
                    max_tokens,
                    ..endless_request(cue)
                };
                worker.app.engine.submit(request).unwrap()
            };
            let mut asked = [ask(1000), ask(2500), ask(100)];
            let mut done = Vec::new();
            for (index, completion) in asked.iter_mut().enumerate() {
                loop {
                    match completion.events.recv().await.expect("an end") {
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
            // Each alone: the third one would fit beside the first, but the second was before it.
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
fn the_context_is_what_fits_into_memory() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(with_memory_for(600, config), |worker| {
        Box::pin(async move {
            let models = worker.send("GET", "/v1/models", "").await.json();
            assert_eq!(models["data"][0]["max_model_len"], 512);
            let long = json!({"model": "tiny", "prompt": vec![cue; 512], "max_tokens": 1});
            let refused = worker.post("/v1/completions", &long).await;
            assert_eq!(refused.status, 400);
            assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
            let rest = json!({"model": "tiny", "prompt": [cue], "max_tokens": 100_000});
            let answer = worker.post("/v1/completions", &rest).await.json();
            assert_eq!(answer["usage"]["total_tokens"], 512);
        })
    });
}

#[test]
fn a_model_without_room_for_a_request_is_not_served() {
    let (_dir, config, _) = scripted::endless();
    let err = end_of_loading(with_memory_for(255, config));
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("ExceedsNodeMemory", ExitStatus::Config)
    );
    let message = err.termination_message().message;
    assert!(
        message.contains("too little for the cache of one request"),
        "{message}"
    );
}

/// A prompt that takes minutes to read, and a short one that comes after it.
#[test]
fn a_short_request_is_answered_while_a_long_prompt_is_read() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            let long = prompt::ValidRequest {
                prompt: vec![cue; 200_000],
                ..endless_request(cue)
            };
            let mut long = worker.app.engine.submit(long).unwrap();
            worker
                .wait_until("the long prompt is read", |status| status.requests.running == 1)
                .await;
            let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 20});
            let answer = worker.post("/v1/completions", &body).await;
            assert_eq!(answer.json()["usage"]["completion_tokens"], 20);
            assert!(long.events.try_recv().is_err(), "the long prompt is not read yet");
            assert_eq!(worker.status().await.requests.running, 1);
        })
    });
}
