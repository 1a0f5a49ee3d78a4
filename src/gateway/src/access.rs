//! Access log: one line for each model request, with times and counts, but never content.

use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tracing::info;

use crate::keys::{KeyIdentity, KeyUse};
use crate::routing::affinity::stable_hash;
use crate::routing::length::Length;
use rooflet_base::mutex::lock;
use rooflet_inference_api::openai::ApiError;

/// Selection of the requests that are logged, with one line each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AccessLog {
    #[default]
    All,
    /// Only requests that failed or were cancelled.
    Errors,
    Off,
}

impl FromStr for AccessLog {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            "errors" => Ok(Self::Errors),
            "off" => Ok(Self::Off),
            _ => Err("must be `all`, `errors` or `off`"),
        }
    }
}

impl AccessLog {
    fn includes(self, status: Option<StatusCode>) -> bool {
        match self {
            Self::All => true,
            Self::Errors => status.is_none_or(|status| !status.is_success()),
            Self::Off => false,
        }
    }
}

/// Facts about one request, collected until it ends. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct AccessEntry {
    log: AccessLog,
    facts: Arc<Mutex<Facts>>,
}

#[derive(Debug, Default)]
struct Facts {
    request_id: String,
    client: String,
    /// Namespace and name of the API key, or a hash of a key that is not of the fleet.
    key: String,
    /// Permission of the API key; the key's request ends when the facts are dropped.
    key_use: Option<KeyUse>,
    path: String,
    /// Model of the fleet and its namespace; empty if the requested model is unknown.
    model: String,
    namespace: String,
    /// Reason why the request was rejected or its response failed; empty if there is none.
    reason: &'static str,
    /// Replica of the last attempt.
    replica: String,
    /// Number of attempts that a worker may have processed.
    processed_attempts: u32,
    queued: Option<Duration>,
    first_byte: Option<Duration>,
    tokens: Option<u64>,
}

impl AccessEntry {
    pub(crate) fn new(
        log: AccessLog,
        path: &str,
        headers: &HeaderMap,
        client: Option<std::net::IpAddr>,
        identity: Option<&KeyIdentity>,
    ) -> Self {
        let header = |name: &str| headers.get(name);
        let key = header("authorization").or_else(|| header("x-api-key"));
        let id = header("x-request-id").and_then(|id| id.to_str().ok());
        Self {
            log,
            facts: Arc::new(Mutex::new(Facts {
                request_id: id.unwrap_or_default().to_owned(),
                client: client.map(|address| address.to_string()).unwrap_or_default(),
                key: match identity {
                    Some(identity) => identity.to_string(),
                    None => key
                        .map(|key| format!("{:016x}", stable_hash(key.as_bytes())))
                        .unwrap_or_default(),
                },
                path: path.to_owned(),
                ..Facts::default()
            })),
        }
    }

    pub(crate) fn set_model(&self, namespace: &str, model: &str) {
        let mut facts = lock(&self.facts);
        facts.namespace = namespace.to_owned();
        facts.model = model.to_owned();
    }

    pub(crate) fn set_reason(&self, reason: &'static str) {
        lock(&self.facts).reason = reason;
    }

    /// Returns namespace and name of the model, and the reason of the failure or `default`. Returns `None` if
    /// the requested model is unknown.
    pub(crate) fn failure(&self, default: &'static str) -> Option<(String, String, &'static str)> {
        let facts = lock(&self.facts);
        let reason = Some(facts.reason).filter(|reason| !reason.is_empty());
        (!facts.model.is_empty()).then(|| {
            (
                facts.namespace.clone(),
                facts.model.clone(),
                reason.unwrap_or(default),
            )
        })
    }

    pub(crate) fn set_attempt(&self, replica: &str, queued: Option<Duration>) {
        let mut facts = lock(&self.facts);
        facts.replica = replica.to_owned();
        facts.processed_attempts += 1;
        facts.queued = queued;
    }

    /// Records that no worker got the request of an attempt.
    pub(crate) fn set_unprocessed_attempt(&self) {
        let mut facts = lock(&self.facts);
        facts.processed_attempts = facts.processed_attempts.saturating_sub(1);
    }

    pub(crate) fn set_first_byte(&self, after: Duration) {
        lock(&self.facts).first_byte = Some(after);
    }

    pub(crate) fn set_length(&self, length: Length) {
        lock(&self.facts).tokens = match length {
            Length::Counted(tokens) => Some(tokens),
            Length::Estimated(_) => None,
        };
    }

    /// Keeps the permission of the API key until the request ends, or the reason why the key has none.
    pub(crate) fn set_key_use(&self, admitted: Result<KeyUse, ApiError>) -> Result<(), ApiError> {
        let admitted = admitted.inspect_err(|err| self.set_reason(err.denial.unwrap_or_default()));
        lock(&self.facts).key_use = Some(admitted?);
        Ok(())
    }

    /// Charges the tokens of the request to its API key. `prompt_tokens` is `None` if the response
    /// does not state them.
    pub(crate) fn charge(&self, prompt_tokens: Option<u64>, length: Length) {
        if let Some(key_use) = &mut lock(&self.facts).key_use {
            key_use.charge(prompt_tokens, length);
        }
    }

    /// Charges the prompt of a request that its client cancelled before there was a response, if a worker may have
    /// processed the prompt.
    pub(crate) fn charge_cancelled(&self) {
        let mut facts = lock(&self.facts);
        let is_processed = facts.processed_attempts > 0;
        if let Some(key_use) = facts.key_use.as_mut().filter(|_| is_processed) {
            key_use.charge(None, Length::Counted(0));
        }
    }

    /// Writes the line. `status` is `None` if the client disconnected before the end.
    pub(crate) fn write(&self, status: Option<StatusCode>, duration: Duration) {
        if !self.log.includes(status) {
            return;
        }
        let facts = lock(&self.facts);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let status = status.map(|status| status.as_u16().to_string());
        info!(
            request_id = facts.request_id,
            client = facts.client,
            key = facts.key,
            path = facts.path,
            model = facts.model,
            replica = facts.replica,
            status = status.as_deref().unwrap_or("cancelled"),
            tokens = facts.tokens,
            queue_ms = facts.queued.map(millis),
            first_byte_ms = facts.first_byte.map(millis),
            duration_ms = millis(duration),
            "request finished"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_selected_requests_are_logged() {
        let cases = [
            (AccessLog::All, Some(StatusCode::OK), true),
            (AccessLog::Errors, Some(StatusCode::OK), false),
            (AccessLog::Errors, Some(StatusCode::TOO_MANY_REQUESTS), true),
            (AccessLog::Errors, None, true),
            (AccessLog::Off, None, false),
        ];
        for (log, status, expect) in cases {
            assert_eq!(log.includes(status), expect, "{log:?} {status:?}");
        }
        assert_eq!("errors".parse(), Ok(AccessLog::Errors));
        assert!("some".parse::<AccessLog>().is_err());
    }

    #[test]
    fn entry_has_no_secret() {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", http::HeaderValue::from_static("Bearer secret"));
        let entry = AccessEntry::new(AccessLog::All, "/v1/chat/completions", &headers, None, None);
        assert!(!format!("{entry:?}").contains("secret"));
        assert_eq!(lock(&entry.facts).key.len(), 16);
    }
}
