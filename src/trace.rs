//! Spans: what a request went through and when, for whoever collects them, and the context that goes from process to
//! process with it (W3C Trace Context). Names and attributes are those of OpenTelemetry's conventions for GenAI, status
//! Development (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>). Prompts and answers are in none of them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::sync::mpsc;

use crate::clock::Clock;

/// Of W3C Trace Context, level 1.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A trace's id, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceId(u128);

/// A span's id, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanId(u64);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Where a span is: what its children and other processes are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
    is_sampled: bool,
}

impl TraceContext {
    /// From `traceparent`; later versions begin as this one does. `None` where it is none: then a trace begins here.
    fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let mut hexadecimal = |digits: usize| {
            let part = parts.next()?;
            let is_hexadecimal = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            (part.len() == digits && is_hexadecimal).then_some(part)
        };
        let version = hexadecimal(2)?;
        let trace = u128::from_str_radix(hexadecimal(32)?, 16).ok()?;
        let span = u64::from_str_radix(hexadecimal(16)?, 16).ok()?;
        let flags = u8::from_str_radix(hexadecimal(2)?, 16).ok()?;
        let has_more = parts.next().is_some();
        if version == "ff" || (version == "00" && has_more) || trace == 0 || span == 0 {
            return None;
        }
        Some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            is_sampled: flags & 1 == 1,
        })
    }

    fn of(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let only = all.next().filter(|_| all.next().is_none())?;
        Self::parse(only.to_str().ok()?)
    }

    /// As `traceparent`.
    pub(crate) fn to_header(self) -> HeaderValue {
        let text = format!(
            "00-{}-{}-{:02x}",
            self.trace,
            self.span,
            u8::from(self.is_sampled)
        );
        HeaderValue::from_str(&text).expect("digits and dashes")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanKind {
    Internal,
    Server,
    Client,
}

/// An attribute's value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
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

/// A span that is over.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Span {
    pub(crate) context: TraceContext,
    pub(crate) parent: Option<SpanId>,
    pub(crate) name: String,
    pub(crate) kind: SpanKind,
    /// Unix time.
    pub(crate) begin_nanos: i128,
    pub(crate) end_nanos: i128,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) failed: bool,
}

/// Which requests get spans.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler {
    /// Of traces that begin here, and of all where the caller is not asked.
    pub(crate) share: f64,
    /// Whether the caller decides where there is one.
    pub(crate) asks_caller: bool,
}

impl Sampler {
    fn takes(self, caller: Option<TraceContext>, trace: TraceId) -> bool {
        match caller.filter(|_| self.asks_caller) {
            Some(caller) => caller.is_sampled,
            // As OpenTelemetry's TraceIdRatioBased: the same for all who see the trace.
            None => ((trace.0 as u64) >> 11) as f64 / (1_u64 << 53) as f64 <= self.share && self.share > 0.0,
        }
    }
}

/// Begins spans; where nothing collects them, it begins none. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tracer(Option<Arc<Collecting>>);

#[derive(Debug)]
struct Collecting {
    /// Bounded: a collector that is slow or away costs spans, never requests.
    spans: mpsc::Sender<Span>,
    /// Spans for which there was no room.
    lost: Arc<AtomicU64>,
    sampler: Sampler,
    clock: Clock,
}

impl Collecting {
    fn send(&self, span: Span) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.spans.try_send(span) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Tracer {
    /// `lost` counts the spans for which `spans` has no room.
    #[cfg(any(feature = "otlp", test))]
    pub(crate) fn new(
        spans: mpsc::Sender<Span>,
        lost: Arc<AtomicU64>,
        sampler: Sampler,
        clock: Clock,
    ) -> Self {
        Self(Some(Arc::new(Collecting {
            spans,
            lost,
            sampler,
            clock,
        })))
    }

    /// A request that has come with these headers.
    pub(crate) fn server(&self, name: String, headers: &HeaderMap) -> Option<OpenSpan> {
        let collecting = self.0.as_ref()?;
        let caller = TraceContext::of(headers);
        let trace = caller.map_or_else(|| TraceId(random_id()), |caller| caller.trace);
        if !collecting.sampler.takes(caller, trace) {
            return None;
        }
        let parent = caller.map(|caller| caller.span);
        Some(OpenSpan::new(collecting, trace, parent, name, SpanKind::Server))
    }
}

/// A span that goes on until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenSpan {
    collecting: Arc<Collecting>,
    context: TraceContext,
    span: Mutex<Span>,
}

