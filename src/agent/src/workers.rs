//! The worker processes of this node: start, monitoring, adoption after an agent restart, and stop.
//! This module executes plans and reports state; it makes no decisions.

pub(crate) mod backoff;
pub(crate) mod crash;
pub(crate) mod golden;
pub(crate) mod in_flight;
mod liveness;
mod monitor;
pub(crate) mod pacing;
mod prefix_files;
pub(crate) mod quarantine;
mod record;
mod slot;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tracing::{error, info, warn};

pub use self::crash::HOLD as PANIC_REPORT_HOLD;
use self::monitor::Monitor;
use self::pacing::Pacing;
use self::prefix_files::PrefixFiles;
pub use self::record::first_record;
use self::slot::{Slot, Stopping, Worker};
use super::replica::{DesiredReplica, ReplicaKey, ReplicaSpec, rfc3339};
use super::state::{Record, ReplicaDir, StateDir};
use crate::sync::{ObservedReplica, Start, StopCause};
use rooflet_api::v1alpha1::Termination;
use rooflet_api::wire::{RequestCounts, WorkerStatus};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::latest::Latest;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_client::Changes;
use rooflet_host::{Disk, Host};
use rooflet_process::logs::{Log, MAX_LOG_BYTES};
use rooflet_process::{Command, Process, find_by_argument, spawn};
use rooflet_proxy::{Proxy, Upstream};
use rooflet_roofline::disk;

/// Delay between marking a ready replica as draining and SIGTERM, in which gateways redirect their
/// requests.
pub const DRAIN_NOTICE: Duration = Duration::from_millis(500);

/// Default time for in-flight requests to finish when the agent stops or memory is needed.
pub const GRACE: Duration = Duration::from_secs(30);

/// Time after the end of the grace period at which the agent kills a worker that has not exited on
/// its own.
pub const GRACE_MARGIN: Duration = Duration::from_secs(3);

/// Grace period of a worker that does not respond.
pub(crate) const UNRESPONSIVE_GRACE: Duration = Duration::from_secs(5);

/// Retry delay of a stop whose process survived SIGKILL, for example because a driver blocks it.
const STOP_RETRY: Duration = Duration::from_secs(30);

/// Interval at which the disk usage is measured.
const DISK_PERIOD: Duration = Duration::from_secs(10);

/// Command that starts workers.
#[derive(Debug, Clone)]
pub(crate) struct WorkerCommand {
    /// Path of the rooflet binary.
    pub program: Utf8PathBuf,
    /// Program and engine version, for quarantine: a different version may not crash the machine.
    pub engine: String,
    /// Leading arguments, before the worker's own arguments.
    pub arguments: Vec<String>,
    /// Time for in-flight requests to finish when the agent stops or memory is needed.
    pub grace: Duration,
    /// Maximum time for in-flight requests to finish when the replica is replaced, moved or scaled
    /// down.
    pub answer_grace: Duration,
}

/// View of a replica for the agent's HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub serving_name: String,
    pub log: Log,
    /// Address of the worker, if one runs.
    pub upstream: Option<Upstream>,
    /// True if the worker is ready, makes progress and is not stopping.
    pub ready: bool,
    /// True if the worker is ready and makes no progress.
    pub stalled: bool,
    /// True if the worker frees its model without requests.
    pub unloads: bool,
    pub context_tokens: Option<u32>,
    pub started: Option<Timestamp>,
}

/// All replicas of the node by key.
pub(crate) type Endpoints = Arc<BTreeMap<ReplicaKey, Endpoint>>;

/// State of one replica for its status.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub restarts: i32,
    /// Number of consecutive failures.
    pub failures: u32,
    pub last_termination: Option<Termination>,
    pub reservation: Option<(Bytes, String)>,
    pub model_path: Option<Utf8PathBuf>,
    pub status: Option<WorkerStatus>,
    /// True if the worker is ready and makes no progress.
    pub is_stalled: bool,
    pub stopping: Option<StopCause>,
    /// Failure of a golden prompt.
    pub golden_failure: Option<String>,
}

/// Worker processes of this node.
pub(crate) struct Workers {
    state: Arc<StateDir>,
    command: WorkerCommand,
    tasks: Tasks,
    clock: Clock,
    changes: Changes,
    proxy: Proxy,
    host: Host,
    pacing: Pacing,
    slots: BTreeMap<ReplicaKey, Slot>,
    /// Memory of workers that were killed or crashed, until the caller takes it.
    lost_memory: Bytes,
    /// Time and result of the last disk measurement.
    disk_limit: Option<(Instant, Bytes)>,
    endpoints_tx: watch::Sender<Endpoints>,
}

