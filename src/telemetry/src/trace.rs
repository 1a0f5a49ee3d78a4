//! Spans: what a request went through and when, for whoever collects them, and the context that goes from process to
//! process with it (W3C Trace Context). Names and attributes are those of OpenTelemetry's conventions for GenAI, status
//! Development (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>). Prompts and answers are in none of them. What a
//! [`Meter`] is told of requests follows from their spans, sampled or not.

mod context;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode};
use tokio::sync::mpsc;

pub use self::context::{SpanId, TRACEPARENT, TraceContext, TraceId};
use crate::meter::{Attributes, Instrument, Meter};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;

/// Attributes that measurements read.
pub const OPERATION: &str = "gen_ai.operation.name";
pub const PROVIDER: &str = "gen_ai.provider.name";
pub const REQUEST_MODEL: &str = "gen_ai.request.model";
pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub const ERROR_TYPE: &str = "error.type";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    Server,
    Client,
}

/// An attribute's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(String),
    Int(i64),
    Float(f64),
    Texts(Vec<String>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Int(number.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

/// As it was written: 0.9 stays 0.9.
impl From<f32> for Value {
    fn from(number: f32) -> Self {
        Self::Float(number.to_string().parse().unwrap_or(f64::from(number)))
    }
}

/// A span that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub context: TraceContext,
    pub parent: Option<SpanId>,
    pub name: String,
    pub kind: SpanKind,
    /// Unix time.
    pub begin_nanos: i128,
    pub end_nanos: i128,
    pub attributes: Vec<(&'static str, Value)>,
    pub failed: bool,
}

impl Span {
    fn attribute(&self, name: &str) -> Option<&Value> {
        let mut all = self.attributes.iter();
        all.find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            Value::Text(text) => Some(text),
            Value::Int(_) | Value::Float(_) | Value::Texts(_) => None,
        }
    }
}

/// Which requests get spans.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Of traces that begin here, and of all where the caller is not asked.
    pub share: f64,
    /// Whether the caller decides where there is one.
    pub asks_caller: bool,
}

impl Sampler {
    fn takes(self, caller: Option<TraceContext>, trace: TraceId) -> bool {
        match caller.filter(|_| self.asks_caller) {
            Some(caller) => caller.is_sampled,
            // As OpenTelemetry's TraceIdRatioBased: the same for all who see the trace.
            None => (trace.low_bits() >> 11) as f64 / (1_u64 << 53) as f64 <= self.share && self.share > 0.0,
        }
    }
}

/// Spans on their way to a collector.
#[derive(Debug)]
pub struct SpanQueue {
    /// Bounded: a collector that is slow or away costs spans, never requests.
    pub spans_tx: mpsc::Sender<Span>,
    /// Spans for which there was no room.
    pub lost: Arc<AtomicU64>,
    pub sampler: Sampler,
}

/// Begins spans; where nothing collects or measures them, it begins none. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<Collecting>>);

#[derive(Debug)]
struct Collecting {
    spans: Option<SpanQueue>,
    meter: Option<Meter>,
    clock: Clock,
}

