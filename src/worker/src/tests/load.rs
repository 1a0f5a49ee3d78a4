//! Several requests at once, clients that go, failures, and the end.

use super::*;
use rooflet_inference_api::openai::request::{Options, Prompt, Stopping};

#[test]
fn a_client_that_goes_frees_the_engine() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            // The second prompt takes minutes to read: it must be dropped between two chunks.
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
fn a_full_queue_refuses_and_frees_its_places() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            let engine = &worker.app.engine;
            let places = engine.free_places();
            assert_eq!(places, 2 + 2 * 8);
            let request = || endless_request(cue);
            let one = json!({"model": "tiny", "prompt": [cue], "max_tokens": 1});
            let taken: Vec<_> = (0..places).map(|_| engine.submit(request()).unwrap()).collect();
            let refused = worker.post("/v1/completions", &one).await;
            assert_eq!(refused.status, 429);
            assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
            let wait: u32 = refused.headers["retry-after"].parse().unwrap();
            assert!((1..=60).contains(&wait));
            drop(taken);
            assert_eq!(engine.free_places(), places);
            assert_eq!(worker.post("/v1/completions", &one).await.status, 200);
        })
    });
}

/// However slowly it is read.
#[test]
fn an_answer_that_is_over_takes_no_place() {
    with_worker(config(), |worker| {
        Box::pin(async move {
            let engine = &worker.app.engine;
            let places = engine.free_places();
            let request = worker
                .app
                .prompter
                .text(&Prompt::Tokens(vec![1, 2]), false, &Options::default());
            let unread = engine.submit(request.unwrap()).unwrap();
            assert_eq!(engine.free_places(), places - 1);
            worker
                .wait_until("its place is free", |_| engine.free_places() == places)
                .await;
            drop(unread);
            assert_eq!(engine.free_places(), places);
        })
    });
}

/// As many inputs as there are places take all of them, and more take turns.
#[test]
fn embeddings_of_more_inputs_than_there_are_places() {
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
            assert_eq!(worker.app.engine.free_places(), 3);
        })
    });
}

/// More than wait in bearable time, at once: those for whom there is room are answered, the others
/// know when to come back.
#[test]
fn a_rush_is_taken_as_far_as_the_queue_goes() {
    let (_dir, config, cue) = scripted::endless();
    with_worker(config, |worker| {
        Box::pin(async move {
            let engine = &worker.app.engine;
            let running = engine.submit_all(vec![endless_request(cue), endless_request(cue)], None);
            worker
                .wait_until("both rows are taken", |status| status.requests.running == 2)
                .await;
            let body = json!({"model": "tiny", "prompt": [cue], "max_tokens": 3});
            let rush = (0..64).map(|_| worker.post("/v1/completions", &body));
            let freed = async {
                worker
                    .wait_until("the queue is full", |status| status.requests.queued == 16)
                    .await;
                // All the others are refused before anything is freed.
                let all = "rooflet_worker_requests_total{outcome=\"rejected\"} 48\n";
                let metrics = || async { worker.send("GET", "/metrics", "").await.body };
                while !metrics().await.contains(all) {}
                drop(running);
            };
            let (answers, ()) = tokio::join!(futures::future::join_all(rush), freed);
            let (taken, refused): (Vec<_>, Vec<_>) =
                answers.into_iter().partition(|answer| answer.status == 200);
            assert_eq!((taken.len(), refused.len()), (16, 48));
            for answer in taken {
                assert_eq!(answer.json()["choices"][0]["text"], "abcdab");
            }
            for answer in refused {
                assert_eq!(answer.status, 429, "{}", answer.body);
                let wait: u32 = answer.headers["retry-after"].parse().unwrap();
                assert!((1..=60).contains(&wait));
            }
        })
    });
}

/// It would never find so many places free beside others: it has the queue to itself.
#[test]
fn a_request_larger_than_the_queue_is_answered() {
    let (_dir, config, cue) = scripted::endless();
    let config = WorkerConfig {
        max_queued: Some(0),
        ..config
    };
    with_worker(config, |worker| {
        Box::pin(async move {
            let places = worker.app.engine.free_places();
            assert_eq!(places, 2);
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
                assert_eq!(worker.app.engine.free_places(), places);
            }
        })
    });
}

/// A prompt without tokens cannot pass the front door; past it, it is an error inside MLX.
fn broken_request() -> prompt::ValidRequest {
    prompt::ValidRequest {
        prompt: Vec::new(),
        max_tokens: 5,
        ..endless_request(0)
    }
}

#[test]
fn a_failed_request_harms_no_other() {
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
fn a_device_that_fails_everything_ends_the_worker_and_one_that_computes_between_does_not() {
    // As docs/reasons.md says.
    const MOST_STEPS: u32 = 8;
    let outcome = end_of_worker(config(), |worker| {
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
            fail(MOST_STEPS - 1).await;
            worker.chat_text(json!({})).await;
            fail(MOST_STEPS).await;
        })
    });
    let err = outcome.unwrap_err();
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("DeviceLost", ExitStatus::Failure)
    );
}

pub(super) fn endless_request(cue: u32) -> prompt::ValidRequest {
    prompt::ValidRequest {
        prompt: vec![cue],
        prompt_use: prompt::PromptUse::Answer,
        max_tokens: 1_000_000,
        stopping: Stopping::default(),
        goes_on: false,
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
        priority: 0,
        is_first_choice: true,
        cache_salt: String::new(),
    }
}

#[test]
fn a_panic_in_the_engine_ends_the_worker_with_its_reason() {
    let (_dir, config, cue) = scripted::endless();
    let outcome = end_of_worker(config, |worker| {
        Box::pin(async move {
            let mut completion = worker.app.engine.submit(endless_request(cue)).unwrap();
            worker.app.engine.panic();
            // Its channel closes without an end: over HTTP that is an error, never an answer cut
            // short.
            let reading = async {
                while let Some(event) = completion.events.recv().await {
                    assert!(matches!(event, crate::batch::event::Event::Piece(_)), "{event:?}");
                }
            };
            tokio::time::timeout(DEADLINE, reading)
                .await
                .expect("the thread ends");
        })
    });
    let err = outcome.unwrap_err();
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("EnginePanicked", ExitStatus::Failure)
    );
    assert_eq!(
        err.termination_message().message,
        "the engine ended: the engine panicked: on purpose"
    );
}

#[test]
fn a_stop_cuts_requests_off_when_the_grace_period_is_over() {
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
            // `with_worker` stops the worker now and expects it to end, with the connection still
            // open.
            std::mem::forget(connection);
        })
    });
}

#[test]
fn a_stop_lets_requests_finish() {
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
                "no longer listening"
            );
        })
    });
}
