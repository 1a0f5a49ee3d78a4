//! Worker process: serves one model with an OpenAI-compatible HTTP API.
//!
//! The inputs are a model directory and an address. The process runs the engine thread and the HTTP
//! server. After a stop request, the process waits for in-flight requests and exits. It also exits
//! when the engine fails.
//!
//! Invariants:
//! - One thread owns every MLX object and makes every MLX call.
//! - The result of a request does not depend on the other requests of its batch.
//! - The worker enforces `max_tokens`, context limits, stop strings and cancellation for every
//!   request, and reports usage for every request.

mod api;
mod batch;
pub mod bench;
mod cache;
mod engine;
mod metrics;
mod prompt;
mod sampling;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use camino::Utf8PathBuf;
use rustls::ServerConfig;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use self::api::app::App;
use self::api::ollama::file_facts::FileFacts;
use self::api::responses::store::ResponseStore;
use self::batch::step_error::StepError;
use self::cache::OpenFilesError;
pub use self::cache::PrefixFiles;
use self::engine::{Engine, EngineConfig, EngineError};
use self::metrics::WorkerMetrics;
use self::prompt::{ChildRenderer, PromptError, Prompter, RequestTemplates};
pub use self::prompt::{MEMORY_EXCEEDED, RenderedTemplate};
use rooflet_api::conditions::OUT_OF_MEMORY;
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
use rooflet_inference_api::openai::origins::{AllowedOrigins, OriginRules};
use rooflet_roofline::kv_quantisation::{KvQuantisation, KvQuantisationError, UNQUANTISED_BITS};
use rooflet_telemetry::trace::Tracer;

/// Default context in tokens, if the model supports that many.
const DEFAULT_CONTEXT_TOKENS: u64 = 32_768;

/// Timeout for the engine thread to finish its current step during shutdown.
const ENGINE_STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Listen address of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    /// Path of a Unix socket with mode 0600.
    Unix(Utf8PathBuf),
}

#[derive(Debug, Clone)]
pub struct WorkerConfig {
    pub model: Utf8PathBuf,
    pub listen: Listen,
    /// TLS of the TCP listener; `None` for plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Origins whose browser pages may send requests.
    pub allowed_origins: AllowedOrigins,
    /// Served name: value of the `model` field of requests.
    pub name: String,
    /// Maximum length of prompt plus completion in tokens. `None`: the model's limit, at most
    /// 32768.
    pub context_tokens: Option<u64>,
    /// Maximum number of running requests; at least 1.
    pub max_concurrency: usize,
    /// Maximum number of waiting requests. `None`: [`DEFAULT_QUEUED_PER_STREAM`] times
    /// `max_concurrency`.
    pub max_queued: Option<usize>,
    /// Maximum number of draft tokens of prompt lookup. `None`: prompt lookup is off.
    pub prompt_lookup_tokens: Option<usize>,
    /// Time without requests after which the worker frees the weights and the prefix cache. The next request loads
    /// the model again, and requests of Ollama's API may set another time. `None`: the model stays loaded.
    pub keep_alive: Option<Duration>,
    /// Program that renders chat templates of requests. `None`: requests with a template are rejected.
    pub template_program: Option<PathBuf>,
    /// Memory limit for weights, caches and intermediate results. `None`: the memory that the
    /// machine allows for models.
    pub memory_limit: Option<Bytes>,
    /// Bits per element of the KV cache: 4, 8 or 16. 16 or `None`: the cache is not quantised.
    pub kv_bits: Option<u32>,
    /// Maximum memory of the prefix cache, within `memory_limit`. `None`: the maximum memory of the
    /// running requests. The prefix cache uses only memory that running requests leave free.
    pub prefix_cache_memory: Option<Bytes>,
    /// Directory and limit of the prefix cache on disk. `None`: no prefix cache on disk.
    pub prefix_files: Option<PrefixFiles>,
    /// Maximum time for in-flight requests to finish after a stop.
    pub grace: Duration,
    pub clock: Clock,
    pub tracer: Tracer,
}

