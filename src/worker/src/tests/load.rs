//! Concurrent requests, cancellation, a full queue, engine failures and shutdown.

use super::*;
use rooflet_inference_api::openai::request::{Options, Prompt, Stopping};
use rooflet_mlx::load::LoadError;
use rooflet_mlx::mlx_rs::error::Exception;
use rooflet_testing::TempDir;

#[test]
fn disconnect_cancels_request() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            // The prefill of the second prompt takes minutes, so the engine must cancel it between
            // two chunks.
            let prompts = [vec![cue], vec![cue; 100_000]];
            for (prompt, stream) in prompts
                .iter()
                .flat_map(|prompt| [(prompt, true), (prompt, false)])
            {
                let before = worker.status().await.requests.completed;
                let body =
                    json!({"model": "tiny", "prompt": prompt, "max_tokens": 1_000_000, "stream": stream})
                        .to_string();
                let mut connection = TcpStream::connect(&worker.address).await.unwrap();
                let head = format!(
                    "POST /v1/completions HTTP/1.1\r\nhost: w\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                connection.write_all(head.as_bytes()).await.unwrap();
                worker
                    .wait_until("the request runs", |status| status.requests.running == 1)
                    .await;
                drop(connection);
                worker
                    .wait_until("the request is dropped", |status| status.requests.running == 0)
                    .await;
                let after = worker.status().await.requests;
                assert_eq!(
                    after.completed, before,
                    "cancelled, not completed (stream: {stream})"
                );
                assert_eq!(after.failed, 0);
            }
            let metrics = worker.send("GET", "/metrics", "").await.body;
            assert!(
                metrics.contains("rooflet_worker_requests_total{outcome=\"cancelled\"} 4\n"),
                "{metrics}"
            );
        })
    });
}

#[test]
fn full_queue_rejects_requests_until_slots_are_free() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            let engine = &worker.app.engine;
            let slots = engine.free_slots();
            assert_eq!(slots, 2 + 2 * 8);
            let request = || endless_request(cue);
            let one = json!({"model": "tiny", "prompt": [cue], "max_tokens": 1});
            let queued: Vec<_> = (0..slots).map(|_| engine.submit(request()).unwrap()).collect();
            let rejected = worker.post("/v1/completions", &one).await;
            assert_eq!(rejected.status, 429);
            assert_eq!(rejected.json()["error"]["code"], "rate_limit_exceeded");
            let wait: u32 = rejected.headers["retry-after"].parse().unwrap();
            assert!((1..=60).contains(&wait));
            drop(queued);
            assert_eq!(engine.free_slots(), slots);
            assert_eq!(worker.post("/v1/completions", &one).await.status, 200);
        })
    });
}

/// The client does not read the answer.
#[test]
fn finished_answer_occupies_no_slot() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let engine = &worker.app.engine;
            let slots = engine.free_slots();
            let request = worker
                .app
                .prompter
                .text(&Prompt::Tokens(vec![1, 2]), false, &Options::default());
            let unread = engine.submit(request.unwrap()).unwrap();
            assert_eq!(engine.free_slots(), slots - 1);
            worker
                .wait_until("the slot is free", |_| engine.free_slots() == slots)
                .await;
            drop(unread);
            assert_eq!(engine.free_slots(), slots);
        })
    });
}

/// The inputs use all slots, and the remaining inputs wait.
#[test]
fn embeddings_may_have_more_inputs_than_slots() {
    let config = WorkerConfig {
        max_concurrency: 2,
        max_queued: Some(1),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let ask = json!({"model": "tiny", "input": vec![[1, 2]; 20]});
            let answer = worker.post("/v1/embeddings", &ask).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(answer.json()["data"].as_array().unwrap().len(), 20);
            assert_eq!(worker.app.engine.free_slots(), 3);
        })
    });
}

/// Rejected clients receive a `Retry-After` header.
#[test]
fn burst_beyond_queue_is_rejected_and_the_rest_answered() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            let engine = &worker.app.engine;
            let running = engine.submit_all(vec![endless_request(cue), endless_request(cue)], None);
            worker
                .wait_until("both rows are in use", |status| status.requests.running == 2)
                .await;
            let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 3});
            let burst = (0..64).map(|_| worker.post("/v1/completions", &body));
            let freed = async {
                worker
                    .wait_until("the queue is full", |status| status.requests.queued == 16)
                    .await;
                // All other requests must be rejected before a slot is free.
                let expected = "rooflet_worker_requests_total{outcome=\"rejected\"} 48\n";
                let metrics = || async { worker.send("GET", "/metrics", "").await.body };
                while !metrics().await.contains(expected) {}
                drop(running);
            };
            let (answers, ()) = tokio::join!(futures::future::join_all(burst), freed);
            let (accepted, rejected): (Vec<_>, Vec<_>) =
                answers.into_iter().partition(|answer| answer.status == 200);
            assert_eq!((accepted.len(), rejected.len()), (16, 48));
            for answer in accepted {
                assert_eq!(answer.json()["choices"][0]["text"], "abcdab");
            }
            for answer in rejected {
                assert_eq!(answer.status, 429, "{}", answer.body);
                let wait: u32 = answer.headers["retry-after"].parse().unwrap();
                assert!((1..=60).contains(&wait));
            }
        })
    });
}

