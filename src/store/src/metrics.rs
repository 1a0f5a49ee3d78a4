//! Metrics of the store: commit latency, size of the bounded buffers, reached limits.

use rooflet_base::metrics::{
    Histogram, HistogramOpts, IntCounter, IntGauge, LATENCY_SECONDS, Registry, Result,
};

/// Metrics of a store. Clones share the same counters.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    pub(super) commit_seconds: Histogram,
    pub(super) batch_writes: Histogram,
    pub(super) conflicts: IntCounter,
    pub(super) failures: IntCounter,
    pub(super) compacted_rows: IntCounter,
    pub(super) records: IntGauge,
    pub(super) history_events: IntGauge,
    pub(super) history_bytes: IntGauge,
    pub(super) watchers: IntGauge,
    pub(super) watchers_lagged: IntCounter,
}

impl StoreMetrics {
    pub fn register(registry: &Registry) -> Result<Self> {
        let metrics = Self::new()?;
        registry.register(Box::new(metrics.commit_seconds.clone()))?;
        registry.register(Box::new(metrics.batch_writes.clone()))?;
        for counter in [
            &metrics.conflicts,
            &metrics.failures,
            &metrics.compacted_rows,
            &metrics.watchers_lagged,
        ] {
            registry.register(Box::new(counter.clone()))?;
        }
        for gauge in [
            &metrics.records,
            &metrics.history_events,
            &metrics.history_bytes,
            &metrics.watchers,
        ] {
            registry.register(Box::new(gauge.clone()))?;
        }
        Ok(metrics)
    }

    /// Returns metrics that no registry exports.
    pub(super) fn unregistered() -> Self {
        Self::new().expect("metric names are constant and covered by a test")
    }

    fn new() -> Result<Self> {
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))
        };
        Ok(Self {
            commit_seconds: histogram(
                "rooflet_store_commit_seconds",
                "Time to make one batch of writes durable.",
                LATENCY_SECONDS.to_vec(),
            )?,
            batch_writes: histogram(
                "rooflet_store_batch_writes",
                "Writes made durable by one sync.",
                vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0],
            )?,
            conflicts: IntCounter::new(
                "rooflet_store_conflicts_total",
                "Writes rejected because the key was not at the expected revision.",
            )?,
            failures: IntCounter::new(
                "rooflet_store_failures_total",
                "Failed writes of a batch, a compaction or a new store file.",
            )?,
            compacted_rows: IntCounter::new(
                "rooflet_store_compacted_rows_total",
                "Rows deleted from the store file by compaction.",
            )?,
            records: IntGauge::new("rooflet_store_records", "Records in the store.")?,
            history_events: IntGauge::new(
                "rooflet_store_history_events",
                "Events that watches can resume from.",
            )?,
            history_bytes: IntGauge::new(
                "rooflet_store_history_bytes",
                "Estimated memory of the events that watches can resume from.",
            )?,
            watchers: IntGauge::new("rooflet_store_watchers", "Open watchers.")?,
            watchers_lagged: IntCounter::new(
                "rooflet_store_watchers_lagged_total",
                "Watchers closed because they fell too far behind.",
            )?,
        })
    }
}
