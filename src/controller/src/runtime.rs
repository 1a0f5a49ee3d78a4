//! Loop of every reconciler: reconcile, record metrics, wait for a change or the resync period.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug_span};

use rooflet_base::clock::Clock;
use rooflet_base::metrics::{
    HistogramOpts, HistogramVec, IntCounterVec, LATENCY_SECONDS, Opts, Registry, Result,
};
use rooflet_client::{ApiError, Attempts};

/// Reconciler of one or several kinds.
pub(super) trait Reconciler: Send + 'static {
    const NAME: &'static str;
    /// Maximum time between two passes, even if nothing changes.
    const RESYNC: Duration;

    /// Runs one pass over all objects. The next pass retries the failures in the returned status.
    fn reconcile(&mut self) -> impl Future<Output = PassStatus> + Send;
}

/// Result of one pass.
#[derive(Debug, Default)]
pub(super) struct PassStatus {
    failures: Vec<ApiError>,
    requeue_after: Option<Duration>,
}

impl PassStatus {
    /// Records a failure and returns the value of a success.
    pub(super) fn record<T>(&mut self, outcome: std::result::Result<T, ApiError>) -> Option<T> {
        outcome.map_err(|err| self.failures.push(err)).ok()
    }

    /// Records the failures of planned writes.
    pub(super) fn record_failures(&mut self, failures: Vec<ApiError>) {
        self.failures.extend(failures);
    }

    /// Requests another pass after this time, unless an earlier one is already requested.
    pub(super) fn requeue(&mut self, after: Option<Duration>) {
        self.requeue_after = self.requeue_after.into_iter().chain(after).min();
    }
}

/// Metrics of all reconcilers.
#[derive(Clone)]
pub(crate) struct ControllerMetrics {
    passes: HistogramVec,
    failures: IntCounterVec,
}

impl ControllerMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self> {
        let passes = HistogramVec::new(
            HistogramOpts::new("rooflet_reconcile_seconds", "Duration of reconcile passes.")
                .buckets(LATENCY_SECONDS.to_vec()),
            &["controller"],
        )?;
        let failures = IntCounterVec::new(
            Opts::new(
                "rooflet_reconcile_errors_total",
                "Writes of reconcile passes that failed.",
            ),
            &["controller", "reason"],
        )?;
        registry.register(Box::new(passes.clone()))?;
        registry.register(Box::new(failures.clone()))?;
        Ok(Self { passes, failures })
    }
}

/// Runs `reconciler` until `stop`.
pub(super) async fn run<R: Reconciler>(
    mut reconciler: R,
    mut changes: watch::Receiver<u64>,
    clock: Clock,
    metrics: ControllerMetrics,
    stop: CancellationToken,
) {
    let mut attempts = Attempts::new(format!("reconcile pass of controller `{}`", R::NAME));
    while !stop.is_cancelled() {
        // Changes during the pass cause another pass.
        changes.mark_unchanged();
        let began = clock.instant();
        let status = reconciler
            .reconcile()
            .instrument(debug_span!("reconcile", controller = R::NAME))
            .await;
        metrics
            .passes
            .with_label_values(&[R::NAME])
            .observe((clock.instant() - began).as_secs_f64());
        for failure in &status.failures {
            metrics
                .failures
                .with_label_values(&[R::NAME, failure.reason()])
                .inc();
        }
        let is_conflict = |failure: &&ApiError| matches!(failure, ApiError::Conflict(_));
        // A conflict is the expected result of a concurrent write, so another failure is logged
        // first.
        let to_log = status.failures.iter().find(|failure| !is_conflict(failure));
        if let Some(failure) = to_log.or(status.failures.first()) {
            let wait = attempts.failed(failure);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        } else {
            attempts.succeeded();
            let wait = status.requeue_after.unwrap_or(R::RESYNC).min(R::RESYNC);
            tokio::select! {
                () = stop.cancelled() => return,
                // The sender lives as long as the caches that the reconciler reads.
                _ = changes.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}
