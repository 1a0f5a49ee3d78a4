//! Agent start: state directory, identity, and the agent's tasks.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::calibrator::{Calibrator, operating_system};
use crate::config::AgentConfig;
use crate::connection::ConnectionState;
use crate::control_plane::{ControlPlane, FinalReport};
use crate::fleet::FleetIdentity;
use crate::manifests::{self, ManifestSet, OpenManifestsError, Parser};
use crate::metrics::AgentMetrics;
use crate::node::holder::{Holder, NodeNameTakenError};
use crate::node::lease::{NodeLease, announce, lease_of};
use crate::node::pressure::MemoryWatch;
use crate::node::probe::{ProbeState, Prober};
use crate::node::probe_record::ProbeRecord;
use crate::node::reporter::NodeReporter;
use crate::node::wired::WiredWatch;
use crate::platform::{Platform, ProbeSetup};
use crate::replica::restorer::Restoration;
use crate::reports::Reports;
use crate::running::{RunAgentError, Running};
use crate::server::{self, App};
use crate::state::{OpenStateError, StateDir};
use crate::sync::{Sources, SyncLoop};
use crate::workers::crash::CrashWatch;
use crate::workers::in_flight::InFlightCounts;
use crate::workers::{WorkerCommand, Workers};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::metrics::Registry;
use rooflet_base::task::Tasks;
use rooflet_client::{Cache, Changes, Recorder};
use rooflet_host::{Host, Identity, cache_dir, sleep};
use rooflet_process::logs::Log;
use rooflet_proxy::{BodyRoom, MAX_KEPT_BODY_BYTES, Proxy};

/// Timeout of the request for the node's Lease that detects another agent with the same node name.
const CHECK_NAME: Duration = Duration::from_secs(5);

