//! Gauges whose samples are computed at each scrape.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts, Result};

use super::Registry;

/// Gauge with labels.
#[derive(Debug)]
pub struct ComputedGauge {
    pub name: &'static str,
    pub help: &'static str,
    pub labels: &'static [&'static str],
}

impl ComputedGauge {
    fn empty(&self) -> Result<GaugeVec> {
        GaugeVec::new(Opts::new(self.name, self.help), self.labels)
    }
}

/// Value of a gauge for the values of its labels, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputedSample {
    /// Name of the gauge.
    pub gauge: &'static str,
    pub labels: Vec<String>,
    pub value: f64,
}

struct Computed<F> {
    gauges: &'static [ComputedGauge],
    descriptions: Vec<Desc>,
    samples: F,
}

impl<F: Fn() -> Vec<ComputedSample> + Send + Sync> Collector for Computed<F> {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // `register_computed` created the same gauges, so this does not fail.
        let filled: Vec<GaugeVec> = self
            .gauges
            .iter()
            .filter_map(|gauge| gauge.empty().ok())
            .collect();
        for sample in (self.samples)() {
            let found = self.gauges.iter().position(|gauge| gauge.name == sample.gauge);
            let filled = found.and_then(|at| filled.get(at));
            let labels: Vec<&str> = sample.labels.iter().map(String::as_str).collect();
            let metric = filled.map(|gauge| gauge.get_metric_with_label_values(&labels));
            debug_assert!(matches!(metric, Some(Ok(_))), "{sample:?}");
            if let Some(Ok(metric)) = metric {
                metric.set(sample.value);
            }
        }
        filled.iter().flat_map(Collector::collect).collect()
    }
}

impl Registry {
    /// Adds gauges whose samples `samples` returns at each scrape.
    pub fn register_computed(
        &self,
        gauges: &'static [ComputedGauge],
        samples: impl Fn() -> Vec<ComputedSample> + Send + Sync + 'static,
    ) -> Result<()> {
        let mut descriptions = Vec::new();
        for gauge in gauges {
            descriptions.extend(gauge.empty()?.desc().into_iter().cloned());
        }
        self.register(Box::new(Computed {
            gauges,
            descriptions,
            samples,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::render;
    use std::sync::{Arc, Mutex};

    const GAUGES: &[ComputedGauge] = &[ComputedGauge {
        name: "rooflet_test",
        help: "A test.",
        labels: &["node", "kind"],
    }];

    #[test]
    fn each_scrape_has_the_current_samples_only() {
        let nodes = Arc::new(Mutex::new(vec!["a", "b"]));
        let registry = Registry::new();
        let read = Arc::clone(&nodes);
        let samples = move || {
            let nodes = read.lock().expect("no panic").clone();
            let sample = |node: &str| ComputedSample {
                gauge: "rooflet_test",
                labels: vec![node.to_owned(), "x".to_owned()],
                value: 1.5,
            };
            nodes.into_iter().map(sample).collect()
        };
        registry.register_computed(GAUGES, samples).expect("valid");
        assert_eq!(registry.descriptions()[0].kind, "gauge");
        let text = render(&registry);
        assert!(
            text.contains("rooflet_test{kind=\"x\",node=\"a\"} 1.5\n"),
            "{text}"
        );
        assert!(text.contains("node=\"b\""), "{text}");
        nodes.lock().expect("no panic").pop();
        let text = render(&registry);
        assert!(!text.contains("node=\"b\""), "{text}");
        nodes.lock().expect("no panic").clear();
        assert!(!render(&registry).contains("node=\"a\""));
    }
}