/// Error that prevents a worker from starting or terminates it.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("model cannot be served")]
    Model {
        #[source]
        err: InspectModelError,
    },
    #[error("model cannot be served")]
    Prompt {
        #[source]
        err: PromptError,
    },
    #[error("requested context of {requested} tokens exceeds the model's limit of {available} tokens")]
    ContextTooLong { requested: u64, available: u64 },
    #[error("--kv-bits is not supported for this model")]
    KvBits {
        #[source]
        err: KvQuantisationError,
    },
    #[error(
        "--prompt-lookup-tokens is not supported for this model: {0} of its layers have a sliding window or a \
         recurrent state, from which rejected draft tokens cannot be removed"
    )]
    PromptLookup(usize),
    #[error("failed to listen on `{address}`")]
    Listen {
        address: String,
        #[source]
        err: io::Error,
    },
    #[error("engine terminated")]
    Engine {
        #[source]
        err: EngineError,
    },
    #[error("failed to register metrics")]
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
            Self::Engine { err } if err.is_out_of_memory() => OUT_OF_MEMORY,
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
                err: EngineError::InsufficientMemory { .. },
            } => "ExceedsNodeMemory",
            Self::Engine {
                err: EngineError::Warm(StepError::NotFinite),
            } => "NonFiniteLogits",
            Self::Engine {
                err: EngineError::PrefixFiles { err },
            } => err.reason(),
            Self::Engine {
                err: EngineError::Warm(_) | EngineError::Device(_) | EngineError::Spawn { .. },
            } => "EngineFailed",
            Self::Metrics { .. } => "WorkerFailed",
        }
    }

    /// Returns the exit status of the process: `Config` if a restart cannot fix the error.
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
                    EngineError::InsufficientMemory { .. }
                    | EngineError::Warm(StepError::NotFinite)
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

    /// Returns the message that the agent reads after the process exits.
    pub fn termination_message(&self) -> TerminationMessage {
        TerminationMessage {
            reason: self.reason().to_owned(),
            message: Chain(self).to_string(),
        }
    }
}

/// Registers all metrics of a worker without starting it. The reference of metrics lists them.
pub fn register_metrics(registry: &Registry) -> rooflet_base::metrics::Result<()> {
    WorkerMetrics::register(registry, "").map(drop)
}

/// Serves requests until `stop` is cancelled, then waits for in-flight requests for at most the
/// grace period.
///
/// # Errors
/// Returns an error if the worker cannot start or the engine fails.
pub async fn run(config: WorkerConfig, stop: CancellationToken) -> Result<(), WorkerError> {
    Worker::start(config).await?.serve(stop).await
}

/// Worker with a bound listener and a loading engine.
struct Worker {
    listener: Listener,
    tls: Option<Arc<ServerConfig>>,
    origin_rules: Arc<OriginRules>,
    app: Arc<App>,
    engine_ended: oneshot::Receiver<Result<(), EngineError>>,
    grace: Duration,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Socket file, removed on drop.
struct SocketFile(Utf8PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

impl Worker {
    /// Inspects the model, binds the listener and starts the engine. An unusable model or address
    /// fails here, before the engine reads weights.
    async fn start(config: WorkerConfig) -> Result<Self, WorkerError> {
        let model = ModelDir::inspect(&config.model).map_err(|err| WorkerError::Model { err })?;
        let context_tokens = context_tokens(config.context_tokens, model.shape.config.max_context_tokens)?;
        let kv = config
            .kv_bits
            .filter(|bits| *bits != UNQUANTISED_BITS)
            .map(|bits| KvQuantisation::new(bits, &model.shape.config));
        let kv = kv.transpose().map_err(|err| WorkerError::KvBits { err })?;
        let layers_without_full_history = model
            .shape
            .config
            .layers
            .iter()
            .filter(|layer| !layer.keeps_all_tokens());
        if let (Some(_), count @ 1..) = (config.prompt_lookup_tokens, layers_without_full_history.count()) {
            return Err(WorkerError::PromptLookup(count));
        }
        let prompter = Prompter::load(
            &model.path,
            &model.shape.config,
            usize::try_from(context_tokens).unwrap_or(usize::MAX),
        )
        .map_err(|err| WorkerError::Prompt { err })?;
        let templates = match config.template_program {
            Some(program) => RequestTemplates::rendered_by(Arc::new(ChildRenderer { program })),
            None => RequestTemplates::rejected(),
        };
        let prompter = Arc::new(prompter.with_request_templates(templates));
        let listener = Listener::bind(&config.listen).await?;

        let registry = Registry::new();
        let metrics =
            WorkerMetrics::register(&registry, &config.name).map_err(|err| WorkerError::Metrics { err })?;
        let max_concurrency = config.max_concurrency.max(1);
        let files = FileFacts::of(&model.shape);
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
            keep_alive: config.keep_alive,
            clock: config.clock.clone(),
            metrics: metrics.clone(),
        })
        .map_err(|err| WorkerError::Engine { err })?;
        let started = config.clock.now().as_second();
        let app = App {
            name: config.name,
            prompter,
            engine,
            long_body_permits: Arc::new(Semaphore::new(api::body::MAX_CONCURRENT_LONG_BODY_BYTES)),
            responses: ResponseStore::default(),
            clock: config.clock,
            metrics,
            registry,
            tracer: config.tracer,
            files,
            started,
        };
        tracing::info!(model = %app.name, address = %listener.address(), "worker listening");
        if listener
            .tcp_address()
            .is_some_and(|address| address.ip().is_unspecified())
        {
            tracing::warn!("worker accepts requests on all network interfaces without authentication");
        }
        let origin_rules = OriginRules::new(
            config.allowed_origins,
            listener.tcp_address(),
            [Host::Native.identity().hostname],
        );
        Ok(Self {
            listener,
            tls: config.tls,
            origin_rules,
            app: Arc::new(app),
            engine_ended,
            grace: config.grace,
        })
    }

