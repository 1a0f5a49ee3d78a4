//! The workers of this node: started, watched, adopted after a restart of the agent, stopped. Carries plans out and
//! tells what is there; decides nothing.

pub(crate) mod backoff;
pub(crate) mod golden;
pub(crate) mod in_flight;
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

use self::monitor::Monitor;
use self::pacing::Pacing;
use self::prefix_files::PrefixFiles;
pub use self::record::first_record;
use self::slot::{Slot, Stopping, Worker};
use super::replica::{DesiredReplica, ReplicaKey, ReplicaSpec, rfc3339};
use super::state::{Record, ReplicaDir, StateDir};
use crate::sync::{Seen, Start, StopCause};
use rooflet_api::v1alpha1::Termination;
use rooflet_api::wire::{RequestCounts, WorkerStatus};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::latest::Latest;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_client::Changes;
use rooflet_host::Host;
use rooflet_process::logs::{Log, MAX_LOG_BYTES};
use rooflet_process::{Command, Process, find_by_argument, spawn};
use rooflet_proxy::{Proxy, Upstream};
use rooflet_roofline::disk;

/// Between the news that a ready replica goes and the SIGTERM: time for gateways to send their requests elsewhere.
pub const DRAIN_NOTICE: Duration = Duration::from_millis(500);

/// What a worker may finish its requests in when the agent stops or the machine needs its memory, unless told otherwise.
pub const GRACE: Duration = Duration::from_secs(30);

/// A worker ends by itself within its grace. This much later it is killed.
pub const GRACE_MARGIN: Duration = Duration::from_secs(3);

/// A worker that does not answer gets no more than this to end.
pub(crate) const UNRESPONSIVE_GRACE: Duration = Duration::from_secs(5);

/// A process that survived SIGKILL (a driver may hold it) is tried again after this time.
const STOP_RETRY: Duration = Duration::from_secs(30);

/// How often the disk is looked at, with all that is stored on it.
const DISK_LOOK: Duration = Duration::from_secs(10);

/// How the agent starts workers.
#[derive(Debug, Clone)]
pub(crate) struct WorkerCommand {
    /// This binary.
    pub program: Utf8PathBuf,
    /// The engine in it, for quarantine: what it does to the machine may be mended in another version.
    pub engine: String,
    /// Before the worker's own arguments.
    pub arguments: Vec<String>,
    /// How long a worker may finish what it is answering when the agent stops, or its memory is needed.
    pub grace: Duration,
    /// The most that it may take for that when its replica is replaced, moved or scaled away.
    pub answer_grace: Duration,
}

/// What the agent's HTTP server needs to know of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub serving_name: String,
    pub log: Log,
    /// Where its worker listens, if there is one.
    pub upstream: Option<Upstream>,
    /// It answers requests and is not being stopped.
    pub ready: bool,
    pub context_tokens: Option<u32>,
    pub started: Option<Timestamp>,
}

/// All replicas of the node, as the HTTP server sees them.
pub(crate) type Endpoints = Arc<BTreeMap<ReplicaKey, Endpoint>>;

/// One replica for the status, beside what the plan saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub restarts: i32,
    /// In a row.
    pub failures: u32,
    pub last_termination: Option<Termination>,
    pub reservation: Option<(Bytes, String)>,
    pub model_path: Option<Utf8PathBuf>,
    pub status: Option<WorkerStatus>,
    pub stopping: Option<StopCause>,
    /// Why its answer to a golden prompt would not do.
    pub golden_failure: Option<String>,
}

/// See the module.
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
    /// What workers could hold that were killed or crashed, until it is taken.
    lost: Bytes,
    /// When the disk was looked at last, and what came of it.
    disk_limit: Option<(Instant, Bytes)>,
    endpoints_tx: watch::Sender<Endpoints>,
}

