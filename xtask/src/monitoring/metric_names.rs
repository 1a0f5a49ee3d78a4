//! Test of the names of metrics in queries.

use std::{collections::BTreeSet, fs};

use super::{
    alerts::ALERTS,
    dashboards::{DASHBOARDS, Dashboard},
};
use crate::console;

/// Returns the words of a query that have the form of a metric's name.
fn names(query: &str) -> impl Iterator<Item = &str> {
    let is_separator = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let words = query.split(is_separator);
    words.filter(|word| word.starts_with("rooflet_") || word.starts_with("vllm:"))
}

/// Returns the names of the samples that the reference lists.
fn reference() -> BTreeSet<String> {
    let path = console::root().join("docs/reference/metrics.md");
    let page = fs::read_to_string(path).expect("the reference of metrics");
    let mut samples = BTreeSet::new();
    for line in page.lines() {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (Some(name), Some(kind)) = (cells.next(), cells.next()) else {
            continue;
        };
        let name = name.trim_matches('`').split('{').next().unwrap_or_default();
        match kind {
            "counter" | "gauge" => drop(samples.insert(name.to_owned())),
            "histogram" => {
                samples.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
            }
            _ => {}
        }
    }
    samples
}

#[test]
fn reference_lists_every_metric_of_alerts_and_dashboards() {
    let reference = reference();
    assert!(
        reference.contains("rooflet_gateway_queue_seconds_bucket"),
        "{reference:?}"
    );
    let alerts = ALERTS
        .iter()
        .map(|alert| (alert.name.to_owned(), alert.expression));
    let queries = DASHBOARDS.iter().flat_map(Dashboard::queries);
    for (at, query) in alerts.chain(queries) {
        let used: Vec<_> = names(query).collect();
        assert!(!used.is_empty(), "{at}: no metric in {query}");
        for name in used {
            assert!(
                reference.contains(name),
                "{at}: docs/reference/metrics.md has no {name}"
            );
        }
    }
}
