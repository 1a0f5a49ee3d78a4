//! One Mac with its agent's shell, modelled: processes, what is on its disk, when it looks and what it reports. What it
//! decides by are the real plan and the real statuses.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::event::{Actor, Event, Reader};
use super::machine::Machine;
use super::planted::Bug;
use super::run::{Run, Writer};
use super::view::View;
use super::worker::Worker;
use rooflet_agent::models::ModelProblem;
use rooflet_agent::node::pressure::{self, MemoryWatch, Pressure};
use rooflet_agent::replica::{DesiredReplica, ReplicaKey};
use rooflet_agent::state::Record;
use rooflet_agent::sync::{Desired, Observed, Seen, Start, Step, StopCause, SyncPlan, Wanted, WorkerState};
use rooflet_agent::workers::{Progress, first_record};
use rooflet_agent::{LEASE_PERIOD, Reports};
use rooflet_api::v1alpha1::{ModelReplicaStatus, ModelSource};
use rooflet_base::clock::since;
use rooflet_base::units::Bytes;
use rooflet_host::{Disk, Memory};
use rooflet_roofline::memory::{Held, NodeMemory};

/// Between a change and the pass that sees it.
const NOTICE: Duration = Duration::from_millis(20);
/// A report that could not be written, and a list that could not be read, are tried again after this time.
const RELIST: Duration = Duration::from_secs(1);

/// Every Mac's disk.
pub(super) const DISK: Disk = Disk {
    total: Bytes::gib(512),
    free: Bytes::gib(256),
};

/// See the module.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) machine: Machine,
    pub(super) view: View,
    /// Counts the lives of the agent's process.
    pub(super) life: u32,
    pub(super) synced: bool,
    /// Faults that are on.
    pub(super) unpowered: u32,
    pub(super) agent_down: u32,
    pub(super) cut: u32,
    pub(super) isolated: u32,
    pub(super) slow_disk: f64,
    pub(super) thermal: f64,
    pub(super) memory_taken: f64,
    pub(super) on_battery: u32,
    pub(super) lid_closed: u32,
    pub(super) user_present: u32,
    pub(super) clock_skew: i64,
    /// On disk: it survives everything.
    pub(super) records: BTreeMap<ReplicaKey, Record>,
    /// Processes: they survive the agent.
    pub(super) workers: BTreeMap<ReplicaKey, Worker>,
    pub(super) said: BTreeMap<(ReplicaKey, String), ModelReplicaStatus>,
    pub(super) reports: Reports,
    pub(super) replica_writer: Writer,
    pub(super) node_writer: Writer,
    memory_watch: MemoryWatch,
    sync_due: Option<Duration>,
    /// Since when the Lease is renewed, or is not renewed any more.
    pub(super) renews_since: Option<Duration>,
    renewed_last: Option<Duration>,
    /// The node was reachable last at this time; `None` while it is.
    pub(super) unreachable_since: Option<Duration>,
    /// It became reachable again at this time.
    pub(super) reachable_again: Option<Duration>,
    /// Its object had a taint or was to be drained until this time.
    pub(super) untainted: Option<Duration>,
    /// It expelled replicas, or was taken for silent, until this time.
    pub(super) pardoned: Option<Duration>,
}

impl Node {
    pub(super) fn new(machine: Machine) -> Self {
        Self {
            machine,
            view: View::default(),
            life: 0,
            synced: false,
            unpowered: 0,
            agent_down: 0,
            cut: 0,
            isolated: 0,
            slow_disk: 1.0,
            thermal: 1.0,
            memory_taken: 0.0,
            on_battery: 0,
            lid_closed: 0,
            user_present: 0,
            clock_skew: 0,
            records: BTreeMap::new(),
            workers: BTreeMap::new(),
            said: BTreeMap::new(),
            reports: Reports::default(),
            replica_writer: Writer::default(),
            node_writer: Writer::default(),
            memory_watch: MemoryWatch::default(),
            sync_due: None,
            renews_since: None,
            renewed_last: None,
            unreachable_since: None,
            reachable_again: None,
            untainted: None,
            pardoned: None,
        }
    }

