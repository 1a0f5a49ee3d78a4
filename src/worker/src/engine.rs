//! Engine: one OS thread that owns every MLX object and makes every MLX call. Other threads submit
//! jobs through a bounded queue and receive the events of each job on its own channel. A failed
//! request does not affect other requests. A panic, or a device that no longer computes, ends the
//! thread and then the process, which the agent restarts.

pub(crate) mod allowance;
mod chunk_limit;
mod failures;
pub(crate) mod queue_slot;
pub(crate) mod residency;
pub(crate) mod schedule;
mod spans;
mod start;
pub(crate) mod state;
mod step_limit;
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
use crate::cache::kv_budget::InsufficientMemory;
use crate::cache::{OpenFilesError, PrefixFiles};
use crate::engine::queue_slot::QueueSlot;
use crate::engine::residency::Residency;
use crate::engine::state::EngineState;
use rooflet_api::engine_failure::EngineFailure;
use rooflet_artifact::model_dir::ModelDir;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::units::Bytes;
use rooflet_inference_api::openai::MAX_COMPLETIONS;
use rooflet_mlx::load::LoadError;
use rooflet_roofline::kv_quantisation::KvQuantisation;
use rooflet_telemetry::trace::OpenSpan;

/// Stack size of the engine's thread, because MLX traverses graphs recursively.
const STACK_BYTES: usize = 32 << 20;

/// Maximum value of `Retry-After`.
const MAX_RETRY_AFTER_SECONDS: u32 = 60;

/// Failure that ends the engine's thread.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("failed to load the weights")]
    Load {
        #[source]
        err: LoadError,
    },
    #[error("insufficient memory for the model")]
    InsufficientMemory {
        #[source]
        err: InsufficientMemory,
    },
    #[error("failed to open the prefix cache")]
    PrefixFiles {
        #[source]
        err: OpenFilesError,
    },
    #[error("the engine failed while warming up: {0}")]
    Warm(StepError),
    #[error("the engine's device is unusable: {0}")]
    Device(rooflet_mlx::mlx_rs::error::Exception),
    #[error(transparent)]
    DeviceLost(#[from] DeviceLost),
    #[error("the engine panicked: {0}")]
    Panicked(String),
    #[error("failed to start the engine's thread")]
    Spawn {
        #[source]
        err: std::io::Error,
    },
}

impl EngineError {
    /// Returns true if the device had no memory left.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        EngineFailure::of(&Chain(self).to_string()) == EngineFailure::OutOfMemory
    }
}

/// Configuration of the engine.
#[derive(Debug)]
pub(crate) struct EngineConfig {
    pub model: ModelDir,
    /// Memory for weights, caches and intermediate results. `None`: the memory that the machine
    /// leaves for models.
    pub memory_limit: Option<Bytes>,
    /// Quantisation of KV caches. `None`: not quantised.
    pub kv: Option<KvQuantisation>,
    /// Part of `memory_limit` for the prefix cache. `None`: the maximum size of the running
    /// requests.
    pub prefix_cache_memory: Option<Bytes>,
    pub prefix_files: Option<PrefixFiles>,
    pub prompter: Arc<Prompter>,
    pub max_concurrency: usize,
    /// Number of requests that may wait in addition to the running ones.
    pub max_queued: usize,
    /// Maximum number of draft tokens of prompt lookup. `None` disables it.
    pub prompt_lookup_tokens: Option<usize>,
    /// Time after which an idle engine frees its model. `None`: the model stays loaded.
    pub keep_alive: Option<Duration>,
    pub clock: Clock,
    pub metrics: WorkerMetrics,
}

/// Handle of the engine. The thread ends when the handle is dropped and all work is done.
#[derive(Debug)]
pub(crate) struct Engine {
    commands: mpsc::Sender<Command>,
    slots: Arc<Semaphore>,
    total_slots: usize,
    stop: Arc<AtomicBool>,
    state: Arc<EngineState>,
    residency: Arc<Residency>,
    clock: Clock,
    metrics: WorkerMetrics,
}

