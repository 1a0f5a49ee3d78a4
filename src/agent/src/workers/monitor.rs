//! Asks one worker how it is doing, over its socket, until its process ends, and tells it what it may take of the chip.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use http::request::Builder;
use http_body_util::{BodyExt, Limited};
use tokio::sync::watch;

use super::golden::{self, Golden, GoldenState};
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

/// Between two questions, until the worker is ready and afterwards.
const STARTING_PERIOD: Duration = Duration::from_millis(200);
const READY_PERIOD: Duration = Duration::from_secs(2);

/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// A worker whose engine made no progress, or that did not answer at all, for so long is replaced. Long prefills do
/// not count: the worker's own health follows the engine, not the length of a request.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(60);

/// The largest status that is read, in bytes.
const MAX_STATUS_BYTES: usize = 256 << 10;

/// What a worker last said.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Contact {
    pub status: Option<WorkerStatus>,
    pub unresponsive: bool,
    /// Until it has passed, a worker that says it is ready is told to be warming.
    pub golden: GoldenState,
}

impl Contact {
    pub(crate) fn phase(&self) -> Option<WorkerPhase> {
        self.status.as_ref().map(|status| status.phase)
    }

    /// Memory it has taken already.
    pub(crate) fn resident(&self) -> Bytes {
        let memory = self.status.as_ref().map(|status| status.memory);
        memory.map_or(Bytes::ZERO, |memory| {
            Bytes(memory.active_bytes) + Bytes(memory.cache_bytes)
        })
    }

    /// Whether the sync loop should look: counters of bytes and requests change all the time and decide nothing.
    fn differs(&self, other: &Self) -> bool {
        let essence = |contact: &Self| {
            let status = contact.status.as_ref();
            (
                contact.unresponsive,
                contact.golden.clone(),
                status.map(|status| (status.phase, status.model.clone(), status.measured)),
            )
        };
        essence(self) != essence(other)
    }
}

/// Asks one worker.
pub(crate) struct Monitor {
    pub replica: ReplicaKey,
    pub clock: Clock,
    pub proxy: Proxy,
    pub upstream: Upstream,
    /// What it has to answer before it counts as ready.
    pub golden: Option<Golden>,
    pub changes: Changes,
    pub pacing: Pacing,
}

impl Monitor {
    /// Starts asking. Marks `changes` when something that matters has changed, the end of the process included.
    pub(crate) fn spawn(self, tasks: &Tasks, process: Process) -> watch::Receiver<Contact> {
        let (contact_tx, contact_rx) = watch::channel(Contact::default());
        tasks.spawn_detached(async move {
            tokio::select! {
                _ = process.wait() => {}
                () = contact_tx.closed() => {}
                () = self.ask(&contact_tx) => {}
            }
            self.changes.mark();
        });
        contact_rx
    }

    async fn ask(&self, contact_tx: &watch::Sender<Contact>) {
        let (clock, proxy, upstream) = (&self.clock, &self.proxy, &self.upstream);
        let mut last_healthy = clock.instant();
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
                self.pacing.is_asked(&self.replica);
            }
            if let Some(status) = status
                .as_mut()
                .filter(|status| status.phase == WorkerPhase::Ready)
            {
                if let (GoldenState::Pending, Some(golden)) = (&golden_state, &self.golden) {
                    golden_state = golden::ask(golden, proxy, upstream).await.unwrap_or_default();
                }
                if golden_state != GoldenState::Passed {
                    status.phase = WorkerPhase::Warming;
                }
            }
            if status.is_some() && is_healthy(proxy, upstream).await {
                last_healthy = clock.instant();
            }
            let unresponsive = clock.instant() - last_healthy >= UNRESPONSIVE_AFTER;
            let mut matters = false;
            contact_tx.send_modify(|contact| {
                // A worker that is busy for a moment is still what it said it was.
                let next = Contact {
                    status: status.or_else(|| contact.status.clone()),
                    unresponsive,
                    golden: golden_state.clone(),
                };
                matters = next.differs(contact);
                *contact = next;
            });
            if matters {
                self.changes.mark();
            }
            let ready = contact_tx.latest().phase() == Some(WorkerPhase::Ready);
            tokio::select! {
                () = tokio::time::sleep(if ready { READY_PERIOD } else { STARTING_PERIOD }) => {}
                _ = paced_rx.changed() => {}
            }
        }
    }

    /// Tells it what it may take of the chip's time, too.
    async fn status(&self) -> Option<WorkerStatus> {
        let share = self.pacing.share(&self.replica);
        let asking = async {
            let request = Request::get("/status").header(CHIP_SHARE_HEADER, share.to_string());
            let response = get(&self.proxy, &self.upstream, request).await?;
            let body = Limited::new(response.into_body(), MAX_STATUS_BYTES)
                .collect()
                .await
                .ok()?
                .to_bytes();
            serde_json::from_slice(&body).ok()
        };
        tokio::time::timeout(ANSWER_TIMEOUT, asking).await.ok().flatten()
    }
}

async fn is_healthy(proxy: &Proxy, upstream: &Upstream) -> bool {
    let asking = get(proxy, upstream, Request::get("/health"));
    tokio::time::timeout(ANSWER_TIMEOUT, asking)
        .await
        .ok()
        .flatten()
        .is_some()
}

/// A response, if it says that all is well.
async fn get(proxy: &Proxy, upstream: &Upstream, request: Builder) -> Option<http::Response<Body>> {
    let request = request.body(Body::empty()).ok()?;
    let path = request.uri().path_and_query()?.clone();
    let response = proxy.forward(request, upstream, &path).await.ok()?;
    response.status().is_success().then_some(response)
}
