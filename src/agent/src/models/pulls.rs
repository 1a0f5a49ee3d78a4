//! Downloads of models from their hub, one at a time, retried until complete. The sync plan decides
//! what to download; this module downloads it and reports progress.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::DownloadProblem;
use crate::metrics::AgentMetrics;
use crate::state::StateDir;
use rooflet_api::v1alpha1::{DownloadSpeed, HubModel};
use rooflet_artifact::Downloads;
use rooflet_artifact::hub::{HubSnapshot, fetch_snapshot};
use rooflet_artifact::pull::{Progress, PullError, pull};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::mutex::lock;
use rooflet_base::quantile::median;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_client::Changes;

/// File in the state directory with the speeds of the last downloads in bytes per second.
const FILE: &str = "downloads.json";

/// First and longest delay of the exponential backoff after transient errors.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// Delay after permanent errors. The request is repeated because an administrator may have fixed
/// the cause.
const PERMANENT_DELAY: Duration = Duration::from_secs(300);

/// Interval at which the progress of a download is read.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

/// Minimum size of a measured download. Smaller downloads measure latency rather than bandwidth.
const MIN_MEASURED: Bytes = Bytes::mib(1);
/// Number of downloads in the median speed.
const SPEED_SAMPLES: usize = 8;

/// State of a model that is not downloaded.
#[derive(Debug, Clone)]
pub(crate) enum HubLookup {
    /// The hub has not answered yet.
    Pending,
    Found {
        snapshot: Arc<HubSnapshot>,
        /// Bytes of the model that are on the disk.
        done: Bytes,
        /// True if the download has started.
        is_under_way: bool,
        /// Reason why the download is suspended.
        problem: Option<DownloadProblem>,
    },
    /// The request to the hub failed.
    Failed(DownloadProblem),
}

/// Downloads of the agent.
pub(crate) struct Pulls {
    hub: HubAccess,
    downloads: Downloads,
    state: Arc<StateDir>,
    tasks: Tasks,
    clock: Clock,
    changes: Changes,
    pulls: BTreeMap<HubModel, PullState>,
    /// Permit that the running download holds.
    turn: Arc<Semaphore>,
    speeds: Arc<Mutex<VecDeque<f64>>>,
    metrics: AgentMetrics,
}

/// Model that a replica needs, with its tasks. Dropping it stops them.
struct PullState {
    shared: Arc<Shared>,
    stop: CancellationToken,
    is_pulling: bool,
}

impl PullState {
    /// Returns true if a download has started and not completed.
    fn is_under_way(&self) -> bool {
        self.is_pulling && !self.shared.status().is_complete
    }
}

impl Drop for PullState {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[derive(Default)]
struct Shared {
    progress: Progress,
    status: Mutex<PullStatus>,
}

#[derive(Default)]
struct PullStatus {
    snapshot: Option<Arc<HubSnapshot>>,
    problem: Option<DownloadProblem>,
    /// True if the download is complete and its result is recorded.
    is_complete: bool,
}

impl Shared {
    fn status(&self) -> MutexGuard<'_, PullStatus> {
        lock(&self.status)
    }
}

impl Pulls {
    pub(crate) fn new(
        hub: HubAccess,
        state: &Arc<StateDir>,
        tasks: &Tasks,
        clock: Clock,
        changes: Changes,
        metrics: AgentMetrics,
    ) -> Self {
        let speeds = state.read(FILE).ok().flatten().unwrap_or_default();
        Self {
            hub,
            downloads: Downloads::new(state.downloads()),
            state: state.clone(),
            tasks: tasks.clone(),
            clock,
            changes,
            pulls: BTreeMap::new(),
            turn: Arc::new(Semaphore::new(1)),
            speeds: Arc::new(Mutex::new(speeds)),
            metrics,
        }
    }

    pub(crate) fn downloads(&self) -> &Downloads {
        &self.downloads
    }

