//! The worker through real HTTP, with the fixtures' tiny models.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::mlx;
use crate::wire::WorkerStatus;

mod scripted;

const DEADLINE: Duration = Duration::from_secs(60);

fn root() -> Utf8PathBuf {
    Utf8PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn config() -> WorkerConfig {
    WorkerConfig {
        model: root().join("e2e/fixtures/models/qwen3"),
        listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
        name: "tiny".to_owned(),
        context_tokens: None,
        max_concurrency: 2,
        grace: DEADLINE,
        clock: Clock::System,
    }
}

/// A worker under test.
struct Subject {
    address: String,
    app: Arc<App>,
    stop: CancellationToken,
}

struct Answer {
    status: StatusCode,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {}", self.body))
    }

    /// The `data:` payloads of an event stream.
    fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let mut payloads: Vec<&str> = self
            .body
            .split("\n\n")
            .filter_map(|frame| frame.strip_prefix("data: "))
            .collect();
        assert_eq!(payloads.pop(), Some("[DONE]"));
        payloads
            .into_iter()
            .map(|payload| serde_json::from_str(payload).unwrap())
            .collect()
    }
}

impl Subject {
    async fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: worker\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        read_answer(stream).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &body.to_string()).await
    }

    /// Greedy unless told otherwise.
    async fn chat(&self, extra: Value) -> Answer {
        let body = merged(
            json!({"model": "tiny", "messages": [{"role": "user", "content": "What is rooflet?"}],
                   "temperature": 0, "max_tokens": 24}),
            extra,
        );
        self.post("/v1/chat/completions", &body).await
    }

    async fn chat_text(&self, extra: Value) -> String {
        let answer = self.chat(extra).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    async fn status(&self) -> WorkerStatus {
        serde_json::from_str(&self.send("GET", "/status", "").await.body).unwrap()
    }

    async fn wait_until(&self, what: &str, condition: impl Fn(&WorkerStatus) -> bool) {
        let waiting = async {
            while !condition(&self.status().await) {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
            panic!("not within {DEADLINE:?}: {what}; {:?}", self.status().await);
        }
    }
}

fn merged(mut base: Value, extra: Value) -> Value {
    for (name, value) in extra.as_object().unwrap() {
        base[name] = value.clone();
    }
    base
}

async fn read_answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let split = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head");
    let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: BTreeMap<String, String> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let raw = &bytes[split + 4..];
    let body = if headers
        .get("transfer-encoding")
        .is_some_and(|encoding| encoding == "chunked")
    {
        dechunked(raw)
    } else {
        raw.to_vec()
    };
    Answer {
        status,
        headers,
        body: String::from_utf8(body).unwrap(),
    }
}

fn dechunked(mut raw: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = raw
            .windows(2)
            .position(|two| two == b"\r\n")
            .expect("a chunk's size");
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&raw[end + 2..end + 2 + size]);
        raw = &raw[end + 4 + size..];
    }
}

/// Runs a story against a ready worker, then stops it and expects a clean end.
fn with_worker(
    config: WorkerConfig,
    story: impl for<'a> FnOnce(&'a Subject) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
) {
    end_of_worker(config, story).unwrap();
}

/// Runs a story against a ready worker, then stops it and returns how it ended.
fn end_of_worker(
    config: WorkerConfig,
    story: impl for<'a> FnOnce(&'a Subject) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
) -> Result<(), WorkerError> {
    let _mlx = mlx::exclusive();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let worker = Worker::start(config).await.unwrap();
        let stop = CancellationToken::new();
        let subject = Subject {
            address: worker.listener.address(),
            app: Arc::clone(&worker.app),
            stop: stop.clone(),
        };
        let mut phase = worker.app.engine.state().watch_phase();
        let serving = worker.serve(stop.clone());
        let story = async {
            tokio::time::timeout(DEADLINE, phase.wait_for(|phase| *phase == WorkerPhase::Ready))
                .await
                .expect("the model loads")
                .unwrap();
            story(&subject).await;
            stop.cancel();
        };
        let (outcome, ()) = tokio::join!(serving, story);
        outcome
    })
}

