//! Loops of the reconcilers: reconcile, record metrics, wait for a change or the resync period.

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug_span};

use rooflet_base::clock::Clock;
use rooflet_base::metrics::{
    HistogramOpts, HistogramVec, IntCounterVec, LATENCY_SECONDS, Opts, Registry, Result,
};
use rooflet_client::{ApiError, Attempts, ObjectKey};

use super::shared::SharedQueue;

/// Maximum number of objects that one keyed reconciler processes at the same time. Each waits for
/// the API server most of the time.
const WORKERS: usize = 16;

/// Number of further objects that one keyed reconciler processes at the same time if a user changed
/// them. A user change then never waits for passes that wait for the API server.
const WORKERS_FOR_CHANGES: usize = 4;
const ALL_WORKERS: usize = WORKERS + WORKERS_FOR_CHANGES;

/// Reconciler of one object per pass.
pub(super) trait KeyedReconciler: Send + Sync + 'static {
    const NAME: &'static str;
    /// Maximum time between two passes for one object, even if nothing changes.
    const RESYNC: Duration;

    /// Runs a pass for one object. The next pass retries the failures in the returned status.
    /// Returns `None` if the object does not exist.
    fn reconcile(&self, key: &ObjectKey) -> impl Future<Output = Option<PassStatus>> + Send;
}

/// Reconciler of all objects of one or several kinds per pass.
pub(super) trait Reconciler: Send + 'static {
    const NAME: &'static str;
    /// Maximum time between two passes, even if nothing changes.
    const RESYNC: Duration;
    /// Minimum time between the starts of two passes, however many changes arrive.
    const MIN_PERIOD: Duration = Duration::ZERO;

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

impl ControllerMetrics {
    /// Records a pass. Returns its most important failure.
    fn record<'s>(
        &self,
        controller: &str,
        duration: Duration,
        status: Option<&'s PassStatus>,
    ) -> Option<&'s ApiError> {
        self.passes
            .with_label_values(&[controller])
            .observe(duration.as_secs_f64());
        let failures = status.map_or(&[][..], |status| &status.failures);
        for failure in failures {
            self.failures
                .with_label_values(&[controller, failure.reason()])
                .inc();
        }
        // A conflict is the expected result of a concurrent write, so another failure is logged
        // first.
        let is_conflict = |failure: &&ApiError| matches!(failure, ApiError::Conflict(_));
        let important = failures.iter().find(|failure| !is_conflict(failure));
        important.or(failures.first())
    }
}

/// Returns the next key of the queue if a worker is free while `running` keys are processed.
fn take(queue: &SharedQueue, running: usize, now: Instant) -> Option<ObjectKey> {
    match running {
        0..WORKERS => queue.lock().take(now),
        WORKERS..ALL_WORKERS => queue.lock().take_changed(),
        ALL_WORKERS.. => None,
    }
}

/// Processes the keys of the queue until `stop`, and then finishes the current passes.
pub(super) async fn run_keyed<R: KeyedReconciler>(
    reconciler: R,
    queue: SharedQueue,
    clock: Clock,
    metrics: ControllerMetrics,
    stop: CancellationToken,
) {
    let (reconciler, clock_ref) = (&reconciler, &clock);
    let pass = |key: ObjectKey| async move {
        let began = clock_ref.instant();
        let span = debug_span!(
            "reconcile",
            controller = R::NAME,
            namespace = key.namespace,
            name = key.name
        );
        let status = reconciler.reconcile(&key).instrument(span).await;
        (key, status, clock_ref.instant() - began)
    };
    let mut running = FuturesUnordered::new();
    let mut attempts: HashMap<ObjectKey, Attempts> = HashMap::new();
    loop {
        while !stop.is_cancelled()
            && let Some(key) = take(&queue, running.len(), clock.instant())
        {
            running.push(pass(key));
        }
        let has_room = running.len() < WORKERS;
        let next_due = queue.lock().next_due();
        let due = async {
            match next_due.filter(|_| has_room) {
                Some(at) => tokio::time::sleep(at.saturating_duration_since(clock.instant())).await,
                None => std::future::pending().await,
            }
        };
        let (key, status, duration) = tokio::select! {
            Some(ended) = running.next() => ended,
            () = stop.cancelled() => {
                while running.next().await.is_some() {}
                return;
            }
            () = queue.added() => continue,
            () = due => continue,
        };
        let failure = metrics.record(R::NAME, duration, status.as_ref());
        let wait = match (failure, &status) {
            (Some(failure), _) => {
                let what = || Attempts::new(format!("{} `{}`", R::NAME, key.name));
                Some(attempts.entry(key.clone()).or_insert_with(what).failed(failure))
            }
            (None, Some(status)) => {
                if let Some(mut attempts) = attempts.remove(&key) {
                    attempts.succeeded();
                }
                Some(status.requeue_after.unwrap_or(R::RESYNC).min(R::RESYNC))
            }
            (None, None) => {
                attempts.remove(&key);
                None
            }
        };
        let mut queue = queue.lock();
        queue.finish(&key);
        if let Some(wait) = wait {
            queue.add_at(key, clock.instant() + wait);
        }
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
        let failure = metrics.record(R::NAME, clock.instant() - began, Some(&status));
        if let Some(failure) = failure {
            let wait = attempts.failed(failure);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            continue;
        }
        attempts.succeeded();
        let wait = status.requeue_after.unwrap_or(R::RESYNC).min(R::RESYNC);
        tokio::select! {
            () = stop.cancelled() => return,
            // The sender lives as long as the caches that the reconciler reads.
            _ = changes.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
        let pause = R::MIN_PERIOD.saturating_sub(clock.instant() - began);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Priority;

    #[test]
    fn user_change_is_processed_while_all_other_workers_wait() {
        let (queue, now) = (SharedQueue::default(), Clock::System.instant());
        let key = |name: &str| ObjectKey::new(Some("default"), name);
        for number in 0..2 * WORKERS {
            queue.add(key(&format!("storm-{number}")), Priority::Created);
        }
        let started = (0..).map_while(|running| take(&queue, running, now)).count();
        assert_eq!(started, WORKERS);
        queue.add(key("scaled"), Priority::Changed);
        assert_eq!(take(&queue, WORKERS, now), Some(key("scaled")));
        for number in 0..WORKERS {
            queue.add(key(&format!("changed-{number}")), Priority::Changed);
        }
        let started = (WORKERS + 1..)
            .map_while(|running| take(&queue, running, now))
            .count();
        assert_eq!(started, WORKERS_FOR_CHANGES - 1);
    }
}