    pub(super) fn agent_runs(&self) -> bool {
        self.unpowered == 0 && self.agent_down == 0
    }

    /// The agent reaches the API server.
    pub(super) fn is_connected(&self) -> bool {
        self.agent_runs() && self.cut == 0 && self.isolated == 0
    }

    /// Requests reach its agent.
    pub(super) fn is_reachable(&self) -> bool {
        self.agent_runs() && self.isolated == 0
    }

    /// A moment as this machine's clock shows it.
    pub(super) fn shown(&self, at: Timestamp) -> Timestamp {
        at + SignedDuration::from_secs(self.clock_skew)
    }

    /// The time of day that its clock shows at a moment.
    pub(super) fn time_of_day(&self, at: Timestamp) -> Time {
        self.shown(at).to_zoned(TimeZone::UTC).time()
    }

    /// When the Lease was renewed last, as of `at`.
    pub(super) fn renewed(&self, at: Duration) -> Option<Duration> {
        match self.renews_since {
            Some(since) if at >= since => {
                let periods = (at - since).as_micros() / LEASE_PERIOD.as_micros();
                Some(since + LEASE_PERIOD * u32::try_from(periods).unwrap_or(u32::MAX))
            }
            Some(_) | None => self.renewed_last,
        }
    }

    pub(super) fn memory(&self) -> Memory {
        let total = self.machine.class.memory;
        let taken = Bytes((total.0 as f64 * self.memory_taken) as u64);
        let resident: Bytes = self.workers.values().map(|worker| worker.resident).sum();
        Memory {
            total,
            available: total - taken - resident,
            working_set: None,
            level: None,
        }
    }

    pub(super) fn progress(&self, key: &ReplicaKey) -> Option<Progress> {
        let record = self.records.get(key)?;
        let worker = self.workers.get(key);
        let started = record.worker.as_ref();
        Some(Progress {
            restarts: record.restarts,
            failures: record.failures,
            last_termination: record.last_termination.clone(),
            reservation: started.map(|worker| (Bytes(worker.reserved_bytes), worker.reservation.clone())),
            model_path: started.map(|worker| worker.model_path.clone()),
            status: worker.map(Worker::status),
            stopping: worker.and_then(|worker| worker.stopping),
            golden_failure: None,
        })
    }
}

