//! Numbers of write requests, from the metrics of the API server.

use std::collections::BTreeMap;

const METRIC: &str = "rooflet_apiserver_requests_total{";
const VERBS: [&str; 4] = ["create", "update", "patch", "delete"];

/// Numbers of completed write requests by verb, resource and status code. Writes of Leases do not
/// count: their number depends on the time and the number of nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ApiWrites(BTreeMap<String, u64>);

impl ApiWrites {
    /// Parses the response of `/metrics`.
    pub(crate) fn parse(metrics: &str) -> Self {
        let mut writes = BTreeMap::new();
        for line in metrics.lines() {
            let Some((labels, count)) = line.strip_prefix(METRIC).and_then(|line| line.split_once("} "))
            else {
                continue;
            };
            let label = |name: &str| {
                let (_, value) = labels.split_once(&format!("{name}=\""))?;
                Some(value.split_once('"')?.0)
            };
            let (Some(verb), Some(resource), Some(code)) = (label("verb"), label("resource"), label("code"))
            else {
                continue;
            };
            if VERBS.contains(&verb) && !resource.contains("leases") {
                let count: f64 = count.trim().parse().expect("a number");
                *writes.entry(format!("{verb} {resource} {code}")).or_default() += count as u64;
            }
        }
        Self(writes)
    }

    /// Returns the writes after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let left = self.0.iter().map(|(key, count)| {
            let known = before.0.get(key).copied().unwrap_or_default();
            (key.clone(), count - known)
        });
        Self(left.filter(|(_, count)| *count > 0).collect())
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns verb, resource and status code with their number, the most frequent first.
    pub(crate) fn most_frequent_first(&self) -> Vec<(&str, u64)> {
        let mut all: Vec<_> = self.0.iter().map(|(key, count)| (key.as_str(), *count)).collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all
    }
}