    async fn serve(self, stop: CancellationToken) -> Result<(), WorkerError> {
        let Self {
            listener,
            tls,
            origin_rules,
            app,
            mut engine_ended,
            grace,
        } = self;
        let router = api::server::router(Arc::clone(&app), origin_rules);
        let closing = CancellationToken::new();
        let mut serving = std::pin::pin!(listener.serve(router, tls, closing.clone()));
        let mut phase = app.engine.state().watch_phase();

        let ended = |outcome: Result<Result<(), EngineError>, oneshot::error::RecvError>| {
            let err = match outcome {
                Ok(Err(err)) => err,
                Ok(Ok(())) | Err(_) => {
                    EngineError::Panicked("the engine thread exited unexpectedly".to_owned())
                }
            };
            Err(WorkerError::Engine { err })
        };
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                outcome = &mut engine_ended => return ended(outcome),
                () = &mut serving => return Ok(()),
                () = app.engine.residency().expired() => app.engine.wake(),
                Ok(()) = phase.changed() => {
                    if phase.see_latest() == WorkerPhase::Ready {
                        tracing::info!(model = %app.name, "worker ready");
                    }
                }
            }
        }
        closing.cancel();
        tokio::select! {
            () = &mut serving => {}
            outcome = &mut engine_ended => return ended(outcome),
            () = tokio::time::sleep(grace) => {
                tracing::warn!(grace_seconds = grace.as_secs(), "grace period expired; cancelling in-flight requests");
            }
        }
        // Process exit destroys MLX's static objects, so the engine thread must leave MLX first.
        app.engine.stop();
        match tokio::time::timeout(ENGINE_STOP_TIMEOUT, engine_ended).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(failed) => ended(failed),
            Err(_elapsed) => {
                tracing::warn!(
                    timeout_seconds = ENGINE_STOP_TIMEOUT.as_secs(),
                    "engine did not stop within the timeout"
                );
                Ok(())
            }
        }
    }
}

fn context_tokens(requested: Option<u64>, available: u64) -> Result<u64, WorkerError> {
    match requested {
        None => Ok(available.min(DEFAULT_CONTEXT_TOKENS)),
        Some(requested) if requested <= available => Ok(requested),
        Some(requested) => Err(WorkerError::ContextTooLong { requested, available }),
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

    async fn serve(self, router: Router, tls: Option<Arc<ServerConfig>>, closing: CancellationToken) {
        match (self, tls) {
            (Self::Tcp(listener), Some(tls)) => connection::serve_tls(listener, tls, router, closing).await,
            (Self::Tcp(listener), None) => connection::serve_tcp(listener, router, closing).await,
            (Self::Unix(listener, _file), _) => connection::serve_unix(listener, router, closing).await,
        }
    }
}

/// Binds a Unix socket with mode 0600. Replaces the socket file of a dead worker.
///
/// # Errors
/// Returns `AddrInUse` if a process listens on `path`.
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
