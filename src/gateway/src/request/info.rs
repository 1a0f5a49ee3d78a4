//! Properties of a request that determine its routing, from its headers and top-level JSON fields.
//!
//! Prompts are measured and hashed, never stored.

use std::time::Duration;

use http::HeaderMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::headers::{CLIENT_TIMEOUTS, FAIRNESS_ID, FIRST_TOKEN_MILLIS, SESSION_ID};
use crate::routing::affinity::{Prefix, stable_hash};
use rooflet_inference_api::openai::MAX_COMPLETIONS;
use rooflet_inference_api::openai::stored_reference::{RESPONSES_PATH, StoredReference};
use rooflet_inference_api::openai::top_level::TopLevel;

/// Upper limit of the queue time of any request.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Approximate bytes of JSON text per prompt token.
const BYTES_PER_TOKEN: u64 = 4;

/// Fields that make up the prompt, in the order of chat templates.
const TEXTS: [&str; 6] = ["tools", "system", "instructions", "messages", "prompt", "input"];

/// Kind of computation that a request needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Work {
    #[default]
    Generate,
    /// Prefill only.
    Embed,
    /// No engine work.
    Tokenize,
}

/// Routing properties of a request; see the module documentation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RequestInfo {
    pub(crate) work: Work,
    /// Priority as in vLLM: lower values are served first.
    pub(crate) priority: i32,
    /// Rows of the batch: prompts times choices.
    pub(crate) rows: u32,
    /// Estimate from the length of the text.
    pub(crate) prompt_tokens: u64,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) is_stream: bool,
    /// True if the response includes log probabilities.
    pub(crate) has_logprobs: bool,
    pub(crate) prefix: Prefix,
    pub(crate) session: Option<u64>,
    /// Hash of the client's identity, for fair queueing.
    pub(crate) client: u64,
    /// Maximum time to first token from the request's header.
    pub(crate) max_wait: Option<Duration>,
    /// Stored response or item that the request continues; one replica owns it.
    pub(crate) kept: Option<StoredReference>,
    /// Timeout of the client library, from its headers.
    pub(crate) client_timeout: Option<Duration>,
}

fn number<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}

/// Length of an answer in a request of Ollama's API.
#[derive(Debug, Deserialize)]
struct OllamaOptions {
    num_predict: Option<i64>,
}

impl OllamaOptions {
    /// Returns `None` if the length has no limit.
    fn max_tokens(self) -> Option<u64> {
        let tokens = u64::try_from(self.num_predict?).ok()?;
        Some(tokens).filter(|tokens| *tokens > 0)
    }
}

fn streams_by_default(path: &str) -> bool {
    matches!(path, "/api/chat" | "/api/generate")
}

/// Returns a JSON value that is not the empty string.
fn text(raw: Option<&RawValue>) -> Option<&str> {
    raw.map(RawValue::get).filter(|text| *text != "\"\"")
}

/// Returns the number of prompts times choices. The worker rejects more than its maximum.
fn rows(body_fields: &TopLevel<'_>) -> u32 {
    let most = u32::try_from(MAX_COMPLETIONS).unwrap_or(u32::MAX);
    let choices: u64 = number(body_fields.get("n")).unwrap_or(1);
    let rows = choices.saturating_mul(prompts(body_fields.get("prompt")));
    u32::try_from(rows).unwrap_or(most).clamp(1, most)
}

/// Returns the number of prompts: the length of a list of texts or token lists, else 1.
fn prompts(prompt: Option<&RawValue>) -> u64 {
    let list = prompt.map(RawValue::get).filter(|text| {
        let within = text.strip_prefix('[').map(str::trim_start);
        within.is_some_and(|within| within.starts_with(['"', '[']))
    });
    let count = |text| serde_json::from_str::<Vec<IgnoredAny>>(text).ok();
    list.and_then(count).map_or(1, |list| list.len() as u64)
}

fn has_logprobs(body_fields: &TopLevel<'_>) -> bool {
    let wanted = |name| body_fields.get(name).is_some_and(|raw| raw.get() != "false");
    let included = body_fields
        .get("include")
        .is_some_and(|raw| raw.get().contains("logprobs"));
    included
        || ["logprobs", "top_logprobs", "prompt_logprobs"]
            .into_iter()
            .any(wanted)
}

