//! The agent's metrics.

use crate::reports::Reports;
use rooflet_api::v1alpha1::ReplicaPhase;
use rooflet_base::metrics::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry, Result};

/// Phases that appear as label values, including those without replicas.
const PHASES: [ReplicaPhase; 8] = [
    ReplicaPhase::Pending,
    ReplicaPhase::Pulling,
    ReplicaPhase::Loading,
    ReplicaPhase::Warming,
    ReplicaPhase::Ready,
    ReplicaPhase::Draining,
    ReplicaPhase::Succeeded,
    ReplicaPhase::Failed,
];

/// Handle of the agent's metrics. Clones share the same metrics.
#[derive(Debug, Clone)]
pub(crate) struct AgentMetrics {
    replicas: IntGaugeVec,
    reserved_bytes: IntGauge,
    starts: IntCounter,
    manifest_problems: IntGauge,
    downloaded: IntCounter,
}

impl AgentMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self> {
        let opts = Opts::new("rooflet_agent_replicas", "Replicas on this node, by phase.");
        let metrics = Self {
            replicas: IntGaugeVec::new(opts, &["phase"])?,
            reserved_bytes: IntGauge::new(
                "rooflet_agent_reserved_bytes",
                "Memory reserved for replicas, in bytes.",
            )?,
            starts: IntCounter::new("rooflet_agent_worker_starts_total", "Workers started.")?,
            manifest_problems: IntGauge::new(
                "rooflet_agent_manifest_problems",
                "Problems in the manifest directory.",
            )?,
            downloaded: IntCounter::new(
                "rooflet_agent_downloaded_bytes_total",
                "Bytes of models received from the hub.",
            )?,
        };
        registry.register(Box::new(metrics.replicas.clone()))?;
        registry.register(Box::new(metrics.reserved_bytes.clone()))?;
        registry.register(Box::new(metrics.starts.clone()))?;
        registry.register(Box::new(metrics.manifest_problems.clone()))?;
        registry.register(Box::new(metrics.downloaded.clone()))?;
        Ok(metrics)
    }

    pub(crate) fn started(&self) {
        self.starts.inc();
    }

    pub(crate) fn downloaded(&self, bytes: usize) {
        self.downloaded.inc_by(bytes as u64);
    }

    pub(crate) fn manifest_problems(&self, count: usize) {
        self.manifest_problems
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn observe(&self, reports: &Reports) {
        for phase in PHASES {
            let count = reports
                .replicas
                .values()
                .filter(|report| report.status.phase == phase)
                .count();
            self.replicas
                .with_label_values(&[phase.as_str()])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.reserved_bytes
            .set(i64::try_from(reports.reserved.0).unwrap_or(i64::MAX));
    }
}