/// Command to the engine's thread.
#[derive(Debug)]
enum Command {
    Run(Box<Job>),
    /// Loads the model if it is not loaded, and then sends the value.
    Load(oneshot::Sender<()>),
    /// Wakes the thread, which checks for new work or the end.
    Wake,
    /// Makes the thread panic, as a bug would.
    #[cfg(test)]
    Panic,
}

/// Submitted request. Dropping it cancels the request and releases its queue slot.
#[derive(Debug)]
pub(crate) struct Completion {
    pub events: mpsc::Receiver<Event>,
    pub slot: QueueSlot,
}

/// Queue slots for requests that are submitted one after the other.
#[derive(Debug)]
pub(crate) struct ReservedSlots(OwnedSemaphorePermit);

impl ReservedSlots {
    /// Returns the number of slots, at least 1.
    pub(crate) fn slots(&self) -> usize {
        self.0.num_permits()
    }
}

/// Reason why a request was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubmitError {
    Full { retry_after_seconds: u32 },
    Stopped,
}

impl Engine {
    /// Starts the thread, which then loads the model. The receiver yields the outcome of the
    /// thread.
    pub(crate) fn spawn(
        config: EngineConfig,
    ) -> Result<(Self, oneshot::Receiver<Result<(), EngineError>>), EngineError> {
        let total_slots = config.max_concurrency + config.max_queued;
        // A client's disconnect releases its slot immediately, but the job ends one step later.
        // Hence the channel has twice the capacity.
        let (commands_tx, commands_rx) = mpsc::channel(total_slots.max(MAX_COMPLETIONS) * 2);
        let (ended_tx, ended_rx) = oneshot::channel();
        let state = Arc::new(EngineState::new(config.clock.clone()));
        let residency = Arc::new(Residency::new(config.clock.clone(), config.keep_alive));
        let stop = Arc::new(AtomicBool::new(false));
        let waker = commands_tx.downgrade();
        let engine = Self {
            commands: commands_tx,
            slots: Arc::new(Semaphore::new(total_slots)),
            total_slots,
            stop: Arc::clone(&stop),
            state: Arc::clone(&state),
            residency: Arc::clone(&residency),
            clock: config.clock.clone(),
            metrics: config.metrics.clone(),
        };
        let thread = EngineThread::new(config, (state, residency), stop, commands_rx, waker);
        let failed = |err| EngineError::Spawn { err };
        let engine_thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                rooflet_host::prioritise_thread();
                thread.run()
            })
            .map_err(failed)?;
        std::thread::Builder::new()
            .name("engine-end".to_owned())
            .spawn(move || {
                // Waits until the thread and its thread-local MLX state are destroyed. If the
                // process ends earlier, MLX's CUDA backend frees this state after the driver was
                // shut down, and aborts.
                let outcome = engine_thread.join();
                let outcome =
                    outcome.unwrap_or_else(|panic| Err(EngineError::Panicked(panic_message(panic.as_ref()))));
                // The receiver does not exist any more if the whole process is ending.
                drop(ended_tx.send(outcome));
            })
            .map_err(failed)?;
        Ok((engine, ended_rx))
    }

    /// Submits a request without a trace span.
    pub(crate) fn submit(&self, request: ValidRequest) -> Result<Completion, SubmitError> {
        let mut slots = self.slots(1)?;
        self.enqueue(request, slots.split(1), None)
    }

    /// Reserves slots for up to `requests` concurrent requests, or all slots if there are fewer.
    pub(crate) fn reserve(&self, requests: usize) -> Result<ReservedSlots, SubmitError> {
        self.slots(requests.max(1)).map(ReservedSlots)
    }

    /// Submits a request in one of the `reserved` slots. The caller limits its running requests to
    /// the number of slots.
    pub(crate) fn submit_in(
        &self,
        _reserved: &ReservedSlots,
        request: ValidRequest,
        span: Option<Arc<OpenSpan>>,
    ) -> Result<Completion, SubmitError> {
        self.enqueue(request, None, span)
    }

    /// Submits all requests or none: after a rejection, the requests submitted before are cancelled
    /// by being dropped. `span` records the outcome of the requests.
    pub(crate) fn submit_all(
        &self,
        requests: Vec<ValidRequest>,
        span: Option<&Arc<OpenSpan>>,
    ) -> Result<Vec<Completion>, SubmitError> {
        let mut slots = self.slots(requests.len())?;
        requests
            .into_iter()
            .map(|request| self.enqueue(request, slots.split(1), span.cloned()))
            .collect()
    }

    /// Acquires slots for the requests, or all slots if there are fewer. A request larger than the
    /// queue thus has the queue to itself.
    fn slots(&self, requests: usize) -> Result<OwnedSemaphorePermit, SubmitError> {
        let needed = u32::try_from(requests.min(self.total_slots)).unwrap_or(u32::MAX);
        let slots = Arc::clone(&self.slots).try_acquire_many_owned(needed);
        slots.map_err(|_| self.queue_full())
    }

    fn enqueue(
        &self,
        request: ValidRequest,
        slot: Option<OwnedSemaphorePermit>,
        span: Option<Arc<OpenSpan>>,
    ) -> Result<Completion, SubmitError> {
        let (events_tx, events_rx) = mpsc::channel(Job::event_capacity(&request));
        let (own, slot) = QueueSlot::shared(slot);
        let job = Job {
            request,
            slot: own,
            events: events_tx,
            submitted: self.clock.instant(),
            span,
        };
        self.state.expect_step(step_limit::SHORTEST);
        match self.commands.try_send(Command::Run(Box::new(job))) {
            Ok(()) => Ok(Completion {
                events: events_rx,
                slot,
            }),
            Err(mpsc::error::TrySendError::Full(_)) => Err(self.queue_full()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(SubmitError::Stopped),
        }
    }

    fn queue_full(&self) -> SubmitError {
        self.metrics.record_outcome(Outcome::Rejected);
        let free = self.state.row_free().unwrap_or(Duration::from_secs(1));
        let retry_after_seconds = (free.as_secs_f64().ceil() as u32).clamp(1, MAX_RETRY_AFTER_SECONDS);
        SubmitError::Full { retry_after_seconds }
    }

    pub(crate) fn state(&self) -> &EngineState {
        &self.state
    }

    pub(crate) fn residency(&self) -> &Residency {
        &self.residency
    }

    /// Waits until the model is loaded. This counts as a request for its residency.
    pub(crate) async fn load(&self) -> Result<(), SubmitError> {
        let (loaded_tx, loaded_rx) = oneshot::channel();
        self.state.expect_step(step_limit::SHORTEST);
        let sent = self.commands.send(Command::Load(loaded_tx)).await;
        sent.map_err(|_| SubmitError::Stopped)?;
        loaded_rx.await.map_err(|_| SubmitError::Stopped)
    }

    /// Makes the thread check whether the residency of its model has ended.
    pub(crate) fn wake(&self) {
        // If the queue is full, the thread is awake anyway.
        drop(self.commands.try_send(Command::Wake));
    }

    /// Returns true if the thread accepts jobs.
    pub(crate) fn is_running(&self) -> bool {
        !self.commands.is_closed()
    }

    /// Makes the thread end after its current step, even with unfinished work.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.state.allowance().end();
        self.wake();
    }

    #[cfg(test)]
    pub(crate) fn panic(&self) {
        self.commands
            .try_send(Command::Panic)
            .expect("the queue has capacity");
    }

    #[cfg(test)]
    pub(crate) fn free_slots(&self) -> usize {
        self.slots.available_permits()
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