impl Collecting {
    fn send(&self, span: Span) {
        let Some(queue) = self.spans.as_ref().filter(|_| span.context.is_sampled) else {
            return;
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = queue.spans_tx.try_send(span) {
            queue.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Measures under the attributes that the conventions give all their histograms. A request that asks no model
    /// anything names no operation, and has none.
    fn measure(&self, instrument: Instrument, value: f64, span: &Span, kind: Option<&'static str>) {
        let Some(meter) = self.meter.as_ref().filter(|_| span.text(OPERATION).is_some()) else {
            return;
        };
        let labels = [OPERATION, PROVIDER, REQUEST_MODEL, ERROR_TYPE];
        let mut attributes: Attributes = labels
            .into_iter()
            .filter_map(|name| Some((name, span.text(name)?.to_owned())))
            .collect();
        attributes.extend(kind.map(|kind| ("gen_ai.token.type", kind.to_owned())));
        meter.record(instrument, value, attributes);
    }

    fn measure_request(&self, span: &Span, duration: Duration) {
        let tokens = [(INPUT_TOKENS, "input"), (OUTPUT_TOKENS, "output")];
        for (name, kind) in tokens.into_iter().filter(|_| span.text(ERROR_TYPE).is_none()) {
            if let Some(Value::Int(tokens @ 1..)) = span.attribute(name) {
                self.measure(Instrument::TokenUsage, *tokens as f64, span, Some(kind));
            }
        }
        // Last: who sees that a request is counted finds all else of it.
        self.measure(Instrument::RequestDuration, duration.as_secs_f64(), span, None);
    }
}

impl Tracer {
    pub fn new(spans: Option<SpanQueue>, meter: Option<Meter>, clock: Clock) -> Self {
        let is_wanted = spans.is_some() || meter.is_some();
        Self(is_wanted.then(|| Arc::new(Collecting { spans, meter, clock })))
    }

    /// A request that has come with these headers.
    pub fn server(&self, name: String, headers: &HeaderMap) -> Option<OpenSpan> {
        let collecting = self.0.as_ref()?;
        let caller = TraceContext::of(headers);
        let trace = caller.map_or_else(TraceId::random, |caller| caller.trace);
        let spans = collecting.spans.as_ref();
        let is_sampled = spans.is_some_and(|queue| queue.sampler.takes(caller, trace));
        if !is_sampled && collecting.meter.is_none() {
            return None;
        }
        let context = TraceContext {
            trace,
            span: SpanId::random(),
            is_sampled,
        };
        let began = collecting.clock.instant();
        let begin_nanos = collecting.clock.now().as_nanosecond();
        Some(OpenSpan {
            collecting: Arc::clone(collecting),
            context,
            began,
            begin_nanos,
            span: Mutex::new(Span {
                context,
                parent: caller.map(|caller| caller.span),
                name,
                kind: SpanKind::Server,
                begin_nanos,
                end_nanos: begin_nanos,
                attributes: Vec::new(),
                failed: false,
            }),
        })
    }
}

/// A span that goes on until it is dropped.
#[derive(Debug)]
pub struct OpenSpan {
    collecting: Arc<Collecting>,
    context: TraceContext,
    began: Instant,
    begin_nanos: i128,
    span: Mutex<Span>,
}

impl OpenSpan {
    /// What others are told of it. `None` where nobody collects spans here: then the caller's own context goes on.
    pub fn context(&self) -> Option<TraceContext> {
        self.collecting.spans.is_some().then_some(self.context)
    }

    pub fn child(&self, name: &str, kind: SpanKind) -> Self {
        let context = self.context.child();
        let began = self.collecting.clock.instant();
        let begin_nanos = self.nanos(began);
        Self {
            collecting: Arc::clone(&self.collecting),
            context,
            began,
            begin_nanos,
            span: Mutex::new(Span {
                context,
                parent: Some(self.context.span),
                name: name.to_owned(),
                kind,
                begin_nanos,
                end_nanos: begin_nanos,
                attributes: Vec::new(),
                failed: false,
            }),
        }
    }

    /// Unix time by the monotonic clock since the beginning: a wall clock that is set meanwhile bends no span.
    fn nanos(&self, at: Instant) -> i128 {
        let since = at.saturating_duration_since(self.began).as_nanos();
        let before = self.began.saturating_duration_since(at).as_nanos();
        self.begin_nanos + since as i128 - before as i128
    }

    /// A child that is over.
    pub fn interval(&self, name: &str, begin: Instant, end: Instant, attributes: Vec<(&'static str, Value)>) {
        self.collecting.send(Span {
            context: self.context.child(),
            parent: Some(self.context.span),
            name: name.to_owned(),
            kind: SpanKind::Internal,
            begin_nanos: self.nanos(begin),
            end_nanos: self.nanos(end),
            attributes,
            failed: false,
        });
    }

    /// Tells the meter, if there is one.
    pub fn measure(&self, instrument: Instrument, time: Duration) {
        let seconds = time.as_secs_f64();
        self.collecting.measure(instrument, seconds, &self.lock(), None);
    }

    /// Sets an attribute, or replaces it.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        let mut span = self.lock();
        let value = value.into();
        match span.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => span.attributes.push((name, value)),
        }
    }

    /// Adds to an attribute that counts.
    pub fn add(&self, name: &'static str, count: usize) {
        let mut span = self.lock();
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match span.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, Value::Int(known))) => *known = known.saturating_add(count),
            Some(_) | None => span.attributes.push((name, Value::Int(count))),
        }
    }

    /// Adds to an attribute that lists.
    pub fn push(&self, name: &'static str, text: &str) {
        let mut span = self.lock();
        match span.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, Value::Texts(known))) => known.push(text.to_owned()),
            Some(_) | None => span.attributes.push((name, Value::Texts(vec![text.to_owned()]))),
        }
    }

    /// Says what a client was answered. A wrong request is no failure of who answers it.
    pub fn answered(&self, status: StatusCode) {
        self.set("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            self.fail(status.as_str());
        } else if status.is_client_error() {
            self.set(ERROR_TYPE, status.as_str());
        }
    }

    /// Says that it failed, and of which kind the error is.
    pub fn fail(&self, error_type: &str) {
        self.set(ERROR_TYPE, error_type);
        self.lock().failed = true;
    }

    fn lock(&self) -> MutexGuard<'_, Span> {
        lock(&self.span)
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let mut span = self.lock().clone();
        let now = self.collecting.clock.instant();
        span.end_nanos = self.nanos(now);
        if span.kind == SpanKind::Server {
            let duration = now.saturating_duration_since(self.began);
            self.collecting.measure_request(&span, duration);
        }
        self.collecting.send(span);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use rooflet_base::clock::ManualClock;

    fn tracer(room: usize, sampler: Sampler) -> (Tracer, mpsc::Receiver<Span>) {
        let (spans_tx, spans_rx) = mpsc::channel(room);
        let queue = SpanQueue {
            spans_tx,
            lost: Arc::default(),
            sampler,
        };
        (Tracer::new(Some(queue), None, Clock::System), spans_rx)
    }

    fn headers(flags: &str) -> HeaderMap {
        let text = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        HeaderMap::from_iter([(TRACEPARENT, HeaderValue::from_str(&text).unwrap())])
    }

    #[test]
    fn the_caller_decides_where_it_is_asked() {
        let takes = |share, asks_caller, headers: &HeaderMap| {
            let (tracer, _spans) = tracer(9, Sampler { share, asks_caller });
            tracer.server("chat".to_owned(), headers).is_some()
        };
        let none = HeaderMap::new();
        assert!(takes(1.0, true, &none) && !takes(0.0, true, &none));
        assert!(takes(0.0, true, &headers("01")) && !takes(1.0, true, &headers("00")));
        assert!(!takes(0.0, false, &headers("01")) && takes(1.0, false, &headers("00")));
        assert!(Tracer::default().server("chat".to_owned(), &none).is_none());
    }

    /// One of each instrument's measurements, by the conventions' attributes.
    #[test]
    fn requests_are_measured_whether_their_spans_are_taken_or_not() {
        let meter = Meter::default();
        let (spans_tx, mut spans_rx) = mpsc::channel(9);
        let queue = SpanQueue {
            spans_tx,
            lost: Arc::default(),
            sampler: Sampler {
                share: 0.0,
                asks_caller: false,
            },
        };
        let clock = ManualClock::new(Clock::System.now());
        let tracer = Tracer::new(Some(queue), Some(meter.clone()), Clock::Manual(clock.clone()));
        let ask = |operation: Option<&str>, error: Option<&str>| {
            let span = tracer.server("chat".to_owned(), &headers("01")).unwrap();
            assert_eq!(
                span.context()
                    .unwrap()
                    .to_header()
                    .to_str()
                    .unwrap()
                    .split('-')
                    .next_back(),
                Some("00")
            );
            operation
                .into_iter()
                .for_each(|operation| span.set(OPERATION, operation));
            span.set(REQUEST_MODEL, "tiny");
            span.set(INPUT_TOKENS, 5_usize);
            span.add(OUTPUT_TOKENS, 3);
            span.add(OUTPUT_TOKENS, 4);
            drop(span.child("attempt", SpanKind::Client));
            clock.advance(Duration::from_millis(30));
            match error {
                Some(error) => span.set(ERROR_TYPE, error),
                None => span.measure(Instrument::TimeToFirstToken, Duration::from_millis(7)),
            }
        };
        ask(Some("chat"), None);
        ask(Some("chat"), Some("cancelled"));
        ask(None, None);
        assert!(spans_rx.try_recv().is_err(), "none is taken");
        let of = |more: &[(&'static str, &str)]| -> Attributes {
            let all = [(OPERATION, "chat"), (REQUEST_MODEL, "tiny")];
            let all = all.iter().chain(more);
            all.map(|(name, value)| (*name, (*value).to_owned())).collect()
        };
        let measured = meter.measured();
        let sums: Vec<_> = measured
            .iter()
            .flat_map(|(instrument, histograms)| histograms.iter().map(move |of| (*instrument, of)))
            .map(|(instrument, (attributes, histogram))| (instrument, attributes.clone(), histogram.sum))
            .collect();
        assert_eq!(
            sums,
            [
                (Instrument::RequestDuration, of(&[]), 0.03),
                (
                    Instrument::RequestDuration,
                    of(&[(ERROR_TYPE, "cancelled")]),
                    0.03
                ),
                (Instrument::TimeToFirstToken, of(&[]), 0.007),
                (Instrument::TokenUsage, of(&[("gen_ai.token.type", "input")]), 5.0),
                (
                    Instrument::TokenUsage,
                    of(&[("gen_ai.token.type", "output")]),
                    7.0
                ),
            ]
        );
    }

    #[test]
    fn who_only_measures_leaves_the_context_to_others() {
        let tracer = Tracer::new(None, Some(Meter::default()), Clock::System);
        let span = tracer.server("chat".to_owned(), &headers("01")).unwrap();
        assert_eq!(span.context(), None);
        assert_eq!(span.child("POST", SpanKind::Client).context(), None);
    }

    #[test]
    fn a_clock_that_is_set_bends_no_span() {
        let (spans_tx, mut spans_rx) = mpsc::channel(9);
        let queue = SpanQueue {
            spans_tx,
            lost: Arc::default(),
            sampler: Sampler {
                share: 1.0,
                asks_caller: true,
            },
        };
        let clock = ManualClock::new(Clock::System.now());
        let tracer = Tracer::new(Some(queue), None, Clock::Manual(clock.clone()));
        let root = tracer.server("chat".to_owned(), &headers("01")).unwrap();
        let begun = Clock::Manual(clock.clone()).instant();
        clock.sleep(Duration::from_secs(3600));
        let child = root.child("attempt", SpanKind::Client);
        clock.advance(Duration::from_millis(30));
        root.interval("queue", begun, Clock::Manual(clock).instant(), vec![]);
        drop(child);
        drop(root);
        let mut all = std::iter::from_fn(|| spans_rx.try_recv().ok());
        let spans: [Span; 3] = std::array::from_fn(|_| all.next().unwrap());
        for span in &spans {
            assert_eq!(span.begin_nanos, spans[2].begin_nanos, "{}", span.name);
            assert_eq!(span.end_nanos - span.begin_nanos, 30_000_000, "{}", span.name);
        }
    }

    #[test]
    fn a_number_is_told_as_it_was_written() {
        assert_eq!(Value::from(0.9_f32), Value::Float(0.9));
    }

    #[test]
    fn a_collector_that_is_away_holds_up_nothing() {
        let sampler = Sampler {
            share: 1.0,
            asks_caller: true,
        };
        let (tracer, mut spans) = tracer(1, sampler);
        let root = tracer.server("chat".to_owned(), &headers("01")).unwrap();
        let now = Clock::System.instant();
        root.interval("queue", now, now, vec![]);
        root.interval("prefill", now, now, vec![]);
        drop(root);
        let queue = spans.try_recv().unwrap();
        assert_eq!((queue.name.as_str(), queue.kind), ("queue", SpanKind::Internal));
        assert!(spans.try_recv().is_err(), "there was room for one");
    }
}
