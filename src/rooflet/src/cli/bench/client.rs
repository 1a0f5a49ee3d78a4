//! OpenAI client that measures times.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use reqwest::StatusCode;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::event_stream::Events;
use rooflet_api::wire::WorkerStatus;
use rooflet_base::clock::Clock;
use rooflet_base::loopback;
use rooflet_benchmark::Sample;

/// Timeout between two chunks of an answer, including the first.
const SILENCE: Duration = Duration::from_secs(1800);
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum length of a server's error message that is printed.
const MAX_REFUSAL_CHARS: usize = 500;

/// Address of a server.
#[derive(Debug)]
pub(super) struct Server {
    http: reqwest::Client,
    /// URL without `/v1`.
    base: String,
}

/// Server and model of the requests.
#[derive(Debug, Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    /// URL without `/v1`.
    pub(super) base: String,
    pub(super) model: String,
    clock: Clock,
}

/// Parameters of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChatRequest<'a> {
    pub(super) prompt: &'a str,
    pub(super) tokens: u32,
    pub(super) streaming: bool,
}

impl Server {
    /// Creates a server from its URL and optional API key. Fails if either is invalid.
    pub(super) fn at(base: &str, key: Option<&str>) -> anyhow::Result<Self> {
        let base = base.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let url = reqwest::Url::parse(&base).with_context(|| format!("`{base}` is not a URL"))?;
        let mut http = loopback::client_of(&url)
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE);
        if let Some(key) = key {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| anyhow!("--api-key: a key must be one line of ASCII characters"))?;
            value.set_sensitive(true);
            http = http.default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)]));
        }
        let http = http.build()?;
        Ok(Self { http, base })
    }

    /// Selects the model. Without a name, requests the server's list of models.
    pub(super) async fn connect(self, model: Option<&str>, clock: Clock) -> anyhow::Result<Client> {
        let Self { http, base } = self;
        let model = match model {
            Some(model) => model.to_owned(),
            None => first_model(&http, &base).await?,
        };
        Ok(Client {
            http,
            base,
            model,
            clock,
        })
    }
}

impl Client {
    /// Returns true if a worker that the benchmark started is ready.
    pub(super) async fn is_ready(&self) -> bool {
        let answer = self.http.get(format!("{}/ready", self.base)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Returns the bytes per token in the KV cache of a worker that the benchmark started.
    pub(super) async fn kv_bytes_per_token(&self) -> anyhow::Result<u64> {
        let url = format!("{}/status", self.base);
        let answer = self.http.get(&url).send().await;
        let answer = answer.with_context(|| format!("no answer from {url}"))?;
        let status: WorkerStatus = answer.json().await.with_context(|| format!("reading {url}"))?;
        let model = status.model.context("the worker reports no model")?;
        Ok(model.kv_bytes_per_token)
    }

    /// Sends a request with temperature 0 and reads the whole answer.
    pub(super) async fn ask(&self, ask: ChatRequest<'_>) -> anyhow::Result<Sample> {
        let mut body = json!({
            "model": self.model,
            "messages": [{"role": "user", "content": ask.prompt}],
            "temperature": 0,
            "max_tokens": ask.tokens,
            "stream": ask.streaming,
        });
        if ask.streaming {
            body["stream_options"] = json!({"include_usage": true});
        }
        let begin = self.clock.instant();
        let url = format!("{}/v1/chat/completions", self.base);
        let response = self
            .http
            .post(&url)
            .json(&body)
            .send()
            .await
            .with_context(|| format!("no answer from {url}"))?;
        let response = successful(response).await?;
        if ask.streaming {
            self.read_stream(response, begin).await
        } else {
            let answer: Value = response.json().await.context("reading the answer")?;
            Ok(StreamTimes::default().sample(&answer["usage"], begin, self.clock.instant()))
        }
    }

    async fn read_stream(&self, response: reqwest::Response, begin: Instant) -> anyhow::Result<Sample> {
        let (mut times, mut usage) = (StreamTimes::default(), Value::Null);
        let mut events = Events::new(response);
        while let Some(chunk) = events.next().await? {
            if has_text(&chunk["choices"][0]["delta"]) {
                times.piece(self.clock.instant(), events.reads());
            }
            if chunk["usage"].is_object() {
                usage = chunk["usage"].clone();
            }
        }
        if !events.is_done() {
            bail!("the stream ended without [DONE]");
        }
        let end = times.last.unwrap_or_else(|| self.clock.instant());
        Ok(times.sample(&usage, begin, end))
    }
}

/// Returns true if a chunk has text of any kind: answer, reasoning or tool call.
fn has_text(delta: &Value) -> bool {
    let text = |name: &str| delta[name].as_str().is_some_and(|text| !text.is_empty());
    text("content") || text("reasoning_content") || text("reasoning") || delta["tool_calls"].is_array()
}

/// Returns the response, or an error with the server's message.
async fn successful(response: reqwest::Response) -> anyhow::Result<reqwest::Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let key = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "; pass an API key with --api-key or OPENAI_API_KEY"
        }
        _ => "",
    };
    let url = response.url().clone();
    let text = response.text().await.unwrap_or_default();
    let message: String = text.chars().take(MAX_REFUSAL_CHARS).collect();
    bail!("{url} answered {status}: {message}{key}");
}