impl RequestInfo {
    /// Parses a request. `address` is the client's IP address, if known.
    pub(crate) fn new(
        path: &str,
        headers: &HeaderMap,
        body: &[u8],
        address: Option<std::net::IpAddr>,
    ) -> Self {
        let work = match path {
            "/tokenize"
            | "/detokenize"
            | "/v1/messages/count_tokens"
            | "/v1/responses/input_tokens"
            | "/api/show" => Work::Tokenize,
            "/v1/embeddings" | "/api/embed" | "/api/embeddings" => Work::Embed,
            _ => Work::Generate,
        };
        // Ignore fields of a wrong type: the worker rejects them.
        let body_fields: TopLevel<'_> = serde_json::from_slice(body).unwrap_or_default();
        let header = |name: &str| headers.get(name).map(http::HeaderValue::as_bytes);
        let texts = TEXTS.map(|name| body_fields.get(name));
        let texts = || texts.into_iter().filter_map(text);
        let bytes: usize = texts().map(str::len).sum();
        let salt = text(body_fields.get("cache_salt")).map_or(0, stable_hash);
        let session = header(SESSION_ID).map(stable_hash);
        let in_body = || text(body_fields.get("prompt_cache_key")).or(text(body_fields.get("user")));
        let key = header("authorization").or_else(|| header("x-api-key"));
        let client = header(FAIRNESS_ID)
            .or(key)
            .map(stable_hash)
            .or_else(|| text(body_fields.get("user")).map(stable_hash))
            .unwrap_or_else(|| stable_hash(address));
        let figure = |name: &str| {
            std::str::from_utf8(header(name)?)
                .ok()?
                .trim()
                .parse::<f64>()
                .ok()
        };
        let time = |value: f64| Duration::try_from_secs_f64(value).ok();
        Self {
            work,
            priority: number(body_fields.get("priority")).unwrap_or_default(),
            rows: match work {
                Work::Generate => rows(&body_fields),
                Work::Embed => 1,
                Work::Tokenize => 0,
            },
            prompt_tokens: bytes as u64 / BYTES_PER_TOKEN,
            max_tokens: number(body_fields.get("max_completion_tokens"))
                .or_else(|| number(body_fields.get("max_output_tokens")))
                .or_else(|| number(body_fields.get("max_tokens")))
                .or_else(|| number(body_fields.get("options")).and_then(OllamaOptions::max_tokens)),
            is_stream: number(body_fields.get("stream")).unwrap_or(streams_by_default(path)),
            has_logprobs: has_logprobs(&body_fields),
            prefix: match work {
                Work::Generate => Prefix::of(salt, texts()),
                Work::Embed | Work::Tokenize => Prefix::default(),
            },
            session: session.or_else(|| in_body().map(stable_hash)),
            client,
            max_wait: figure(FIRST_TOKEN_MILLIS).and_then(|millis| time(millis / 1e3)),
            kept: path
                .starts_with(RESPONSES_PATH)
                .then(|| StoredReference::named_in(&body_fields))
                .flatten(),
            client_timeout: CLIENT_TIMEOUTS
                .iter()
                .find_map(|name| figure(name).and_then(time)),
        }
    }

    /// Returns the maximum queue time; `default` is the model's queue timeout.
    pub(crate) fn max_wait(&self, default: Duration) -> Duration {
        let max_wait = self.max_wait.unwrap_or(default).min(MAX_WAIT);
        self.client_timeout
            .map_or(max_wait, |timeout| timeout.min(max_wait))
    }

    /// Returns the expected tokens of prompt and response, for fair queueing.
    pub(crate) fn cost(&self, typical_answer: u64) -> u64 {
        self.prompt_tokens + self.answer_tokens(typical_answer) * u64::from(self.rows)
    }

    /// Returns the expected tokens of one choice of the response.
    pub(crate) fn answer_tokens(&self, typical: u64) -> u64 {
        match self.work {
            Work::Generate => self.max_tokens.map_or(typical, |most| most.min(typical)),
            Work::Embed | Work::Tokenize => 0,
        }
    }

