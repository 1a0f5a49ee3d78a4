//! Sums over the fleet.

use serde::Serialize;

use super::{MacRow, ReplicaRow, Requests, Usage};

/// Sums over the fleet.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Totals {
    pub(crate) macs: usize,
    pub(crate) ready_macs: usize,
    pub(crate) simulated_macs: usize,
    pub(crate) replicas: usize,
    pub(crate) ready_replicas: usize,
    #[serde(rename = "memoryBytes")]
    pub(crate) memory: Option<Usage>,
    /// Sum over the Macs with measured bandwidth.
    #[serde(rename = "bandwidthBytesPerSecond")]
    pub(crate) bandwidth: Option<Usage>,
    /// Macs whose bandwidth was not measured. They are not part of `bandwidth`.
    pub(crate) macs_without_measured_bandwidth: usize,
    /// Sum of the replicas whose nodes report.
    pub(crate) requests: Option<Requests>,
}

impl Totals {
    pub(super) fn new(macs: &[MacRow], replicas: &[ReplicaRow]) -> Self {
        Self {
            macs: macs.len(),
            ready_macs: macs.iter().filter(|mac| mac.ready == "True").count(),
            simulated_macs: macs.iter().filter(|mac| mac.simulated).count(),
            replicas: replicas.len(),
            ready_replicas: replicas.iter().filter(|replica| replica.ready).count(),
            memory: Usage::sum(macs.iter().filter_map(|mac| mac.memory)),
            bandwidth: Usage::sum(macs.iter().filter_map(|mac| mac.bandwidth)),
            macs_without_measured_bandwidth: macs.iter().filter(|mac| mac.bandwidth.is_none()).count(),
            requests: Requests::sum(replicas.iter().filter_map(ReplicaRow::current_requests)),
        }
    }
}