impl Workers {
    /// Takes over what an earlier life of the agent left running, and ends what it cannot account for.
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
            lost: Bytes::ZERO,
            disk_limit: None,
            endpoints_tx,
        };
        let mut known = BTreeSet::new();
        for record in workers.state.records() {
            known.extend(workers.adopt_one(record));
        }
        for stray in find_by_argument("worker", &format!("{}/", workers.state.sockets())) {
            if !known.contains(&stray.pid()) {
                warn!(
                    pid = stray.pid(),
                    "ending a worker that no record of this agent names"
                );
                if let Err(err) = stray.kill_group() {
                    error!(pid = stray.pid(), error = %err, "a stray worker could not be ended");
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
                info!(replica = %record.key, pid, "adopted a running worker");
                Some(self.watch(&dir, process, &record))
            }
            None => {
                if let Some(worker) = record.worker.take() {
                    self.lost += Bytes(worker.reserved_bytes);
                    info!(replica = %record.key, "its worker ended while no agent was there");
                    record.ended_by_itself = true;
                }
                None
            }
        };
        self.slots
            .insert(record.key.clone(), Slot { record, dir, worker });
        pid
    }

    fn watch(&self, dir: &ReplicaDir, process: Process, record: &Record) -> Worker {
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
        let contact_rx = monitor.spawn(&self.tasks, process.clone());
        Worker {
            process,
            contact_rx,
            ready_since: None,
            stopping: None,
        }
    }

    /// Who takes how much of the chip's time.
    pub(crate) fn pacing(&self) -> &Pacing {
        &self.pacing
    }

    /// For the HTTP server.
    pub(crate) fn endpoints(&self) -> watch::Receiver<Endpoints> {
        self.endpoints_tx.subscribe()
    }

    /// Records of all replicas: what was wanted when the agent last knew.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.slots.values().map(|slot| &slot.record)
    }

    /// Keeps what is wanted of a replica besides its specification for the agent's next life.
    pub(crate) fn remember(&mut self, key: &ReplicaKey, replica: &DesiredReplica) {
        if let Some(slot) = self.slots.get_mut(key)
            && slot.record.uid == replica.uid
            && slot.record.terms != replica.terms
        {
            slot.record.terms = replica.terms.clone();
            slot.save();
        }
    }

    /// Whether any worker runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.values().all(|slot| slot.worker.is_none())
    }

    /// The device the engine runs on, if a worker has said.
    pub(crate) fn engine(&self) -> Option<rooflet_api::wire::EngineInfo> {
        let workers = self.slots.values().filter_map(|slot| slot.worker.as_ref());
        workers
            .filter_map(|worker| worker.contact_rx.latest().status)
            .map(|status| status.engine)
            .next()
    }

    /// What is there now. Takes note of workers that have ended, and keeps logs within bounds.
    pub(crate) fn observe(&mut self) -> BTreeMap<ReplicaKey, Seen> {
        let (now, instant) = (self.clock.now(), self.clock.instant());
        for slot in self.slots.values_mut() {
            self.lost += slot.take_note(now, instant).unwrap_or_default();
            if let Err(err) = slot.dir.log().rotate(MAX_LOG_BYTES) {
                warn!(replica = %slot.record.key, error = %Chain(&err), "the worker's log could not be rotated");
            }
        }
        self.slots
            .iter()
            .map(|(key, slot)| (key.clone(), slot.seen(instant)))
            .collect()
    }

    /// What workers could hold that were killed or crashed since this was last asked.
    pub(crate) fn take_lost(&mut self) -> Bytes {
        std::mem::take(&mut self.lost)
    }

    /// Everything but what the plan needs.
    pub(crate) fn progress(&self, key: &ReplicaKey) -> Option<Progress> {
        self.slots.get(key).map(Slot::progress)
    }

    /// What each worker is doing, as far as it was heard.
    pub(crate) fn requests(&self) -> BTreeMap<ReplicaKey, RequestCounts> {
        let heard = self.slots.iter().filter_map(|(key, slot)| {
            let status = slot.progress().status?;
            Some((key.clone(), status.requests))
        });
        heard.collect()
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
        match self.spawn(&slot, start, prefixes) {
            Ok(process) => {
                info!(replica = %key, pid = process.id().map(rooflet_process::ProcessId::pid), "started a worker");
                if let Some(worker) = &mut slot.record.worker {
                    worker.process = process.id().cloned();
                }
                slot.save();
                slot.worker = Some(self.watch(&slot.dir, process, &slot.record));
            }
            Err((reason, message)) => {
                warn!(replica = %key, reason, error = message, "a worker could not be started");
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

    /// What replicas that were told how much may store on the disk together; see [`disk::limit`]. What was stored for
    /// workers that are gone counts as free, and so do `unused` bytes of models that were downloaded: both make room.
    pub(crate) fn disk_limit(&mut self, unused: impl FnOnce() -> Bytes) -> Bytes {
        let now = self.clock.instant();
        let known = self.disk_limit;
        if let Some((_, limit)) = known.filter(|(looked, _)| now - *looked < DISK_LOOK) {
            return limit;
        }
        let stored = prefix_files::stored(&self.state.prefixes()) + unused();
        let (_, automatic) = self.disk_promises();
        let limit = disk::limit(self.free_disk(), stored, automatic, known.map(|(_, limit)| limit));
        self.disk_limit = Some((now, limit));
        limit
    }

    fn free_disk(&self) -> Bytes {
        let disk = self.host.disk(self.state.path());
        disk.map_or(Bytes::ZERO, |disk| disk.free)
    }

    /// What running workers may store: those that were told how much, and the others.
    fn disk_promises(&self) -> (Bytes, Bytes) {
        let mut promises = (Bytes::ZERO, Bytes::ZERO);
        for record in self.slots.values().map(|slot| &slot.record) {
            let Some(worker) = &record.worker else { continue };
            match record.spec.disk() {
                Bytes::ZERO => promises.1 += Bytes(worker.prefix_bytes),
                told => promises.0 += told,
            }
        }
        promises
    }

    /// What would have to be removed for so many bytes more beside what is promised.
    pub(crate) fn missing_disk(&self, wanted: Bytes) -> Bytes {
        let records = self.slots.values().filter_map(|slot| slot.record.worker.as_ref());
        let kept: Bytes = records
            .filter_map(|worker| worker.prefix_dir.as_deref())
            .map(prefix_files::stored)
            .sum();
        let (told, automatic) = self.disk_promises();
        told + automatic + wanted + disk::LEFT_FREE - (self.free_disk() + kept)
    }

    /// Where a worker is to store prefixes, and how much of them.
    fn prefix_files(&mut self, namespace: &str, spec: &ReplicaSpec) -> Option<PrefixFiles> {
        let root = self.state.prefixes();
        let limit = self.disk_limit(Bytes::default);
        let (told, _) = self.disk_promises();
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
        let limit = prefix_files::budget(spec.kv_cache.as_ref(), limit - told)?;
        if let Err(err) = prefix_files::prepare(&dir) {
            warn!(%dir, error = %err, "the worker stores no prefixes: its directory cannot be made");
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
        // The intent first: a worker whose agent dies in between is found by its socket, and this says whose it is.
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
            slot.record.gave_way = true;
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
        info!(replica = %key, ?cause, "stopping a worker");
        let (process, key) = (worker.process.clone(), key.clone());
        self.tasks.spawn_detached(async move {
            tokio::time::sleep(notice).await;
            while let Err(err) = process.stop(grace).await {
                error!(replica = %key, error = %Chain(&err), "a worker could not be stopped; trying again");
                tokio::time::sleep(STOP_RETRY).await;
            }
        });
    }

    /// The agent stops, or memory is needed: what is stopping already gets no more time than what stops for that.
    pub(crate) fn hurry(&mut self) {
        let grace = self.command.grace + GRACE_MARGIN;
        let latest = self.clock.instant() + grace;
        for (key, slot) in &mut self.slots {
            if let Some(worker) = &mut slot.worker
                && let Some(stopping) = &mut worker.stopping
                && stopping.killed_at > latest
            {
                stopping.killed_at = latest;
                info!(replica = %key, "a worker that stops gets less time");
                let process = worker.process.clone();
                self.tasks.spawn_detached(async move {
                    if let Err(err) = process.end_within(grace).await {
                        error!(error = %Chain(&err), "a worker could not be stopped");
                    }
                });
            }
        }
    }

    /// How long a worker may finish what it is answering when its replica is replaced, moved or scaled away.
    fn answer_grace(&self, slot: &Slot) -> Duration {
        let worker = slot.record.worker.as_ref();
        let longest = worker.map_or(Duration::ZERO, |worker| {
            Duration::from_secs(worker.answer_seconds)
        });
        longest.min(self.command.answer_grace).max(self.command.grace)
    }

    /// Forgets a replica that has no worker, with its log.
    pub(crate) fn release(&mut self, key: &ReplicaKey) {
        if self.slots.get(key).is_some_and(|slot| slot.worker.is_none()) {
            let slot = self.slots.remove(key);
            if let Some(Err(err)) = slot.map(|slot| slot.dir.remove()) {
                warn!(replica = %key, error = %Chain(&err), "the replica's directory could not be removed");
            }
        }
    }

    /// Shows the HTTP server what is there.
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
