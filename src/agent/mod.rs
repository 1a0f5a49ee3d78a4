//! The node agent: one per machine. It registers the machine, runs the replicas bound to it (and those of its manifest
//! directory), each in a worker process of its own, and tells the API server how they fare.
//!
//! Tasks: the sync loop, the reporter of replicas, the reporter of the node, the Lease, the bandwidth probe, the reader
//! of the manifest directory, the HTTP server, one monitor per worker. Nothing of it waits for the API server: with the
//! control plane down the agent keeps running what it was last told, its own restarts included.

mod awake;
mod backoff;
pub(crate) mod calibrator;
mod company;
mod golden;
mod holder;
mod in_flight;
mod manifests;
mod metrics;
pub(crate) mod models;
mod monitor;
mod node;
mod node_conditions;
pub(crate) mod node_status;
mod pacing;
mod prefix_files;
pub(crate) mod pressure;
pub(crate) mod probe;
mod pulls;
mod quarantine;
mod quiet_hours;
pub(crate) mod replica;
mod report;
mod server;
pub(crate) mod state;
pub(crate) mod sync;
mod wired;
pub(crate) mod workers;

pub(crate) use node::LEASE_PERIOD;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use http::Uri;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::calibrator::Calibrator;
use self::holder::{Holder, TakenError};
use self::manifests::{OpenManifestsError, Parser};
use self::metrics::AgentMetrics;
use self::models::{ComputeType, Models, ServableModel};
use self::node::NodeReporter;
use self::pressure::MemoryWatch;
use self::probe::{ProbeState, ProbeStep, Prober};
use self::pulls::Pulls;
pub(crate) use self::quiet_hours::{ParseQuietHoursError, QuietHours};
use self::report::Reporter;
use self::server::App;
use self::state::{OpenStateError, StateDir};
use self::sync::{Reports, Sources, SyncLoop};
use self::wired::WiredWatch;
use self::workers::{WorkerCommand, Workers};
use crate::api::v1alpha1::{FleetNode, ModelReplica};
use crate::artifact::ModelDirectory;
use crate::artifact::remote::HubAccess;
use crate::client::{Changes, Recorder, watch as watch_kind};
use crate::clock::Clock;
use crate::connection;
use crate::error::Chain;
use crate::host::{Host, Identity};
use crate::latest::Latest;
use crate::metrics::Registry;
use crate::openai::pages::{AllowedOrigins, PageRules};
use crate::proxy::{BodyRoom, MAX_KEPT_BODY_BYTES, Proxy};
use crate::task::Tasks;

/// How long the last reports may take when the agent stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long the API server may take to tell whose the node's name is.
const CHECK_NAME: Duration = Duration::from_secs(5);

/// How long the agent's tasks may take to end.
const TASKS_END: Duration = Duration::from_secs(3);

/// What an agent is to do.
#[derive(Debug, Clone)]
pub(crate) struct AgentConfig {
    pub(crate) node_name: String,
    pub(crate) state_dir: Utf8PathBuf,
    pub(crate) model_dir: Option<Utf8PathBuf>,
    /// Where models of `hf://` sources are; `None`: none are downloaded.
    pub(crate) hub: Option<HubAccess>,
    pub(crate) manifest_dir: Option<Utf8PathBuf>,
    /// Base URL at which others reach the agent's HTTP server.
    pub(crate) endpoint: String,
    /// Whose pages may ask here.
    pub(crate) allowed_origins: AllowedOrigins,
    /// When the machine is not to serve.
    pub(crate) quiet_hours: QuietHours,
    /// The binary that workers and the probe are started from: this one.
    pub(crate) program: Utf8PathBuf,
    /// How long a worker may finish what it is answering.
    pub(crate) grace: Duration,
    /// The most that they may take for that when their replicas are replaced, moved or scaled away.
    pub(crate) answer_grace: Duration,
    /// Leave workers running when the agent stops, for its next life.
    pub(crate) keep_workers: bool,
    /// Measure the memory bandwidth when there is no fresh figure.
    pub(crate) probe: bool,
    /// Part of that: how long to wait for what heat leaves of the speed.
    pub(crate) probe_sustained: Option<Duration>,
    /// The machine is not a real one.
    pub(crate) simulated: Option<SimulatedMachine>,
}

