//! State of one replica: in-flight requests, observed speed, health, and requests of other
//! gateways.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::request::info::RequestInfo;
use crate::routing::estimate::{Estimate, Load, SpeedCorrection};
use crate::routing::health::Health;
use crate::routing::length::Length;

/// Validity of an observed number of other gateways' requests; about the duration of a response.
pub(super) const EXTERNAL_LOAD_TTL: Duration = Duration::from_secs(10);

/// Request that a replica processes.
#[derive(Debug)]
pub(super) struct InFlightRequest {
    pub(super) rows: u32,
    pub(super) max_tokens: Option<u64>,
    pub(super) has_logprobs: bool,
    pub(super) began: Instant,
    pub(super) load: Load,
    /// Speed correction when the request was sent, and the estimate that used it.
    pub(super) correction: SpeedCorrection,
    pub(super) estimate: Estimate,
    pub(super) first_token: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct ReplicaState {
    pub(super) health: Health,
    pub(super) correction: SpeedCorrection,
    pub(super) in_flight: BTreeMap<u64, InFlightRequest>,
    pub(super) last_chosen: u64,
    pub(super) external: ExternalLoad,
    /// True if the routing table no longer contains the replica.
    pub(super) is_removed: bool,
}

/// Observed requests of other gateways at a replica.
#[derive(Debug, Default)]
pub(super) struct ExternalLoad {
    /// Last observed number, and when it was observed.
    pub(super) observed: Option<(u64, Instant)>,
    /// Last number in the agent's report.
    pub(super) reported: Option<u64>,
    /// End of this gateway's last request to the replica.
    pub(super) own_ended: Option<Instant>,
}

impl ExternalLoad {
    /// Returns the number of requests, or 0 if the observation has expired.
    pub(super) fn at(&self, now: Instant) -> u32 {
        let is_valid = |at: Instant| now.saturating_duration_since(at) < EXTERNAL_LOAD_TTL;
        let count = self
            .observed
            .filter(|(_, at)| is_valid(*at))
            .map_or(0, |(count, _)| count);
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

impl ReplicaState {
    pub(super) fn rows(&self) -> u32 {
        self.in_flight.values().map(|request| request.rows).sum()
    }

    pub(super) fn remove_in_flight(&mut self, request: u64, now: Instant) -> Option<InFlightRequest> {
        self.external.own_ended = Some(now);
        self.in_flight.remove(&request)
    }

    /// Records the number of requests in the agent's report.
    ///
    /// The report includes this gateway's requests. It therefore counts only if this gateway has
    /// had no request at the replica for some time.
    pub(super) fn record_report(&mut self, reported: Option<u64>, now: Instant) {
        let is_new = self.external.reported != reported;
        self.external.reported = reported;
        let is_past = |ended: Instant| now.saturating_duration_since(ended) >= 2 * EXTERNAL_LOAD_TTL;
        if is_new && self.in_flight.is_empty() && self.external.own_ended.is_none_or(is_past) {
            self.external.observed = reported.map(|count| (count, now));
        }
    }

    pub(super) fn load(
        &self,
        info: &RequestInfo,
        rows: u32,
        cached_bytes: u64,
        typical_answer: u64,
        now: Instant,
    ) -> Load {
        let streams = self
            .rows()
            .saturating_add(self.external.at(now))
            .saturating_add(info.rows);
        Load {
            backlog_tokens: self
                .in_flight
                .values()
                .map(|request| request.pending_prefill(now))
                .sum(),
            prefill_tokens: info
                .prompt_tokens
                .saturating_sub(RequestInfo::tokens(cached_bytes)),
            streams,
            requests_ahead: streams.saturating_sub(rows),
            answer_tokens: info.answer_tokens(typical_answer),
        }
    }
}

impl InFlightRequest {
    /// Returns the tokens of one choice, or `None` if the response length does not reveal them.
    pub(super) fn row_tokens(&self, length: Length) -> Option<u64> {
        let rows = u64::from(self.rows.max(1));
        match length {
            Length::Counted(tokens) => Some(tokens / rows),
            // Log probabilities take many times the bytes of the text.
            Length::Estimated(_) if self.has_logprobs => None,
            Length::Estimated(tokens) => Some((tokens / rows).min(self.max_tokens.unwrap_or(u64::MAX))),
        }
    }

    /// Returns the estimated seconds until the request finishes.
    pub(super) fn left(&self, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.began).as_secs_f64();
        (self.estimate.finish - elapsed).max(0.0)
    }

    /// Returns the estimated prompt tokens that the replica has not processed yet.
    ///
    /// Non-streamed responses show no first token, so the estimate follows the elapsed time.
    fn pending_prefill(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.began).as_secs_f64();
        let left = 1.0 - elapsed / self.estimate.first_token;
        match self.first_token {
            None if left > 0.0 => (self.load.prefill_tokens as f64 * left) as u64,
            None | Some(_) => 0,
        }
    }
}
