//! The metrics crate stays behind this module. Each service owns a struct of its metrics and registers it.

pub use prometheus::{
    Error, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, Result,
};

/// Only the worker counts seconds and shares.
pub use prometheus::{Counter, CounterVec, Gauge};

/// Content type of the text exposition format.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4";

/// Buckets for what the control plane does, in seconds.
pub const LATENCY_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Buckets for requests to models, in seconds: OpenTelemetry's for `gen_ai.server.request.duration`, 0.01 · 2ⁿ, with
/// shorter ones for the time between tokens and longer ones for the answers that only local models take.
pub const REQUEST_SECONDS: &[f64] = &[
    0.000_625, 0.001_25, 0.002_5, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24,
    20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
];

/// Buckets for how many requests are computed together.
pub const BATCH_ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// Everything in `registry` in Prometheus' text format.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing into a `String` fails only on a metric with no name or no samples, which `register` refuses.
    let outcome = prometheus::TextEncoder::new().encode_utf8(&registry.gather(), &mut text);
    debug_assert!(outcome.is_ok(), "{outcome:?}");
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Names between the mark and the next character that no metric has.
    fn names(text: &str, mark: &str, prefix: &str) -> BTreeSet<String> {
        let parts = text.split(mark).skip(1);
        let names = parts.map(|part| {
            let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            part.split(|c| !is_in_name(c)).next().unwrap_or_default()
        });
        let whole = |name: &&str| name.starts_with(prefix) && !name.ends_with('_');
        names.filter(whole).map(str::to_owned).collect()
    }

    fn sources(directory: &std::path::Path, into: &mut String) {
        for entry in std::fs::read_dir(directory).expect("sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.ends_with("metrics.rs") || path.ends_with("runtime.rs") {
                into.push_str(&std::fs::read_to_string(&path).expect("UTF-8"));
            }
        }
    }

    #[test]
    fn every_metric_is_on_its_page_and_no_other() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut code = String::new();
        sources(&root.join("src"), &mut code);
        let page = std::fs::read_to_string(root.join("docs/metrics.md")).expect("the page");
        let mut registered = names(&code, "\"", "rooflet_");
        registered.remove("rooflet_test_total");
        assert!(registered.len() > 40, "{registered:?}");
        assert_eq!(names(&page, "`", "rooflet_"), registered);
        let vllm = std::fs::read_to_string(root.join("src/worker/metrics/vllm.rs")).expect("the file");
        for name in names(&page, "`vllm:", "") {
            assert!(vllm.contains(&format!("\"{name}\"")), "vllm:{name}");
        }
    }

    #[test]
    fn a_registered_counter_is_rendered() {
        let registry = Registry::new();
        let counter = IntCounter::new("rooflet_test_total", "A test.").expect("a valid name");
        registry
            .register(Box::new(counter.clone()))
            .expect("not yet registered");
        counter.inc();
        assert!(render(&registry).contains("rooflet_test_total 1\n"));
    }
}
