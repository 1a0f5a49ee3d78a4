//! OpenMetrics: the exposition format that can link the buckets of a histogram to traces.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;

use super::{Registry, TEXT_FORMAT, render};
use crate::mutex::lock;

const OPEN_METRICS: &str = "application/openmetrics-text";
/// Content type of OpenMetrics.
const OPEN_METRICS_FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Observation of a request that has a trace.
#[derive(Debug, Clone, PartialEq)]
struct Exemplar {
    trace: String,
    value: f64,
    at: Timestamp,
}

/// Last traced observation of each bucket. Clones share them. Names and labels are constants, so that the
/// number of exemplars is limited by the number of buckets.
#[derive(Debug, Clone, Default)]
pub struct Exemplars(Arc<Mutex<BTreeMap<String, Exemplar>>>);

impl Exemplars {
    /// Records an observation of the histogram with this name, label and these upper bounds of buckets.
    /// `trace` is the ID of the trace: letters and digits.
    pub fn record(
        &self,
        histogram: &str,
        label: Option<(&str, &str)>,
        buckets: &[f64],
        value: f64,
        trace: String,
        at: Timestamp,
    ) {
        let bound = buckets.iter().find(|bound| value <= **bound);
        let bound = bound.map_or_else(|| "+Inf".to_owned(), f64::to_string);
        let label = label.map_or_else(String::new, |(name, value)| format!("{name}=\"{value}\","));
        let sample = format!("{histogram}_bucket{{{label}le=\"{bound}\"}}");
        lock(&self.0).insert(sample, Exemplar { trace, value, at });
    }
}

/// Returns the metrics of a registry in the best format that a client accepts, with the content type.
/// `accept` is the header `Accept` of the request.
pub fn exposition(registry: &Registry, accept: Option<&str>) -> (&'static str, String) {
    let is_accepted = accept.is_some_and(|accept| {
        let mut ranges = accept.split(',').map(str::trim);
        ranges.any(|range| range.starts_with(OPEN_METRICS) && !range.ends_with("q=0"))
    });
    let text = render(registry);
    match is_accepted {
        true => (
            OPEN_METRICS_FORMAT,
            open_metrics(&text, &lock(&registry.exemplars.0)),
        ),
        false => (TEXT_FORMAT, text),
    }
}

/// Converts the Prometheus text format to OpenMetrics.
fn open_metrics(text: &str, exemplars: &BTreeMap<String, Exemplar>) -> String {
    let mut converted = String::with_capacity(text.len() + 1024);
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
            continue;
        }
        let written = match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            Some((name, kind)) => {
                // The name of a counter's family has no suffix. Other counters keep the names of their
                // samples only if their type is unknown.
                let (family, kind) = match (name.strip_suffix("_total"), kind) {
                    (Some(family), "counter") => (family, kind),
                    (None, "counter") | (_, "untyped") => (name, "unknown"),
                    (_, kind) => (name, kind),
                };
                let described = help.take().filter(|(described, _)| *described == name);
                let written = writeln!(converted, "# TYPE {family} {kind}");
                written.and_then(|()| match described {
                    Some((_, help)) => writeln!(converted, "# HELP {family} {}", help.replace('"', "\\\"")),
                    None => Ok(()),
                })
            }
            None => write_sample(&mut converted, line, exemplars),
        };
        debug_assert!(written.is_ok(), "a String accepts all writes");
    }
    converted.push_str("# EOF\n");
    converted
}

