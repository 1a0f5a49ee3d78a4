//! The worker: one model behind an OpenAI-compatible HTTP server, in a process of its own.
//!
//! Inputs: a model directory and an address. Tasks: the engine thread and the HTTP server. The
//! process ends on request, after the in-flight requests have finished, or when the engine fails.
//!
//! Invariants:
//! - One thread owns every MLX object and makes every MLX call.
//! - The result of a request does not depend on the other requests of its batch.
//! - `max_tokens`, context limits, stop strings and cancellation always hold, and usage is always reported.

mod api;
mod batch;
pub mod bench;
mod cache;
mod engine;
mod metrics;
mod models;
mod prompt;
mod sampling;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use camino::Utf8PathBuf;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use self::api::app::App;
use self::api::responses::store::ResponseStore;
use self::cache::OpenFilesError;
pub use self::cache::PrefixFiles;
use self::engine::{Engine, EngineConfig, EngineError};
use self::metrics::WorkerMetrics;
use self::prompt::{PromptError, Prompter};
use rooflet_api::v1alpha1::DEFAULT_QUEUED_PER_STREAM;
use rooflet_api::wire::{TerminationMessage, WorkerPhase};
use rooflet_artifact::model_dir::{InspectModelError, ModelDir};
use rooflet_base::clock::Clock;
use rooflet_base::error::{Chain, ExitStatus};
use rooflet_base::latest::LatestSeen;
use rooflet_base::metrics::Registry;
use rooflet_base::units::Bytes;
use rooflet_host::Host;
use rooflet_http_server as connection;
use rooflet_inference_api::openai::pages::{AllowedOrigins, PageRules};
use rooflet_roofline::kv_quantisation::{KvQuantisation, KvQuantisationError, UNQUANTISED_BITS};
use rooflet_telemetry::trace::Tracer;

/// Context where none is asked for, as far as the model has so much.
const DEFAULT_CONTEXT_TOKENS: u64 = 32_768;

/// How long the engine's current step may take at the end.
const ENGINE_END: Duration = Duration::from_secs(10);

/// Where a worker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    /// Only this user can connect.
    Unix(Utf8PathBuf),
}

#[derive(Debug, Clone)]
pub struct WorkerConfig {
    pub model: Utf8PathBuf,
    pub listen: Listen,
    /// Whose pages may ask.
    pub allowed_origins: AllowedOrigins,
    /// The `model` of requests.
    pub name: String,
    /// Longest prompt plus completion; `None` = the model's, at most 32768.
    pub context_tokens: Option<u64>,
    /// Requests computed at the same time; at least 1.
    pub max_concurrency: usize,
    /// Requests that may wait for those; `None` = [`DEFAULT_QUEUED_PER_STREAM`] for each.
    pub max_queued: Option<usize>,
    /// Tokens guessed ahead from the text itself, at most; `None` = none.
    pub prompt_lookup_tokens: Option<usize>,
    /// For weights, caches and intermediate results; `None` = what the machine leaves to models.
    pub memory_limit: Option<Bytes>,
    /// Bits of an element of the KV cache, 4 or 8; 16 or `None` = those that the model is computed
    /// in.
    pub kv_bits: Option<u32>,
    /// The most that prefixes of earlier requests may take of that; `None` = as much as the running
    /// requests can come to. What running requests need goes first.
    pub prefix_cache_memory: Option<Bytes>,
    /// Where they are stored besides; `None` = nowhere.
    pub prefix_files: Option<PrefixFiles>,
    /// How long requests under way may take after a stop.
    pub grace: Duration,
    pub clock: Clock,
    pub tracer: Tracer,
}

/// Why a worker could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("this model cannot be served")]
    Model {
        #[source]
        err: InspectModelError,
    },
    #[error("this model cannot be served")]
    Prompt {
        #[source]
        err: PromptError,
    },
    #[error("a context of {asked} tokens was asked for, this model has at most {available}")]
    ContextTooLong { asked: u64, available: u64 },
    #[error("--kv-bits cannot be had")]
    KvBits {
        #[source]
        err: KvQuantisationError,
    },
    #[error(
        "--prompt-lookup-tokens cannot be had: {0} of this model's layers keep a sliding window of tokens or a state, \
         which a wrong guess could not be taken out of"
    )]
    PromptLookup(usize),
    #[error("listening on `{address}`")]
    Listen {
        address: String,
        #[source]
        err: io::Error,
    },
    #[error("the engine ended")]
    Engine {
        #[source]
        err: EngineError,
    },
    #[error("registering metrics")]
    Metrics {
        #[source]
        err: rooflet_base::metrics::Error,
    },
}