#[test]
fn a_chat_is_answered() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let answer = worker.chat(json!({"max_tokens": 7})).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            let body = answer.json();
            assert_eq!(body["object"], "chat.completion");
            assert_eq!(body["model"], "tiny");
            assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
            assert_eq!(body["choices"][0]["finish_reason"], "length");
            assert_eq!(body["choices"][0]["message"]["role"], "assistant");
            assert_eq!(body["usage"]["completion_tokens"], 7);
            let prompt = body["usage"]["prompt_tokens"].as_u64().unwrap();
            assert_eq!(body["usage"]["total_tokens"], prompt + 7);
        })
    });
}

#[test]
fn completions_say_what_mlx_lm_says() {
    let fixture: Value =
        serde_json::from_str(&std::fs::read_to_string(root().join("e2e/fixtures/logits.json")).unwrap())
            .unwrap();
    let cases = fixture["cases"].as_array().unwrap().clone();
    with_worker(config(), |worker| {
        Box::pin(async move {
            let qwen3 = cases
                .iter()
                .filter(|case| case["model"] == "e2e/fixtures/models/qwen3");
            for case in qwen3 {
                let mut ids: Vec<u32> = serde_json::from_value(case["greedy"].clone()).unwrap();
                let tokenizer = worker.app.prompter.tokenizer();
                let end = ids.iter().position(|id| tokenizer.is_eos(*id));
                ids.truncate(end.unwrap_or(ids.len()));
                let body =
                    json!({"model": "tiny", "prompt": case["prompt"], "temperature": 0, "max_tokens": 16});
                let answer = worker.post("/v1/completions", &body).await.json();
                assert_eq!(answer["choices"][0]["text"], tokenizer.decode(&ids).unwrap());
                assert_eq!(
                    answer["usage"]["prompt_tokens"],
                    case["prompt"].as_array().unwrap().len()
                );
            }
        })
    });
}

#[test]
fn a_stream_adds_up_to_the_whole() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let whole = worker.chat(json!({})).await.json();
            let stream = worker
                .chat(json!({"stream": true, "stream_options": {"include_usage": true}}))
                .await;
            let mut events = stream.events();
            let usage = events.pop().unwrap();
            assert_eq!(
                (&usage["choices"], &usage["usage"]),
                (&json!([]), &whole["usage"])
            );
            let last = events.pop().unwrap();
            assert_eq!(last["choices"][0]["delta"], json!({}));
            assert_eq!(
                last["choices"][0]["finish_reason"],
                whole["choices"][0]["finish_reason"]
            );
            assert_eq!(
                events[0]["choices"][0]["delta"],
                json!({"role": "assistant", "content": ""})
            );
            for event in &events {
                assert_eq!(event["object"], "chat.completion.chunk");
                assert_eq!((&event["id"], &event["created"]), (&last["id"], &last["created"]));
                assert_eq!(event["choices"][0]["finish_reason"], json!(null));
                assert_eq!(event.get("usage"), Some(&json!(null)));
            }
            let text: String = events
                .iter()
                .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap())
                .collect();
            assert_eq!(json!(text), whole["choices"][0]["message"]["content"]);

            let bare = worker
                .chat(json!({"stream": true, "stream_options": {}}))
                .await
                .events();
            assert!(bare.iter().all(|event| event.get("usage").is_none()));
        })
    });
}

/// The guide ends its answers by itself.
#[test]
fn the_guide_answers_in_words() {
    let config = WorkerConfig {
        model: root().join("examples/models/guide"),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            let answer = worker.chat(json!({"max_tokens": 200})).await.json();
            let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
            assert!(text.contains("rooflet"), "{text}");
            assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{text}");
        })
    });
}

#[test]
fn text_is_cut_at_a_stop_string_wherever_tokens_end() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let full = worker.chat_text(json!({})).await;
            let chars: Vec<char> = full.chars().collect();
            assert!(chars.len() > 8, "{full:?}");
            for (from, to) in [(0, 1), (3, 5), (4, 8), (chars.len() - 2, chars.len())] {
                let stop: String = chars[from..to].iter().collect();
                let expected = &full[..full.find(&stop).unwrap()];
                let answer = worker.chat(json!({"stop": [stop, "never-said"]})).await.json();
                assert_eq!(
                    answer["choices"][0]["message"]["content"], expected,
                    "{stop:?} in {full:?}"
                );
                assert_eq!(answer["choices"][0]["finish_reason"], "stop");
                let events = worker.chat(json!({"stop": stop, "stream": true})).await.events();
                let streamed: String = events
                    .iter()
                    .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
                    .collect();
                assert_eq!(streamed, expected);
            }
            let almost = format!("{}x-never-said", chars[chars.len() - 1]);
            assert_eq!(
                worker.chat_text(json!({"stop": almost})).await,
                full,
                "held text is given back at the end"
            );
        })
    });
}

