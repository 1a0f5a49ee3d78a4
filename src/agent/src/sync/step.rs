//! What a sync plan says of one replica: an output of the plan.

use std::time::Duration;

use camino::Utf8PathBuf;
use k8s_openapi::jiff::Timestamp;

use crate::models::ModelProblem;
use rooflet_api::v1alpha1::AdmissionStatus;
use rooflet_roofline::memory::Reservation;

/// What to do about one replica.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// It would be started if its model were here.
    Pull(Start),
    Start(Start),
    Stop(StopCause),
    /// It runs as it should.
    Keep,
    /// Its process is on its way out.
    AwaitStop,
    /// It would be started, only not now.
    Wait(Wait),
    /// It cannot be started as things are. Decided afresh in every pass.
    Refuse(Refusal),
    /// Nothing of it runs and nobody wants it: forget it, and let its object go.
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

/// What a planned stop waits at most for requests that are under way, unless the agent was told otherwise.
pub const ANSWER_GRACE: Duration = Duration::from_secs(300);
/// No answer is waited for longer.
const LONGEST_ANSWER: Duration = Duration::from_secs(3600);

impl Start {
    /// What its longest answer may take: the whole context at the slow end of the prediction, all streams busy.
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

/// Why a running worker is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// Its object is being deleted, or its manifest is gone.
    Deleted,
    /// Another object has taken its name, or its manifest has changed.
    Replaced,
    /// It does not answer any more.
    Unresponsive,
    /// The agent is stopping.
    AgentStopping,
    /// The machine's owner needs its memory.
    MemoryPressure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    BackOff {
        until: Timestamp,
    },
    /// It is not known yet what its model is.
    Artifacts(ModelProblem),
    /// The node is being measured.
    Probing,
    /// What is wanted is older than what was acted on.
    Stale,
    AgentStopping,
}

/// Why a replica is not started, as its conditions say it.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub ground: Ground,
    pub reason: String,
    pub message: String,
    /// The numbers, where it was a question of numbers.
    pub admission: Option<Box<AdmissionStatus>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// Something about the model's files.
    Artifacts,
    /// It can never run here as it is.
    Never,
    /// It may run here later.
    NotNow,
}
