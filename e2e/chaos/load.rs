//! Clients that stream answers all the while, and what became of each of their requests.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Requests that run at the same time.
const STREAMS: usize = 4;
/// A client's own patience: longer than anything that is done to the fleet here.
const LONGEST: Duration = Duration::from_secs(150);
const MAX_TOKENS: usize = 48;

/// How one request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    Answered,
    /// The gateway could not be reached, or went away before it answered.
    NoAnswer(String),
    /// It answered, and not with 200.
    Refused(u16, String),
    /// A stream had begun, and did not come to its end.
    Broken(String),
    /// A stream came to its end and said something else than it says alone.
    Wrong(String),
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// `NAMESPACE/NAME`, as the gateway says; empty where nothing was said.
    pub(super) replica: String,
    pub(super) ending: Ending,
}

/// Streams that follow one another, until it is stopped.
pub(super) struct Load {
    done: Arc<Mutex<Vec<Request>>>,
    stop: CancellationToken,
    clients: Vec<JoinHandle<()>>,
    runtime: Handle,
}

impl Load {
    /// `expected` is what the answer says when nothing else runs.
    pub(super) fn start(runtime: &Handle, gateway: &str, expected: &str) -> Self {
        let (stop, done) = (CancellationToken::new(), Arc::<Mutex<Vec<Request>>>::default());
        let url = format!("{gateway}/v1/chat/completions");
        let clients = (0..STREAMS).map(|_| {
            let (url, expected) = (url.clone(), expected.to_owned());
            let (stop, done) = (stop.clone(), done.clone());
            runtime.spawn(async move {
                // A connection of its own per request: what one that is kept may lose is not asked
                // here.
                let client = Client::builder()
                    .pool_max_idle_per_host(0)
                    .timeout(LONGEST)
                    .build()
                    .expect("a client");
                while !stop.is_cancelled() {
                    let request = one(&client, &url, &expected).await;
                    let refused = matches!(request.ending, Ending::NoAnswer(_) | Ending::Refused(..));
                    done.lock().expect("nobody panics with it").push(request);
                    if refused {
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

    /// What has ended since this was asked last.
    pub(super) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.done.lock().expect("nobody panics with it"))
    }

    /// Lets the last ones end, and takes them.
    pub(super) fn finish(self) -> Vec<Request> {
        self.stop.cancel();
        self.runtime.block_on(async {
            for client in self.clients {
                client.await.expect("clients do not panic");
            }
        });
        std::mem::take(&mut self.done.lock().expect("nobody panics with it"))
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
    let ending = ask(client, url, expected, &mut replica).await;
    Request {
        began,
        ended: Instant::now(),
        replica,
        ending,
    }
}

async fn ask(client: &Client, url: &str, expected: &str, replica: &mut String) -> Ending {
    let response = match client.post(url).json(&question()).send().await {
        Ok(response) => response,
        Err(err) => return Ending::NoAnswer(format!("{err:?}")),
    };
    let header = response.headers().get("x-rooflet-replica");
    *replica = header
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let status = response.status().as_u16();
    if status != 200 {
        return Ending::Refused(status, response.text().await.unwrap_or_default());
    }
    let mut bytes = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Ok(chunk) => bytes.extend_from_slice(&chunk),
            Err(err) => return Ending::Broken(format!("{err:?}")),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let events: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    if events.last() != Some(&"[DONE]") {
        return Ending::Broken(format!("it ends with {:?}", events.last()));
    }
    let said = said(&events);
    if said == expected {
        Ending::Answered
    } else {
        Ending::Wrong(said)
    }
}

/// The text of a streamed answer.
pub(super) fn said<S: AsRef<str>>(events: &[S]) -> String {
    let delta = |event: &S| {
        let event: Value = serde_json::from_str(event.as_ref()).ok()?;
        Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned())
    };
    events.iter().filter_map(delta).collect()
}