/// Such a request reserves the complete queue.
#[test]
fn request_larger_than_queue_is_answered() {
    let (_dir, config, cue) = scripted::endless();
    let config = WorkerConfig {
        max_queued: Some(0),
        ..config
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let slots = worker.app.engine.free_slots();
            assert_eq!(slots, 2);
            for stream in [false, true] {
                let body =
                    json!({"model": "tiny", "prompt": [cue], "max_tokens": 2, "n": 5, "stream": stream});
                let answer = worker.post("/v1/completions", &body).await;
                assert_eq!(answer.status, 200, "{}", answer.body);
                let text: String = match stream {
                    false => answer.json()["choices"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|choice| choice["text"].as_str().unwrap())
                        .collect(),
                    true => answer
                        .events()
                        .iter()
                        .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
                        .collect(),
                };
                assert_eq!(text.len(), 5 * 4);
                assert_eq!(worker.app.engine.free_slots(), slots);
            }
        })
    });
}

/// Request without prompt tokens. The API rejects such requests, and the engine fails on them.
fn broken_request() -> prompt::ValidRequest {
    prompt::ValidRequest {
        prompt: Vec::new(),
        max_tokens: 5,
        ..endless_request(0)
    }
}

#[test]
fn failed_request_does_not_affect_others() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let expected = worker.chat_text(json!({})).await;
            let mut completion = worker.app.engine.submit(broken_request()).unwrap();
            let (text, event) = tokio::join!(worker.chat_text(json!({})), completion.events.recv());
            assert!(
                matches!(event, Some(crate::batch::event::Event::Failed(_))),
                "{event:?}"
            );
            assert_eq!(text, expected);
            assert_eq!(worker.status().await.requests.failed, 1);
            assert_eq!(worker.send("GET", "/health", "").await.status, 200);
        })
    });
}

#[test]
fn consecutive_device_failures_terminate_worker() {
    // Documented in docs/reference/reasons.md.
    const MAX_FAILED_STEPS: u32 = 8;
    let outcome = run_worker(config(), |worker| {
        Box::pin(async move {
            let fail = async |times| {
                for _ in 0..times {
                    let mut completion = worker.app.engine.submit(broken_request()).unwrap();
                    let event = completion.events.recv().await;
                    assert!(
                        matches!(event, Some(crate::batch::event::Event::Failed(_))),
                        "{event:?}"
                    );
                }
            };
            fail(MAX_FAILED_STEPS - 1).await;
            worker.chat_text(json!({})).await;
            fail(MAX_FAILED_STEPS).await;
        })
    });
    let err = outcome.unwrap_err();
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("DeviceLost", ExitStatus::Failure)
    );
}

/// Long bodies are parsed one after the other, within the memory budget. Short requests do not
/// wait.
#[test]
fn long_bodies_wait_for_the_memory_budget_before_they_are_parsed() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let most = u32::try_from(crate::api::body::MAX_CONCURRENT_LONG_BODY_BYTES).unwrap();
            let permits = Arc::clone(&worker.app.long_body_permits);
            let busy = permits.acquire_many_owned(most).await.unwrap();
            let members: Vec<String> = (0..4000).map(|index| format!("\"a{index}\": 1")).collect();
            let long = format!("{{{}}}", members.join(","));
            let paths = [
                "/v1/chat/completions",
                "/v1/completions",
                "/v1/responses",
                "/v1/messages",
                "/v1/messages/count_tokens",
                "/v1/embeddings",
                "/tokenize",
                "/detokenize",
            ];
            let rejected =
                futures::future::join_all(paths.iter().map(|path| worker.send("POST", path, &long)));
            let short = async {
                let answer = worker.send("POST", "/v1/chat/completions", "{}").await;
                assert_eq!(answer.status, 400);
                worker.chat_text(json!({})).await;
            };
            tokio::pin!(rejected);
            tokio::select! {
                biased;
                answers = &mut rejected => panic!("parsed beyond the budget: {}", answers[0].body),
                () = short => {}
            }
            drop(busy);
            for (answer, path) in rejected.await.iter().zip(paths) {
                assert_eq!(answer.status, 400, "{path}: {}", answer.body);
            }
            assert_eq!(worker.app.long_body_permits.available_permits(), most as usize);
        })
    });
}

/// Model with two lines: `Good.`, and NaN.
fn half_broken() -> (TempDir, WorkerConfig) {
    let dir = TempDir::new();
    let mut script = script::Script::new(&[(&[b"Good."], true), (&[b"never"], true)]);
    script.break_line(1);
    script.write_for_chats(dir.path(), "{{ messages[-1].content }}");
    let model = dir.path().to_owned();
    (dir, WorkerConfig { model, ..config() })
}