fn write_sample(
    converted: &mut String,
    line: &str,
    exemplars: &BTreeMap<String, Exemplar>,
) -> std::fmt::Result {
    let sample = line.rsplit_once(' ').map_or(line, |(sample, _)| sample);
    match exemplars.get(sample) {
        Some(Exemplar { trace, value, at }) => {
            let seconds = at.as_millisecond() as f64 / 1e3;
            writeln!(
                converted,
                "{line} # {{trace_id=\"{trace}\"}} {value} {seconds:.3}"
            )
        }
        None => writeln!(converted, "{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::at;
    use crate::metrics::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntGauge};

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn registry() -> Registry {
        let registry = Registry::new();
        let counter = IntCounter::new("rooflet_a_total", "Number of \"a\".").expect("valid");
        let odd = IntCounter::new("rooflet_b", "A counter without suffix.").expect("valid");
        let gauge = IntGauge::new("rooflet_c", "A gauge.").expect("valid");
        counter.inc_by(3);
        registry.register(Box::new(counter)).expect("new");
        registry.register(Box::new(odd)).expect("new");
        registry.register(Box::new(gauge)).expect("new");
        registry
    }

    #[test]
    fn only_clients_that_accept_open_metrics_receive_it() {
        let registry = registry();
        // Headers that Prometheus 3 and curl send.
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          text/plain;version=0.0.4;q=0.4,*/*;q=0.2";
        assert_eq!(exposition(&registry, Some(prometheus)).0, OPEN_METRICS_FORMAT);
        for other in [
            None,
            Some("*/*"),
            Some("text/plain"),
            Some("application/openmetrics-text; q=0"),
        ] {
            let (format, text) = exposition(&registry, other);
            assert_eq!((format, text), (TEXT_FORMAT, render(&registry)));
        }
    }

    /// Rules of https://prometheus.io/docs/specs/om/open_metrics_spec/#text-format
    #[test]
    fn names_types_and_end_follow_the_specification() {
        let (_, text) = exposition(&registry(), Some(OPEN_METRICS));
        assert_eq!(
            text,
            "# TYPE rooflet_a counter\n# HELP rooflet_a Number of \\\"a\\\".\nrooflet_a_total 3\n\
             # TYPE rooflet_b unknown\n# HELP rooflet_b A counter without suffix.\nrooflet_b 0\n\
             # TYPE rooflet_c gauge\n# HELP rooflet_c A gauge.\nrooflet_c 0\n# EOF\n"
        );
    }

    #[test]
    fn buckets_link_to_the_last_trace() {
        let (registry, buckets) = (Registry::new(), vec![0.5, 2.0]);
        let options = |name: &str| HistogramOpts::new(name, "Seconds.").buckets(buckets.clone());
        let plain = Histogram::with_opts(options("rooflet_d_seconds")).expect("valid");
        let labelled = HistogramVec::new(options("rooflet_e_seconds"), &["code"]).expect("valid");
        registry.register(Box::new(plain.clone())).expect("new");
        registry.register(Box::new(labelled.clone())).expect("new");
        let record = |name: &str, label, value, trace: &str, second| {
            let exemplars = registry.exemplars();
            exemplars.record(name, label, &buckets, value, trace.to_owned(), at(second));
        };
        for (value, trace, second) in [(0.25, "other", 5), (0.5, TRACE, 10), (7.0, TRACE, 20)] {
            plain.observe(value);
            record("rooflet_d_seconds", None, value, trace, second);
        }
        labelled.with_label_values(&["2xx"]).observe(1.0);
        record("rooflet_e_seconds", Some(("code", "2xx")), 1.0, TRACE, 30);
        let (_, text) = exposition(&registry, Some(OPEN_METRICS));
        for line in [
            format!("rooflet_d_seconds_bucket{{le=\"0.5\"}} 2 # {{trace_id=\"{TRACE}\"}} 0.5 10.000\n"),
            "rooflet_d_seconds_bucket{le=\"2\"} 2\n".to_owned(),
            format!("rooflet_d_seconds_bucket{{le=\"+Inf\"}} 3 # {{trace_id=\"{TRACE}\"}} 7 20.000\n"),
            format!(
                "rooflet_e_seconds_bucket{{code=\"2xx\",le=\"2\"}} 1 # {{trace_id=\"{TRACE}\"}} 1 30.000\n"
            ),
        ] {
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(
            !render(&registry).contains("trace_id"),
            "the text format has no exemplars"
        );
    }
}