/// A machine that is not a real one. It is never probed: its speed is its data sheet's.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimulatedMachine {
    pub(crate) labels: BTreeMap<String, String>,
    /// What it has instead of a model directory and an engine; `None`: the real ones of this machine.
    pub(crate) engine: Option<SimulatedEngine>,
}

/// Models and workers of a machine that loads and computes nothing.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedEngine {
    /// By the directory's name.
    pub(crate) models: BTreeMap<String, ServableModel>,
    /// What workers are started with, before the arguments that every worker gets.
    pub(crate) worker: Vec<String>,
}

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartAgentError {
    #[error(transparent)]
    State(#[from] OpenStateError),
    #[error(transparent)]
    Manifests(#[from] OpenManifestsError),
    #[error("the model directory `{path}` cannot be read: create it, or name another one with --model-dir")]
    ModelDir {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("registering metrics")]
    Metrics(#[from] crate::metrics::Error),
}

/// An agent that is ready to run: its directories are there and its own.
pub(crate) struct Agent {
    config: AgentConfig,
    host: Host,
    clock: Clock,
    state: Arc<StateDir>,
    identity: Identity,
    holder: Holder,
    registry: Registry,
    metrics: AgentMetrics,
}

impl Agent {
    /// Checks everything that can be wrong before anything is started.
    pub(crate) fn new(config: AgentConfig, host: Host, clock: Clock) -> Result<Self, StartAgentError> {
        if let Some(path) = &config.model_dir {
            path.read_dir_utf8().map_err(|err| StartAgentError::ModelDir {
                path: path.clone(),
                err,
            })?;
        }
        if let Some(path) = &config.manifest_dir {
            manifests::check_readable(path)?;
        }
        let state = Arc::new(StateDir::open(&config.state_dir)?);
        let identity = host.identity();
        let holder = Holder {
            node: config.node_name.clone(),
            machine_id: machine_id(&state, &identity),
            state_dir: state.path().to_owned(),
        };
        let registry = Registry::new();
        let metrics = AgentMetrics::register(&registry)?;
        Ok(Self {
            config,
            host,
            clock,
            state,
            identity,
            holder,
            registry,
            metrics,
        })
    }

    /// Refuses to run beside another agent of the same node, as far as the API server tells: two would start the same
    /// replicas. Where it does not answer, the agent goes on with what it was last told.
    pub(crate) async fn check_name(&self, client: &Client) -> Result<(), TakenError> {
        let lease = node::lease_of(client, &self.holder.node);
        match tokio::time::timeout(CHECK_NAME, lease).await {
            Ok(Ok(Some(Lease { spec: Some(spec), .. }))) => self.holder.check(&spec, self.clock.now()),
            Ok(Ok(_) | Err(_)) | Err(_) => Ok(()),
        }
    }

    /// Runs until `stop`, then drains and stops its workers. `client` is the API server, if there is one.
    pub(crate) async fn run(
        self,
        client: Option<Client>,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<(), String> {
        let Self {
            config,
            host,
            clock,
            state,
            identity,
            holder,
            registry,
            metrics,
        } = self;
        match state.keep_node_name(&config.node_name) {
            Ok(None) => {}
            Ok(Some(before)) => warn!(
                node = config.node_name,
                before,
                "this machine's node has another name: delete the FleetNode that it was, or go back to that --node-name"
            ),
            Err(err) => warn!(error = %Chain(&err), "the node's name could not be kept"),
        }
        let tasks = Tasks::new();
        let changes = Changes::new();
        let proxy = Proxy::new();
        let simulated_engine = config
            .simulated
            .as_ref()
            .and_then(|machine| machine.engine.as_ref());
        let engine = match simulated_engine {
            Some(_) => program_with("a simulated engine"),
            None => program_with(&engine_version()),
        };
        let command = WorkerCommand {
            program: config.program.clone(),
            engine: engine.clone(),
            arguments: match simulated_engine {
                Some(engine) => engine.worker.clone(),
                None => vec!["worker".to_owned()],
            },
            grace: config.grace,
            answer_grace: config.answer_grace,
        };
        let quarantined = quarantine::look(&state, &host, &engine, &identity.os_build, clock.now());
        let workers = Workers::adopt(
            state.clone(),
            command,
            tasks.clone(),
            clock.clone(),
            changes.clone(),
            proxy.clone(),
            host.clone(),
        );
        let manifests_rx = config.manifest_dir.clone().map(|path| {
            let parser = Parser::new(&config.node_name);
            manifests::watch(&tasks, path, parser, workers.records(), changes.clone())
        });
        let conditions = measuring_conditions(&holder.machine_id, &identity, config.probe_sustained);
        let probe = match &config.simulated {
            Some(_) => ProbeState::simulated(),
            None => ProbeState {
                step: ProbeStep::Waiting,
                last: Prober::remembered(&state, &conditions),
            },
        };
        let device = probe.last.as_ref().map(|last| last.report.engine.device.clone());
        let now = clock.now();
        let is_fresh = probe
            .last
            .as_ref()
            .is_some_and(|last| !last.fresh_for(now).is_zero());
        let must_probe = config.probe && config.simulated.is_none() && !is_fresh;
        let (probe_tx, probe_rx) = watch::channel(probe);
        // Held back from the start if there is something to measure and nothing running: the first pass must not
        // start a worker just before the probe asks for the machine.
        let (probing_tx, probing) = watch::channel(must_probe && workers.is_idle());
        let (reports_tx, reports_rx) = watch::channel(Arc::<Reports>::default());
        let app = App {
            node: config.node_name.as_str().into(),
            endpoints_rx: workers.endpoints(),
            reports_rx: reports_rx.clone(),
            manifests_rx: manifests_rx.clone(),
            proxy,
            body_room: BodyRoom::new(MAX_KEPT_BODY_BYTES),
            registry,
            turn: Arc::default(),
            in_flight: in_flight::InFlight::default(),
            pacing: workers.pacing().clone(),
            stop: tasks.stop_token(),
        };
        let api = client.map(|client| Connection::open(client, &tasks, &clock, &config, &changes));
        if config.probe && config.simulated.is_none() {
            let prober = Prober {
                state: state.clone(),
                program: config.program.clone(),
                arguments: probe_arguments(config.model_dir.as_deref(), config.probe_sustained),
                sustained: config.probe_sustained.unwrap_or_default(),
                conditions,
                clock: clock.clone(),
                changes: changes.clone(),
                reports_rx: reports_rx.clone(),
                probing_tx,
                state_tx: probe_tx,
            };
            tasks.spawn_detached(prober.run(tasks.stop_token()));
        }
        if config.simulated.is_none() {
            tasks.spawn_detached(awake::while_serving(reports_rx.clone(), tasks.stop_token()));
        }
        serve(&tasks, listener, app, &config);

        let memory_watch = MemoryWatch::resume(workers.records().any(|record| record.gave_way));
        let wired = WiredWatch::load(state.clone(), host.boot_id());
        let sync = SyncLoop {
            node: config.node_name.clone(),
            host: host.clone(),
            chip: identity.chip.clone(),
            computes_here: config.simulated.is_none() || simulated_engine.is_some(),
            quarantined,
            wired: wired.clone(),
            clock: clock.clone(),
            sources: Sources {
                api: api.as_ref().map(|api| api.replicas.clone()),
                manifests: manifests_rx,
                probing,
                probe: probe_rx.clone(),
            },
            workers,
            models: match simulated_engine {
                Some(engine) => Models::simulated(engine.models.clone()),
                None => {
                    let compute = ComputeType::of_device(device.as_deref());
                    let models = Models::new(ModelDirectory::new(config.model_dir.clone()), compute);
                    match config.hub.clone() {
                        Some(hub) => {
                            models.with_pulls(Pulls::new(hub, &state, &tasks, clock.clone(), changes.clone()))
                        }
                        None => models,
                    }
                }
            },
            used_models: None,
            prepared: BTreeMap::new(),
            calibrator: Calibrator::new(state.clone()),
            memory_watch,
            recorder: api.as_ref().map(|api| api.recorder.clone()),
            metrics,
            changes: changes.clone(),
            reports_tx,
            said: BTreeMap::new(),
            listed: None,
        };
        let stopping = CancellationToken::new();
        let (done_tx, done_rx) = tokio::sync::oneshot::channel();
        let keep_workers = config.keep_workers;
        let sync_stop = stopping.clone();
        tasks.spawn::<String>("sync", move |_| {
            Box::pin(async move {
                sync.run(sync_stop, keep_workers).await;
                // Nobody waits any more if the agent is ending for another reason.
                let _ = done_tx.send(());
                Ok(())
            })
        });
        let farewell = api.map(|api| {
            let node = NodeReporter {
                client: api.client.clone(),
                name: config.node_name.clone(),
                host,
                identity,
                holder,
                is_held: Arc::default(),
                state_path: config.state_dir.clone(),
                endpoint: config.endpoint.clone(),
                quiet_hours: config.quiet_hours.clone(),
                wired,
                simulated: config.simulated.clone(),
                clock,
                cache: api.nodes.clone(),
                changes: changes.clone(),
                recorder: api.recorder.clone(),
                reports_rx: reports_rx.clone(),
                probe_rx,
            };
            api.report(&tasks, &config, node, &changes, reports_rx, &stopping)
        });
        info!(
            node = config.node_name,
            endpoint = config.endpoint,
            "the agent runs"
        );

        let failed = tasks.stop_token();
        tokio::select! {
            () = stop.cancelled() => {}
            () = failed.cancelled() => {}
        }
        stopping.cancel();
        if failed.is_cancelled() {
            // A task the agent depends on has failed. Workers stay for the next life.
            return tasks.join(TASKS_END).await;
        }
        // The loop ends when the last worker is gone.
        drop(done_rx.await);
        if let Some(farewell) = farewell
            && tokio::time::timeout(FAREWELL, farewell.say()).await.is_err()
        {
            warn!("the API server did not take the agent's last words in time");
        }
        tasks.cancel();
        let outcome = tasks.join(TASKS_END).await;
        info!("the agent has stopped");
        outcome
    }
}

/// The API server's side of an agent.
struct Connection {
    client: Client,
    replicas: crate::client::Cache<ModelReplica>,
    nodes: crate::client::Cache<FleetNode>,
    recorder: Recorder,
}

impl Connection {
    fn open(client: Client, tasks: &Tasks, clock: &Clock, config: &AgentConfig, changes: &Changes) -> Self {
        let bound_here = watcher::Config::default().fields(&format!("spec.nodeName={}", config.node_name));
        let this_node = watcher::Config::default().fields(&format!("metadata.name={}", config.node_name));
        Self {
            replicas: watch_kind(tasks, Api::all(client.clone()), bound_here, changes),
            nodes: watch_kind(tasks, Api::all(client.clone()), this_node, changes),
            recorder: Recorder::spawn(
                tasks,
                client.clone(),
                clock.clone(),
                "rooflet-agent",
                config.node_name.clone(),
            ),
            client,
        }
    }

    /// Starts whatever tells the API server something.
    fn report(
        self,
        tasks: &Tasks,
        config: &AgentConfig,
        node: NodeReporter,
        changes: &Changes,
        reports_rx: watch::Receiver<Arc<Reports>>,
        stopping: &CancellationToken,
    ) -> Farewell {
        let (written_tx, written_rx) = watch::channel(Arc::<Reports>::default());
        let reporter = Reporter {
            client: self.client,
            node: config.node_name.clone(),
            cache: self.replicas,
            changes: changes.clone(),
            reports_rx: reports_rx.clone(),
            written_tx,
        };
        tasks.spawn_detached(reporter.run(tasks.stop_token()));
        tasks.spawn_detached(node.clone().renew(tasks.stop_token()));
        // The node is reported as it is until the agent stops, and then once more by the farewell.
        tasks.spawn_detached(node.clone().report(stopping.clone()));
        Farewell {
            node,
            reports_rx,
            written_rx,
            keep_workers: config.keep_workers,
        }
    }
}

/// What is said last.
struct Farewell {
    node: NodeReporter,
    reports_rx: watch::Receiver<Arc<Reports>>,
    written_rx: watch::Receiver<Arc<Reports>>,
    keep_workers: bool,
}

impl Farewell {
    async fn say(mut self) {
        if self.keep_workers {
            // The next life is expected soon, and its replicas serve on.
            return;
        }
        if let Err(err) = self.node.say_stopping().await {
            warn!(error = %Chain(&err), "the API server does not know that the agent stops");
        }
        let last = self.reports_rx.latest();
        drop(self.written_rx.wait_for(|written| *written == last).await);
    }
}

fn serve(tasks: &Tasks, listener: TcpListener, app: App, config: &AgentConfig) {
    let advertised = config.endpoint.parse().ok();
    let advertised = advertised.and_then(|url: Uri| Some(url.host()?.to_owned()));
    let names = advertised.into_iter().chain([Host::Native.identity().hostname]);
    let pages = PageRules::new(config.allowed_origins.clone(), listener.local_addr().ok(), names);
    let router = server::router(app, pages);
    tasks.spawn("http", move |stop| {
        Box::pin(async move {
            // Connections end with their clients or the process: a stream must not hold up the agent's end.
            tokio::select! {
                () = stop.cancelled() => {}
                () = connection::serve_tcp(listener, router, stop.clone()) => {}
            }
            Ok::<_, Infallible>(())
        })
    });
}

/// The machine's own id; where it has none, one that is made up once and kept.
fn machine_id(state: &StateDir, identity: &Identity) -> String {
    const FILE: &str = "machine-id.json";
    if let Some(id) = &identity.machine_id {
        return id.clone();
    }
    if let Ok(Some(id)) = state.read::<String>(FILE) {
        return id;
    }
    let id = uuid::Uuid::new_v4().simple().to_string();
    if let Err(err) = state.write(FILE, &id) {
        warn!(error = %Chain(&err), "the made-up machine id could not be kept");
    }
    id
}

/// The disk that is read is the one models are loaded from.
fn probe_arguments(model_dir: Option<&Utf8Path>, sustained: Option<Duration>) -> Vec<String> {
    let mut arguments = ["probe", "--output", "json"].map(str::to_owned).to_vec();
    if let Some(model_dir) = model_dir {
        arguments.extend(["--disk".to_owned(), model_dir.to_string()]);
    }
    if let Some(sustained) = sustained {
        arguments.extend(["--sustained".to_owned(), sustained.as_secs().to_string()]);
    }
    arguments
}

/// What a measured figure depends on.
fn measuring_conditions(machine_id: &str, identity: &Identity, sustained: Option<Duration>) -> String {
    let hot = sustained.map_or_else(String::new, |time| format!(", hot after {} s", time.as_secs()));
    format!(
        "machine {machine_id}, {} {}, {}, {}{hot}",
        identity.operating_system,
        identity.os_build,
        identity.chip.name,
        program_with(&engine_version()),
    )
}

/// This version of rooflet with an engine.
fn program_with(engine: &str) -> String {
    format!("rooflet {}, {engine}", env!("CARGO_PKG_VERSION"))
}

/// Asked of the library itself, which another installation may have replaced under the same rooflet.
fn engine_version() -> String {
    #[cfg(feature = "mlx")]
    return format!("mlx {}", crate::mlx::device::engine_version());
    #[cfg(not(feature = "mlx"))]
    return "no engine".to_owned();
}
