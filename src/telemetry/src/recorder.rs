//! Spans and measurements kept in memory, for tests.

use std::sync::{Arc, Mutex};

use opentelemetry::trace::{Status, TracerProvider as _};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
pub use opentelemetry_sdk::trace::SpanData;
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider};

use crate::meter::Meter;
use crate::trace::{Tracer, Value};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;

/// Measurements with the same attributes.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Values of the attributes, ordered by name, separated by blanks.
    pub attributes: String,
    pub count: u64,
    pub sum: f64,
}

/// Exporter that keeps all spans and measurements in memory.
#[derive(Debug, Clone)]
pub struct Recorder {
    span_exporter: InMemorySpanExporter,
    /// Number of ended spans that [`Self::take_spans`] has returned.
    taken_spans: Arc<Mutex<usize>>,
    spans: SdkTracerProvider,
    metric_exporter: InMemoryMetricExporter,
    metrics: SdkMeterProvider,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
    }
}

impl Recorder {
    /// Creates a recorder that samples only requests whose caller samples.
    pub fn of_sampled_callers() -> Self {
        Self::new(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)))
    }

    pub(crate) fn new(sampler: Sampler) -> Self {
        let span_exporter = InMemorySpanExporter::default();
        let spans = SdkTracerProvider::builder()
            .with_simple_exporter(span_exporter.clone())
            .with_sampler(sampler);
        let metric_exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(metric_exporter.clone()).build();
        Self {
            span_exporter,
            taken_spans: Arc::default(),
            spans: spans.build(),
            metric_exporter,
            metrics: SdkMeterProvider::builder().with_reader(reader).build(),
        }
    }

    /// Returns a tracer that records spans and measurements.
    pub fn tracer(&self, clock: Clock) -> Tracer {
        let spans = self.spans.tracer("rooflet");
        Tracer::new(Some(spans), Some(Meter::new(&self.metrics)), clock)
    }

    /// Returns a tracer that records measurements only.
    pub fn measuring_tracer(&self, clock: Clock) -> Tracer {
        Tracer::new(None, Some(Meter::new(&self.metrics)), clock)
    }

    /// Returns the spans that have ended since the last call.
    pub fn take_spans(&self) -> Vec<SpanData> {
        let mut taken = lock(&self.taken_spans);
        // The exporter cannot return and remove its spans in one step.
        let mut spans = self
            .span_exporter
            .get_finished_spans()
            .expect("it is not shut down");
        let new = spans.split_off(*taken);
        *taken += new.len();
        new
    }

    /// Returns all measurements of an instrument, ordered by attributes.
    pub fn measured(&self, name: &str) -> Vec<Measured> {
        self.metric_exporter.reset();
        self.metrics.force_flush().expect("it is not shut down");
        let exports = self
            .metric_exporter
            .get_finished_metrics()
            .expect("it is not shut down");
        let metrics = exports.iter().flat_map(|export| export.scope_metrics());
        let metrics = metrics.flat_map(|scope| scope.metrics());
        let mut measured = Vec::new();
        for metric in metrics.filter(|metric| metric.name() == name) {
            let AggregatedMetrics::F64(MetricData::Histogram(histogram)) = metric.data() else {
                panic!("{name} is not a histogram");
            };
            for point in histogram.data_points() {
                let mut attributes: Vec<_> = point.attributes().collect();
                attributes.sort_by_key(|attribute| attribute.key.clone());
                let values = attributes.iter().map(|attribute| attribute.value.to_string());
                measured.push(Measured {
                    attributes: values.collect::<Vec<_>>().join(" "),
                    count: point.count(),
                    sum: point.sum(),
                });
            }
        }
        measured.sort_by(|a, b| a.attributes.cmp(&b.attributes));
        measured
    }
}

/// Returns a count that is an attribute; `None` if the attribute is missing or not a number.
pub fn count(span: &SpanData, name: &str) -> Option<i64> {
    let opentelemetry::Value::I64(count) = attribute(span, name)? else {
        return None;
    };
    Some(count)
}

/// Returns an attribute's value.
pub fn attribute(span: &SpanData, name: &str) -> Option<opentelemetry::Value> {
    let mut attributes = span.attributes.iter();
    let found = attributes.find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.clone())
}

/// Returns true if the span is marked as failed.
pub fn failed(span: &SpanData) -> bool {
    matches!(span.status, Status::Error { .. })
}

/// Returns a value in the exporter's form.
pub fn value(value: impl Into<Value>) -> opentelemetry::Value {
    value.into().into()
}
