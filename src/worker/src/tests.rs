//! Tests of the worker over HTTP, with the tiny models of the fixtures.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use rooflet_api::wire::WorkerStatus;
use rooflet_inference_api::openai::origins::AllowedOrigins;
use rooflet_mlx as mlx;

mod answers;
mod apis;
mod batching;
mod endpoints;
mod load;
mod lookup;
mod ollama;
mod prefixes;
mod process;
mod sampling;
mod script;
mod scripted;
mod structure;
mod traces;

const DEADLINE: Duration = Duration::from_secs(60);

fn root() -> Utf8PathBuf {
    Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn config() -> WorkerConfig {
    WorkerConfig {
        allowed_origins: AllowedOrigins::default(),
        model: root().join("e2e/fixtures/models/qwen3"),
        listen: Listen::Tcp(([127, 0, 0, 1], 0).into()),
        tls: None,
        name: "tiny".to_owned(),
        context_tokens: None,
        max_concurrency: 2,
        max_queued: None,
        prompt_lookup_tokens: None,
        keep_alive: None,
        template_program: None,
        memory_limit: None,
        prefix_cache_memory: None,
        prefix_files: None,
        kv_bits: None,
        grace: DEADLINE,
        clock: Clock::System,
        tracer: Tracer::default(),
    }
}

/// Worker under test.
struct TestWorker {
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

    /// Returns the `data:` payloads of an event stream, without `[DONE]`.
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

impl TestWorker {
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

    /// Sends a chat request with temperature 0 and 24 tokens, unless `extra` overrides them.
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

    async fn wait_until(&self, description: &str, condition: impl Fn(&WorkerStatus) -> bool) {
        let waiting = async {
            while !condition(&self.status().await) {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
            panic!(
                "not within {DEADLINE:?}: {description}; {:?}",
                self.status().await
            );
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
        .expect("response has a header section");
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
            .expect("chunk has a size");
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&raw[end + 2..end + 2 + size]);
        raw = &raw[end + 4 + size..];
    }
}

/// Runs a scenario with a ready worker, then stops the worker and asserts that it succeeds.
fn with_worker(
    config: WorkerConfig,
    scenario: impl for<'a> FnOnce(&'a TestWorker) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
) {
    run_worker(config, scenario).unwrap();
}

/// Runs a scenario with a ready worker, then stops the worker and returns its result.
fn run_worker(
    config: WorkerConfig,
    scenario: impl for<'a> FnOnce(&'a TestWorker) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
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
        let subject = TestWorker {
            address: worker.listener.address(),
            app: Arc::clone(&worker.app),
            stop: stop.clone(),
        };
        let mut phase = worker.app.engine.state().watch_phase();
        let serving = worker.serve(stop.clone());
        let scenario = async {
            tokio::time::timeout(DEADLINE, phase.wait_for(|phase| *phase == WorkerPhase::Ready))
                .await
                .expect("model loads before the deadline")
                .unwrap();
            scenario(&subject).await;
            stop.cancel();
        };
        let (outcome, ()) = tokio::join!(serving, scenario);
        outcome
    })
}

/// Returns the error of a worker that fails while it loads the model.
fn loading_error(config: WorkerConfig) -> WorkerError {
    let _mlx = mlx::exclusive();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let serving = runtime.block_on(async {
        let worker = Worker::start(config).await.unwrap();
        tokio::time::timeout(DEADLINE, worker.serve(CancellationToken::new())).await
    });
    serving.expect("worker fails before the deadline").unwrap_err()
}

impl TestWorker {
    async fn post_owned(&self, path: &'static str, body: Value) -> Answer {
        self.post(path, &body).await
    }
}
