//! Decisions on API keys without network connections, for the simulation.
//!
//! Uses the gateway's own keys, limits and reports. The caller passes the time, and writes the
//! reports.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use serde_json::Value;

use super::authentication::{PresentedKey, RejectKeyError, authenticate};
use super::meter::Denial;
use super::ring::{KeyError, KeyIdentity, KeyReport, KeyRing};
use rooflet_api::v1alpha1::{ApiKey, KeyUsage};

/// Reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyRefusal {
    /// No key, or an unknown one.
    Unauthenticated,
    Expired,
    /// The gateway has not read the keys yet.
    NotRead,
    ModelNotPermitted,
    RequestsPerMinute,
    TokensPerMinute,
    ConcurrentRequests,
    TokensPerDay,
}

/// Admitted request of a key.
#[derive(Debug)]
pub struct AdmittedRequest {
    identity: Arc<KeyIdentity>,
    model: String,
    prompt_tokens: u64,
}

/// Use of a key that is to be written to its status.
#[derive(Debug, Clone)]
pub struct UsageReport(KeyReport);

impl UsageReport {
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the merge patch of the key.
    pub fn patch(&self) -> Value {
        self.0.patch()
    }
}

/// Keys of a gateway that requires them; see the module documentation.
#[derive(Debug)]
pub struct KeyGate {
    ring: KeyRing,
    is_read: bool,
}

impl KeyGate {
    /// Creates the keys of a gateway with this identity, which has not read any.
    pub fn new(gateway: &str) -> Self {
        Self {
            ring: KeyRing::new(gateway),
            is_read: false,
        }
    }

    /// Records that all existing keys were applied.
    pub fn set_read(&mut self) {
        self.is_read = true;
    }

    /// Applies a change of a key: its new version, or `None` after its deletion.
    pub fn apply(
        &mut self,
        namespace: &str,
        name: &str,
        key: Option<&Arc<ApiKey>>,
        instant: Instant,
        now: Timestamp,
    ) {
        self.ring.apply(namespace, name, key, instant, now);
    }

    /// Admits a request of a client that presents `secret` for a model of `namespace`. The caller
    /// ends an admitted request with [`Self::end`].
    pub fn admit(
        &mut self,
        secret: Option<&str>,
        (namespace, model): (&str, &str),
        prompt_tokens: u64,
        instant: Instant,
        now: Timestamp,
    ) -> Result<AdmittedRequest, KeyRefusal> {
        let presented = secret.map(PresentedKey::parse);
        let ring = self.is_read.then_some(&self.ring);
        let identity = authenticate(presented.as_ref(), true, ring, now).map_err(|err| match err {
            RejectKeyError::Missing | RejectKeyError::Key(KeyError::Unknown) => KeyRefusal::Unauthenticated,
            RejectKeyError::Key(KeyError::Expired(_)) => KeyRefusal::Expired,
            RejectKeyError::NotRead => KeyRefusal::NotRead,
        })?;
        let identity = identity.ok_or(KeyRefusal::Unauthenticated)?;
        if !identity.permits(namespace, model) {
            return Err(KeyRefusal::ModelNotPermitted);
        }
        let admitted = self.ring.admit(&identity, prompt_tokens, instant, now);
        admitted.map_err(|denial| match denial {
            Denial::Requests { .. } => KeyRefusal::RequestsPerMinute,
            Denial::Tokens { .. } => KeyRefusal::TokensPerMinute,
            Denial::Concurrency { .. } => KeyRefusal::ConcurrentRequests,
            Denial::Budget { .. } => KeyRefusal::TokensPerDay,
        })?;
        Ok(AdmittedRequest {
            identity,
            model: model.to_owned(),
            prompt_tokens,
        })
    }

    /// Ends a request. `answer_tokens` is the length of its answer; `None` if there was none.
    pub fn end(
        &mut self,
        request: &AdmittedRequest,
        answer_tokens: Option<u64>,
        instant: Instant,
        now: Timestamp,
    ) {
        let used = KeyUsage {
            requests: 1,
            prompt_tokens: answer_tokens.map_or(0, |_| request.prompt_tokens),
            completion_tokens: answer_tokens.unwrap_or(0),
        };
        let (identity, model) = (&request.identity, &request.model);
        self.ring
            .end(identity, request.prompt_tokens, model, used, instant, now);
    }

    /// Returns the reports of all keys whose use has changed.
    pub fn reports(&mut self, now: Timestamp) -> Vec<UsageReport> {
        self.ring.reports(now).into_iter().map(UsageReport).collect()
    }

    /// Records that a report was written.
    pub fn reported(&mut self, UsageReport(report): UsageReport) {
        self.ring.reported(report);
    }

    /// Records that a report was not written, so that the next one contains it.
    pub fn not_reported(&mut self, UsageReport(report): &UsageReport) {
        self.ring.not_reported(&report.uid);
    }
}