impl Workers {
    /// Adopts the workers of the previous agent process, and terminates workers without a record.
    pub(crate) fn adopt(
        state: Arc<StateDir>,
        command: WorkerCommand,
        tasks: Tasks,
        clock: Clock,
        changes: Changes,
        proxy: Proxy,
        host: Host,
    ) -> Self {
        let (endpoints_tx, _) = watch::channel(Endpoints::default());
        let mut workers = Self {
            state,
            command,
            tasks,
            pacing: Pacing::new(clock.clone()),
            clock,
            changes,
            proxy,
            host,
            slots: BTreeMap::new(),
            lost_memory: Bytes::ZERO,
            disk_limit: None,
            endpoints_tx,
        };
        let mut known = BTreeSet::new();
        for record in workers.state.records() {
            known.extend(workers.adopt_one(record));
        }
        for orphan in find_by_argument("worker", &format!("{}/", workers.state.sockets())) {
            if !known.contains(&orphan.pid()) {
                warn!(pid = orphan.pid(), "terminating orphaned worker without a record");
                if let Err(err) = orphan.kill_group() {
                    error!(pid = orphan.pid(), error = %err, "failed to terminate orphaned worker");
                }
            }
        }
        workers.publish();
        workers
    }

    fn adopt_one(&mut self, mut record: Record) -> Option<i32> {
        let dir = self.state.replica(&record.key);
        let process = record
            .worker
            .as_ref()
            .and_then(|worker| worker.process.clone())
            .and_then(|id| Process::adopt(&self.tasks, id));
        let pid = process
            .as_ref()
            .and_then(Process::id)
            .map(rooflet_process::ProcessId::pid);
        let worker = match process {
            Some(process) => {
                info!(replica = %record.key, pid, "adopted running worker");
                Some(self.watch(&dir, process, &record, None))
            }
            None => {
                if let Some(worker) = record.worker.take() {
                    self.lost_memory += Bytes(worker.reserved_bytes);
                    info!(replica = %record.key, "worker exited while no agent was running");
                    record.ended_by_itself = true;
                }
                None
            }
        };
        self.slots
            .insert(record.key.clone(), Slot { record, dir, worker });
        pid
    }

    fn watch(
        &self,
        dir: &ReplicaDir,
        process: Process,
        record: &Record,
        log_bytes_before: Option<u64>,
    ) -> Worker {
        let golden = record.worker.as_ref().and_then(|worker| worker.golden.clone());
        let monitor = Monitor {
            replica: record.key.clone(),
            clock: self.clock.clone(),
            proxy: self.proxy.clone(),
            upstream: Upstream::unix(dir.socket()),
            golden,
            changes: self.changes.clone(),
            pacing: self.pacing.clone(),
        };
        let monitor_rx = monitor.spawn(&self.tasks, process.clone());
        Worker {
            process,
            monitor_rx,
            ready_since: None,
            log_bytes_before,
            stopping: None,
        }
    }

    /// Returns the shares of the chip's time.
    pub(crate) fn pacing(&self) -> &Pacing {
        &self.pacing
    }

    /// Returns the endpoints for the HTTP server.
    pub(crate) fn endpoints(&self) -> watch::Receiver<Endpoints> {
        self.endpoints_tx.subscribe()
    }

