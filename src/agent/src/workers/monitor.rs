//! Monitor of one worker: polls its status over its socket and sends it its share of the chip's
//! time.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use http::request::Builder;
use http_body_util::{BodyExt, Limited};
use tokio::sync::watch;

use super::golden::{self, Golden, GoldenState};
use super::liveness::{Liveness, Poll, PollHistory};
use super::pacing::Pacing;
use crate::replica::ReplicaKey;
use rooflet_api::wire::{CHIP_SHARE_HEADER, WorkerPhase, WorkerStatus};
use rooflet_base::clock::Clock;
use rooflet_base::latest::Latest;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_client::Changes;
use rooflet_process::Process;
use rooflet_proxy::{Proxy, Upstream};

/// Poll interval until the worker is ready and while it makes no progress, and afterwards.
const SHORT_PERIOD: Duration = Duration::from_millis(200);
const LONG_PERIOD: Duration = Duration::from_secs(2);
/// Poll interval of a worker that starts, as a part of the time since its start, and its maximum. A
/// start of minutes needs no five polls per second.
const START_PART: u32 = 20;
const MAX_START_PERIOD: Duration = Duration::from_millis(500);

/// Timeout of one poll.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum size of a status that is read, in bytes.
const MAX_STATUS_BYTES: usize = 256 << 10;

/// State of a worker as last observed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MonitorState {
    pub status: Option<WorkerStatus>,
    pub liveness: Liveness,
    /// Result of the golden prompts. A worker that is ready but has not passed them is reported as
    /// warming.
    pub golden: GoldenState,
}

impl MonitorState {
    pub(crate) fn phase(&self) -> Option<WorkerPhase> {
        self.status.as_ref().map(|status| status.phase)
    }

    /// Returns true if the worker is ready and makes no progress.
    pub(crate) fn is_stalled(&self) -> bool {
        self.phase() == Some(WorkerPhase::Ready) && self.liveness != Liveness::Healthy
    }

    /// Returns the memory that the worker has allocated.
    pub(crate) fn resident(&self) -> Bytes {
        let memory = self.status.as_ref().map(|status| status.memory);
        memory.map_or(Bytes::ZERO, |memory| {
            Bytes(memory.active_bytes) + Bytes(memory.cache_bytes)
        })
    }

    /// Returns true if the difference matters to the sync loop. Counters of bytes and requests
    /// change constantly and do not.
    fn differs(&self, other: &Self) -> bool {
        let relevant = |state: &Self| {
            let status = state.status.as_ref();
            (
                state.liveness,
                state.golden.clone(),
                status.map(|status| (status.phase, status.model.clone(), status.measured)),
            )
        };
        relevant(self) != relevant(other)
    }
}

/// Monitor of one worker.
pub(crate) struct Monitor {
    pub replica: ReplicaKey,
    pub clock: Clock,
    pub proxy: Proxy,
    pub upstream: Upstream,
    /// Golden prompts that the worker must pass before it is Ready.
    pub golden: Option<Golden>,
    pub changes: Changes,
    pub pacing: Pacing,
}

impl Monitor {
    /// Starts polling. Marks `changes` when the worker's state changes or its process exits.
    pub(crate) fn spawn(self, tasks: &Tasks, process: Process) -> watch::Receiver<MonitorState> {
        let (state_tx, state_rx) = watch::channel(MonitorState::default());
        tasks.spawn_detached(async move {
            tokio::select! {
                _ = process.wait() => {}
                () = state_tx.closed() => {}
                () = self.poll(&state_tx) => {}
            }
            self.changes.mark();
        });
        state_rx
    }

    async fn poll(&self, state_tx: &watch::Sender<MonitorState>) {
        let (clock, proxy, upstream) = (&self.clock, &self.proxy, &self.upstream);
        let began = clock.instant();
        let mut history = PollHistory::new(began);
        let mut golden_state = match self.golden {
            Some(_) => GoldenState::Pending,
            None => GoldenState::Passed,
        };
        let mut paced_rx = self.pacing.subscribe();
        loop {
            paced_rx.mark_unchanged();
            let mut status = self.status().await;
            if let Some(status) = &status
                && status.requests.running + status.requests.queued > 0
            {
                self.pacing.request_started(&self.replica);
            }
            if let Some(status) = status
                .as_mut()
                .filter(|status| status.phase == WorkerPhase::Ready)
            {
                if let (GoldenState::Pending, Some(golden)) = (&golden_state, &self.golden) {
                    golden_state = golden::run(golden, proxy, upstream).await.unwrap_or_default();
                }
                if golden_state != GoldenState::Passed {
                    status.phase = WorkerPhase::Warming;
                }
            }
            let poll = match &status {
                None => Poll::Unanswered,
                Some(status) if status.stalled => Poll::Stalled,
                Some(_) => Poll::Progressing,
            };
            let liveness = history.add(poll, clock.instant());
            let mut matters = false;
            state_tx.send_modify(|state| {
                // A worker that misses one poll keeps its last status.
                let next = MonitorState {
                    status: status.or_else(|| state.status.clone()),
                    liveness,
                    golden: golden_state.clone(),
                };
                matters = next.differs(state);
                *state = next;
            });
            if matters {
                self.changes.mark();
            }
            let is_ready = state_tx.latest().phase() == Some(WorkerPhase::Ready);
            let period = match (is_ready, poll == Poll::Progressing) {
                (true, true) => LONG_PERIOD,
                (true, false) => SHORT_PERIOD,
                (false, _) => start_period(clock.instant() - began),
            };
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                _ = paced_rx.changed() => {}
            }
        }
    }

    /// Requests the status. The request also carries the worker's share of the chip's time.
    async fn status(&self) -> Option<WorkerStatus> {
        let share = self.pacing.share(&self.replica);
        let request = async {
            let request = Request::get("/status").header(CHIP_SHARE_HEADER, share.to_string());
            let response = get(&self.proxy, &self.upstream, request).await?;
            let body = Limited::new(response.into_body(), MAX_STATUS_BYTES)
                .collect()
                .await
                .ok()?
                .to_bytes();
            serde_json::from_slice(&body).ok()
        };
        tokio::time::timeout(ANSWER_TIMEOUT, request).await.ok().flatten()
    }
}

/// Returns the poll interval of a worker that was started this long ago and is not ready.
fn start_period(since_start: Duration) -> Duration {
    (since_start / START_PART).clamp(SHORT_PERIOD, MAX_START_PERIOD)
}

/// Returns the response if its status is a success.
async fn get(proxy: &Proxy, upstream: &Upstream, request: Builder) -> Option<http::Response<Body>> {
    let request = request.body(Body::empty()).ok()?;
    let path = request.uri().path_and_query()?.clone();
    let response = proxy.forward(request, upstream, &path).await.ok()?;
    response.status().is_success().then_some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_interval_of_a_start_grows_with_its_duration_up_to_a_maximum() {
        let period = |seconds| start_period(Duration::from_secs(seconds));
        assert_eq!(period(0), SHORT_PERIOD);
        assert_eq!(period(4), SHORT_PERIOD);
        assert_eq!(period(8), 2 * SHORT_PERIOD);
        assert_eq!(period(600), MAX_START_PERIOD);
    }
}