async fn first_model(http: &reqwest::Client, base: &str) -> anyhow::Result<String> {
    let url = format!("{base}/v1/models");
    let response = http
        .get(&url)
        .send()
        .await
        .with_context(|| format!("no answer from {url}"))?;
    let list: Value = successful(response)
        .await?
        .json()
        .await
        .with_context(|| format!("{url} returned no list of models"))?;
    let names: Vec<&str> = list["data"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|model| model["id"].as_str())
        .collect();
    match names[..] {
        [model] => Ok(model.to_owned()),
        [] => bail!("{url} lists no model: pass --model"),
        _ => bail!("{url} lists {}: select one with --model", names.join(", ")),
    }
}

/// Times of a streamed answer.
#[derive(Debug, Default)]
struct StreamTimes {
    first: Option<Instant>,
    last: Option<Instant>,
    pieces: u64,
    first_pieces: u64,
    reads: u64,
    /// Number of the network read that delivered the last piece.
    last_read: u64,
}

impl StreamTimes {
    fn piece(&mut self, now: Instant, read: u64) {
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.pieces += 1;
        self.reads += u64::from(self.pieces == 1 || read != self.last_read);
        self.first_pieces += u64::from(self.reads == 1);
        self.last_read = read;
    }

    fn sample(&self, usage: &Value, begin: Instant, end: Instant) -> Sample {
        let completion_tokens = usage["completion_tokens"].as_u64();
        let prompt_tokens = usage["prompt_tokens"].as_u64();
        Sample {
            prompt_tokens,
            cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
            completion_tokens: completion_tokens.unwrap_or(self.pieces),
            counted_pieces: completion_tokens.is_none(),
            reasoning_tokens: usage["completion_tokens_details"]["reasoning_tokens"]
                .as_u64()
                .unwrap_or(0),
            reads: self.reads,
            first_tokens: self.first_pieces,
            time_to_first_token_seconds: self.first.map(|first| (first - begin).as_secs_f64()),
            total_seconds: (end - begin).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::{HeaderMap, StatusCode};
    use axum::response::{IntoResponse, Response};

    use super::*;

    async fn models(headers: HeaderMap) -> Response {
        match headers.get("authorization").map(HeaderValue::as_bytes) {
            Some(b"Bearer secret") => r#"{"data": [{"id": "tiny"}]}"#.into_response(),
            _ => (StatusCode::UNAUTHORIZED, "no such key").into_response(),
        }
    }

    #[tokio::test]
    async fn api_key_is_sent_and_its_absence_is_explained() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/models", axum::routing::get(models));
        let asking = async {
            let at = |key| Server::at(&base, key);
            let connect = |key| at(key).unwrap().connect(None, Clock::System);
            assert_eq!(connect(Some("secret")).await.unwrap().model, "tiny");
            for key in [None, Some("wrong")] {
                let message = connect(key).await.unwrap_err().to_string();
                assert!(
                    message.contains("401")
                        && message.contains("no such key")
                        && message.contains("OPENAI_API_KEY"),
                    "{message}"
                );
            }
            let message = at(Some("two\nlines")).unwrap_err().to_string();
            assert!(message.contains("--api-key"), "{message}");
        };
        tokio::select! {
            () = asking => {}
            _ = axum::serve(listener, router).into_future() => unreachable!("the server never ends"),
        }
    }
}
