//! Spans and measurements of requests, and the context that processes propagate with a request.
//!
//! Names and attributes follow OpenTelemetry's semantic conventions for generative AI, status
//! Development (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>). No attribute contains a
//! prompt or an answer. The OpenTelemetry SDK samples, batches and exports; [`crate::otlp`]
//! configures it.

mod context;
mod value;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, StatusCode};
pub use opentelemetry::trace::SpanKind;
use opentelemetry::trace::{Span as _, SpanBuilder, Status, TraceContextExt as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

pub use self::context::{TRACEPARENT, TraceContext};
pub use self::value::Value;
use crate::meter::{Instrument, Meter};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;

pub const OPERATION: &str = "gen_ai.operation.name";
pub const PROVIDER: &str = "gen_ai.provider.name";
pub const REQUEST_MODEL: &str = "gen_ai.request.model";
pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub const ERROR_TYPE: &str = "error.type";
const TOKEN_TYPE: &str = "gen_ai.token.type";

/// Factory of request spans. The default tracer starts none. Clones share one exporter.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<Signals>>);

#[derive(Debug)]
struct Signals {
    /// `None`: no spans are exported.
    spans: Option<SdkTracer>,
    /// `None`: no measurements are exported.
    meter: Option<Meter>,
    clock: Clock,
}

impl Tracer {
    pub fn new(spans: Option<SdkTracer>, meter: Option<Meter>, clock: Clock) -> Self {
        let is_needed = spans.is_some() || meter.is_some();
        Self(is_needed.then(|| Arc::new(Signals { spans, meter, clock })))
    }

    /// Starts the span of a request with these headers. Returns `None` if the span is not sampled
    /// and no measurements are exported.
    pub fn server(&self, name: String, headers: &HeaderMap) -> Option<OpenSpan> {
        let signals = self.0.as_ref()?;
        let caller = context::extract(headers);
        let span = OpenSpan::start(signals, name, SpanKind::Server, &caller, signals.clock.instant());
        let is_recording = span.span.as_ref().is_some_and(|span| span.is_recording());
        (is_recording || signals.meter.is_some()).then_some(span)
    }
}

/// Span that ends when it is dropped.
#[derive(Debug)]
pub struct OpenSpan {
    signals: Arc<Signals>,
    /// `None`: no spans are exported.
    span: Option<Span>,
    kind: SpanKind,
    start: Instant,
    /// Wall-clock time of `start`.
    start_time: SystemTime,
    attributes: Mutex<Attributes>,
}

#[derive(Debug, Default)]
struct Attributes {
    values: Vec<(&'static str, Value)>,
    failed: bool,
}

impl Attributes {
    fn get(&self, name: &str) -> Option<&Value> {
        let mut values = self.values.iter();
        values.find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            Value::Int(_) | Value::Float(_) | Value::Texts(_) => None,
        }
    }

    /// Returns the value of an attribute. Adds the attribute with `default` if it is missing.
    fn entry(&mut self, name: &'static str, default: Value) -> &mut Value {
        let position = self.values.iter().position(|(known, _)| *known == name);
        let position = position.unwrap_or_else(|| {
            self.values.push((name, default));
            self.values.len() - 1
        });
        &mut self.values[position].1
    }
}

impl OpenSpan {
    fn start(signals: &Arc<Signals>, name: String, kind: SpanKind, parent: &Context, start: Instant) -> Self {
        let start_time = SystemTime::from(signals.clock.now());
        Self::start_at(signals, name, kind, parent, start, start_time)
    }

    fn start_at(
        signals: &Arc<Signals>,
        name: String,
        kind: SpanKind,
        parent: &Context,
        start: Instant,
        start_time: SystemTime,
    ) -> Self {
        let builder = SpanBuilder::from_name(name)
            .with_kind(kind.clone())
            .with_start_time(start_time);
        let spans = signals.spans.as_ref();
        Self {
            signals: Arc::clone(signals),
            span: spans.map(|spans| builder.start_with_context(spans, parent)),
            kind,
            start,
            start_time,
            attributes: Mutex::default(),
        }
    }

    /// Returns the context to propagate to other processes. Returns `None` if this process exports
    /// no spans; the caller's context is then propagated unchanged.
    pub fn context(&self) -> Option<TraceContext> {
        let span = self.span.as_ref()?;
        Some(TraceContext::of(span.span_context()))
    }

    /// Returns the ID of the trace, if the span is sampled, so that the trace can be found.
    pub fn sampled_trace(&self) -> Option<String> {
        let context = self.span.as_ref()?.span_context();
        context.is_sampled().then(|| context.trace_id().to_string())
    }

    fn as_parent(&self) -> Context {
        match &self.span {
            Some(span) => Context::new().with_remote_span_context(span.span_context().clone()),
            None => Context::new(),
        }
    }

    /// Starts a child span.
    pub fn child(&self, name: &str, kind: SpanKind) -> Self {
        let start = self.signals.clock.instant();
        let start_time = self.time(start);
        let parent = self.as_parent();
        Self::start_at(&self.signals, name.to_owned(), kind, &parent, start, start_time)
    }

    /// Returns the wall-clock time of `at`, computed from the span's start with the monotonic
    /// clock, so that setting the wall clock does not change durations.
    fn time(&self, at: Instant) -> SystemTime {
        let since = at.saturating_duration_since(self.start);
        let before = self.start.saturating_duration_since(at);
        self.start_time + since - before
    }

    /// Exports a child span that has already ended.
    pub fn interval(&self, name: &str, begin: Instant, end: Instant, attributes: Vec<(&'static str, Value)>) {
        let Some(spans) = &self.signals.spans else {
            return;
        };
        let attributes = attributes
            .into_iter()
            .map(|(name, value)| KeyValue::new(name, value));
        let builder = SpanBuilder::from_name(name.to_owned())
            .with_kind(SpanKind::Internal)
            .with_start_time(self.time(begin))
            .with_attributes(attributes);
        let mut span = builder.start_with_context(spans, &self.as_parent());
        span.end_with_timestamp(self.time(end));
    }

    /// Records a duration, if measurements are exported.
    pub fn measure(&self, instrument: Instrument, time: Duration) {
        self.record(&self.lock(), instrument, time.as_secs_f64(), None);
    }

    /// Records a measurement with the attributes that the conventions require of all their
    /// histograms. Requests without an operation are not measured.
    fn record(
        &self,
        attributes: &Attributes,
        instrument: Instrument,
        value: f64,
        token_type: Option<&'static str>,
    ) {
        let Some(meter) = &self.signals.meter else {
            return;
        };
        if attributes.text(OPERATION).is_none() {
            return;
        }
        let labels = [OPERATION, PROVIDER, REQUEST_MODEL, ERROR_TYPE];
        let labels = labels
            .into_iter()
            .filter_map(|name| Some(KeyValue::new(name, attributes.text(name)?.to_owned())));
        let token_type = token_type.map(|kind| KeyValue::new(TOKEN_TYPE, kind));
        let labels: Vec<KeyValue> = labels.chain(token_type).collect();
        meter.record(instrument, value, &labels);
    }

    /// Sets an attribute, or replaces its value.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        let value = value.into();
        *self.lock().entry(name, Value::Int(0)) = value;
    }

    /// Adds to an attribute that counts.
    pub fn add(&self, name: &'static str, count: usize) {
        let mut attributes = self.lock();
        if let Value::Int(sum) = attributes.entry(name, Value::Int(0)) {
            *sum = sum.saturating_add(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Appends to an attribute that is a list.
    pub fn push(&self, name: &'static str, text: &str) {
        let mut attributes = self.lock();
        if let Value::Texts(texts) = attributes.entry(name, Value::Texts(Vec::new())) {
            texts.push(text.to_owned());
        }
    }

    /// Records the HTTP status of the response. A client error does not mark the span as failed.
    pub fn answered(&self, status: StatusCode) {
        self.set("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            self.fail(status.as_str());
        } else if status.is_client_error() {
            self.set(ERROR_TYPE, status.as_str());
        }
    }

    /// Marks the span as failed with this `error.type`.
    pub fn fail(&self, error_type: &str) {
        self.set(ERROR_TYPE, error_type);
        self.lock().failed = true;
    }

    fn lock(&self) -> MutexGuard<'_, Attributes> {
        lock(&self.attributes)
    }

    fn measure_request(&self, attributes: &Attributes, duration: Duration) {
        let tokens = [(INPUT_TOKENS, "input"), (OUTPUT_TOKENS, "output")];
        if attributes.text(ERROR_TYPE).is_none() {
            for (name, token_type) in tokens {
                if let Some(Value::Int(count @ 1..)) = attributes.get(name) {
                    self.record(
                        attributes,
                        Instrument::TokenUsage,
                        *count as f64,
                        Some(token_type),
                    );
                }
            }
        }
        // Recorded last: a reader that finds the duration finds all other measurements of the
        // request.
        self.record(
            attributes,
            Instrument::RequestDuration,
            duration.as_secs_f64(),
            None,
        );
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let end = self.signals.clock.instant();
        let end_time = self.time(end);
        let attributes = std::mem::take(&mut *self.lock());
        if self.kind == SpanKind::Server {
            self.measure_request(&attributes, end.saturating_duration_since(self.start));
        }
        if let Some(span) = &mut self.span {
            if attributes.failed {
                span.set_status(Status::error(""));
            }
            let values = attributes.values.into_iter();
            span.set_attributes(values.map(|(name, value)| KeyValue::new(name, value)));
            span.end_with_timestamp(end_time);
        }
    }
}

#[cfg(test)]
mod tests;