#[test]
fn a_seed_fixes_the_text() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let text = |seed: u64| worker.chat_text(json!({"temperature": 1.0, "top_p": 0.95, "seed": seed}));
            let (first, again, other) = (text(7).await, text(7).await, text(8).await);
            assert_eq!(first, again);
            assert_ne!(first, other);
            let greedy = worker.chat_text(json!({})).await;
            assert_eq!(
                worker.chat_text(json!({"temperature": 1.0, "top_k": 1})).await,
                greedy
            );
        })
    });
}

#[test]
fn requests_side_by_side_do_not_disturb_one_another() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let ask = |index: usize| {
                worker.chat_text(
                    json!({"messages": [{"role": "user", "content": "x".repeat(3 + index * 40)}],
                                        "temperature": 0.8, "seed": index}),
                )
            };
            let mut alone = Vec::new();
            for index in 0..6 {
                alone.push(ask(index).await);
            }
            let together = futures::future::join_all((0..6).map(ask)).await;
            assert_eq!(together, alone);
        })
    });
}

#[test]
fn the_context_is_a_limit() {
    let config = WorkerConfig {
        context_tokens: Some(64),
        ..config()
    };
    with_worker(config, |worker| {
        Box::pin(async {
            let complete = |tokens: usize, max_tokens: usize| {
                worker.post_owned(
                    "/v1/completions",
                    json!({"model": "tiny", "prompt": vec![70; tokens], "max_tokens": max_tokens, "temperature": 0}),
                )
            };
            let refused = complete(64, 1).await;
            assert_eq!(refused.status, 400);
            assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
            assert_eq!(refused.json()["error"]["param"], "prompt");
            assert_eq!(
                worker.status().await.requests.completed,
                0,
                "refused before any compute"
            );
            let full = complete(60, 100).await.json();
            assert!(full["usage"]["total_tokens"].as_u64().unwrap() <= 64, "{full}");
            let last = complete(63, 100).await.json();
            assert_eq!(last["usage"]["completion_tokens"], 1);

            let long = json!({"messages": [{"role": "user", "content": "x".repeat(4000)}], "stream": true});
            let refused = worker.chat(long).await;
            assert_eq!(
                (refused.status.as_u16(), refused.json()["error"]["param"].clone()),
                (400, json!("messages"))
            );
        })
    });
}

#[test]
fn several_prompts_are_several_choices() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let ask = |prompt: Value, stream: bool| {
                worker.post_owned(
                    "/v1/completions",
                    json!({"model": "tiny", "prompt": prompt, "max_tokens": 6, "temperature": 0, "stream": stream}),
                )
            };
            let text =
                |answer: &Value, index: usize| answer["choices"][index]["text"].as_str().unwrap().to_owned();
            let (a, b) = (
                ask(json!("ab"), false).await.json(),
                ask(json!(["xyz"]), false).await.json(),
            );
            let both = ask(json!(["ab", "xyz"]), false).await.json();
            assert_eq!([text(&both, 0), text(&both, 1)], [text(&a, 0), text(&b, 0)]);
            assert_eq!(both["object"], "text_completion");

            let mut streamed = [String::new(), String::new()];
            let mut ends = 0;
            for event in ask(json!(["ab", "xyz"]), true).await.events() {
                let choice = &event["choices"][0];
                streamed[choice["index"].as_u64().unwrap() as usize]
                    .push_str(choice["text"].as_str().unwrap());
                ends += usize::from(choice["finish_reason"].is_string());
            }
            assert_eq!((streamed, ends), ([text(&a, 0), text(&b, 0)], 2));
        })
    });
}

