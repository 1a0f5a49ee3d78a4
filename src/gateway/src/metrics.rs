//! What the gateway counts. Never a model's name, a path or anything else that a client chose.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;

use super::state::Refusal;
use rooflet_base::clock::Clock;
use rooflet_base::metrics::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, REQUEST_SECONDS,
    Registry, Result,
};
use rooflet_telemetry::trace::{ERROR_TYPE, OpenSpan};

/// What became of a request whose client left before its answer had ended.
const CANCELLED: &str = "cancelled";

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
    left_out: IntGauge,
    refusals: IntCounterVec,
    body_bytes: IntGauge,
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
                    "Requests for a model that are over, by class of status; cancelled: their clients left before the end.",
                ),
                &["code"],
            )?,
            seconds: HistogramVec::new(
                options(
                    "rooflet_gateway_request_seconds",
                    "Time from a request to the end of its answer, or until its client left (cancelled).",
                ),
                &["code"],
            )?,
            first_byte_seconds: histogram(
                "rooflet_gateway_time_to_first_byte_seconds",
                "Time from a request to the first byte of its answer's body: the first token, for a stream.",
            )?,
            outstanding: IntGauge::new(
                "rooflet_gateway_outstanding_requests",
                "Requests that are being answered.",
            )?,
            retries: IntCounter::new(
                "rooflet_gateway_retries_total",
                "Requests sent to another replica because the first one could not take them.",
            )?,
            hedges: IntCounter::new(
                "rooflet_gateway_hedges_total",
                "Requests sent to a second replica because the first one took long.",
            )?,
            fallbacks: IntCounter::new(
                "rooflet_gateway_fallbacks_total",
                "Requests answered by another model because the one asked for could not.",
            )?,
            queue_seconds: histogram(
                "rooflet_gateway_queue_seconds",
                "Time from a request to its turn at a replica.",
            )?,
            queued: IntGauge::new(
                "rooflet_gateway_queued_requests",
                "Requests that wait for a replica.",
            )?,
            left_out: IntGauge::new(
                "rooflet_gateway_left_out_replicas",
                "Replicas that get no requests for a while because they failed.",
            )?,
            refusals: IntCounterVec::new(
                Opts::new(
                    "rooflet_gateway_refusals_total",
                    "Requests refused before a replica saw them.",
                ),
                &["reason"],
            )?,
            body_bytes: IntGauge::new(
                "rooflet_gateway_request_body_bytes",
                "Bodies of requests that are kept until their answers begin.",
            )?,
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
        registry.register(Box::new(metrics.left_out.clone()))?;
        registry.register(Box::new(metrics.refusals.clone()))?;
        registry.register(Box::new(metrics.body_bytes.clone()))?;
        Ok(metrics)
    }

    pub(super) fn show(&self, queued: usize, left_out: usize) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.queued.set(count(queued));
        self.left_out.set(count(left_out));
    }

    pub(super) fn show_bodies(&self, bytes: usize) {
        self.body_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// There was no room for a request's body.
    pub(super) fn refused_for_room(&self) {
        self.refusals.with_label_values(&["NoRoom"]).inc();
    }

    /// A request had its turn after so long.
    pub(super) fn waited(&self, wait: Duration) {
        self.queue_seconds.observe(wait.as_secs_f64());
    }

    pub(super) fn refused(&self, refusal: Refusal) {
        let reason = match refusal {
            Refusal::QueueFull(_) => "QueueFull",
            Refusal::TooLong(_) => "TooLong",
            Refusal::NotReady => "NotReady",
            Refusal::Expired(_) => "Expired",
        };
        self.refusals.with_label_values(&[reason]).inc();
    }

    /// Begins to measure one request.
    pub(super) fn begin(&self, clock: &Clock, span: Option<Arc<OpenSpan>>) -> Measure {
        self.outstanding.inc();
        Measure {
            metrics: self.clone(),
            clock: clock.clone(),
            span,
            began: clock.instant(),
            first_byte_seen: false,
            ended: None,
        }
    }
}

/// One request, counted when this is dropped: as cancelled, unless its answer has ended by then.
pub(super) struct Measure {
    metrics: GatewayMetrics,
    clock: Clock,
    span: Option<Arc<OpenSpan>>,
    began: Instant,
    first_byte_seen: bool,
    ended: Option<StatusCode>,
}

impl Measure {
    /// The answer, with this status, has come to its end.
    pub(super) fn ended(&mut self, status: StatusCode) {
        self.ended = Some(status);
    }

    /// The answer broke off: whoever gave it has failed.
    pub(super) fn broke_off(&mut self) {
        self.ended = Some(StatusCode::BAD_GATEWAY);
        if let Some(span) = &self.span {
            span.fail("BrokenOff");
        }
    }

    /// The answer has failed after its head told another status.
    pub(super) fn failed(&mut self, status: StatusCode) {
        self.ended = Some(status);
        if let Some(span) = &self.span {
            span.fail(status.as_str());
        }
    }

    pub(super) fn first_byte(&mut self) {
        if !self.first_byte_seen {
            self.first_byte_seen = true;
            self.metrics.first_byte_seconds.observe(self.seconds());
        }
    }

    fn seconds(&self) -> f64 {
        (self.clock.instant() - self.began).as_secs_f64()
    }
}

impl Drop for Measure {
    fn drop(&mut self) {
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
        self.metrics
            .seconds
            .with_label_values(&[code])
            .observe(self.seconds());
        self.metrics.outstanding.dec();
    }
}