    /// Converts bytes of prompt text to tokens.
    pub(crate) fn tokens(bytes: u64) -> u64 {
        bytes / BYTES_PER_TOKEN
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn info(headers: &[(&'static str, &'static str)], body: serde_json::Value) -> RequestInfo {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, http::HeaderValue::from_static(value));
        }
        RequestInfo::new("/v1/chat/completions", &map, body.to_string().as_bytes(), None)
    }

    #[test]
    fn reads_size_and_priority_from_body() {
        let parsed = info(
            &[],
            json!({"model": "guide", "priority": -3, "n": 2, "max_tokens": 9, "max_completion_tokens": 7,
                   "messages": [{"role": "user", "content": "x".repeat(4000)}]}),
        );
        assert_eq!(
            (parsed.priority, parsed.rows, parsed.max_tokens),
            (-3, 2, Some(7))
        );
        assert!((1000..1050).contains(&parsed.prompt_tokens), "{parsed:?}");
        assert_eq!(parsed.answer_tokens(100), 7);
        assert!(parsed.prefix.first().is_some());
        // Fields of a wrong type are ignored.
        let wrong = info(
            &[],
            json!({"n": "two", "priority": 0.5, "max_tokens": -1, "user": 7}),
        );
        assert_eq!((wrong.priority, wrong.rows, wrong.max_tokens), (0, 1, None));
        for (body, rows) in [
            (json!({"n": u32::MAX}), 64),
            (json!({"n": u64::MAX, "prompt": ["a", "b"]}), 64),
            (json!({"n": 0}), 1),
            (json!({"n": 3, "prompt": ["a", "b"]}), 6),
            (json!({"prompt": [[1, 2, 3], [4]]}), 2),
            (json!({"prompt": [1, 2, 3]}), 1),
            (json!({"prompt": []}), 1),
        ] {
            assert_eq!(info(&[], body.clone()).rows, rows, "{body}");
        }
        for (body, is_stream, has_logprobs) in [
            (json!({"stream": true, "logprobs": false}), true, false),
            (json!({"stream": false, "logprobs": true}), false, true),
            (json!({"logprobs": 0}), false, true),
            (
                json!({"stream": null, "include": ["message.output_text.logprobs"]}),
                false,
                true,
            ),
            (
                json!({"stream": "yes", "include": ["reasoning.encrypted_content"]}),
                false,
                false,
            ),
        ] {
            let parsed = info(&[], body.clone());
            assert_eq!(
                (parsed.is_stream, parsed.has_logprobs),
                (is_stream, has_logprobs),
                "{body}"
            );
        }
        let not_json = RequestInfo::new("/v1/completions", &HeaderMap::new(), b"{", None);
        assert_eq!(not_json.rows, 1);
    }

    #[test]
    fn identifies_clients_and_sessions_by_most_specific_field() {
        let plain = info(&[], json!({}));
        assert_eq!(plain.session, None);
        let user = info(&[], json!({"user": "ann"}));
        let other = info(&[], json!({"user": "bob"}));
        assert!(user.client != other.client && user.session != other.session);
        let keyed = info(&[("authorization", "Bearer k")], json!({"user": "ann"}));
        let same_key = info(&[("authorization", "Bearer k")], json!({"user": "bob"}));
        assert_eq!(keyed.client, same_key.client);
        assert_ne!(keyed.session, same_key.session);
        let fair = info(&[("authorization", "Bearer k"), (FAIRNESS_ID, "team")], json!({}));
        assert_ne!(fair.client, keyed.client);
        let session = info(
            &[(SESSION_ID, "s")],
            json!({"prompt_cache_key": "c", "user": "ann"}),
        );
        assert_eq!(session.session, info(&[(SESSION_ID, "s")], json!({})).session);
        assert_eq!(
            info(&[], json!({"prompt_cache_key": "c", "user": "ann"})).session,
            info(&[], json!({"prompt_cache_key": "c"})).session
        );
    }

    #[test]
    fn max_wait_is_bounded_by_client_and_gateway() {
        let minute = Duration::from_secs(60);
        assert_eq!(info(&[], json!({})).max_wait(minute), minute);
        let hurried = info(&[(FIRST_TOKEN_MILLIS, "1500")], json!({}));
        assert_eq!(hurried.max_wait(minute), Duration::from_millis(1500));
        for name in CLIENT_TIMEOUTS {
            let client = info(&[(name, "20")], json!({}));
            assert_eq!(client.max_wait(minute), Duration::from_secs(20));
        }
        let slow = info(
            &[(FIRST_TOKEN_MILLIS, "1e9"), (CLIENT_TIMEOUTS[0], "900")],
            json!({}),
        );
        assert_eq!(slow.max_wait(minute), MAX_WAIT);
        let nonsense = info(
            &[(FIRST_TOKEN_MILLIS, "-1"), (CLIENT_TIMEOUTS[0], "soon")],
            json!({}),
        );
        assert_eq!(nonsense.max_wait(minute), minute);
    }
}