#[test]
fn refusals_are_openai_s() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let chat = "/v1/chat/completions";
            let hello = json!([{"role": "user", "content": "hi"}]);
            let with = |extra: Value| merged(json!({"model": "tiny", "messages": hello}), extra).to_string();
            let huge = "x".repeat(server::MAX_BODY_BYTES + 1);
            let cases = [
                ("POST", chat, "{".to_owned(), 400, "invalid_json"),
                ("POST", chat, "[]".to_owned(), 400, "invalid_json"),
                ("POST", chat, huge, 413, "request_too_large"),
                (
                    "POST",
                    chat,
                    with(json!({"model": "other"})),
                    404,
                    "model_not_found",
                ),
                (
                    "POST",
                    chat,
                    with(json!({"tools": [{}]})),
                    400,
                    "unsupported_parameter",
                ),
                (
                    "POST",
                    chat,
                    with(json!({"temperature": 9})),
                    400,
                    "invalid_value",
                ),
                ("POST", chat, with(json!({"messages": []})), 400, "invalid_value"),
                (
                    "POST",
                    "/v1/completions",
                    json!({"model": "tiny"}).to_string(),
                    400,
                    "missing_parameter",
                ),
                (
                    "POST",
                    "/v1/completions",
                    json!({"model": "tiny", "prompt": [9999]}).to_string(),
                    400,
                    "invalid_value",
                ),
                ("GET", chat, String::new(), 405, "method_not_allowed"),
                ("GET", "/v1/engines", String::new(), 404, "unknown_url"),
                ("GET", "/v1/models/other", String::new(), 404, "model_not_found"),
            ];
            for (method, path, body, status, code) in cases {
                let answer = worker.send(method, path, &body).await;
                let shown: String = body.chars().take(80).collect();
                assert_eq!(
                    answer.status.as_u16(),
                    status,
                    "{method} {path} {shown}: {}",
                    answer.body
                );
                let error = &answer.json()["error"];
                assert_eq!(error["code"], code, "{method} {path} {shown}");
                assert!(
                    error["message"].is_string() && error["type"].is_string() && error.get("param").is_some()
                );
            }
            assert_eq!(
                worker.chat(json!({"max_tokens": 1})).await.status,
                200,
                "and the worker goes on"
            );
        })
    });
}

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
            assert_eq!(places, 2 + engine::MAX_QUEUED_REQUESTS);
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

/// A prompt without tokens cannot pass the front door; past it, it is an error inside MLX.
#[test]
fn a_failed_request_harms_no_other() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let expected = worker.chat_text(json!({})).await;
            let broken = prompt::ValidRequest {
                prompt: Vec::new(),
                max_tokens: 5,
                stop: Vec::new(),
                sampling: sampler::Sampling {
                    temperature: 0.0,
                    top_p: 1.0,
                    top_k: 0,
                    seed: 0,
                },
            };
            let mut completion = worker.app.engine.submit(broken).unwrap();
            let (text, event) = tokio::join!(worker.chat_text(json!({})), completion.events.recv());
            assert!(matches!(event, Some(sequence::Event::Failed(_))), "{event:?}");
            assert_eq!(text, expected);
            assert_eq!(worker.status().await.requests.failed, 1);
            assert_eq!(worker.send("GET", "/health", "").await.status, 200);
        })
    });
}

fn endless_request(cue: u32) -> prompt::ValidRequest {
    prompt::ValidRequest {
        prompt: vec![cue],
        max_tokens: 1_000_000,
        stop: Vec::new(),
        sampling: sampler::Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            seed: 0,
        },
    }
}

