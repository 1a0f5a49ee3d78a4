//! The sync loop: one pass after every change, and one every ten seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::desired::{Desired, ResolvedReplica};
use super::last_status::LastStatus;
use super::observed::{Observed, WorkerState};
use super::plan::SyncPlan;
use super::retained::Retained;
use super::step::Step;
use crate::calibrator::Calibrator;
use crate::fleet::{Absence, FleetIdentity, Retention};
use crate::manifests::ManifestSet;
use crate::metrics::AgentMetrics;
use crate::models::{ComputeType, ModelProblem, Models};
use crate::node::hardware::node_hardware;
use crate::node::pressure::{self, MemoryWatch};
use crate::node::probe::ProbeState;
use crate::node::wired::WiredWatch;
use crate::replica::restorer::Restoration;
use crate::replica::{DesiredReplica, MANIFEST_UID, Origin, ReplicaKey, is_mirror};
use crate::reports::Reports;
use crate::workers::Workers;
use crate::workers::crash::{CrashWatch, reduced};
use rooflet_api::meta::RESTORED_ANNOTATION;
use rooflet_api::v1alpha1::{Chip, FleetNode, HubModel, ModelReplica, NodeModel};
use rooflet_base::clock::Clock;
use rooflet_base::latest::Latest;
use rooflet_base::units::Bytes;
use rooflet_client::{Cache, Changes, Recorder};
use rooflet_host::Host;
use rooflet_roofline::memory::{NodeMemory, allocatable};

/// Interval of passes without changes.
const RESYNC: Duration = Duration::from_secs(10);

/// Minimum time between the starts of two passes because of changes. Each pass computes all replicas of
/// the node, and the steps of one start cause several changes within milliseconds.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// Replica of the API server that does not run because a manifest defines a replica with the same
/// key.
#[derive(Debug)]
pub(super) struct Displaced {
    pub(super) key: ReplicaKey,
    pub(super) replica: DesiredReplica,
    /// File of the manifest.
    pub(super) file: String,
}

/// Sources of the desired state.
pub(crate) struct Sources {
    /// Replicas bound to this node. `None` without an API server.
    pub api: Option<Cache<ModelReplica>>,
    /// FleetNodes, which contain requests of administrators. `None` without an API server.
    pub nodes: Option<Cache<FleetNode>>,
    /// Identity of the API server's fleet. `None` without an API server.
    pub fleet: Option<FleetIdentity>,
    /// Restoration of replicas after the API server was rebuilt. `None` without an API server.
    pub restoration: Option<Restoration>,
    pub manifests: Option<watch::Receiver<Arc<ManifestSet>>>,
    /// True while the bandwidth probe runs.
    pub probing: watch::Receiver<bool>,
    /// Result of the probe.
    pub probe: watch::Receiver<ProbeState>,
}

/// State of the sync loop.
pub(crate) struct SyncLoop {
    pub node: String,
    pub host: Host,
    pub chip: Chip,
    /// True if the workers compute on this node's chip, so that measured speeds may calibrate
    /// predictions.
    pub computes_here: bool,
    pub crash_watch: CrashWatch,
    pub wired: WiredWatch,
    pub clock: Clock,
    pub sources: Sources,
    pub workers: Workers,
    pub models: Models,
    /// Directories of models that the last pass needed. `None` before the first pass.
    pub used_models: Option<BTreeSet<Utf8PathBuf>>,
    /// Models that are prefetched for successors, with the reason of the last published problem.
    pub prefetches: BTreeMap<HubModel, Option<&'static str>>,
    pub calibrator: Calibrator,
    pub memory_watch: MemoryWatch,
    pub recorder: Option<Recorder>,
    pub metrics: AgentMetrics,
    pub changes: Changes,
    pub reports_tx: watch::Sender<Arc<Reports>>,
    /// Last statuses by key and uid. A manifest's replica may have displaced a replica with the
    /// same key.
    pub last_statuses: BTreeMap<(ReplicaKey, String), LastStatus>,
    pub listed: Option<(Instant, Vec<NodeModel>, Option<ModelProblem>)>,
    /// Running replicas that the API server does not list.
    pub absence: Option<Absence>,
}