    /// Returns the state of a model that is not downloaded. The first call requests its metadata
    /// from the hub.
    pub(crate) fn look_up(&mut self, model: &HubModel) -> HubLookup {
        let state = match self.pulls.get(model) {
            Some(state) => state,
            None => {
                let state = PullState {
                    shared: Arc::default(),
                    stop: CancellationToken::new(),
                    is_pulling: false,
                };
                self.tasks.spawn_detached(request_snapshot(
                    self.downloads.pinned(model),
                    self.hub.clone(),
                    state.shared.clone(),
                    state.stop.clone(),
                    self.changes.clone(),
                ));
                self.pulls.entry(model.clone()).or_insert(state)
            }
        };
        let status = state.shared.status();
        match (&status.snapshot, &status.problem) {
            (Some(snapshot), problem) => HubLookup::Found {
                snapshot: snapshot.clone(),
                done: match state.is_pulling {
                    true => state.shared.progress.bytes(),
                    // Bytes that an earlier agent process downloaded.
                    false => self.downloads.downloaded_bytes(&snapshot.model),
                },
                is_under_way: state.is_pulling && !status.is_complete,
                problem: problem.clone(),
            },
            (None, Some(problem)) => HubLookup::Failed(problem.clone()),
            (None, None) => HubLookup::Pending,
        }
    }

    /// Starts the download of a model with a snapshot, unless it is running.
    pub(crate) fn start(&mut self, model: &HubModel) {
        let Some(state) = self.pulls.get_mut(model).filter(|state| !state.is_under_way()) else {
            return;
        };
        let snapshot = {
            let mut status = state.shared.status();
            status.is_complete = false;
            status.snapshot.clone()
        };
        let Some(snapshot) = snapshot else {
            return;
        };
        state.is_pulling = true;
        // The download may wait for its turn.
        let stored = self.downloads.downloaded_bytes(&snapshot.model);
        state.shared.progress.set(stored);
        let download = Download {
            requested: model.clone(),
            snapshot,
            hub: self.hub.clone(),
            downloads: self.downloads.clone(),
            shared: state.shared.clone(),
            clock: self.clock.clone(),
            changes: self.changes.clone(),
            speeds: self.speeds.clone(),
            state: self.state.clone(),
            metrics: self.metrics.clone(),
        };
        let (turn, stop) = (self.turn.clone(), state.stop.clone());
        self.tasks.spawn_detached(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = async {
                    // The semaphore is never closed.
                    let Ok(_turn) = turn.acquire().await else { return };
                    download.run().await;
                } => {}
            }
        });
    }

    /// Removes the state of a downloaded model, unless its download has yet to report completion.
    pub(crate) fn forget(&mut self, model: &HubModel) {
        if self.pulls.get(model).is_some_and(|state| !state.is_under_way()) {
            self.pulls.remove(model);
        }
    }

    /// Stops and removes downloads of models that are not in `wanted`.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<HubModel>) {
        self.pulls.retain(|model, _| wanted.contains(model));
    }

    /// Returns the interval after which progress is read again although nothing has changed. `None`
    /// without a running download.
    pub(crate) fn requeue_after(&self) -> Option<Duration> {
        let mut all = self.pulls.values();
        all.any(PullState::is_under_way).then_some(PROGRESS_PERIOD)
    }

    /// Returns the median speed of the last downloads. `None` without downloads.
    pub(crate) fn speed(&self) -> Option<DownloadSpeed> {
        let speeds = lock(&self.speeds);
        Some(DownloadSpeed {
            median_bytes_per_second: median(speeds.iter().copied())?.round(),
            downloads: speeds.len() as u32,
        })
    }
}