#[test]
fn a_panic_in_the_engine_ends_the_worker_with_its_reason() {
    let (_dir, config, cue) = scripted::endless();
    let outcome = end_of_worker(config, |worker| {
        Box::pin(async move {
            let mut completion = worker.app.engine.submit(endless_request(cue)).unwrap();
            worker.app.engine.panic();
            // Its channel closes without an end: over HTTP that is an error, never an answer cut short.
            let reading = async {
                while let Some(event) = completion.events.recv().await {
                    assert!(matches!(event, sequence::Event::Text(_)), "{event:?}");
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
            // `with_worker` stops the worker now and expects it to end, with the connection still open.
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

#[test]
fn the_worker_tells_about_itself() {
    with_worker(config(), |worker| {
        Box::pin(async {
            assert_eq!(worker.send("GET", "/health", "").await.status, 200);
            assert_eq!(worker.send("GET", "/ready", "").await.status, 200);
            let models = worker.send("GET", "/v1/models", "").await.json();
            assert_eq!(models["data"][0]["id"], "tiny");
            assert_eq!(models["data"][0]["max_model_len"], 512);
            assert_eq!(
                worker.send("GET", "/v1/models/tiny", "").await.json(),
                models["data"][0]
            );
            worker.chat(json!({"max_tokens": 3})).await;
            let status = worker.status().await;
            let model = status.model.unwrap();
            assert_eq!(
                (status.phase, model.architecture.as_str()),
                (WorkerPhase::Ready, "qwen3")
            );
            assert_eq!(status.engine.version, "0.32.2");
            assert!(
                status.memory.active_bytes >= model.weights_bytes,
                "{:?}",
                status.memory
            );
            assert_eq!((status.requests.completed, status.measured.samples), (1, 1));
            let metrics = worker.send("GET", "/metrics", "").await;
            assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4");
            assert!(
                metrics
                    .body
                    .contains("rooflet_worker_completion_tokens_total 3\n"),
                "{}",
                metrics.body
            );
            assert!(
                metrics
                    .body
                    .contains("rooflet_worker_time_to_first_token_seconds_count 1\n")
            );
        })
    });
}

#[test]
fn chunked_bodies_are_read() {
    with_worker(config(), |worker| {
        Box::pin(async {
            let body = json!({"model": "tiny", "prompt": "a", "max_tokens": 1}).to_string();
            let (first, second) = body.split_at(10);
            let mut connection = TcpStream::connect(&worker.address).await.unwrap();
            let request = format!(
                "POST /v1/completions HTTP/1.1\r\nhost: w\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
                 {:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
                first.len(),
                second.len()
            );
            connection.write_all(request.as_bytes()).await.unwrap();
            assert_eq!(read_answer(connection).await.status, 200);
        })
    });
}

impl Subject {
    async fn post_owned(&self, path: &'static str, body: Value) -> Answer {
        self.post(path, &body).await
    }
}

fn start_error(config: WorkerConfig) -> WorkerError {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match runtime.block_on(Worker::start(config)) {
        Ok(_) => panic!("a worker started"),
        Err(err) => err,
    }
}

#[test]
fn what_cannot_be_served_ends_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap();
    let err = start_error(WorkerConfig {
        model: path.join("none"),
        ..config()
    });
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("ModelNotFound", ExitStatus::Config)
    );

    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(config().model.join(file), path.join(file)).unwrap();
    }
    let message = start_error(WorkerConfig {
        model: path.clone(),
        ..config()
    })
    .termination_message();
    assert_eq!(message.reason, "IncompleteModel");
    assert!(
        message.message.ends_with("it has no tokenizer.json"),
        "{}",
        message.message
    );

    std::fs::write(path.join("model.safetensors"), b"\x08\0\0\0\0\0\0\0{broken}").unwrap();
    let message = start_error(WorkerConfig {
        model: path,
        ..config()
    })
    .termination_message();
    assert_eq!(message.reason, "CorruptWeights");
    assert!(
        message
            .message
            .contains("model.safetensors: not a safetensors file"),
        "{}",
        message.message
    );

    let err = start_error(WorkerConfig {
        context_tokens: Some(513),
        ..config()
    });
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("ContextTooLong", ExitStatus::Config)
    );
}

#[test]
fn a_taken_address_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Listen::Tcp(taken.local_addr().unwrap());
    let err = start_error(WorkerConfig { listen, ..config() });
    assert_eq!(
        (err.reason(), err.exit_status()),
        ("ListenFailed", ExitStatus::Unavailable)
    );
    assert!(
        Chain(&err)
            .to_string()
            .contains(&taken.local_addr().unwrap().to_string())
    );
}

#[test]
fn a_unix_socket_is_private_and_goes_with_the_worker() {
    let _mlx = mlx::exclusive();
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(dir.path().join("w.sock")).unwrap();
    // Left behind by a worker that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = Listen::Unix(path.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let worker = Worker::start(WorkerConfig {
            listen: listen.clone(),
            ..config()
        })
        .await
        .unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let second = Worker::start(WorkerConfig { listen, ..config() }).await;
        assert!(
            matches!(second, Err(WorkerError::Listen { .. })),
            "somebody listens there"
        );
        let stop = CancellationToken::new();
        let story = async {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            stream
                .write_all(b"GET /health HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n")
                .await
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
            stop.cancel();
        };
        let (outcome, ()) = tokio::join!(worker.serve(stop.clone()), story);
        outcome.unwrap();
    });
    assert!(!path.exists());
}
