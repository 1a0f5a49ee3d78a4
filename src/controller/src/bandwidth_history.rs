//! Last measurements of the bandwidth of each node. A probe runs about once per week, so the number of
//! measurements is limited and not their age.
//!
//! The memory has a limit: [`MAX_NODES`] nodes with [`MAX_MEASUREMENTS`] of 24 bytes. The measurements are
//! lost when the process ends, except the last one, which is in the status of the node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::mutex::lock;
use rooflet_roofline::published;

const MAX_NODES: usize = 2000;
const MAX_MEASUREMENTS: usize = 64;

/// Read bandwidth in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measurement {
    /// Seconds since 1970.
    at: i64,
    median: f32,
    /// 10th and 90th percentile. Only earlier agents publish them.
    spread: Option<(f32, f32)>,
}

/// History of the nodes by their UID. Clones share their values.
#[derive(Clone, Default)]
pub struct BandwidthHistory(Arc<Mutex<BTreeMap<String, VecDeque<Measurement>>>>);

impl std::fmt::Debug for BandwidthHistory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BandwidthHistory({} nodes)", lock(&self.0).len())
    }
}

impl BandwidthHistory {
    /// Returns the history of the node with this UID: the times of the measurements in seconds since 1970,
    /// and each series. `None` before the first measurement.
    pub fn of(&self, uid: &str) -> Option<Value> {
        let all = lock(&self.0);
        let found = all.get(uid)?;
        let column =
            |of: fn(&Measurement) -> Option<f32>| -> Vec<Option<f32>> { found.iter().map(of).collect() };
        let mut series = json!({ "measuredBytesPerSecond": column(|measurement| Some(measurement.median)) });
        if found.iter().any(|measurement| measurement.spread.is_some()) {
            series["p10BytesPerSecond"] = json!(column(|measurement| measurement.spread.map(|(p10, _)| p10)));
            series["p90BytesPerSecond"] = json!(column(|measurement| measurement.spread.map(|(_, p90)| p90)));
        }
        Some(json!({
            "times": found.iter().map(|measurement| measurement.at).collect::<Vec<_>>(),
            "series": series,
        }))
    }

    /// Adds the measurements of these nodes that are not known yet, and forgets all other nodes.
    pub(super) fn record<'n>(&self, nodes: impl IntoIterator<Item = &'n FleetNode>) {
        let mut all = lock(&self.0);
        let mut before = std::mem::take(&mut *all);
        for node in nodes {
            let Some(uid) = node.uid() else { continue };
            let mut known = before.remove(&uid).unwrap_or_default();
            if let Some(new) =
                measurement(node).filter(|new| known.back().is_none_or(|last| last.at < new.at))
            {
                if known.len() >= MAX_MEASUREMENTS {
                    known.pop_front();
                }
                known.push_back(new);
            }
            if !known.is_empty() && all.len() < MAX_NODES {
                all.insert(uid, known);
            }
        }
    }
}

fn measurement(node: &FleetNode) -> Option<Measurement> {
    let status = node.status.as_ref()?;
    let speed = published::speed(status)?;
    let at: Timestamp = speed.measured_at.parse().ok()?;
    // The figures of a probe belong to the speed only if the agent publishes no other.
    let probe = status.probe.as_ref().filter(|_| status.speed.is_none());
    let read = probe.map(|probe| &probe.measurements.read);
    (speed.read_bytes_per_second > 0.0).then_some(Measurement {
        at: at.as_second(),
        median: speed.read_bytes_per_second as f32,
        spread: read.map(|read| (read.p10_bytes_per_second as f32, read.p90_bytes_per_second as f32)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::{FleetNodeSpec, FleetNodeStatus, Probe};
    use rooflet_roofline::published::measured_speed;

    fn probe(second: i64, median: f64) -> Probe {
        let mut probe = Probe {
            measured_at: Timestamp::from_second(second).expect("a time").to_string(),
            ..Probe::default()
        };
        let read = &mut probe.measurements.read;
        (read.p10_bytes_per_second, read.p90_bytes_per_second) = (median * 0.5, median * 2.0);
        read.median_bytes_per_second = median;
        probe
    }

    fn node_with(uid: &str, status: FleetNodeStatus) -> FleetNode {
        let mut node = FleetNode::new(uid, FleetNodeSpec::default());
        node.metadata.uid = Some(uid.to_owned());
        node.status = Some(status);
        node
    }

    /// Returns a node as its agent publishes it.
    fn node(uid: &str, second: i64, median: f64) -> FleetNode {
        let speed = Some(measured_speed(&probe(second, median)));
        node_with(
            uid,
            FleetNodeStatus {
                speed,
                ..FleetNodeStatus::default()
            },
        )
    }

    #[test]
    fn each_measurement_is_recorded_once() {
        let history = BandwidthHistory::default();
        let first = node("a", 100, 1e11);
        for _ in 0..3 {
            history.record([&first]);
        }
        history.record([&node("a", 700, 1.5e11)]);
        let found = history.of("a").expect("recorded");
        assert_eq!(found["times"], json!([100, 700]));
        assert_eq!(
            found["series"]["measuredBytesPerSecond"],
            json!([1e11_f32, 1.5e11_f32])
        );
        // A node that has not been measured, and a node that does not exist.
        let mut new = node("b", 0, 0.0);
        history.record([&new]);
        new.status = None;
        history.record([&new]);
        assert_eq!((history.of("b"), history.of("c")), (None, None));
    }

    #[test]
    fn percentiles_are_those_of_earlier_agents() {
        let history = BandwidthHistory::default();
        let earlier = |second| {
            let probe = Some(probe(second, 1e11));
            node_with(
                "a",
                FleetNodeStatus {
                    probe,
                    ..FleetNodeStatus::default()
                },
            )
        };
        history.record([&node("b", 100, 1e11)]);
        let series = history.of("b").expect("recorded")["series"].clone();
        assert_eq!(series, json!({"measuredBytesPerSecond": [1e11_f32]}));
        history.record([&earlier(100)]);
        history.record([&node("a", 700, 2e11)]);
        let series = history.of("a").expect("recorded")["series"].clone();
        assert_eq!(series["measuredBytesPerSecond"], json!([1e11_f32, 2e11_f32]));
        assert_eq!(series["p10BytesPerSecond"], json!([5e10_f32, null]));
        assert_eq!(series["p90BytesPerSecond"], json!([2e11_f32, null]));
    }

    #[test]
    fn size_is_bounded_and_deleted_nodes_are_forgotten() {
        let history = BandwidthHistory::default();
        for second in 0..100 {
            history.record([&node("a", second, 1e11)]);
        }
        let times = history.of("a").expect("recorded")["times"].clone();
        assert_eq!(times, json!((36..100).collect::<Vec<_>>()));
        let many: Vec<_> = (0..=MAX_NODES)
            .map(|number| node(&number.to_string(), 1, 1e11))
            .collect();
        history.record(&many);
        assert_eq!(history.of("a"), None);
        assert_eq!(lock(&history.0).len(), MAX_NODES);
    }
}