impl Run<'_> {
    pub(super) fn renews(node: &Node) -> bool {
        node.renews_since.is_some()
    }

    pub(super) fn start_agent(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        state.life += 1;
        state.view = View::default();
        state.synced = false;
        state.said.clear();
        state.reports = Reports::default();
        state.memory_watch = MemoryWatch::resume(state.records.values().any(|record| record.gave_way));
        state.replica_writer = Writer::default();
        state.node_writer = Writer::default();
        state.sync_due = None;
        self.connection_changed(node);
        if self.planted.has(Bug::WorkersNotAdopted) {
            for record in self.nodes[node].records.values_mut() {
                record.worker = None;
            }
        }
        let life = self.nodes[node].life;
        if self.nodes[node].agent_runs() {
            self.take_note_of_the_dead(node);
            let wait = self.latency();
            self.after(
                wait,
                Event::List {
                    reader: Reader::Agent(node),
                    life,
                },
            );
            self.wake_agent(node);
        }
    }

    pub(super) fn agent_lists(&mut self, node: usize, life: u32) {
        if self.nodes[node].life != life {
            return;
        }
        if !self.nodes[node].is_connected() {
            self.after(
                RELIST,
                Event::List {
                    reader: Reader::Agent(node),
                    life,
                },
            );
            return;
        }
        let objects = self.listed(Reader::Agent(node));
        let state = &mut self.nodes[node];
        state.view.list_anew(objects);
        state.synced = true;
        self.wake_agent(node);
    }

    /// A fault has begun or ended that has to do with who reaches whom.
    pub(super) fn connection_changed(&mut self, node: usize) {
        let now = self.now;
        let state = &mut self.nodes[node];
        if state.is_connected() {
            if state.unreachable_since.take().is_some() {
                state.reachable_again = Some(now);
            }
            if state.renews_since.is_none() && state.view.node(&state.machine.name).is_some() {
                state.renews_since = Some(now);
            }
            self.deliver_all(Reader::Agent(node));
            self.wake_agent(node);
        } else {
            state.unreachable_since.get_or_insert(now);
            if state.renews_since.is_some() {
                state.renewed_last = state.renewed(now);
                state.renews_since = None;
                // What a regular look of the controller would have seen.
                self.wake_loop(super::event::Loop::NodeLifecycle, Duration::from_secs(1));
            }
        }
    }

    pub(super) fn wake_agent(&mut self, node: usize) {
        self.wake_agent_after(node, NOTICE);
    }

    pub(super) fn wake_agent_after(&mut self, node: usize, wait: Duration) {
        let at = self.now + wait;
        let state = &mut self.nodes[node];
        if state.agent_runs() && state.sync_due.is_none_or(|due| at < due) {
            state.sync_due = Some(at);
            let life = state.life;
            self.queue.push(at, Event::Sync { node, life });
        }
    }

    pub(super) fn sync(&mut self, node: usize, life: u32) {
        let state = &mut self.nodes[node];
        if state.life != life || state.sync_due != Some(self.now) || !state.agent_runs() {
            return;
        }
        state.sync_due = None;
        let now = self.nodes[node].shown(self.clock());
        let instant = self.origin + self.now;
        let state = &mut self.nodes[node];
        let memory = state.memory();
        let pressure = state.memory_watch.observe(&memory, instant);
        if let Some(wait) = state.memory_watch.look_again_after(instant) {
            self.wake_agent_after(node, wait.max(Duration::from_millis(1)));
        }
        let state = &self.nodes[node];
        let time_of_day = state.time_of_day(self.clock());
        if let Some(wait) = state.machine.class.quiet_hours.change_after(time_of_day) {
            self.wake_agent_after(node, wait);
        }
        let observed = self.observe(node, pressure);
        let desired = self.desired(node);
        let plan = SyncPlan::new(&desired, &observed, now);
        for (key, step) in &plan.steps {
            match step {
                Step::Start(start) => {
                    if let Some(wanted) = desired.replicas.get(key) {
                        self.start_worker(node, key, &wanted.replica, start, now);
                    }
                }
                Step::Stop(cause) => {
                    self.check_stop(node, key, *cause);
                    if *cause == StopCause::MemoryPressure
                        && let Some(record) = self.nodes[node].records.get_mut(key)
                    {
                        record.gave_way = true;
                    }
                    self.stop_worker(node, key, *cause);
                }
                Step::Release => {
                    let state = &mut self.nodes[node];
                    if !state.workers.contains_key(key) {
                        state.records.remove(key);
                    }
                }
                // Simulated machines have their models.
                Step::Pull(_) | Step::Keep | Step::AwaitStop | Step::Wait(_) | Step::Refuse(_) => {}
            }
        }
        if plan.hurry {
            self.hurry_workers(node);
        }
        self.check_node(node);
        self.make_reports(node, &desired, &plan, &observed, now);
        if let Some(at) = plan.next_deadline() {
            self.wake_agent_after(node, since(at, now).max(Duration::from_millis(1)));
        }
        for actor in [Actor::Replicas(node), Actor::Node(node)] {
            self.wake_reporter(actor);
        }
    }

    fn observe(&self, node: usize, pressure: Pressure) -> Observed {
        let state = &self.nodes[node];
        let memory = state.memory();
        let seen = |(key, record): (&ReplicaKey, &Record)| {
            let worker = state.workers.get(key);
            let reserved = Bytes(record.worker.as_ref().map_or(0, |worker| worker.reserved_bytes));
            let state = match worker {
                _ if record.worker.is_none() => WorkerState::None,
                None => WorkerState::None,
                Some(worker) if worker.stopping.is_some() => WorkerState::Stopping,
                Some(_) => WorkerState::Running,
            };
            let state = match state == WorkerState::Stopping && self.planted.has(Bug::ReplacedBeforeStopped) {
                true => WorkerState::None,
                false => state,
            };
            let seen = Seen {
                uid: record.uid.clone(),
                generation: record.generation,
                spec: record.spec.clone(),
                worker: state,
                held: Held {
                    reserved,
                    resident: worker.map_or(Bytes::ZERO, |worker| worker.resident).min(reserved),
                },
                requests: worker.map_or(0, |worker| {
                    let requests = worker.status().requests;
                    requests.running + requests.queued
                }),
                gave_way: record.gave_way,
                backoff_until: record.backoff_until.filter(|_| !self.planted.has(Bug::NoBackoff)),
                bad_model: record.bad_model.clone(),
            };
            (key.clone(), seen)
        };
        Observed {
            replicas: state.records.iter().map(seen).collect(),
            memory: NodeMemory {
                allocatable: state.machine.class.allocatable,
                available: memory.available - pressure::margin(memory.total),
            },
            disk_limit: DISK.free,
            hardware: Some(state.machine.class.hardware),
            calibrations: Vec::new(),
            quarantined: BTreeMap::new(),
            stranded: None,
            probing: false,
            pressure,
            shortfall: pressure::shortfall(&memory),
            relapse: pressure::relapse(memory.total),
        }
    }

    fn desired(&self, node: usize) -> Desired {
        let state = &self.nodes[node];
        let models = &state.machine.class.models;
        let wanted = |replica: DesiredReplica| {
            let model = match replica.spec.source() {
                Ok(ModelSource::Local(name)) => models.get(&name).cloned().ok_or(name),
                Ok(source @ (ModelSource::File(_) | ModelSource::Hub(_))) => Err(source.to_string()),
                Err(err) => Err(err.to_string()),
            };
            let model =
                model.map_err(|name| ModelProblem::lasting("ModelNotFound", format!("{name} is not there")));
            let model = model.map(|model| model.with_kv_bits(replica.spec.kv_bits()));
            Wanted { replica, model }
        };
        let replicas = if state.synced || self.planted.has(Bug::ActsBeforeListing) {
            state
                .view
                .replicas()
                .iter()
                .filter(|replica| replica.spec.node_name.as_deref() == Some(&state.machine.name))
                .map(|replica| (ReplicaKey::of(replica), wanted(DesiredReplica::of(replica))))
                .collect()
        } else {
            // The server has not been heard yet: what it last wanted stands.
            state
                .records
                .values()
                .map(|record| (record.key.clone(), wanted(record.desired())))
                .collect()
        };
        Desired {
            replicas,
            stopping: false,
        }
    }

    fn start_worker(
        &mut self,
        node: usize,
        key: &ReplicaKey,
        replica: &DesiredReplica,
        start: &Start,
        now: Timestamp,
    ) {
        self.check_start(node, key, &replica.uid);
        let process = self.next_process();
        let state = &mut self.nodes[node];
        let same = state
            .records
            .get(key)
            .is_some_and(|record| record.uid == replica.uid);
        if !same {
            state.records.insert(key.clone(), first_record(key, replica));
        }
        let Some(record) = state.records.get_mut(key) else {
            return;
        };
        record.begin(replica, start, None, "simulated", now);
        if let Some(model) = self.model_of(node, &replica.spec.source) {
            let model = model.with_kv_bits(replica.spec.kv_bits());
            let worker = Worker::new(process, &replica.uid, start, replica.spec.max_concurrency, model);
            self.worker_starts(node, key, worker);
        }
    }
}
