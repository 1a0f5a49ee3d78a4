//! The engine: one OS thread that owns every MLX object and makes every MLX call. Others hand it
//! jobs through a bounded queue and read each job's events from a channel of its own. A failure of
//! one request ends that request only; a panic or a device that computes nothing any more ends the
//! thread, and with it the process, which the agent starts afresh.

pub(crate) mod allowance;
mod failures;
pub(crate) mod place;
pub(crate) mod schedule;
mod spans;
mod start;
pub(crate) mod state;
mod thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use self::failures::DeviceLost;
use self::thread::EngineThread;
use super::metrics::{Outcome, WorkerMetrics};
use super::prompt::{Prompter, ValidRequest};
use crate::batch::event::Event;
use crate::batch::job::Job;
use crate::batch::step_error::StepError;
use crate::cache::kv_budget::NoRoom;
use crate::cache::{OpenFilesError, PrefixFiles};
use crate::engine::place::Place;
use crate::engine::state::EngineState;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_base::clock::Clock;
use rooflet_base::units::Bytes;
use rooflet_inference_api::openai::MAX_COMPLETIONS;
use rooflet_mlx::load::LoadError;
use rooflet_roofline::kv_quantisation::KvQuantisation;
use rooflet_telemetry::trace::OpenSpan;

/// MLX walks graphs by recursion.
const STACK_BYTES: usize = 32 << 20;

/// Longest time a client is told to stay away.
const MAX_RETRY_AFTER_SECONDS: u32 = 60;

/// How the engine's thread ended.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the weights cannot be loaded")]
    Load {
        #[source]
        err: LoadError,
    },
    #[error("the worker has too little memory")]
    NoRoom {
        #[source]
        err: NoRoom,
    },
    #[error("prefixes cannot be stored")]
    PrefixFiles {
        #[source]
        err: OpenFilesError,
    },
    #[error("the engine failed while warming up: {0}")]
    Warm(StepError),
    #[error("the engine's device cannot be used: {0}")]
    Device(rooflet_mlx::mlx_rs::error::Exception),
    #[error(transparent)]
    DeviceLost(#[from] DeviceLost),
    #[error("the engine panicked: {0}")]
    Panicked(String),
    #[error("the engine's thread cannot be started")]
    Spawn {
        #[source]
        err: std::io::Error,
    },
}

/// What the engine is to run.
#[derive(Debug)]
pub(crate) struct EngineConfig {
    pub model: ModelDir,
    /// For weights, caches and intermediate results; `None` = what the machine leaves to models.
    pub memory_limit: Option<Bytes>,
    /// How caches are quantised; `None` = not.
    pub kv: Option<KvQuantisation>,
    /// The most that prefixes may take of that; `None` = as much as the running requests can come
    /// to.
    pub prefix_cache_memory: Option<Bytes>,
    pub prefix_files: Option<PrefixFiles>,
    pub prompter: Arc<Prompter>,
    pub max_concurrency: usize,
    /// Requests that may wait beyond those that run.
    pub max_queued: usize,
    /// Most draft tokens of prompt lookup; `None`: no drafts.
    pub prompt_lookup_tokens: Option<usize>,
    pub clock: Clock,
    pub metrics: WorkerMetrics,
}

/// Hands requests to the engine's thread. The thread ends when this is dropped and its work is
/// done.
#[derive(Debug)]
pub(crate) struct Engine {
    commands: mpsc::Sender<Command>,
    places: Arc<Semaphore>,
    total_places: usize,
    stop: Arc<AtomicBool>,
    state: Arc<EngineState>,
    clock: Clock,
    metrics: WorkerMetrics,
}

/// What the thread is told.
#[derive(Debug)]
enum Command {
    Run(Box<Job>),
    /// See whether to go on.
    Wake,
    /// Fail as native code or a bug of ours would.
    #[cfg(test)]
    Panic,
}

/// A submitted request. Dropping it cancels the request and frees its place.
#[derive(Debug)]
pub(crate) struct Completion {
    pub events: mpsc::Receiver<Event>,
    pub place: Place,
}

/// Places for requests that are submitted one after the other.
#[derive(Debug)]
pub(crate) struct Reserved(OwnedSemaphorePermit);