/// Error that prevents an agent from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartAgentError {
    #[error(transparent)]
    State(#[from] OpenStateError),
    #[error(transparent)]
    Manifests(#[from] OpenManifestsError),
    #[error("reading the model directory `{path}`: create it, or pass another directory with --model-dir")]
    ModelDir {
        path: Utf8PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("registering metrics")]
    Metrics(#[from] rooflet_base::metrics::Error),
}

/// Agent with a locked state directory, ready to run.
pub struct Agent {
    pub(crate) config: AgentConfig,
    pub(crate) host: Host,
    pub(crate) clock: Clock,
    pub(crate) state: Arc<StateDir>,
    pub(crate) identity: Identity,
    pub(crate) holder: Holder,
    registry: Registry,
    pub(crate) metrics: AgentMetrics,
}

impl Agent {
    /// Opens the state directory and checks the configured directories. Starts no task.
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
        if let Some(tls) = &config.tls {
            tls.certificates.register(&registry)?;
        }
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

    /// Checks that no other agent runs under this node's name: two agents would start the same
    /// replicas. If the API server does not answer within 5 seconds, the check passes.
    ///
    /// # Errors
    /// Returns an error if another agent holds the node's Lease.
    pub async fn check_name(&self, client: &Client) -> Result<(), NodeNameTakenError> {
        let lease = lease_of(client, &self.holder.node);
        let found = match tokio::time::timeout(CHECK_NAME, lease).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => None,
        };
        let Some((lease, spec)) = found
            .as_ref()
            .and_then(|lease| Some((lease, lease.spec.as_ref()?)))
        else {
            return Ok(());
        };
        let free = self.holder.check(spec, self.clock.now());
        if free.is_err() {
            // This agent does not start if the announcement fails, either.
            drop(tokio::time::timeout(CHECK_NAME, announce(client, &self.holder, lease)).await);
        }
        free
    }

    /// Runs until `stop`, then drains and stops the workers. `client` is `None` without an API
    /// server.
    pub async fn run(
        self,
        client: Option<Client>,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<(), RunAgentError> {
        self.save_node_name();
        self.start(client, listener).until(stop).await
    }

    fn save_node_name(&self) {
        let node = &self.config.node_name;
        match self.state.save_node_name(node) {
            Ok(None) => {}
            Ok(Some(before)) => warn!(
                node,
                before,
                "node name of this machine changed: delete the FleetNode `{before}`, or restart with --node-name {before}"
            ),
            Err(err) => warn!(error = %Chain(&err), "failed to save the node name"),
        }
    }

    /// Adopts the workers of the previous agent process and starts every task.
    fn start(self, client: Option<Client>, listener: TcpListener) -> Running {
        let tasks = Tasks::new();
        let changes = Changes::new();
        let proxy = Proxy::new();
        let mut platform = Platform::of(&self, &tasks, &changes);
        // Reads the records of the previous agent process, before adoption changes them.
        let crash_watch = self.crash_watch(&platform);
        let workers = self.adopt_workers(&platform, &tasks, &changes, &proxy);
        let must_probe = platform.must_probe(self.clock.now());
        let manifests_rx = self.watch_manifests(&workers, &tasks, &changes);
        let (probe_tx, probe_rx) = watch::channel(mem::take(&mut platform.probe));
        // If the probe is due and no worker runs, the sync loop starts in probing state: its first
        // pass must not start a worker just before the probe requests the machine.
        let (probing_tx, probing_rx) = watch::channel(must_probe && workers.is_idle());
        let (reports_tx, reports_rx) = watch::channel(Arc::<Reports>::default());
        let control_plane =
            client.map(|client| ControlPlane::open(client, &tasks, &self.clock, &self.config, &changes));
        let shared = Shared {
            tasks,
            changes,
            proxy,
            manifests_rx,
            probe_rx,
            reports_rx,
            wired: WiredWatch::load(self.state.clone(), self.host.boot_id()),
            in_flight: InFlightCounts::default(),
            connection: ConnectionState::default(),
        };

        if let Some(probe_setup) = platform.probe_setup.take() {
            let nodes = control_plane.as_ref().map(|side| side.nodes.clone());
            self.spawn_prober(&shared, probe_setup, nodes, probing_tx, probe_tx);
        }
        if platform.prevents_sleep {
            self.create_cache_dirs();
            let (let_sleep, in_flight) = (self.config.let_sleep, shared.in_flight.clone());
            let serves = move || !in_flight.is_empty();
            let stop = shared.tasks.stop_token();
            let awake = sleep::prevent(self.host.clone(), let_sleep, serves, stop);
            shared.tasks.spawn_detached(awake);
        }
        let connection = control_plane.as_ref().map(|_| shared.connection.clone());
        self.serve(&shared, &workers, connection, listener);
        let outputs = SyncOutputs {
            reports_tx,
            recorder: control_plane.as_ref().map(|side| side.recorder.clone()),
        };
        let sources = Sources {
            api: control_plane.as_ref().map(|side| side.replicas.clone()),
            nodes: control_plane.as_ref().map(|side| side.nodes.clone()),
            fleet: control_plane
                .as_ref()
                .map(|side| self.identify_fleet(side, &shared)),
            restoration: control_plane
                .as_ref()
                .map(|side| self.restore_replicas(side, &shared)),
            manifests: shared.manifests_rx.clone(),
            probing: probing_rx,
            probe: shared.probe_rx.clone(),
        };
        let sync = self.sync_loop(&shared, platform, workers, crash_watch, sources, outputs);
        let stopping = CancellationToken::new();
        let synced = spawn_sync(&shared.tasks, sync, stopping.clone(), self.config.keep_workers);
        let final_report = control_plane.map(|side| self.report(&shared, side, &stopping));
        info!(
            node = self.config.node_name,
            endpoint = self.config.endpoint,
            "agent started"
        );
        Running {
            tasks: shared.tasks,
            stopping,
            synced,
            final_report,
            _state: self.state,
        }
    }

    fn create_cache_dirs(&self) {
        for path in [self.state.downloads(), self.state.prefixes()] {
            if let Err(err) = cache_dir::create(&path) {
                warn!(%path, error = %Chain(&err), "failed to create a directory of the agent");
            }
        }
    }

    fn crash_watch(&self, platform: &Platform) -> CrashWatch {
        let (os_build, now) = (&self.identity.os_build, self.clock.now());
        CrashWatch::load(
            self.state.clone(),
            self.host.clone(),
            &platform.engine,
            os_build,
            now,
        )
    }

    fn adopt_workers(&self, platform: &Platform, tasks: &Tasks, changes: &Changes, proxy: &Proxy) -> Workers {
        let command = WorkerCommand {
            program: self.config.program.clone(),
            engine: platform.engine.clone(),
            arguments: platform.worker.clone(),
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

    fn watch_manifests(
        &self,
        workers: &Workers,
        tasks: &Tasks,
        changes: &Changes,
    ) -> Option<watch::Receiver<Arc<ManifestSet>>> {
        let path = self.config.manifest_dir.clone()?;
        let parser = Parser::new(&self.config.node_name);
        Some(manifests::watch(
            tasks,
            path,
            parser,
            workers.records(),
            changes.clone(),
        ))
    }

    fn spawn_prober(
        &self,
        shared: &Shared,
        probe_setup: ProbeSetup,
        nodes: Option<Cache<FleetNode>>,
        probing_tx: watch::Sender<bool>,
        state_tx: watch::Sender<ProbeState>,
    ) {
        let prober = Prober {
            state: self.state.clone(),
            program: self.config.program.clone(),
            arguments: probe_setup.arguments,
            sustained: probe_setup.sustained,
            conditions: probe_setup.conditions,
            nodes,
            node: self.config.node_name.clone(),
            host: self.host.clone(),
            clock: self.clock.clone(),
            changes: shared.changes.clone(),
            reports_rx: shared.reports_rx.clone(),
            probing_tx,
            state_tx,
        };
        let stop = shared.tasks.stop_token();
        shared.tasks.spawn_detached(prober.run(stop));
    }

    /// Starts the HTTP server.
    fn serve(
        &self,
        shared: &Shared,
        workers: &Workers,
        connection: Option<ConnectionState>,
        listener: TcpListener,
    ) {
        let app = App {
            node: self.config.node_name.as_str().into(),
            endpoints_rx: workers.endpoints(),
            reports_rx: shared.reports_rx.clone(),
            manifests_rx: shared.manifests_rx.clone(),
            proxy: shared.proxy.clone(),
            body_room: BodyRoom::new(MAX_KEPT_BODY_BYTES),
            registry: self.registry.clone(),
            turn: Arc::default(),
            in_flight: shared.in_flight.clone(),
            connection,
            pacing: workers.pacing().clone(),
            gateway_log: self.config.gateway_log.clone().map(Log::new),
            stop: shared.tasks.stop_token(),
        };
        server::serve(&shared.tasks, listener, app, &self.config);
    }

    fn sync_loop(
        &self,
        shared: &Shared,
        platform: Platform,
        workers: Workers,
        crash_watch: CrashWatch,
        sources: Sources,
        outputs: SyncOutputs,
    ) -> SyncLoop {
        let memory_watch = MemoryWatch::resume(workers.records().any(|record| record.stopped_for_memory));
        SyncLoop {
            node: self.config.node_name.clone(),
            host: self.host.clone(),
            chip: self.identity.chip.clone(),
            computes_here: platform.computes_here,
            crash_watch,
            wired: shared.wired.clone(),
            clock: self.clock.clone(),
            sources,
            memory_watch,
            workers,
            models: platform.models,
            used_models: None,
            prefetches: BTreeMap::new(),
            calibrator: Calibrator::new(
                self.state.clone(),
                operating_system(&self.identity),
                self.clock.now(),
            ),
            recorder: outputs.recorder,
            metrics: self.metrics.clone(),
            changes: shared.changes.clone(),
            reports_tx: outputs.reports_tx,
            last_statuses: BTreeMap::new(),
            listed: None,
            absence: None,
        }
    }

    fn identify_fleet(&self, side: &ControlPlane, shared: &Shared) -> FleetIdentity {
        let fleet = FleetIdentity::load(self.state.clone());
        let (client, changes) = (side.client.clone(), shared.changes.clone());
        let stop = shared.tasks.stop_token();
        shared.tasks.spawn_detached(
            fleet
                .clone()
                .identify(client, changes, shared.connection.clone(), stop),
        );
        fleet
    }

    fn restore_replicas(&self, side: &ControlPlane, shared: &Shared) -> Restoration {
        let restoration = Restoration::new();
        let (client, changes) = (side.client.clone(), shared.changes.clone());
        let node = self.config.node_name.clone();
        let stop = shared.tasks.stop_token();
        shared
            .tasks
            .spawn_detached(restoration.clone().run(client, node, changes, stop));
        restoration
    }

    /// Starts the tasks that report to the API server.
    fn report(&self, shared: &Shared, side: ControlPlane, stopping: &CancellationToken) -> FinalReport {
        let lease = NodeLease {
            client: side.client.clone(),
            node: self.config.node_name.clone(),
            holder: self.holder.clone(),
            is_held: Arc::default(),
            other: Arc::default(),
            clock: self.clock.clone(),
            cache: side.nodes.clone(),
            changes: shared.changes.clone(),
            connection: shared.connection.clone(),
        };
        let node = NodeReporter {
            client: side.client.clone(),
            name: self.config.node_name.clone(),
            host: self.host.clone(),
            identity: self.identity.clone(),
            lease,
            state_path: self.config.state_dir.clone(),
            endpoint: self.config.endpoint.clone(),
            gateway_log: self.config.gateway_log.clone(),
            quiet_hours: self.config.quiet_hours.clone(),
            wired: shared.wired.clone(),
            // The chip of a simulated machine is not the one that computes.
            is_anonymous: self.config.is_anonymous,
            has_token: self.config.has_token,
            matrix_unit_kernels: match &self.config.simulated {
                Some(_) => None,
                None => self.config.matrix_unit_kernels,
            },
            simulated: self.config.simulated.clone(),
            clock: self.clock.clone(),
            cache: side.nodes.clone(),
            changes: shared.changes.clone(),
            recorder: side.recorder.clone(),
            reports_rx: shared.reports_rx.clone(),
            probe_rx: shared.probe_rx.clone(),
            probe_record: ProbeRecord::default(),
        };
        let reports_rx = shared.reports_rx.clone();
        side.report(
            &shared.tasks,
            &self.config,
            node,
            &shared.changes,
            reports_rx,
            stopping,
        )
    }
}

/// State that the agent's tasks share.
struct Shared {
    tasks: Tasks,
    changes: Changes,
    proxy: Proxy,
    manifests_rx: Option<watch::Receiver<Arc<ManifestSet>>>,
    probe_rx: watch::Receiver<ProbeState>,
    reports_rx: watch::Receiver<Arc<Reports>>,
    wired: WiredWatch,
    in_flight: InFlightCounts,
    connection: ConnectionState,
}

/// Destinations of the sync loop's reports.
struct SyncOutputs {
    reports_tx: watch::Sender<Arc<Reports>>,
    /// `None` without an API server.
    recorder: Option<Recorder>,
}

/// Runs the sync loop until `stopping`. The returned channel fires when the last worker has exited.
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
            // The receiver is gone if the agent ends for another reason.
            let _ = done_tx.send(());
            Ok(())
        })
    });
    done_rx
}

/// Returns the machine's own id. If the machine has none, generates one and stores it in the state
/// directory.
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
        warn!(error = %Chain(&err), "failed to save the generated machine id");
    }
    id
}
