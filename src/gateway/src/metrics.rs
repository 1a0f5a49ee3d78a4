//! Metrics of the gateway. Labels never contain values that a client chose, such as paths or names of
//! unknown models.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;

use super::access::AccessEntry;
use super::routing::length::Length;
use super::state::Refusal;
use rooflet_base::clock::Clock;
use rooflet_base::metrics::{
    Exemplars, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    REQUEST_SECONDS, Registry, Result,
};
use rooflet_telemetry::trace::{ERROR_TYPE, OpenSpan};

/// Code label of a request whose client disconnected before the end of the response.
const CANCELLED: &str = "cancelled";
const REQUEST: &str = "rooflet_gateway_request_seconds";
const FIRST_BYTE: &str = "rooflet_gateway_time_to_first_byte_seconds";

#[derive(Clone)]
pub(super) struct GatewayMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    first_byte_seconds: Histogram,
    outstanding: IntGauge,
    pub(super) retries: IntCounter,
    pub(super) hedges: IntCounter,
    pub(super) fallbacks: IntCounter,
    queue_seconds: Histogram,
    queued: IntGauge,
    ejected: IntGauge,
    refusals: IntCounterVec,
    model_errors: IntCounterVec,
    body_bytes: IntGauge,
    anonymous_access: IntGauge,
    exemplars: Exemplars,
}

impl GatewayMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self> {
        let options =
            |name: &str, help: &str| HistogramOpts::new(name, help).buckets(REQUEST_SECONDS.to_vec());
        let histogram = |name: &str, help: &str| Histogram::with_opts(options(name, help));
        let metrics = Self {
            requests: IntCounterVec::new(
                Opts::new(
                    "rooflet_gateway_requests_total",
                    "Finished model requests by status class. `cancelled`: the client disconnected before the end.",
                ),
                &["code"],
            )?,
            seconds: HistogramVec::new(
                options(
                    REQUEST,
                    "Time from a request to the end of its response, or to its cancellation.",
                ),
                &["code"],
            )?,
            first_byte_seconds: histogram(
                FIRST_BYTE,
                "Time from a request to the first byte of the response body (stream: first token).",
            )?,
            outstanding: IntGauge::new("rooflet_gateway_outstanding_requests", "Requests in progress.")?,
            retries: IntCounter::new(
                "rooflet_gateway_retries_total",
                "Retries on another replica after a failed attempt.",
            )?,
            hedges: IntCounter::new(
                "rooflet_gateway_hedges_total",
                "Requests sent to a second replica because the first token was late.",
            )?,
            fallbacks: IntCounter::new(
                "rooflet_gateway_fallbacks_total",
                "Requests that a fallback model served in place of the requested model.",
            )?,
            queue_seconds: histogram(
                "rooflet_gateway_queue_seconds",
                "Time from a request to its dispatch to a replica.",
            )?,
            queued: IntGauge::new(
                "rooflet_gateway_queued_requests",
                "Requests in the queues of all models.",
            )?,
            ejected: IntGauge::new(
                "rooflet_gateway_left_out_replicas",
                "Replicas that the gateway has ejected after failures.",
            )?,
            refusals: IntCounterVec::new(
                Opts::new(
                    "rooflet_gateway_refusals_total",
                    "Requests rejected before they reached a replica.",
                ),
                &["reason"],
            )?,
            model_errors: IntCounterVec::new(
                Opts::new(
                    "rooflet_gateway_model_errors_total",
                    "Requests for a model of the fleet without a complete response, by reason.",
                ),
                &["namespace", "model", "reason"],
            )?,
            body_bytes: IntGauge::new(
                "rooflet_gateway_request_body_bytes",
                "Bytes of request bodies kept until the response starts.",
            )?,
            anonymous_access: IntGauge::new(
                "rooflet_gateway_anonymous_access",
                "1 if other machines can send requests without an API key (--allow-anonymous), otherwise 0.",
            )?,
            exemplars: registry.exemplars(),
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.first_byte_seconds.clone()))?;
        registry.register(Box::new(metrics.outstanding.clone()))?;
        registry.register(Box::new(metrics.retries.clone()))?;
        registry.register(Box::new(metrics.hedges.clone()))?;
        registry.register(Box::new(metrics.fallbacks.clone()))?;
        registry.register(Box::new(metrics.queue_seconds.clone()))?;
        registry.register(Box::new(metrics.queued.clone()))?;
        registry.register(Box::new(metrics.ejected.clone()))?;
        registry.register(Box::new(metrics.refusals.clone()))?;
        registry.register(Box::new(metrics.model_errors.clone()))?;
        registry.register(Box::new(metrics.body_bytes.clone()))?;
        registry.register(Box::new(metrics.anonymous_access.clone()))?;
        Ok(metrics)
    }

    /// Updates the numbers of queued requests and ejected replicas.
    pub(super) fn update_gauges(&self, queued: usize, ejected: usize) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.queued.set(count(queued));
        self.ejected.set(count(ejected));
    }

    /// Returns the number of requests in progress.
    pub(super) fn outstanding(&self) -> i64 {
        self.outstanding.get()
    }

    /// Sets whether other machines can send requests without an API key.
    pub(super) fn set_anonymous_access(&self, is_anonymous: bool) {
        self.anonymous_access.set(i64::from(is_anonymous));
    }

    pub(super) fn set_body_bytes(&self, bytes: usize) {
        self.body_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Records a request rejected because the memory for request bodies is full.
    pub(super) fn record_body_rejection(&self) {
        self.refusals.with_label_values(&["NoRoom"]).inc();
    }

    /// Records the queue time of a dispatched request.
    pub(super) fn record_queue_time(&self, wait: Duration) {
        self.queue_seconds.observe(wait.as_secs_f64());
    }

    /// Records a request rejected before a replica got it.
    pub(super) fn record_refusal(&self, refusal: Refusal, access: &AccessEntry) {
        let reason = match refusal {
            Refusal::QueueFull(_) => "QueueFull",
            Refusal::TooLong(_) => "TooLong",
            Refusal::NotReady => "NotReady",
            Refusal::Expired(_) => "Expired",
        };
        self.refusals.with_label_values(&[reason]).inc();
        access.set_reason(reason);
    }

    /// Starts the measurement of a request.
    pub(super) fn start(&self, clock: &Clock, span: Option<Arc<OpenSpan>>, access: AccessEntry) -> Measure {
        self.outstanding.inc();
        Measure {
            metrics: self.clone(),
            access,
            clock: clock.clone(),
            span,
            started_at: clock.instant(),
            first_byte_seen: false,
            has_response: false,
            ended: None,
        }
    }
}