impl WorkerError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Model { err } => err.reason(),
            Self::Prompt { err } => err.reason(),
            Self::ContextTooLong { .. } => "ContextTooLong",
            Self::KvBits { .. } => "KvCacheBitsUnsupported",
            Self::PromptLookup(_) => "PromptLookupUnsupported",
            Self::Listen { .. } => "ListenFailed",
            Self::Engine {
                err: EngineError::Load { err },
            } => err.reason(),
            Self::Engine {
                err: EngineError::Panicked(_),
            } => "EnginePanicked",
            Self::Engine {
                err: EngineError::DeviceLost(_),
            } => "DeviceLost",
            Self::Engine {
                err: EngineError::NoRoom { .. },
            } => "ExceedsNodeMemory",
            Self::Engine {
                err: EngineError::PrefixFiles { err },
            } => err.reason(),
            Self::Engine {
                err: EngineError::Warm(_) | EngineError::Device(_) | EngineError::Spawn { .. },
            } => "EngineFailed",
            Self::Metrics { .. } => "WorkerFailed",
        }
    }

    /// The process's exit code: `Config` where a restart cannot help.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Model {
                err: InspectModelError::Read { .. },
            } => ExitStatus::Failure,
            Self::Model { .. }
            | Self::Prompt { .. }
            | Self::ContextTooLong { .. }
            | Self::KvBits { .. }
            | Self::PromptLookup(_)
            | Self::Engine {
                err:
                    EngineError::NoRoom { .. }
                    | EngineError::PrefixFiles {
                        err: OpenFilesError::Io { .. },
                    },
            } => ExitStatus::Config,
            Self::Listen { .. }
            | Self::Engine {
                err:
                    EngineError::PrefixFiles {
                        err: OpenFilesError::InUse { .. },
                    },
            } => ExitStatus::Unavailable,
            Self::Engine { .. } | Self::Metrics { .. } => ExitStatus::Failure,
        }
    }

    /// What the agent reads when the process is gone.
    pub fn termination_message(&self) -> TerminationMessage {
        TerminationMessage {
            reason: self.reason().to_owned(),
            message: Chain(self).to_string(),
        }
    }
}

/// Serves until `stop`, then until the requests under way are done or the grace period is over.
pub async fn run(config: WorkerConfig, stop: CancellationToken) -> Result<(), WorkerError> {
    Worker::start(config).await?.serve(stop).await
}