impl Reserved {
    /// At least 1.
    pub(crate) fn places(&self) -> usize {
        self.0.num_permits()
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubmitError {
    Full { retry_after_seconds: u32 },
    Stopped,
}

impl Engine {
    /// Starts the thread, which begins to load the model. The receiver hears how the thread ended.
    pub(crate) fn spawn(
        config: EngineConfig,
    ) -> Result<(Self, oneshot::Receiver<Result<(), EngineError>>), EngineError> {
        let total_places = config.max_concurrency + config.max_queued;
        // Places are freed when a client goes, jobs a step later: hence the room for twice as many.
        let (commands_tx, commands_rx) = mpsc::channel(total_places.max(MAX_COMPLETIONS) * 2);
        let (ended_tx, ended_rx) = oneshot::channel();
        let state = Arc::new(EngineState::new(config.clock.clone()));
        let stop = Arc::new(AtomicBool::new(false));
        let waker = commands_tx.downgrade();
        let engine = Self {
            commands: commands_tx,
            places: Arc::new(Semaphore::new(total_places)),
            total_places,
            stop: Arc::clone(&stop),
            state: Arc::clone(&state),
            clock: config.clock.clone(),
            metrics: config.metrics.clone(),
        };
        let thread = EngineThread::new(config, state, stop, commands_rx, waker);
        let failed = |err| EngineError::Spawn { err };
        let engine_thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || thread.run())
            .map_err(failed)?;
        std::thread::Builder::new()
            .name("engine-end".to_owned())
            .spawn(move || {
                // Not before the thread is gone with all that MLX keeps for it: where the process
                // ends meanwhile, MLX's CUDA back end frees that on a driver which is not there any
                // more, and aborts.
                let outcome = engine_thread.join();
                let outcome =
                    outcome.unwrap_or_else(|panic| Err(EngineError::Panicked(panic_message(panic.as_ref()))));
                // Nobody listens any more when the whole process is ending.
                drop(ended_tx.send(outcome));
            })
            .map_err(failed)?;
        Ok((engine, ended_rx))
    }

    /// One that nobody follows by a trace.
    pub(crate) fn submit(&self, request: ValidRequest) -> Result<Completion, SubmitError> {
        let mut places = self.places(1)?;
        self.hand_over(request, places.split(1), None)
    }

    /// Places for up to so many requests at a time, or all there are.
    pub(crate) fn reserve(&self, requests: usize) -> Result<Reserved, SubmitError> {
        self.places(requests.max(1)).map(Reserved)
    }

    /// In one of the `reserved` places: the caller has no more requests running than there are.
    pub(crate) fn submit_in(
        &self,
        _reserved: &Reserved,
        request: ValidRequest,
        span: Option<Arc<OpenSpan>>,
    ) -> Result<Completion, SubmitError> {
        self.hand_over(request, None, span)
    }

    /// All or none: what was handed over before a refusal is cancelled by being dropped. `span` is
    /// told what becomes of the requests.
    pub(crate) fn submit_all(
        &self,
        requests: Vec<ValidRequest>,
        span: Option<&Arc<OpenSpan>>,
    ) -> Result<Vec<Completion>, SubmitError> {
        let mut places = self.places(requests.len())?;
        requests
            .into_iter()
            .map(|request| self.hand_over(request, places.split(1), span.cloned()))
            .collect()
    }

    /// Places for so many requests, or all there are: what is larger than the queue has it to
    /// itself.
    fn places(&self, requests: usize) -> Result<OwnedSemaphorePermit, SubmitError> {
        let needed = u32::try_from(requests.min(self.total_places)).unwrap_or(u32::MAX);
        let places = Arc::clone(&self.places).try_acquire_many_owned(needed);
        places.map_err(|_| self.full())
    }

    fn hand_over(
        &self,
        request: ValidRequest,
        place: Option<OwnedSemaphorePermit>,
        span: Option<Arc<OpenSpan>>,
    ) -> Result<Completion, SubmitError> {
        let (events_tx, events_rx) = mpsc::channel(Job::event_capacity(&request));
        let (own, place) = Place::shared(place);
        let job = Job {
            request,
            place: own,
            events: events_tx,
            submitted: self.clock.instant(),
            span,
        };
        match self.commands.try_send(Command::Run(Box::new(job))) {
            Ok(()) => Ok(Completion {
                events: events_rx,
                place,
            }),
            Err(mpsc::error::TrySendError::Full(_)) => Err(self.full()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(SubmitError::Stopped),
        }
    }

    fn full(&self) -> SubmitError {
        self.metrics.ended(Outcome::Rejected);
        let free = self.state.row_free().unwrap_or(Duration::from_secs(1));
        let retry_after_seconds = (free.as_secs_f64().ceil() as u32).clamp(1, MAX_RETRY_AFTER_SECONDS);
        SubmitError::Full { retry_after_seconds }
    }

    pub(crate) fn state(&self) -> &EngineState {
        &self.state
    }

    /// Whether the thread is there to take jobs.
    pub(crate) fn is_running(&self) -> bool {
        !self.commands.is_closed()
    }

    /// Makes the thread end after its current step, whatever is left to do.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.state.allowance().end();
        // A queue that is full belongs to a thread that is awake.
        drop(self.commands.try_send(Command::Wake));
    }

    #[cfg(test)]
    pub(crate) fn panic(&self) {
        self.commands.try_send(Command::Panic).expect("room for one more");
    }

    #[cfg(test)]
    pub(crate) fn free_places(&self) -> usize {
        self.places.available_permits()
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