/// Measurement of one request. On drop, counts the request: as cancelled unless its response has
/// ended.
pub(super) struct Measure {
    metrics: GatewayMetrics,
    access: AccessEntry,
    clock: Clock,
    span: Option<Arc<OpenSpan>>,
    started_at: Instant,
    first_byte_seen: bool,
    /// True once a replica's response is forwarded. Its body charges the tokens.
    has_response: bool,
    ended: Option<StatusCode>,
}

impl Measure {
    /// Records that the response of a replica is forwarded.
    pub(super) fn response_started(&mut self) {
        self.has_response = true;
    }

    /// Records the end of a response with this status.
    pub(super) fn ended(&mut self, status: StatusCode) {
        self.ended = Some(status);
    }

    /// Records a response body that failed before its end.
    pub(super) fn broken_off(&mut self) {
        self.ended = Some(StatusCode::BAD_GATEWAY);
        self.access.set_reason("StreamInterrupted");
        if let Some(span) = &self.span {
            span.fail("StreamInterrupted");
        }
    }

    /// Records a failure after the response head was sent with a success status.
    pub(super) fn failed(&mut self, status: StatusCode) {
        self.ended = Some(status);
        if let Some(span) = &self.span {
            span.fail(status.as_str());
        }
    }

    /// Records the first byte of the response body.
    pub(super) fn first_byte(&mut self) {
        if !self.first_byte_seen {
            self.first_byte_seen = true;
            let after = self.elapsed();
            self.metrics.first_byte_seconds.observe(after.as_secs_f64());
            self.link(FIRST_BYTE, None, after);
            self.access.set_first_byte(after);
        }
    }

    /// Records the length of a complete response.
    pub(super) fn length(&mut self, length: Length) {
        self.access.set_length(length);
    }

    /// Charges the tokens of a complete or incomplete response to the request's API key.
    pub(super) fn charge(&self, prompt_tokens: Option<u64>, length: Length) {
        self.access.charge(prompt_tokens, length);
    }

    /// Links the bucket of an observation to the trace of the request, if there is one.
    fn link(&self, histogram: &str, label: Option<(&str, &str)>, time: Duration) {
        let trace = self.span.as_ref().and_then(|span| span.sampled_trace());
        if let Some(trace) = trace {
            let (exemplars, now) = (&self.metrics.exemplars, self.clock.now());
            exemplars.record(histogram, label, REQUEST_SECONDS, time.as_secs_f64(), trace, now);
        }
    }

    fn elapsed(&self) -> Duration {
        self.clock.instant() - self.started_at
    }
}

impl Drop for Measure {
    fn drop(&mut self) {
        if self.ended.is_none() && !self.has_response {
            self.access.charge_cancelled();
        }
        let code = match self.ended.map(|status| status.as_u16()) {
            None => CANCELLED,
            Some(100..=299) => "2xx",
            Some(300..=399) => "3xx",
            Some(400..=499) => "4xx",
            Some(_) => "5xx",
        };
        if let Some(span) = self.span.as_ref().filter(|_| self.ended.is_none()) {
            span.set(ERROR_TYPE, CANCELLED);
        }
        self.metrics.requests.with_label_values(&[code]).inc();
        let failure = match code {
            CANCELLED => Some("Cancelled"),
            "4xx" => Some("InvalidRequest"),
            "5xx" => Some("ServerError"),
            _ => None,
        };
        if let Some((namespace, model, reason)) = failure.and_then(|default| self.access.failure(default)) {
            let labels = [namespace.as_str(), model.as_str(), reason];
            self.metrics.model_errors.with_label_values(&labels).inc();
        }
        let elapsed = self.elapsed();
        let seconds = self.metrics.seconds.with_label_values(&[code]);
        seconds.observe(elapsed.as_secs_f64());
        self.link(REQUEST, Some(("code", code)), elapsed);
        self.metrics.outstanding.dec();
        self.access.write(self.ended, self.elapsed());
    }
}
