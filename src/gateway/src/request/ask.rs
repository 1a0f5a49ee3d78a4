//! What a request asks of the gateway, read from its headers and from the top of its JSON. Prompts are measured and
//! hashed, never kept.

use std::time::Duration;

use http::HeaderMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::headers::{CLIENT_TIMEOUTS, FAIRNESS_ID, FIRST_TOKEN_MILLIS, SESSION_ID};
use crate::routing::affinity::{Prefix, stable_hash};
use rooflet_inference_api::openai::MAX_COMPLETIONS;
use rooflet_inference_api::openai::kept::{Kept, RESPONSES_PATH};
use rooflet_inference_api::openai::top_level::TopLevel;

/// Nobody may make the gateway hold a request for longer.
const MAX_PATIENCE: Duration = Duration::from_secs(600);

/// Bytes of JSON text for one token of a prompt, about: four letters, and some punctuation around each message.
const BYTES_PER_TOKEN: u64 = 4;

/// What a prompt is made of, in the order in which templates write it.
const TEXTS: [&str; 6] = ["tools", "system", "instructions", "messages", "prompt", "input"];

/// What has to be computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Work {
    #[default]
    Generate,
    /// Reads texts, writes none.
    Embed,
    /// No work for the engine.
    Tokenize,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ask {
    pub(crate) work: Work,
    /// vLLM's: lower goes first.
    pub(crate) priority: i32,
    /// Rows of a batch that it takes: choices that are written at the same time.
    pub(crate) rows: u32,
    /// A guess from the length of the text.
    pub(crate) prompt_tokens: u64,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) is_stream: bool,
    /// The answer tells how likely its tokens were, in many more bytes than they have.
    pub(crate) has_logprobs: bool,
    pub(crate) prefix: Prefix,
    pub(crate) session: Option<u64>,
    /// Whom it counts for where requests wait.
    pub(crate) client: u64,
    /// How long the client will wait, if it says so.
    pub(crate) patience: Option<Duration>,
    /// What it goes on from, and one replica keeps.
    pub(crate) kept: Option<Kept>,
    /// The least of [`Self::patience`] and what the client's own clock allows.
    pub(crate) client_timeout: Option<Duration>,
}

fn number<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}

/// A text that is not empty.
fn said(raw: Option<&RawValue>) -> Option<&str> {
    raw.map(RawValue::get).filter(|text| *text != "\"\"")
}

/// Prompts, each with its choices. More than a worker takes is refused there.
fn rows(asked: &TopLevel<'_>) -> u32 {
    let most = u32::try_from(MAX_COMPLETIONS).unwrap_or(u32::MAX);
    let choices: u64 = number(asked.get("n")).unwrap_or(1);
    let rows = choices.saturating_mul(prompts(asked.get("prompt")));
    u32::try_from(rows).unwrap_or(most).clamp(1, most)
}

/// A list of texts, or of lists of tokens, is as many prompts; a list of tokens is one.
fn prompts(prompt: Option<&RawValue>) -> u64 {
    let list = prompt.map(RawValue::get).filter(|text| {
        let within = text.strip_prefix('[').map(str::trim_start);
        within.is_some_and(|within| within.starts_with(['"', '[']))
    });
    let count = |text| serde_json::from_str::<Vec<IgnoredAny>>(text).ok();
    list.and_then(count).map_or(1, |list| list.len() as u64)
}

fn has_logprobs(asked: &TopLevel<'_>) -> bool {
    let wanted = |name| asked.get(name).is_some_and(|raw| raw.get() != "false");
    let included = asked
        .get("include")
        .is_some_and(|raw| raw.get().contains("logprobs"));
    included
        || ["logprobs", "top_logprobs", "prompt_logprobs"]
            .into_iter()
            .any(wanted)
}