/// Requests a model's metadata from the hub until it answers.
async fn request_snapshot(
    model: HubModel,
    hub: HubAccess,
    shared: Arc<Shared>,
    stop: CancellationToken,
    changes: Changes,
) {
    let mut backoff = Backoff::default();
    loop {
        let answer = tokio::select! {
            () = stop.cancelled() => return,
            answer = fetch_snapshot(&model, &hub) => answer,
        };
        let wait = match answer {
            Ok(snapshot) => {
                *shared.status() = PullStatus {
                    snapshot: Some(Arc::new(snapshot)),
                    ..PullStatus::default()
                };
                changes.mark();
                return;
            }
            Err(err) => {
                let is_transient = err.is_transient();
                let problem = DownloadProblem {
                    reason: err.reason(),
                    message: Chain(&err).to_string(),
                    is_transient,
                };
                warn!(%model, reason = problem.reason, "{}", problem.message);
                shared.status().problem = Some(problem);
                changes.mark();
                if is_transient {
                    backoff.next()
                } else {
                    PERMANENT_DELAY
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[derive(Default)]
struct Backoff(u32);

impl Backoff {
    fn next(&mut self) -> Duration {
        let wait = FIRST_DELAY.saturating_mul(1 << self.0.min(16)).min(LONGEST_DELAY);
        self.0 += 1;
        wait
    }
}

/// Download of one model.
struct Download {
    requested: HubModel,
    snapshot: Arc<HubSnapshot>,
    hub: HubAccess,
    downloads: Downloads,
    shared: Arc<Shared>,
    clock: Clock,
    changes: Changes,
    speeds: Arc<Mutex<VecDeque<f64>>>,
    state: Arc<StateDir>,
    metrics: AgentMetrics,
}

impl Download {
    /// Downloads until the model is complete.
    async fn run(self) {
        let mut backoff = Backoff::default();
        // The commit is stored before the download starts, so that a restarted agent continues with
        // the same commit.
        if let Err(err) = self
            .downloads
            .record_commit(&self.requested, &self.snapshot.model)
        {
            warn!(model = %self.requested, error = %err, "failed to store the model's commit");
        }
        loop {
            let started = self.clock.instant();
            let received = AtomicU64::new(0);
            let outcome = pull(
                &self.snapshot,
                &self.hub,
                &self.downloads,
                &self.shared.progress,
                |bytes| {
                    self.metrics.downloaded(bytes);
                    let before = received.fetch_add(bytes as u64, Ordering::Relaxed);
                    if before == 0 {
                        self.resumed();
                    }
                },
            )
            .await;
            let received = Bytes(received.into_inner());
            self.record_speed(received, started);
            match outcome {
                Ok(path) => {
                    info!(model = %self.snapshot.model, %path, "model downloaded");
                    let mut status = self.shared.status();
                    (status.problem, status.is_complete) = (None, true);
                    self.changes.mark();
                    return;
                }
                Err(err) => {
                    let problem = DownloadProblem {
                        reason: err.reason(),
                        message: format!("{}; retrying", Chain(&err)),
                        is_transient: true,
                    };
                    warn!(model = %self.snapshot.model, reason = problem.reason, "{}", problem.message);
                    self.shared.status().problem = Some(problem);
                    self.changes.mark();
                    if received > Bytes::ZERO && continues(&err) {
                        backoff = Backoff::default();
                    }
                }
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Called when the first data of an attempt is on the disk.
    fn resumed(&self) {
        if self.shared.status().problem.take().is_some() {
            self.changes.mark();
        }
    }

    fn record_speed(&self, received: Bytes, started: Instant) {
        let seconds = (self.clock.instant() - started).as_secs_f64();
        if received < MIN_MEASURED || seconds <= 0.0 {
            return;
        }
        let mut speeds = lock(&self.speeds);
        speeds.push_back(received.0 as f64 / seconds);
        while speeds.len() > SPEED_SAMPLES {
            speeds.pop_front();
        }
        if let Err(err) = self.state.write(FILE, &*speeds) {
            warn!(error = %err, "failed to store the download speeds");
        }
    }
}

/// Returns true if the next attempt probably receives further data, so that the backoff starts again. A broken
/// connection resumes where it ended. A wrong file is repeated, and a full disk stays full for a while.
fn continues(err: &PullError) -> bool {
    match err {
        PullError::Client(_)
        | PullError::Connection { .. }
        | PullError::Interrupted { .. }
        | PullError::Status { .. } => true,
        PullError::Length { got, wanted, .. } => got < wanted,
        PullError::Digest { .. } | PullError::Write { .. } => false,
    }
}

#[cfg(test)]
mod tests;
