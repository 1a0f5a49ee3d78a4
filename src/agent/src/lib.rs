//! The node agent: one per machine. It registers the machine, runs the replicas bound to it (and those of its manifest
//! directory), each in a worker process of its own, and tells the API server how they fare.
//!
//! Tasks: the sync loop, the reporter of replicas, the reporter of the node, the Lease, the bandwidth probe, the reader
//! of the manifest directory, the HTTP server, one monitor per worker. Nothing of it waits for the API server: with the
//! control plane down the agent keeps running what it was last told, its own restarts included.

mod awake;
mod backoff;
pub mod calibrator;
mod company;
mod control_plane;
mod credentials;
mod golden;
mod holder;
mod in_flight;
mod manifests;
mod metrics;
pub mod models;
mod monitor;
mod node;
mod node_conditions;
pub mod node_status;
mod pacing;
mod parts;
mod prefix_files;
pub mod pressure;
pub mod probe;
mod pulls;
mod quarantine;
mod quiet_hours;
pub mod replica;
mod report;
mod server;
pub mod state;
pub mod sync;
mod wired;
pub mod workers;

pub use credentials::NodeCredentials;
pub use node::LEASE_PERIOD;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::calibrator::Calibrator;
use self::control_plane::{ControlPlane, Farewell};
use self::holder::{Holder, TakenError};
use self::manifests::{OpenManifestsError, Parser};
use self::metrics::AgentMetrics;
use self::models::ServableModel;
use self::node::NodeReporter;
use self::parts::Parts;
use self::pressure::MemoryWatch;
use self::probe::Prober;
pub use self::quiet_hours::{ParseQuietHoursError, QuietHours};
use self::server::App;
use self::state::{OpenStateError, StateDir};
use self::sync::{Reports, Sources, SyncLoop};
use self::wired::WiredWatch;
use self::workers::{WorkerCommand, Workers};
use rooflet_artifact::remote::HubAccess;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::metrics::Registry;
use rooflet_base::task::Tasks;
use rooflet_client::Changes;
use rooflet_host::{Host, Identity};
use rooflet_inference_api::openai::pages::AllowedOrigins;
use rooflet_proxy::{BodyRoom, MAX_KEPT_BODY_BYTES, Proxy};

/// How long the last reports may take when the agent stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long the API server may take to tell whose the node's name is.
const CHECK_NAME: Duration = Duration::from_secs(5);

/// How long the agent's tasks may take to end.
const TASKS_END: Duration = Duration::from_secs(3);

/// What an agent is to do.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    pub node_name: String,
    pub state_dir: Utf8PathBuf,
    pub model_dir: Option<Utf8PathBuf>,
    /// Where models of `hf://` sources are; `None`: none are downloaded.
    pub hub: Option<HubAccess>,
    pub manifest_dir: Option<Utf8PathBuf>,
    /// Base URL at which others reach the agent's HTTP server.
    pub endpoint: String,
    /// Whose pages may ask here.
    pub allowed_origins: AllowedOrigins,
    /// When the machine is not to serve.
    pub quiet_hours: QuietHours,
    /// The binary that workers and the probe are started from: this one.
    pub program: Utf8PathBuf,
    /// Name and version of the inference engine that workers run, such as `mlx 0.32.2`. Measurements and quarantine hold for
    /// one engine only.
    pub engine: String,
    /// How long a worker may finish what it is answering.
    pub grace: Duration,
    /// The most that they may take for that when their replicas are replaced, moved or scaled away.
    pub answer_grace: Duration,
    /// Leave workers running when the agent stops, for its next life.
    pub keep_workers: bool,
    /// Measure the memory bandwidth when there is no fresh figure.
    pub probe: bool,
    /// Part of that: how long to wait for what heat leaves of the speed.
    pub probe_sustained: Option<Duration>,
    /// The machine is not a real one.
    pub simulated: Option<SimulatedMachine>,
}

/// A machine that is not a real one. It is never probed: its speed is its data sheet's.
#[derive(Debug, Clone, Default)]
pub struct SimulatedMachine {
    pub labels: BTreeMap<String, String>,
    /// What it has instead of a model directory and an engine; `None`: the real ones of this machine.
    pub engine: Option<SimulatedEngine>,
}