impl OpenSpan {
    fn new(
        collecting: &Arc<Collecting>,
        trace: TraceId,
        parent: Option<SpanId>,
        name: String,
        kind: SpanKind,
    ) -> Self {
        let begin_nanos = collecting.clock.now().as_nanosecond();
        let context = TraceContext {
            trace,
            span: SpanId(random_id() as u64 | 1),
            is_sampled: true,
        };
        Self {
            collecting: Arc::clone(collecting),
            context,
            span: Mutex::new(Span {
                context,
                parent,
                name,
                kind,
                begin_nanos,
                end_nanos: begin_nanos,
                attributes: Vec::new(),
                failed: false,
            }),
        }
    }

    pub(crate) fn context(&self) -> TraceContext {
        self.context
    }

    pub(crate) fn child(&self, name: &str, kind: SpanKind) -> Self {
        let TraceContext { trace, span, .. } = self.context;
        Self::new(&self.collecting, trace, Some(span), name.to_owned(), kind)
    }

    /// A child that is over.
    pub(crate) fn interval(
        &self,
        name: &str,
        begin: Instant,
        end: Instant,
        attributes: Vec<(&'static str, Value)>,
    ) {
        let clock = &self.collecting.clock;
        let (now, now_nanos) = (clock.instant(), clock.now().as_nanosecond());
        let nanos = |at: Instant| now_nanos - now.saturating_duration_since(at).as_nanos() as i128;
        self.collecting.send(Span {
            context: TraceContext {
                span: SpanId(random_id() as u64 | 1),
                ..self.context
            },
            parent: Some(self.context.span),
            name: name.to_owned(),
            kind: SpanKind::Internal,
            begin_nanos: nanos(begin),
            end_nanos: nanos(end),
            attributes,
            failed: false,
        });
    }

    /// Sets an attribute, or replaces it.
    pub(crate) fn set(&self, name: &'static str, value: impl Into<Value>) {
        let mut span = self.lock();
        let value = value.into();
        match span.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => span.attributes.push((name, value)),
        }
    }

    /// Adds to an attribute that counts.
    pub(crate) fn add(&self, name: &'static str, count: usize) {
        let mut span = self.lock();
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match span.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, Value::Int(known))) => *known = known.saturating_add(count),
            Some(_) | None => span.attributes.push((name, Value::Int(count))),
        }
    }

    /// Adds to an attribute that lists.
    pub(crate) fn push(&self, name: &'static str, text: &str) {
        let mut span = self.lock();
        match span.attributes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, Value::Texts(known))) => known.push(text.to_owned()),
            Some(_) | None => span.attributes.push((name, Value::Texts(vec![text.to_owned()]))),
        }
    }

    /// Says what a client was answered. A wrong request is no failure of who answers it.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.set("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            self.fail(status.as_str());
        } else if status.is_client_error() {
            self.set("error.type", status.as_str());
        }
    }

    /// Says that it failed, and of which kind the error is.
    pub(crate) fn fail(&self, error_type: &str) {
        self.set("error.type", error_type);
        self.lock().failed = true;
    }

    fn lock(&self) -> MutexGuard<'_, Span> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let mut span = self.lock().clone();
        span.end_nanos = self.collecting.clock.now().as_nanosecond();
        self.collecting.send(span);
    }
}

fn random_id() -> u128 {
    // 1 of 2^128 is 0, which is no id.
    rand::random::<u128>().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The examples of W3C Trace Context, sections 3.2.2 and 4.
    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(parent).unwrap();
        assert_eq!(context.to_header(), parent);
        let unsampled = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
        assert!(!unsampled.unwrap().is_sampled);
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-will-be-like";
        assert_eq!(TraceContext::parse(later), Some(context));
        for none in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::parse(none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn no_header_breaks_it(header in ".{0,80}") {
            if let Some(context) = TraceContext::parse(&header) {
                let again = TraceContext::parse(context.to_header().to_str().unwrap());
                prop_assert_eq!(again, Some(context));
            }
        }
    }

    fn tracer(room: usize, sampler: Sampler) -> (Tracer, mpsc::Receiver<Span>) {
        let (spans_tx, spans_rx) = mpsc::channel(room);
        (
            Tracer::new(spans_tx, Arc::default(), sampler, Clock::System),
            spans_rx,
        )
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