#[test]
fn request_with_non_finite_logits_fails_alone() {
    let (_dir, config) = half_broken();
    with_worker(config, |worker| {
        Box::pin(async {
            let cue =
                |line: usize| json!({"messages": [{"role": "user", "content": format!("<cue {line}>")}]});
            let (good, broken) = tokio::join!(worker.chat(cue(0)), worker.chat(cue(1)));
            assert_eq!(good.json()["choices"][0]["message"]["content"], "Good.");
            assert_eq!(broken.status, 500, "{}", broken.body);
            assert!(broken.body.contains("not finite"), "{}", broken.body);
            let formatted = merged(cue(1), json!({"guided_choice": ["Good."]}));
            assert_eq!(worker.chat(formatted).await.status, 500);
            let input = json!({"model": "tiny", "input": "<cue 1>"});
            let embedding = worker.post("/v1/embeddings", &input).await;
            assert_eq!(embedding.status, 500, "{}", embedding.body);
            let scored = json!({"model": "tiny", "prompt": "<cue 1><cue 0>", "echo": true, "logprobs": 1, "max_tokens": 0});
            let scored = worker.post("/v1/completions", &scored).await;
            assert_eq!(scored.status, 500, "{}", scored.body);
            let metrics = worker.send("GET", "/metrics", "").await.body;
            assert!(
                metrics.contains("rooflet_worker_non_finite_requests_total 4"),
                "{metrics}"
            );
            assert_eq!(worker.send("GET", "/health", "").await.status, 200);
        })
    });
}

/// The text is that of MLX's allocator.
#[test]
fn exhausted_memory_is_the_reason_of_an_exit() {
    let full = || Exception::custom("[malloc] Unable to allocate 17179869184 bytes.");
    for err in [
        EngineError::Load {
            err: LoadError::Evaluate { err: full() },
        },
        EngineError::Warm(full().into()),
        EngineError::Device(full()),
    ] {
        let err = WorkerError::Engine { err };
        assert_eq!(
            (err.reason(), err.exit_status()),
            ("OutOfMemory", ExitStatus::Failure),
            "{err:?}"
        );
    }
}

#[test]
fn model_with_non_finite_weights_is_refused() {
    let dir = TempDir::new();
    let mut script = script::Script::new(&[(&[b"never"], true)]);
    script.break_all();
    script.write_for_chats(dir.path(), "{{ messages[-1].content }}");
    let model = dir.path().to_owned();
    let err = loading_error(WorkerConfig { model, ..config() });
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("NonFiniteLogits", ExitStatus::Config)
    );
}

pub(super) fn endless_request(cue: u32) -> prompt::ValidRequest {
    prompt::ValidRequest {
        prompt: vec![cue],
        prompt_use: prompt::PromptUse::Answer,
        max_tokens: 1_000_000,
        stopping: Stopping::default(),
        continues_prompt: false,
        shown_tokens: [].into(),
        constraint: None,
        thinking: None,
        sampling: crate::sampling::sampler::Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            seed: 0,
            min_p: 0.0,
            penalties: crate::sampling::adjustment::Penalties::default(),
        },
        logprobs: None,
        prompt_logprobs: None,
        returns_token_ids: false,
        priority: 0,
        is_first_choice: true,
        cache_salt: String::new(),
    }
}

#[test]
fn engine_panic_terminates_worker_with_reason() {
    let (_dir, config, cue) = scripted::endless();
    let outcome = run_worker(config, |worker| {
        Box::pin(async move {
            let mut completion = worker.app.engine.submit(endless_request(cue)).unwrap();
            worker.app.engine.panic();
            // The channel closes without a final event. HTTP clients receive an error in this case.
            let reading = async {
                while let Some(event) = completion.events.recv().await {
                    assert!(matches!(event, crate::batch::event::Event::Piece(_)), "{event:?}");
                }
            };
            tokio::time::timeout(DEADLINE, reading)
                .await
                .expect("engine thread exits before the deadline");
        })
    });
    let err = outcome.unwrap_err();
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("EnginePanicked", ExitStatus::Failure)
    );
    assert_eq!(
        err.termination_message().message,
        "engine terminated: the engine panicked: on purpose"
    );
}

#[test]
fn stop_cancels_requests_after_grace_period() {
    let (_dir, config, cue) = scripted::endless();
    let config = WorkerConfig {
        grace: Duration::ZERO,
        ..config
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 1_000_000, "stream": true});
            let head = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: w\r\ncontent-length: {}\r\n\r\n{body}",
                body.to_string().len()
            );
            let mut connection = TcpStream::connect(&worker.address).await.unwrap();
            connection.write_all(head.as_bytes()).await.unwrap();
            worker
                .wait_until("the request runs", |status| status.requests.running == 1)
                .await;
            // `with_worker` stops the worker and asserts that it exits. The connection stays open.
            std::mem::forget(connection);
        })
    });
}

#[test]
fn stop_waits_for_requests() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 2000});
            let (answer, ()) = tokio::join!(worker.post("/v1/completions", &body), async {
                worker
                    .wait_until("the request runs", |status| status.requests.running == 1)
                    .await;
                worker.stop.cancel();
            });
            assert_eq!(answer.status, 200);
            assert_eq!(answer.json()["usage"]["completion_tokens"], 2000);
            assert!(
                TcpStream::connect(&worker.address).await.is_err(),
                "the listener is closed"
            );
        })
    });
}