/// A worker that listens and loads.
struct Worker {
    listener: Listener,
    pages: Arc<PageRules>,
    app: Arc<App>,
    engine_ended: oneshot::Receiver<Result<(), EngineError>>,
    grace: Duration,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes the socket's file when the worker ends.
struct SocketFile(Utf8PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

impl Worker {
    /// Checks the model, binds, and starts to load: an unusable model or address is known before
    /// weights are read.
    async fn start(config: WorkerConfig) -> Result<Self, WorkerError> {
        let model = ModelDir::inspect(&config.model).map_err(|err| WorkerError::Model { err })?;
        let context_tokens = context_tokens(config.context_tokens, model.shape.config.max_context_tokens)?;
        let kv = config
            .kv_bits
            .filter(|bits| *bits != UNQUANTISED_BITS)
            .map(|bits| KvQuantisation::new(bits, &model.shape.config));
        let kv = kv.transpose().map_err(|err| WorkerError::KvBits { err })?;
        let fleeting = model
            .shape
            .config
            .layers
            .iter()
            .filter(|layer| !layer.keeps_all());
        if let (Some(_), fleeting @ 1..) = (config.prompt_lookup_tokens, fleeting.count()) {
            return Err(WorkerError::PromptLookup(fleeting));
        }
        let prompter = Prompter::load(
            &model.path,
            &model.shape.config,
            usize::try_from(context_tokens).unwrap_or(usize::MAX),
        )
        .map_err(|err| WorkerError::Prompt { err })?;
        let prompter = Arc::new(prompter);
        let listener = Listener::bind(&config.listen).await?;

        let registry = Registry::new();
        let metrics =
            WorkerMetrics::register(&registry, &config.name).map_err(|err| WorkerError::Metrics { err })?;
        let max_concurrency = config.max_concurrency.max(1);
        let (engine, engine_ended) = Engine::spawn(EngineConfig {
            model,
            memory_limit: config.memory_limit,
            kv,
            prefix_cache_memory: config.prefix_cache_memory,
            prefix_files: config.prefix_files,
            prompter: Arc::clone(&prompter),
            max_concurrency,
            max_queued: config
                .max_queued
                .unwrap_or(max_concurrency * DEFAULT_QUEUED_PER_STREAM as usize),
            prompt_lookup_tokens: config.prompt_lookup_tokens,
            clock: config.clock.clone(),
            metrics: metrics.clone(),
        })
        .map_err(|err| WorkerError::Engine { err })?;
        let started = config.clock.now().as_second();
        let app = App {
            name: config.name,
            prompter,
            engine,
            long_work: Arc::new(Semaphore::new(api::body::MAX_BYTES_AT_ONCE)),
            responses: ResponseStore::default(),
            clock: config.clock,
            metrics,
            registry,
            tracer: config.tracer,
            started,
        };
        tracing::info!(model = %app.name, address = %listener.address(), "listening");
        if listener
            .tcp_address()
            .is_some_and(|address| address.ip().is_unspecified())
        {
            tracing::warn!("whoever reaches this machine may ask this worker: it asks nobody for a key");
        }
        let pages = PageRules::new(
            config.allowed_origins,
            listener.tcp_address(),
            [Host::Native.identity().hostname],
        );
        Ok(Self {
            listener,
            pages,
            app: Arc::new(app),
            engine_ended,
            grace: config.grace,
        })
    }

    async fn serve(self, stop: CancellationToken) -> Result<(), WorkerError> {
        let Self {
            listener,
            pages,
            app,
            mut engine_ended,
            grace,
        } = self;
        let router = api::server::router(Arc::clone(&app), pages);
        let closing = CancellationToken::new();
        let mut serving = std::pin::pin!(listener.serve(router, closing.clone()));
        let mut phase = app.engine.state().watch_phase();

        let ended = |outcome: Result<Result<(), EngineError>, oneshot::error::RecvError>| {
            let err = match outcome {
                Ok(Err(err)) => err,
                Ok(Ok(())) | Err(_) => EngineError::Panicked("it ended unasked".to_owned()),
            };
            Err(WorkerError::Engine { err })
        };
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                outcome = &mut engine_ended => return ended(outcome),
                () = &mut serving => return Ok(()),
                Ok(()) = phase.changed() => {
                    if phase.see_latest() == WorkerPhase::Ready {
                        tracing::info!(model = %app.name, "ready");
                    }
                }
            }
        }
        closing.cancel();
        tokio::select! {
            () = &mut serving => {}
            outcome = &mut engine_ended => return ended(outcome),
            () = tokio::time::sleep(grace) => {
                tracing::warn!(grace_seconds = grace.as_secs(), "requests were cut off: the grace period is over");
            }
        }
        // The process must not end while the thread is inside MLX, whose statics would be gone.
        app.engine.stop();
        match tokio::time::timeout(ENGINE_END, engine_ended).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(failed) => ended(failed),
            Err(_elapsed) => {
                tracing::warn!("the engine did not end in time");
                Ok(())
            }
        }
    }
}

fn context_tokens(asked: Option<u64>, available: u64) -> Result<u64, WorkerError> {
    match asked {
        None => Ok(available.min(DEFAULT_CONTEXT_TOKENS)),
        Some(asked) if asked <= available => Ok(asked),
        Some(asked) => Err(WorkerError::ContextTooLong { asked, available }),
    }
}

impl Listener {
    async fn bind(listen: &Listen) -> Result<Self, WorkerError> {
        match listen {
            Listen::Tcp(address) => {
                TcpListener::bind(address)
                    .await
                    .map(Self::Tcp)
                    .map_err(|err| WorkerError::Listen {
                        address: address.to_string(),
                        err,
                    })
            }
            Listen::Unix(path) => bind_unix(path).await.map_err(|err| WorkerError::Listen {
                address: path.to_string(),
                err,
            }),
        }
    }

    fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|err| err.to_string(), |a| a.to_string()),
            Self::Unix(_, SocketFile(path)) => path.to_string(),
        }
    }

    async fn serve(self, router: Router, closing: CancellationToken) {
        match self {
            Self::Tcp(listener) => connection::serve_tcp(listener, router, closing).await,
            Self::Unix(listener, _file) => connection::serve_unix(listener, router, closing).await,
        }
    }
}

/// A file that a dead worker left behind is replaced; one that somebody listens on is not.
async fn bind_unix(path: &Utf8PathBuf) -> io::Result<Listener> {
    if path.exists() {
        if UnixStream::connect(path).await.is_ok() {
            return Err(io::Error::from(io::ErrorKind::AddrInUse));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let file = SocketFile(path.clone());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(Listener::Unix(listener, file))
}

#[cfg(test)]
mod tests;
