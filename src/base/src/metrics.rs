//! Prometheus metrics. Only this module depends on the metrics crate. Each service registers a
//! struct of its metrics.

mod computed;
mod exemplars;

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::proto::MetricType;

pub use computed::{ComputedGauge, ComputedSample};
pub use exemplars::{Exemplars, exposition};
pub use prometheus::{
    Error, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Result,
};

/// Types with float values. Only the worker uses them, for seconds and ratios.
pub use prometheus::{Counter, CounterVec, Gauge};

/// Content type of the text exposition format.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4";

/// Histogram buckets for control plane operations, in seconds.
pub const LATENCY_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Histogram buckets for model requests, in seconds: the buckets of OpenTelemetry's
/// `gen_ai.server.request.duration` (0.01 · 2ⁿ), with shorter ones for the time between tokens and
/// longer ones for slow local models.
pub const REQUEST_SECONDS: &[f64] = &[
    0.000_625, 0.001_25, 0.002_5, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24,
    20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
];

/// Histogram buckets for batch sizes.
pub const BATCH_ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// Description of a registered metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Names of the variable labels, then of the constant ones.
    pub labels: Vec<String>,
    pub help: String,
}

/// Set of metrics that one process exposes. Clones share the set.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    inner: prometheus::Registry,
    descriptions: Arc<Mutex<Vec<Description>>>,
    exemplars: Exemplars,
}

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the metrics of `collector`. Returns an error if one of their names is already
    /// registered.
    pub fn register(&self, collector: Box<dyn Collector>) -> Result<()> {
        let described = describe(&*collector);
        self.inner.register(collector)?;
        let mut all = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(described);
        Ok(())
    }

    /// Returns the links to traces, which [`exposition`] shows.
    pub fn exemplars(&self) -> Exemplars {
        self.exemplars.clone()
    }

    /// Returns the descriptions of all metrics in the order of their registration.
    pub fn descriptions(&self) -> Vec<Description> {
        let all = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
        all.clone()
    }
}

/// Returns the descriptions of the metrics of a collector. A metric with variable labels has a type
/// even before its first use, when it has no samples.
fn describe(collector: &dyn Collector) -> Vec<Description> {
    let families = collector.collect();
    let described = collector.desc().into_iter().zip(&families);
    let described = described.map(|(desc, family)| Description {
        name: desc.fq_name.clone(),
        kind: match family.get_field_type() {
            MetricType::COUNTER => "counter",
            MetricType::GAUGE => "gauge",
            MetricType::HISTOGRAM => "histogram",
            MetricType::SUMMARY => "summary",
            MetricType::UNTYPED => "untyped",
        },
        labels: {
            let constant = desc.const_label_pairs.iter().map(|pair| pair.name().to_owned());
            desc.variable_labels.iter().cloned().chain(constant).collect()
        },
        help: desc.help.clone(),
    });
    described.collect()
}

/// Returns all metrics of `registry` in Prometheus text format.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a `String` fails only for a metric without a name or samples, which `register`
    // rejects.
    let outcome = prometheus::TextEncoder::new().encode_utf8(&registry.inner.gather(), &mut text);
    debug_assert!(outcome.is_ok(), "{outcome:?}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_registered_counter() {
        let registry = Registry::new();
        let counter = IntCounter::new("rooflet_test_total", "A test.").expect("a valid name");
        registry
            .register(Box::new(counter.clone()))
            .expect("not yet registered");
        counter.inc();
        assert!(render(&registry).contains("rooflet_test_total 1\n"));
    }

    #[test]
    fn describes_a_metric_without_samples() {
        let registry = Registry::new();
        let options = Opts::new("rooflet_test_total", "A test.").const_label("model", "m");
        let counter = IntCounterVec::new(options, &["code"]).expect("a valid name");
        registry.register(Box::new(counter)).expect("not yet registered");
        assert!(!render(&registry).contains("rooflet_test_total"));
        assert_eq!(
            registry.descriptions(),
            [Description {
                name: "rooflet_test_total".to_owned(),
                kind: "counter",
                labels: vec!["code".to_owned(), "model".to_owned()],
                help: "A test.".to_owned(),
            }]
        );
    }
}
