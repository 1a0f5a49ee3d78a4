//! Step of a sync plan for one replica.

use std::time::Duration;

use camino::Utf8PathBuf;
use k8s_openapi::jiff::Timestamp;

use crate::models::ModelProblem;
use rooflet_api::v1alpha1::AdmissionStatus;
use rooflet_roofline::memory::Reservation;

/// Step for one replica.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Download the model of an admitted replica before its worker starts.
    Pull(Start),
    Start(Start),
    Stop(StopCause),
    /// The worker runs as desired.
    Keep,
    /// The worker is stopping.
    AwaitStop,
    /// The worker starts later.
    Wait(Wait),
    /// Admission rejects the replica. Every pass decides this again.
    Refuse(Refusal),
    /// The replica is neither running nor desired: remove its state and its object's finalizer.
    Release,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    pub path: Utf8PathBuf,
    pub fingerprint: u64,
    pub context_tokens: u32,
    pub reservation: Reservation,
    pub admission: Box<AdmissionStatus>,
}

/// Default of the maximum time that a planned stop waits for in-flight requests.
pub const ANSWER_GRACE: Duration = Duration::from_secs(300);
/// Maximum assumed duration of an answer.
const LONGEST_ANSWER: Duration = Duration::from_secs(3600);

impl Start {
    /// Returns the duration of the longest possible answer: the whole context at the slow end (p10)
    /// of the prediction, at full concurrency.
    pub fn longest_answer(&self) -> Duration {
        let speed = self.admission.speed.as_ref();
        longest_answer(
            self.context_tokens,
            speed.map(|speed| speed.tokens_per_second.p10),
        )
    }
}

pub(super) fn longest_answer(context_tokens: u32, tokens_per_second: Option<f64>) -> Duration {
    let rate = tokens_per_second.filter(|rate| *rate > 0.0);
    rate.map_or(LONGEST_ANSWER, |rate| {
        let seconds = f64::from(context_tokens) / rate;
        Duration::from_secs_f64(seconds.min(LONGEST_ANSWER.as_secs_f64()))
    })
}

/// Cause of stopping a running worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The object is being deleted, or the manifest was removed.
    Deleted,
    /// Another object has the same name, or the manifest has changed.
    Replaced,
    /// The worker does not respond.
    Unresponsive,
    /// The agent is stopping.
    AgentStopping,
    /// The node is under memory pressure.
    MemoryPressure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    BackOff {
        until: Timestamp,
    },
    /// The model's metadata is not known yet.
    Artifacts(ModelProblem),
    /// The bandwidth probe runs.
    Probing,
    /// The desired generation is older than the running one.
    Stale,
    AgentStopping,
}

/// Rejection of a replica, with the values for its conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub reason: String,
    pub message: String,
    /// Numbers of the admission decision, if the rejection is based on them.
    pub admission: Option<Box<AdmissionStatus>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The model's files cannot be served.
    Model,
    /// The replica can never run here with its current specification.
    Permanent,
    /// The replica may run here later.
    Temporary,
}