/// Models and workers of a machine that loads and computes nothing.
#[derive(Debug, Clone)]
pub struct SimulatedEngine {
    /// By the directory's name.
    pub models: BTreeMap<String, ServableModel>,
    /// What workers are started with, before the arguments that every worker gets.
    pub worker: Vec<String>,
}

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartAgentError {
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
    Metrics(#[from] rooflet_base::metrics::Error),
}

/// An agent that is ready to run: its directories are there and its own.
pub struct Agent {
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
    pub fn new(config: AgentConfig, host: Host, clock: Clock) -> Result<Self, StartAgentError> {
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
    pub async fn check_name(&self, client: &Client) -> Result<(), TakenError> {
        let lease = node::lease_of(client, &self.holder.node);
        match tokio::time::timeout(CHECK_NAME, lease).await {
            Ok(Ok(Some(Lease { spec: Some(spec), .. }))) => self.holder.check(&spec, self.clock.now()),
            Ok(Ok(_) | Err(_)) | Err(_) => Ok(()),
        }
    }

    /// Runs until `stop`, then drains and stops its workers. `client` is the API server, if there is one.
    pub async fn run(
        self,
        client: Option<Client>,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<(), String> {
        self.keep_node_name();
        self.start(client, listener).until(stop).await
    }

    fn keep_node_name(&self) {
        let node = &self.config.node_name;
        match self.state.keep_node_name(node) {
            Ok(None) => {}
            Ok(Some(before)) => warn!(
                node,
                before,
                "this machine's node has another name: delete the FleetNode that it was, or go back to that --node-name"
            ),
            Err(err) => warn!(error = %Chain(&err), "the node's name could not be kept"),
        }
    }

    /// Takes over the workers of its last life and starts every task.
    fn start(self, client: Option<Client>, listener: TcpListener) -> Running {
        let tasks = Tasks::new();
        let changes = Changes::new();
        let proxy = Proxy::new();
        let parts = Parts::of(&self, &tasks, &changes);
        // By the records as the last life left them.
        let quarantined = self.quarantined(&parts);
        let workers = self.adopt_workers(&parts, &tasks, &changes, &proxy);
        let must_probe = parts.must_probe(self.clock.now());

        let manifests_rx = self.config.manifest_dir.clone().map(|path| {
            let parser = Parser::new(&self.config.node_name);
            manifests::watch(&tasks, path, parser, workers.records(), changes.clone())
        });
        let (probe_tx, probe_rx) = watch::channel(parts.probe);
        // Held back from the start if there is something to measure and nothing running: the first pass must not
        // start a worker just before the probe asks for the machine.
        let (probing_tx, probing) = watch::channel(must_probe && workers.is_idle());
        let (reports_tx, reports_rx) = watch::channel(Arc::<Reports>::default());

        let control_plane =
            client.map(|client| ControlPlane::open(client, &tasks, &self.clock, &self.config, &changes));
        if let Some(measuring) = parts.measuring {
            let prober = Prober {
                state: self.state.clone(),
                program: self.config.program.clone(),
                arguments: measuring.arguments,
                sustained: measuring.sustained,
                conditions: measuring.conditions,
                clock: self.clock.clone(),
                changes: changes.clone(),
                reports_rx: reports_rx.clone(),
                probing_tx,
                state_tx: probe_tx,
            };
            tasks.spawn_detached(prober.run(tasks.stop_token()));
        }
        if parts.stays_awake {
            tasks.spawn_detached(awake::while_serving(reports_rx.clone(), tasks.stop_token()));
        }
        let app = App {
            node: self.config.node_name.as_str().into(),
            endpoints_rx: workers.endpoints(),
            reports_rx: reports_rx.clone(),
            manifests_rx: manifests_rx.clone(),
            proxy,
            body_room: BodyRoom::new(MAX_KEPT_BODY_BYTES),
            registry: self.registry,
            turn: Arc::default(),
            in_flight: in_flight::InFlight::default(),
            pacing: workers.pacing().clone(),
            stop: tasks.stop_token(),
        };
        server::serve(&tasks, listener, app, &self.config);

        let memory_watch = MemoryWatch::resume(workers.records().any(|record| record.gave_way));
        let wired = WiredWatch::load(self.state.clone(), self.host.boot_id());
        let sync = SyncLoop {
            node: self.config.node_name.clone(),
            host: self.host.clone(),
            chip: self.identity.chip.clone(),
            computes_here: parts.computes_here,
            quarantined,
            wired: wired.clone(),
            clock: self.clock.clone(),
            sources: Sources {
                api: control_plane.as_ref().map(|side| side.replicas.clone()),
                manifests: manifests_rx,
                probing,
                probe: probe_rx.clone(),
            },
            memory_watch,
            workers,
            models: parts.models,
            used_models: None,
            prepared: BTreeMap::new(),
            calibrator: Calibrator::new(self.state.clone()),
            recorder: control_plane.as_ref().map(|side| side.recorder.clone()),
            metrics: self.metrics,
            changes: changes.clone(),
            reports_tx,
            said: BTreeMap::new(),
            listed: None,
        };
        let stopping = CancellationToken::new();
        let synced = spawn_sync(&tasks, sync, stopping.clone(), self.config.keep_workers);
        let farewell = control_plane.map(|side| {
            let node = NodeReporter {
                client: side.client.clone(),
                name: self.config.node_name.clone(),
                host: self.host,
                identity: self.identity,
                holder: self.holder,
                is_held: Arc::default(),
                state_path: self.config.state_dir.clone(),
                endpoint: self.config.endpoint.clone(),
                quiet_hours: self.config.quiet_hours.clone(),
                wired,
                simulated: self.config.simulated.clone(),
                clock: self.clock,
                cache: side.nodes.clone(),
                changes: changes.clone(),
                recorder: side.recorder.clone(),
                reports_rx: reports_rx.clone(),
                probe_rx,
            };
            side.report(&tasks, &self.config, node, &changes, reports_rx, &stopping)
        });
        info!(
            node = self.config.node_name,
            endpoint = self.config.endpoint,
            "the agent runs"
        );
        Running {
            tasks,
            stopping,
            synced,
            farewell,
            _state: self.state,
        }
    }

    fn quarantined(&self, parts: &Parts) -> BTreeMap<u64, String> {
        let (os_build, now) = (&self.identity.os_build, self.clock.now());
        quarantine::look(&self.state, &self.host, &parts.engine, os_build, now)
    }

    fn adopt_workers(&self, parts: &Parts, tasks: &Tasks, changes: &Changes, proxy: &Proxy) -> Workers {
        let command = WorkerCommand {
            program: self.config.program.clone(),
            engine: parts.engine.clone(),
            arguments: parts.worker.clone(),
            grace: self.config.grace,
            answer_grace: self.config.answer_grace,
        };
        Workers::adopt(
            self.state.clone(),
            command,
            tasks.clone(),
            self.clock.clone(),
            changes.clone(),
            proxy.clone(),
            self.host.clone(),
        )
    }
}

/// Runs the loop until `stopping`; what is returned hears when the last worker is gone.
fn spawn_sync(
    tasks: &Tasks,
    sync: SyncLoop,
    stopping: CancellationToken,
    keep_workers: bool,
) -> oneshot::Receiver<()> {
    let (done_tx, done_rx) = oneshot::channel();
    tasks.spawn::<String>("sync", move |_| {
        Box::pin(async move {
            sync.run(stopping, keep_workers).await;
            // Nobody waits any more if the agent is ending for another reason.
            let _ = done_tx.send(());
            Ok(())
        })
    });
    done_rx
}

/// An agent at work.
struct Running {
    tasks: Tasks,
    /// Ends the sync loop, which stops the workers, and the node's reports.
    stopping: CancellationToken,
    /// Hears when the sync loop has ended.
    synced: oneshot::Receiver<()>,
    /// `None` without an API server.
    farewell: Option<Farewell>,
    /// Its lock is held until every task has ended.
    _state: Arc<StateDir>,
}

impl Running {
    /// Ends in order at `stop`, or at once when a task fails.
    async fn until(self, stop: CancellationToken) -> Result<(), String> {
        let failed = self.tasks.stop_token();
        tokio::select! {
            () = stop.cancelled() => {}
            () = failed.cancelled() => {}
        }
        self.stopping.cancel();
        if failed.is_cancelled() {
            // A task the agent depends on has failed. Workers stay for the next life.
            return self.tasks.join(TASKS_END).await;
        }
        // The loop ends when the last worker is gone.
        drop(self.synced.await);
        if let Some(farewell) = self.farewell
            && tokio::time::timeout(FAREWELL, farewell.say()).await.is_err()
        {
            warn!("the API server did not take the agent's last words in time");
        }
        self.tasks.cancel();
        let outcome = self.tasks.join(TASKS_END).await;
        info!("the agent has stopped");
        outcome
    }
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