impl SyncLoop {
    /// Runs until `stop`. Then stops all workers, unless the next agent process adopts them.
    pub(crate) async fn run(mut self, stop: CancellationToken, keep_workers: bool) {
        let mut changed_rx = self.changes.subscribe();
        loop {
            let stopping = stop.is_cancelled();
            if stopping && keep_workers {
                return;
            }
            changed_rx.mark_unchanged();
            let began = self.clock.instant();
            let deadline = self.pass(stopping);
            if stopping && self.workers.is_idle() {
                return;
            }
            let wait = deadline.map_or(RESYNC, |at| until(self.clock.now(), at).min(RESYNC));
            let pause = MIN_PERIOD.saturating_sub(self.clock.instant() - began);
            let changed = async {
                tokio::time::sleep(pause).await;
                changed_rx.changed().await
            };
            tokio::select! {
                () = stop.cancelled(), if !stopping => {
                    info!("stopping the workers");
                    self.workers.shorten_grace();
                }
                _ = changed => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Runs one pass. Returns the time of the next pass if no change occurs.
    fn pass(&mut self, stopping: bool) -> Option<Timestamp> {
        let now = self.clock.now();
        let listed = self.listed_replicas();
        self.continue_restored(listed.as_deref().unwrap_or_default());
        let observed = self.observe();
        let (desired, displaced) = self.desired(listed, stopping, &observed);
        let plan = SyncPlan::new(&desired, &observed, now);
        let released = self.apply(&desired, &plan);
        self.download(&desired, &plan, &observed);
        self.delete_requested(&desired);
        if self.computes_here {
            self.workers.pacing().set_shares(plan.running_shares.clone());
        }
        let displaced = self.report_displaced(displaced, now);
        self.report(&desired, &plan, &released, displaced, &observed, now);
        self.workers.publish();
        let progress = self.models.requeue_after().map(|delay| now + delay);
        plan.next_deadline().into_iter().chain(progress).min()
    }

    fn observe(&mut self) -> Observed {
        if let Some(engine) = self.workers.engine() {
            self.models
                .set_compute(ComputeType::of_device(Some(&engine.device)));
        }
        let memory = self.host.memory();
        let instant = self.clock.instant();
        let pressure = self.memory_watch.observe(&memory, instant);
        let now = self.clock.now();
        let probe = self.sources.probe.latest();
        let hardware = node_hardware(&self.chip, memory.total, &probe, now);
        let probed = probe.last.map(|last| last.report.engine);
        let engine = self.workers.engine().or(probed);
        let calibrations = match engine.as_ref().zip(hardware).filter(|_| self.computes_here) {
            Some((engine, hardware)) => self.calibrator.current(engine, hardware, now).to_vec(),
            None => Vec::new(),
        };
        let replicas = self.workers.observe();
        self.crash_watch.observe(now);
        let watchdog_panics = self.crash_watch.watchdog_panics(now);
        self.wired.add_lost(self.workers.take_lost_memory());
        Observed {
            replicas,
            memory: NodeMemory {
                allocatable: reduced(allocatable(memory.total, memory.working_set), watchdog_panics),
                available: memory.obtainable() - pressure::margin(memory.total),
            },
            disk_limit: self
                .workers
                .disk_limit(|| self.models.unused(self.used_models.as_ref())),
            hardware,
            calibrations,
            quarantined: self.crash_watch.quarantined(),
            held_back: self.crash_watch.held_back(now),
            watchdog_panics,
            leaked: self.leaked(),
            probing: self.sources.probing.latest(),
            pressure,
            shortfall: pressure::shortfall(&memory),
            restart_headroom: pressure::restart_headroom(memory.total),
            stopped_recently: self.memory_watch.headroom_for(instant).is_some(),
        }
    }

    /// Returns the wired memory that was not freed after the last worker exited.
    fn leaked(&self) -> Option<Bytes> {
        let (wired, gpu) = (self.host.wired()?, self.host.gpu_memory());
        self.wired
            .observe(wired, gpu, self.workers.is_idle(), self.clock.instant())
    }

    /// Returns the desired replicas, and the replicas that a manifest displaced.
    fn desired(
        &mut self,
        listed: Option<Vec<Arc<ModelReplica>>>,
        stopping: bool,
        observed: &Observed,
    ) -> (Desired, Vec<Displaced>) {
        let mut displaced = Vec::new();
        let mut replicas: BTreeMap<ReplicaKey, DesiredReplica> = BTreeMap::new();
        let mut yielding = BTreeSet::new();
        match (&self.sources.api, listed) {
            (Some(cache), Some(listed)) => {
                for replica in listed {
                    if replica.spec.node_name.as_deref() == Some(self.node.as_str()) && !is_mirror(&replica) {
                        replicas.insert(ReplicaKey::of(&replica), DesiredReplica::of(&replica));
                    }
                }
                // A newer version of rooflet wrote an object that this version cannot parse. Its
                // last known specification stays.
                for unreadable in cache.unreadable() {
                    let key = ReplicaKey::new(unreadable.namespace.unwrap_or_default(), unreadable.name);
                    let known = self
                        .workers
                        .records()
                        .find(|record| record.key == key && record.uid == unreadable.uid);
                    if let Some(record) = known {
                        replicas.entry(key).or_insert_with(|| record.desired());
                    }
                }
                let absent = self.absent(&replicas, observed);
                let retained = self.retained(absent, replicas.keys().cloned().collect());
                replicas.extend(retained.replicas);
                yielding = retained.yielding;
            }
            // Until the first sync with the API server, the recorded specifications apply.
            (Some(_), None) => replicas.extend(
                self.workers
                    .records()
                    .filter(|record| record.origin == Origin::Api)
                    .map(|record| (record.key.clone(), record.desired())),
            ),
            (None, _) => {}
        }
        if let Some(manifests) = &self.sources.manifests {
            let manifests = manifests.latest();
            self.metrics.manifest_problems(manifests.problems.len());
            for (key, (file, manifest)) in &manifests.replicas {
                let replica = DesiredReplica {
                    uid: MANIFEST_UID.to_owned(),
                    generation: 0,
                    origin: Origin::Manifest(file.clone()),
                    spec: manifest.spec.clone(),
                    terms: manifest.terms.clone(),
                    next: None,
                    deleting: false,
                };
                if let Some(replica) = replicas.insert(key.clone(), replica) {
                    displaced.push(Displaced {
                        key: key.clone(),
                        replica,
                        file: file.clone(),
                    });
                }
            }
        }
        let replicas = replicas
            .into_iter()
            .map(|(key, replica)| {
                let model = match replica.spec.source() {
                    Ok(source) => {
                        let model = self.models.inspect(&source);
                        model.map(|model| model.with_kv_bits(replica.spec.kv_bits()))
                    }
                    Err(err) => Err(ModelProblem::permanent("InvalidSource", err.to_string())),
                };
                (key, ResolvedReplica { replica, model })
            })
            .collect();
        let desired = Desired {
            replicas,
            yielding,
            stopping,
        };
        (desired, displaced)
    }

    /// Returns the absent replicas that keep running, and requests their restoration if they belong
    /// to another fleet.
    fn retained(
        &mut self,
        absent: BTreeMap<ReplicaKey, DesiredReplica>,
        listed: BTreeSet<ReplicaKey>,
    ) -> Retained {
        let (Some(fleet), Some(restoration)) = (&self.sources.fleet, &self.sources.restoration) else {
            return Retained::default();
        };
        let keys = absent.keys().cloned().collect();
        let now = self.clock.instant();
        let retention = fleet.retention(&mut self.absence, keys, !listed.is_empty(), now);
        let retained = Retained::new(retention, absent, restoration.unwanted());
        let restored = match retention {
            // Without an identified fleet, the replicas may have been deleted.
            Retention::Stop | Retention::Unidentified => BTreeMap::new(),
            Retention::Keep | Retention::Yield | Retention::Expire => retained.replicas.clone(),
        };
        restoration.request(restored, listed);
        retained
    }

    /// Returns the replicas that the API server lists. `None` without an API server, and before the
    /// first sync with it.
    fn listed_replicas(&self) -> Option<Vec<Arc<ModelReplica>>> {
        let cache = self.sources.api.as_ref()?;
        cache.is_synced().then(|| cache.list())
    }

    /// Continues the records of restored replicas under the UIDs of their new objects.
    fn continue_restored(&mut self, listed: &[Arc<ModelReplica>]) {
        for object in listed {
            if let Some(former) = object.annotations().get(RESTORED_ANNOTATION) {
                let replica = DesiredReplica::of(object);
                self.workers
                    .continue_as(&ReplicaKey::of(object), former, &replica);
            }
        }
    }

    /// Returns the running replicas of the API server that it does not list. A deleted replica is
    /// listed until its worker has exited, so these replicas were lost or removed by force.
    fn absent(
        &self,
        listed: &BTreeMap<ReplicaKey, DesiredReplica>,
        observed: &Observed,
    ) -> BTreeMap<ReplicaKey, DesiredReplica> {
        let runs = |key: &ReplicaKey| {
            let seen = observed.replicas.get(key);
            seen.is_some_and(|seen| matches!(seen.worker, WorkerState::Running | WorkerState::Unresponsive))
        };
        let records = self.workers.records();
        records
            .filter(|record| record.origin == Origin::Api)
            .filter(|record| !listed.contains_key(&record.key) && runs(&record.key))
            .map(|record| (record.key.clone(), record.desired()))
            .collect()
    }

    /// Executes the plan, except for downloads. Returns the replicas that this pass released.
    fn apply(&mut self, desired: &Desired, plan: &SyncPlan) -> Vec<ReplicaKey> {
        let mut released = Vec::new();
        for (key, status) in &plan.running_admission {
            self.workers
                .update_reserved_share(key, status.chip_time_percent / 100.0);
        }
        for (key, wanted) in &desired.replicas {
            self.workers.update_terms(key, &wanted.replica);
        }
        for (key, step) in &plan.steps {
            match step {
                Step::Start(start) => {
                    if let Some(wanted) = desired.replicas.get(key) {
                        self.models.touch(&start.path);
                        self.metrics.started();
                        self.workers.start(key, &wanted.replica, start);
                        // The next pass handles a failed start immediately.
                        self.changes.mark();
                    }
                }
                Step::Stop(cause) => self.workers.stop(key, *cause),
                Step::Release => {
                    if self.workers.progress(key).is_some() {
                        self.workers.release(key);
                        released.push(key.clone());
                    }
                }
                // `download` handles the downloads together.
                Step::Pull(_) | Step::Keep | Step::AwaitStop | Step::Wait(_) | Step::Refuse(_) => {}
            }
        }
        if plan.shorten_grace {
            self.workers.shorten_grace();
        }
        released
    }
}

fn until(now: Timestamp, at: Timestamp) -> Duration {
    rooflet_base::clock::since(at, now)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