    /// Returns the records of all replicas, with the last known desired state.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.slots.values().map(|slot| &slot.record)
    }

    /// Sets the share of the chip's time that a running worker reserves. The record is saved with its next
    /// change, because calibration changes the share often.
    pub(crate) fn update_reserved_share(&mut self, key: &ReplicaKey, share: f64) {
        if let Some(slot) = self.slots.get_mut(key)
            && let Some(worker) = &mut slot.record.worker
        {
            worker.reserved_share = Some(share);
        }
    }

    /// Stores the current terms of a replica for the next agent process.
    pub(crate) fn update_terms(&mut self, key: &ReplicaKey, replica: &DesiredReplica) {
        if let Some(slot) = self.slots.get_mut(key)
            && slot.record.uid == replica.uid
            && slot.record.terms != replica.terms
        {
            slot.record.terms = replica.terms.clone();
            slot.save();
        }
    }

    /// Continues the record of the replica with the UID `former` under the UID and generation of
    /// `replica`.
    pub(crate) fn continue_as(&mut self, key: &ReplicaKey, former: &str, replica: &DesiredReplica) {
        if let Some(slot) = self.slots.get_mut(key)
            && slot.record.uid == former
        {
            info!(replica = %key, uid = replica.uid, "restored replica continues with its running worker");
            slot.record.uid = replica.uid.clone();
            slot.record.generation = replica.generation;
            slot.save();
        }
    }

    /// Returns true if no worker runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.values().all(|slot| slot.worker.is_none())
    }

    /// Returns the engine that a worker reported, if any did.
    pub(crate) fn engine(&self) -> Option<rooflet_api::wire::EngineInfo> {
        let workers = self.slots.values().filter_map(|slot| slot.worker.as_ref());
        workers
            .filter_map(|worker| worker.monitor_rx.latest().status)
            .map(|status| status.engine)
            .next()
    }

    /// Returns the current state. Processes worker exits and rotates large logs.
    pub(crate) fn observe(&mut self) -> BTreeMap<ReplicaKey, ObservedReplica> {
        let (now, instant) = (self.clock.now(), self.clock.instant());
        for slot in self.slots.values_mut() {
            self.lost_memory += slot.update(now, instant).unwrap_or_default();
            if let Err(err) = slot.dir.log().rotate(MAX_LOG_BYTES) {
                warn!(replica = %slot.record.key, error = %Chain(&err), "failed to rotate worker log");
            }
        }
        self.slots
            .iter()
            .map(|(key, slot)| (key.clone(), slot.observe(instant)))
            .collect()
    }

    /// Returns and resets the memory of workers that were killed or crashed.
    pub(crate) fn take_lost_memory(&mut self) -> Bytes {
        std::mem::take(&mut self.lost_memory)
    }

    /// Returns the state of a replica beyond the inputs of the plan.
    pub(crate) fn progress(&self, key: &ReplicaKey) -> Option<Progress> {
        self.slots.get(key).map(Slot::progress)
    }

    /// Returns the request counts that each worker last reported.
    pub(crate) fn requests(&self) -> BTreeMap<ReplicaKey, RequestCounts> {
        let counts = self.slots.iter().filter_map(|(key, slot)| {
            let status = slot.progress().status?;
            Some((key.clone(), status.requests))
        });
        counts.collect()
    }

    pub(crate) fn start(&mut self, key: &ReplicaKey, replica: &DesiredReplica, start: &Start) {
        let now = self.clock.now();
        let dir = self.state.replica(key);
        let mut slot = match self.slots.remove(key) {
            Some(slot) if slot.record.uid == replica.uid => slot,
            Some(old) => {
                drop(old.dir.remove());
                Slot {
                    record: first_record(key, replica),
                    dir,
                    worker: None,
                }
            }
            None => Slot {
                record: first_record(key, replica),
                dir,
                worker: None,
            },
        };
        let prefixes = self.prefix_files(&key.namespace, &replica.spec);
        let engine = &self.command.engine;
        slot.record.begin(replica, start, prefixes.as_ref(), engine, now);
        let log_bytes = slot.dir.log().bytes();
        match self.spawn(&slot, start, prefixes) {
            Ok(process) => {
                info!(replica = %key, pid = process.id().map(rooflet_process::ProcessId::pid), "worker started");
                if let Some(worker) = &mut slot.record.worker {
                    worker.process = process.id().cloned();
                }
                slot.save();
                slot.worker = Some(self.watch(&slot.dir, process, &slot.record, Some(log_bytes)));
            }
            Err((reason, message)) => {
                warn!(replica = %key, reason, error = message, "failed to start worker");
                let finished_at = rfc3339(now);
                let end = Termination {
                    exit_code: None,
                    signal: None,
                    reason: reason.to_owned(),
                    message,
                    finished_at,
                };
                slot.record.worker = None;
                slot.record.fail(end, None, now);
                slot.save();
            }
        }
        self.slots.insert(key.clone(), slot);
    }

    /// Returns the maximum of the sum of the disk limits that replicas set; see [`disk::limit`].
    /// Cached prefixes of exited workers and `unused` bytes of downloaded models count as free,
    /// because they are deleted when space is needed.
    pub(crate) fn disk_limit(&mut self, unused: impl FnOnce() -> Bytes) -> Bytes {
        let now = self.clock.instant();
        let known = self.disk_limit;
        if let Some((_, limit)) = known.filter(|(measured_at, _)| now - *measured_at < DISK_PERIOD) {
            return limit;
        }
        let stored = prefix_files::stored_bytes(&self.state.prefixes()) + unused();
        let (_, automatic) = self.reserved_disk();
        let free = self.disk().map_or(Bytes::ZERO, |disk| disk.free);
        let limit = disk::limit(free, stored, automatic, known.map(|(_, limit)| limit));
        self.disk_limit = Some((now, limit));
        limit
    }

    fn disk(&self) -> Option<Disk> {
        self.host.disk(self.state.path()).ok()
    }

    /// Returns the disk space that running workers may use: the sum of explicit limits and the sum
    /// of automatic limits.
    fn reserved_disk(&self) -> (Bytes, Bytes) {
        let mut reserved = (Bytes::ZERO, Bytes::ZERO);
        for record in self.slots.values().map(|slot| &slot.record) {
            let Some(worker) = &record.worker else { continue };
            match record.spec.disk() {
                Bytes::ZERO => reserved.1 += Bytes(worker.prefix_bytes),
                explicit => reserved.0 += explicit,
            }
        }
        reserved
    }

    /// Returns the disk space that must be freed before `wanted` more bytes fit beside the reserved
    /// space.
    pub(crate) fn missing_disk(&self, wanted: Bytes) -> Bytes {
        let records = self.slots.values().filter_map(|slot| slot.record.worker.as_ref());
        let kept: Bytes = records
            .filter_map(|worker| worker.prefix_dir.as_deref())
            .map(prefix_files::stored_bytes)
            .sum();
        let (explicit, automatic) = self.reserved_disk();
        let obtainable = self.disk().map_or(Bytes::ZERO, |disk| disk.obtainable);
        explicit + automatic + wanted + disk::MIN_FREE - (obtainable + kept)
    }

    /// Returns the directory and size limit of a worker's cached prefixes. `None` if the worker
    /// stores none.
    fn prefix_files(&mut self, namespace: &str, spec: &ReplicaSpec) -> Option<PrefixFiles> {
        let root = self.state.prefixes();
        let limit = self.disk_limit(Bytes::default);
        let (explicit, _) = self.reserved_disk();
        let mut used: BTreeSet<&Utf8Path> = self
            .slots
            .values()
            .filter_map(|slot| slot.record.worker.as_ref()?.prefix_dir.as_deref())
            .collect();
        let dir = prefix_files::choose(&root, namespace, &spec.serving_name, &used);
        used.insert(&dir);
        let missing = if spec.disk() > Bytes::ZERO {
            self.missing_disk(spec.disk())
        } else {
            Bytes::ZERO
        };
        prefix_files::remove_unused(&root, &used, self.clock.now(), missing);
        let limit = prefix_files::budget(spec.kv_cache.as_ref(), limit - explicit)?;
        if let Err(err) = prefix_files::prepare(&dir) {
            warn!(%dir, error = %err, "failed to create prefix directory; the worker caches no prefixes on disk");
            return None;
        }
        Some(PrefixFiles { dir, limit })
    }

    fn spawn(
        &self,
        slot: &Slot,
        start: &Start,
        prefixes: Option<PrefixFiles>,
    ) -> Result<Process, (&'static str, String)> {
        let io_failed = |err: io::Error| {
            (
                "StateUnwritable",
                format!("writing the agent's state directory: {err}"),
            )
        };
        // The record is stored before the start, so that an agent restart in between still finds
        // the worker by its socket.
        slot.dir.save(&slot.record).map_err(io_failed)?;
        slot.dir.clear().map_err(io_failed)?;
        let spec = &slot.record.spec;
        let mut arguments = self.command.arguments.clone();
        for (flag, value) in [
            ("--model", start.path.to_string()),
            ("--socket", slot.dir.socket().to_string()),
            ("--name", spec.serving_name.clone()),
            ("--context-tokens", start.context_tokens.to_string()),
            ("--max-concurrency", spec.max_concurrency.to_string()),
            ("--memory-limit", start.reservation.total().0.to_string()),
            ("--grace-seconds", self.answer_grace(slot).as_secs().to_string()),
            (
                "--termination-message-path",
                slot.dir.termination_message().to_string(),
            ),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        if let Some(bits) = spec.kv_bits() {
            arguments.extend(["--kv-bits".to_owned(), bits.to_string()]);
        }
        if let Some(tokens) = spec.prompt_lookup_tokens {
            arguments.extend(["--prompt-lookup-tokens".to_owned(), tokens.to_string()]);
        }
        if let Some(time) = &spec.keep_alive {
            arguments.extend(["--keep-alive".to_owned(), time.clone()]);
        }
        if spec.allow_request_chat_template {
            arguments.push("--allow-request-chat-template".to_owned());
        }
        if let Some(PrefixFiles { dir, limit }) = prefixes {
            let (dir, limit) = (dir.to_string(), limit.0.to_string());
            arguments.extend(["--prefix-cache-dir".to_owned(), dir]);
            arguments.extend(["--prefix-cache-disk".to_owned(), limit]);
        }
        let command = Command {
            program: self.command.program.clone(),
            arguments,
            log: slot.dir.log(),
        };
        spawn(&self.tasks, &command).map_err(|err| (err.reason(), Chain(&err).to_string()))
    }

    pub(crate) fn stop(&mut self, key: &ReplicaKey, cause: StopCause) {
        let answer_grace = self
            .slots
            .get(key)
            .map_or(Duration::ZERO, |slot| self.answer_grace(slot));
        let Some(slot) = self.slots.get_mut(key) else {
            return;
        };
        if cause == StopCause::MemoryPressure {
            slot.record.stopped_for_memory = true;
            slot.save();
        }
        let Some(worker) = &mut slot.worker else {
            return;
        };
        let was_ready = worker.ready_since.is_some();
        let notice = match cause {
            StopCause::Deleted
            | StopCause::Replaced
            | StopCause::AgentStopping
            | StopCause::MemoryPressure
                if was_ready =>
            {
                DRAIN_NOTICE
            }
            StopCause::Deleted
            | StopCause::Replaced
            | StopCause::AgentStopping
            | StopCause::MemoryPressure
            | StopCause::Unresponsive => Duration::ZERO,
        };
        let grace = match cause {
            StopCause::Unresponsive => UNRESPONSIVE_GRACE,
            StopCause::Deleted | StopCause::Replaced => answer_grace + GRACE_MARGIN,
            StopCause::AgentStopping | StopCause::MemoryPressure => self.command.grace + GRACE_MARGIN,
        };
        worker.stopping = Some(Stopping {
            cause,
            killed_at: self.clock.instant() + notice + grace,
        });
        info!(replica = %key, ?cause, "stopping worker");
        let (process, key) = (worker.process.clone(), key.clone());
        self.tasks.spawn_detached(async move {
            tokio::time::sleep(notice).await;
            while let Err(err) = process.stop(grace).await {
                error!(replica = %key, error = %Chain(&err), "failed to stop worker; retrying");
                tokio::time::sleep(STOP_RETRY).await;
            }
        });
    }

    /// Limits the remaining time of stopping workers to the grace period for agent stop and memory
    /// pressure.
    pub(crate) fn shorten_grace(&mut self) {
        let grace = self.command.grace + GRACE_MARGIN;
        let latest = self.clock.instant() + grace;
        for (key, slot) in &mut self.slots {
            if let Some(worker) = &mut slot.worker
                && let Some(stopping) = &mut worker.stopping
                && stopping.killed_at > latest
            {
                stopping.killed_at = latest;
                info!(replica = %key, "shortened grace period of stopping worker");
                let process = worker.process.clone();
                self.tasks.spawn_detached(async move {
                    if let Err(err) = process.end_within(grace).await {
                        error!(error = %Chain(&err), "failed to stop worker");
                    }
                });
            }
        }
    }

    /// Returns the time for in-flight requests to finish when the replica is replaced, moved or
    /// scaled down.
    fn answer_grace(&self, slot: &Slot) -> Duration {
        let worker = slot.record.worker.as_ref();
        let longest = worker.map_or(Duration::ZERO, |worker| {
            Duration::from_secs(worker.answer_seconds)
        });
        longest.min(self.command.answer_grace).max(self.command.grace)
    }

    /// Removes a replica without a worker, including its log.
    pub(crate) fn release(&mut self, key: &ReplicaKey) {
        if self.slots.get(key).is_some_and(|slot| slot.worker.is_none()) {
            let slot = self.slots.remove(key);
            if let Some(Err(err)) = slot.map(|slot| slot.dir.remove()) {
                warn!(replica = %key, error = %Chain(&err), "failed to remove replica directory");
            }
        }
    }

    /// Publishes the endpoints to the HTTP server.
    pub(crate) fn publish(&self) {
        let next: BTreeMap<_, _> = self
            .slots
            .iter()
            .map(|(key, slot)| (key.clone(), slot.endpoint()))
            .collect();
        self.endpoints_tx.send_if_modified(|endpoints| {
            let changed = **endpoints != next;
            if changed {
                *endpoints = Arc::new(next);
            }
            changed
        });
    }
}
