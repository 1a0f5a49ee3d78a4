//! State of one simulated Mac and its agent.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::scenario::machine::Machine;
use crate::world::view::View;
use crate::world::worker::Worker;
use crate::world::writer::Writer;
use rooflet_agent::node::pressure::MemoryWatch;
use rooflet_agent::replica::ReplicaKey;
use rooflet_agent::state::Record;
use rooflet_agent::workers::Progress;
use rooflet_agent::{LEASE_PERIOD, Reports};
use rooflet_api::v1alpha1::ModelReplicaStatus;
use rooflet_base::units::Bytes;
use rooflet_host::{Disk, Memory};

/// Every Mac's disk.
pub(crate) const DISK: Disk = Disk {
    total: Bytes::gib(512),
    free: Bytes::gib(256),
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) machine: Machine,
    pub(crate) view: View,
    /// Counts the lives of the agent's process.
    pub(crate) life: u32,
    pub(crate) synced: bool,
    /// Faults that are on.
    pub(crate) unpowered: u32,
    pub(crate) agent_down: u32,
    pub(crate) cut: u32,
    pub(crate) isolated: u32,
    pub(crate) slow_disk: f64,
    pub(crate) thermal: f64,
    pub(crate) memory_taken: f64,
    pub(crate) on_battery: u32,
    pub(crate) lid_closed: u32,
    pub(crate) user_present: u32,
    pub(crate) clock_skew: i64,
    /// On disk: it survives everything.
    pub(crate) records: BTreeMap<ReplicaKey, Record>,
    /// Processes: they survive the agent.
    pub(crate) workers: BTreeMap<ReplicaKey, Worker>,
    pub(crate) said: BTreeMap<(ReplicaKey, String), ModelReplicaStatus>,
    pub(crate) reports: Reports,
    pub(crate) replica_writer: Writer,
    pub(crate) node_writer: Writer,
    pub(crate) memory_watch: MemoryWatch,
    pub(crate) sync_due: Option<Duration>,
    /// Since when the Lease is renewed, or is not renewed any more.
    pub(crate) renews_since: Option<Duration>,
    pub(crate) renewed_last: Option<Duration>,
    /// The node was reachable last at this time; `None` while it is.
    pub(crate) unreachable_since: Option<Duration>,
    /// It became reachable again at this time.
    pub(crate) reachable_again: Option<Duration>,
    /// Its object had a taint or was to be drained until this time.
    pub(crate) untainted: Option<Duration>,
    /// It expelled replicas, or was taken for silent, until this time.
    pub(crate) pardoned: Option<Duration>,
}

impl Node {
    pub(crate) fn new(machine: Machine) -> Self {
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

    pub(crate) fn agent_runs(&self) -> bool {
        self.unpowered == 0 && self.agent_down == 0
    }

    /// The agent reaches the API server.
    pub(crate) fn is_connected(&self) -> bool {
        self.agent_runs() && self.cut == 0 && self.isolated == 0
    }

    /// Requests reach its agent.
    pub(crate) fn is_reachable(&self) -> bool {
        self.agent_runs() && self.isolated == 0
    }

    /// A moment as this machine's clock shows it.
    pub(crate) fn shown(&self, at: Timestamp) -> Timestamp {
        at + SignedDuration::from_secs(self.clock_skew)
    }

    /// The time of day that its clock shows at a moment.
    pub(crate) fn time_of_day(&self, at: Timestamp) -> Time {
        self.shown(at).to_zoned(TimeZone::UTC).time()
    }

    /// When the Lease was renewed last, as of `at`.
    pub(crate) fn renewed(&self, at: Duration) -> Option<Duration> {
        match self.renews_since {
            Some(since) if at >= since => {
                let periods = (at - since).as_micros() / LEASE_PERIOD.as_micros();
                Some(since + LEASE_PERIOD * u32::try_from(periods).unwrap_or(u32::MAX))
            }
            Some(_) | None => self.renewed_last,
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        let total = self.machine.class.memory;
        let taken = Bytes((total.0 as f64 * self.memory_taken) as u64);
        let resident: Bytes = self.workers.values().map(|worker| worker.resident).sum();
        Memory {
            total,
            available: total - taken - resident,
            compressible: Bytes::ZERO,
            swapouts: None,
            working_set: None,
            level: None,
        }
    }

    pub(crate) fn progress(&self, key: &ReplicaKey) -> Option<Progress> {
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
