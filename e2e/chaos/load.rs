//! Clients that stream answers continuously, and the outcomes of their requests.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Number of concurrent requests.
const STREAMS: usize = 4;
/// Timeout of a client. It is longer than any disruption.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(150);
const MAX_TOKENS: usize = 48;

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    /// The gateway was not reachable or exited before it responded.
    NoResponse(String),
    /// The response has another status than 200.
    Rejected(u16, String),
    /// The stream ended prematurely.
    Broken(String),
    /// The stream is complete, and its text differs from that of an undisturbed request.
    Wrong(String),
}

/// Request and its outcome.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// `NAMESPACE/NAME` from the response of the gateway; empty without a response.
    pub(super) replica: String,
    pub(super) outcome: Outcome,
}

/// Running clients.
pub(super) struct Load {
    done: Arc<Mutex<Vec<Request>>>,
    stop: CancellationToken,
    clients: Vec<JoinHandle<()>>,
    runtime: Handle,
}

impl Load {
    /// Starts the clients. `expected` is the text of an undisturbed answer.
    pub(super) fn start(runtime: &Handle, gateway: &str, expected: &str) -> Self {
        let (stop, done) = (CancellationToken::new(), Arc::<Mutex<Vec<Request>>>::default());
        let url = format!("{gateway}/v1/chat/completions");
        let clients = (0..STREAMS).map(|_| {
            let (url, expected) = (url.clone(), expected.to_owned());
            let (stop, done) = (stop.clone(), done.clone());
            runtime.spawn(async move {
                // Connections are not reused, because the loss of an idle connection is not tested
                // here.
                let client = Client::builder()
                    .pool_max_idle_per_host(0)
                    .timeout(CLIENT_TIMEOUT)
                    .build()
                    .expect("a client");
                while !stop.is_cancelled() {
                    let request = one(&client, &url, &expected).await;
                    let rejected = matches!(request.outcome, Outcome::NoResponse(_) | Outcome::Rejected(..));
                    done.lock().expect("no holder of the lock panics").push(request);
                    if rejected {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                }
            })
        });
        let clients = clients.collect();
        Self {
            done,
            stop,
            clients,
            runtime: runtime.clone(),
        }
    }

    /// Returns the requests that have ended since the last call.
    pub(super) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.done.lock().expect("no holder of the lock panics"))
    }

    /// Waits for the last requests and returns them.
    pub(super) fn finish(self) -> Vec<Request> {
        self.stop.cancel();
        self.runtime.block_on(async {
            for client in self.clients {
                client.await.expect("clients do not panic");
            }
        });
        std::mem::take(&mut self.done.lock().expect("no holder of the lock panics"))
    }
}

pub(super) fn question() -> Value {
    json!({
        "model": "guide",
        "messages": [{"role": "user", "content": "What is rooflet?"}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": true,
    })
}

async fn one(client: &Client, url: &str, expected: &str) -> Request {
    let began = Instant::now();
    let mut replica = String::new();
    let outcome = ask(client, url, expected, &mut replica).await;
    Request {
        began,
        ended: Instant::now(),
        replica,
        outcome,
    }
}

async fn ask(client: &Client, url: &str, expected: &str, replica: &mut String) -> Outcome {
    let response = match client.post(url).json(&question()).send().await {
        Ok(response) => response,
        Err(err) => return Outcome::NoResponse(format!("{err:?}")),
    };
    let header = response.headers().get("x-rooflet-replica");
    *replica = header
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let status = response.status().as_u16();
    if status != 200 {
        return Outcome::Rejected(status, response.text().await.unwrap_or_default());
    }
    let mut bytes = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Ok(chunk) => bytes.extend_from_slice(&chunk),
            Err(err) => return Outcome::Broken(format!("{err:?}")),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let events: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    if events.last() != Some(&"[DONE]") {
        return Outcome::Broken(format!("the last event is {:?}", events.last()));
    }
    let text = streamed_text(&events);
    if text == expected {
        Outcome::Answered
    } else {
        Outcome::Wrong(text)
    }
}

/// Returns the concatenated text of a streamed answer.
pub(super) fn streamed_text<S: AsRef<str>>(events: &[S]) -> String {
    let delta = |event: &S| {
        let event: Value = serde_json::from_str(event.as_ref()).ok()?;
        Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned())
    };
    events.iter().filter_map(delta).collect()
}
