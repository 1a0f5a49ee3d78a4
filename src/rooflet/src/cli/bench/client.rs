//! An OpenAI client that looks at the clock.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use reqwest::StatusCode;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::super::events::Events;
use crate::benchmark::Sample;
use rooflet_api::wire::WorkerStatus;
use rooflet_base::clock::Clock;
use rooflet_base::loopback;

/// Longest time between two pieces of an answer, the first included.
const SILENCE: Duration = Duration::from_secs(1800);
const CONNECT: Duration = Duration::from_secs(10);
/// The most that is told of a refusal.
const MAX_REFUSAL_CHARS: usize = 500;

/// Where a server is, whether or not it answers.
#[derive(Debug)]
pub(super) struct Server {
    http: reqwest::Client,
    /// Ends before `/v1`.
    base: String,
}

/// One server and the model asked there.
#[derive(Debug, Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    /// Ends before `/v1`.
    pub(super) base: String,
    pub(super) model: String,
    clock: Clock,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) prompt: &'a str,
    pub(super) tokens: u32,
    pub(super) streaming: bool,
}

impl Server {
    /// `key` goes with every request. Fails where there can be no such server, or no such key.
    pub(super) fn at(base: &str, key: Option<&str>) -> anyhow::Result<Self> {
        let base = base.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let url = reqwest::Url::parse(&base).with_context(|| format!("`{base}` is no URL"))?;
        let mut http = loopback::client_of(&url)
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE);
        if let Some(key) = key {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| anyhow!("--api-key: a key is one line of ASCII characters"))?;
            value.set_sensitive(true);
            http = http.default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)]));
        }
        let http = http.build()?;
        Ok(Self { http, base })
    }

    /// Asks it for its models where none is named.
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
    /// Whether a worker of ours takes requests.
    pub(super) async fn is_ready(&self) -> bool {
        let answer = self.http.get(format!("{}/ready", self.base)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Bytes that a token adds to the cache of a worker of ours.
    pub(super) async fn kv_bytes_per_token(&self) -> anyhow::Result<u64> {
        let url = format!("{}/status", self.base);
        let answer = self.http.get(&url).send().await;
        let answer = answer.with_context(|| format!("no answer from {url}"))?;
        let status: WorkerStatus = answer.json().await.with_context(|| format!("reading {url}"))?;
        let model = status.model.context("the worker does not know its model")?;
        Ok(model.kv_bytes_per_token)
    }

    /// Asks greedily, and waits for the end of the answer.
    pub(super) async fn ask(&self, ask: Ask<'_>) -> anyhow::Result<Sample> {
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
            Ok(Reading::default().sample(&answer["usage"], begin, self.clock.instant()))
        }
    }

    async fn read_stream(&self, response: reqwest::Response, begin: Instant) -> anyhow::Result<Sample> {
        let (mut reading, mut usage) = (Reading::default(), Value::Null);
        let mut events = Events::new(response);
        while let Some(chunk) = events.next().await? {
            if has_text(&chunk["choices"][0]["delta"]) {
                reading.piece(self.clock.instant(), events.reads());
            }
            if chunk["usage"].is_object() {
                usage = chunk["usage"].clone();
            }
        }
        if !events.is_done() {
            bail!("the stream ended without [DONE]");
        }
        let end = reading.last.unwrap_or_else(|| self.clock.instant());
        Ok(reading.sample(&usage, begin, end))
    }
}

/// Any kind of text that a model makes: answers, reasoning, calls of tools.
fn has_text(delta: &Value) -> bool {
    let text = |name: &str| delta[name].as_str().is_some_and(|text| !text.is_empty());
    text("content") || text("reasoning_content") || text("reasoning") || delta["tool_calls"].is_array()
}

/// Refuses an answer that is an error, with the server's own words.
async fn successful(response: reqwest::Response) -> anyhow::Result<reqwest::Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let key = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "; a key is taken from --api-key or OPENAI_API_KEY"
        }
        _ => "",
    };
    let url = response.url().clone();
    let text = response.text().await.unwrap_or_default();
    let said: String = text.chars().take(MAX_REFUSAL_CHARS).collect();
    bail!("{url} answered {status}: {said}{key}");
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
        .with_context(|| format!("{url} gave no list of models"))?;
    let names: Vec<&str> = list["data"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|model| model["id"].as_str())
        .collect();
    match names[..] {
        [model] => Ok(model.to_owned()),
        [] => bail!("{url} names no model: --model chooses one"),
        _ => bail!("{url} names {}: --model chooses one of them", names.join(", ")),
    }
}

/// What was seen of a stream.
#[derive(Debug, Default)]
struct Reading {
    first: Option<Instant>,
    last: Option<Instant>,
    pieces: u64,
    first_pieces: u64,
    reads: u64,
    /// The one that the last piece came with.
    last_read: u64,
}

impl Reading {
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
    async fn a_server_that_wants_a_key_gets_it_or_is_understood() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/models", axum::routing::get(models));
        let asking = async {
            let at = |key| Server::at(&base, key);
            let connect = |key| at(key).unwrap().connect(None, Clock::System);
            assert_eq!(connect(Some("secret")).await.unwrap().model, "tiny");
            for key in [None, Some("wrong")] {
                let told = connect(key).await.unwrap_err().to_string();
                assert!(
                    told.contains("401") && told.contains("no such key") && told.contains("OPENAI_API_KEY"),
                    "{told}"
                );
            }
            let told = at(Some("two\nlines")).unwrap_err().to_string();
            assert!(told.contains("--api-key"), "{told}");
        };
        tokio::select! {
            () = asking => {}
            _ = axum::serve(listener, router).into_future() => unreachable!("it serves for ever"),
        }
    }
}