impl Ask {
    /// `address` is the client's, where it is known.
    pub(crate) fn new(
        path: &str,
        headers: &HeaderMap,
        body: &[u8],
        address: Option<std::net::IpAddr>,
    ) -> Self {
        let work = match path {
            "/tokenize" | "/detokenize" | "/v1/messages/count_tokens" | "/v1/responses/input_tokens" => {
                Work::Tokenize
            }
            "/v1/embeddings" => Work::Embed,
            _ => Work::Generate,
        };
        // What has a wrong type is the worker's to refuse.
        let asked: TopLevel<'_> = serde_json::from_slice(body).unwrap_or_default();
        let header = |name: &str| headers.get(name).map(http::HeaderValue::as_bytes);
        let texts = TEXTS.map(|name| asked.get(name));
        let texts = || texts.into_iter().filter_map(said);
        let bytes: usize = texts().map(str::len).sum();
        let salt = said(asked.get("cache_salt")).map_or(0, stable_hash);
        let session = header(SESSION_ID).map(stable_hash);
        let in_body = || said(asked.get("prompt_cache_key")).or(said(asked.get("user")));
        let key = header("authorization").or_else(|| header("x-api-key"));
        let client = header(FAIRNESS_ID)
            .or(key)
            .map(stable_hash)
            .or_else(|| said(asked.get("user")).map(stable_hash))
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
            priority: number(asked.get("priority")).unwrap_or_default(),
            rows: match work {
                Work::Generate => rows(&asked),
                Work::Embed => 1,
                Work::Tokenize => 0,
            },
            prompt_tokens: bytes as u64 / BYTES_PER_TOKEN,
            max_tokens: number(asked.get("max_completion_tokens"))
                .or_else(|| number(asked.get("max_output_tokens")))
                .or_else(|| number(asked.get("max_tokens"))),
            is_stream: number(asked.get("stream")).unwrap_or_default(),
            has_logprobs: has_logprobs(&asked),
            prefix: match work {
                Work::Generate => Prefix::of(salt, texts()),
                Work::Embed | Work::Tokenize => Prefix::default(),
            },
            session: session.or_else(|| in_body().map(stable_hash)),
            client,
            patience: figure(FIRST_TOKEN_MILLIS).and_then(|millis| time(millis / 1e3)),
            kept: path
                .starts_with(RESPONSES_PATH)
                .then(|| Kept::named_in(&asked))
                .flatten(),
            client_timeout: CLIENT_TIMEOUTS
                .iter()
                .find_map(|name| figure(name).and_then(time)),
        }
    }

    /// How long it may wait for its turn, where `default` is the model's own answer to that.
    pub(crate) fn patience(&self, default: Duration) -> Duration {
        let patience = self.patience.unwrap_or(default).min(MAX_PATIENCE);
        self.client_timeout
            .map_or(patience, |timeout| timeout.min(patience))
    }

    /// Tokens it is expected to cost, for taking turns.
    pub(crate) fn cost(&self, typical_answer: u64) -> u64 {
        self.prompt_tokens + self.answer_tokens(typical_answer) * u64::from(self.rows)
    }

    /// Tokens the answer is expected to have.
    pub(crate) fn answer_tokens(&self, typical: u64) -> u64 {
        match self.work {
            Work::Generate => self.max_tokens.map_or(typical, |most| most.min(typical)),
            Work::Embed | Work::Tokenize => 0,
        }
    }

    /// Bytes of the prompt that stand for so many tokens.
    pub(crate) fn tokens(bytes: u64) -> u64 {
        bytes / BYTES_PER_TOKEN
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(headers: &[(&'static str, &'static str)], body: serde_json::Value) -> Ask {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, http::HeaderValue::from_static(value));
        }
        Ask::new("/v1/chat/completions", &map, body.to_string().as_bytes(), None)
    }

    #[test]
    fn the_body_says_how_much_and_how_urgent() {
        let said = ask(
            &[],
            json!({"model": "guide", "priority": -3, "n": 2, "max_tokens": 9, "max_completion_tokens": 7,
                   "messages": [{"role": "user", "content": "x".repeat(4000)}]}),
        );
        assert_eq!((said.priority, said.rows, said.max_tokens), (-3, 2, Some(7)));
        assert!((1000..1050).contains(&said.prompt_tokens), "{said:?}");
        assert_eq!(said.answer_tokens(100), 7);
        assert!(said.prefix.first().is_some());
        // What is wrong is for the worker to say; here it counts as not said.
        let wrong = ask(
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
            assert_eq!(ask(&[], body.clone()).rows, rows, "{body}");
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
            let said = ask(&[], body.clone());
            assert_eq!(
                (said.is_stream, said.has_logprobs),
                (is_stream, has_logprobs),
                "{body}"
            );
        }
        let not_json = Ask::new("/v1/completions", &HeaderMap::new(), b"{", None);
        assert_eq!(not_json.rows, 1);
    }

    #[test]
    fn clients_and_sessions_are_told_apart_by_the_surest_sign() {
        let plain = ask(&[], json!({}));
        assert_eq!(plain.session, None);
        let user = ask(&[], json!({"user": "ann"}));
        let other = ask(&[], json!({"user": "bob"}));
        assert!(user.client != other.client && user.session != other.session);
        let keyed = ask(&[("authorization", "Bearer k")], json!({"user": "ann"}));
        let same_key = ask(&[("authorization", "Bearer k")], json!({"user": "bob"}));
        assert_eq!(keyed.client, same_key.client);
        assert_ne!(keyed.session, same_key.session);
        let fair = ask(&[("authorization", "Bearer k"), (FAIRNESS_ID, "team")], json!({}));
        assert_ne!(fair.client, keyed.client);
        let session = ask(
            &[(SESSION_ID, "s")],
            json!({"prompt_cache_key": "c", "user": "ann"}),
        );
        assert_eq!(session.session, ask(&[(SESSION_ID, "s")], json!({})).session);
        assert_eq!(
            ask(&[], json!({"prompt_cache_key": "c", "user": "ann"})).session,
            ask(&[], json!({"prompt_cache_key": "c"})).session
        );
    }

    #[test]
    fn a_request_waits_as_long_as_its_client_will_and_no_longer_than_anybody_may() {
        let minute = Duration::from_secs(60);
        assert_eq!(ask(&[], json!({})).patience(minute), minute);
        let hurried = ask(&[(FIRST_TOKEN_MILLIS, "1500")], json!({}));
        assert_eq!(hurried.patience(minute), Duration::from_millis(1500));
        for name in CLIENT_TIMEOUTS {
            let client = ask(&[(name, "20")], json!({}));
            assert_eq!(client.patience(minute), Duration::from_secs(20));
        }
        let patient = ask(
            &[(FIRST_TOKEN_MILLIS, "1e9"), (CLIENT_TIMEOUTS[0], "900")],
            json!({}),
        );
        assert_eq!(patient.patience(minute), MAX_PATIENCE);
        let nonsense = ask(
            &[(FIRST_TOKEN_MILLIS, "-1"), (CLIENT_TIMEOUTS[0], "soon")],
            json!({}),
        );
        assert_eq!(nonsense.patience(minute), minute);
    }
}
