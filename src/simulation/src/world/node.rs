//! State of a simulated Mac and its agent.

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

/// Disk of every simulated Mac.
pub(crate) const DISK: Disk = Disk {
    total: Bytes::gib(512),
    free: Bytes::gib(256),
    obtainable: Bytes::gib(256),
};

/// State of a simulated Mac and its agent.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) machine: Machine,
    pub(crate) view: View,
    /// Number of starts and stops of the agent's process. Events for an earlier process have a
    /// lower number.
    pub(crate) incarnation: u32,
    pub(crate) synced: bool,
    /// Number of active faults that cut the power. The following fields are counts or strengths of
    /// active faults, too.
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
    /// Records on disk. They survive all faults.
    pub(crate) records: BTreeMap<ReplicaKey, Record>,
    /// Worker processes. They survive the agent's process.
    pub(crate) workers: BTreeMap<ReplicaKey, Worker>,
    /// Last reported status, by replica and UID.
    pub(crate) last_statuses: BTreeMap<(ReplicaKey, String), ModelReplicaStatus>,
    pub(crate) reports: Reports,
    pub(crate) replica_writer: Writer,
    pub(crate) node_writer: Writer,
    pub(crate) memory_watch: MemoryWatch,
    pub(crate) sync_due: Option<Duration>,
    /// Start of the periodic renewals of the Lease; `None` while the agent does not renew it.
    pub(crate) renewing_since: Option<Duration>,
    /// Last renewal before the agent stopped renewing.
    pub(crate) last_renewal: Option<Duration>,
    /// Time since which the agent has not reached the API server; `None` while it does.
    pub(crate) unreachable_since: Option<Duration>,
    /// Time at which the agent last reached the API server again.
    pub(crate) reachable_again: Option<Duration>,
}

impl Node {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            machine,
            view: View::default(),
            incarnation: 0,
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
            last_statuses: BTreeMap::new(),
            reports: Reports::default(),
            replica_writer: Writer::default(),
            node_writer: Writer::default(),
            memory_watch: MemoryWatch::default(),
            sync_due: None,
            renewing_since: None,
            last_renewal: None,
            unreachable_since: None,
            reachable_again: None,
        }
    }

    pub(crate) fn agent_runs(&self) -> bool {
        self.unpowered == 0 && self.agent_down == 0
    }

    /// Returns true if the agent reaches the API server.
    pub(crate) fn is_connected(&self) -> bool {
        self.agent_runs() && self.cut == 0 && self.isolated == 0
    }

    /// Returns true if requests reach the agent.
    pub(crate) fn is_reachable(&self) -> bool {
        self.agent_runs() && self.isolated == 0
    }

    /// Converts a time to the machine's clock.
    pub(crate) fn local_time(&self, at: Timestamp) -> Timestamp {
        at + SignedDuration::from_secs(self.clock_skew)
    }

    /// Returns the time of day of the machine's clock.
    pub(crate) fn time_of_day(&self, at: Timestamp) -> Time {
        self.local_time(at).to_zoned(TimeZone::UTC).time()
    }

    /// Returns the time of the last renewal of the Lease before `at`.
    pub(crate) fn last_renewal_at(&self, at: Duration) -> Option<Duration> {
        match self.renewing_since {
            Some(since) if at >= since => {
                let periods = (at - since).as_micros() / LEASE_PERIOD.as_micros();
                Some(since + LEASE_PERIOD * u32::try_from(periods).unwrap_or(u32::MAX))
            }
            Some(_) | None => self.last_renewal,
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
            is_stalled: false,
            stopping: worker.and_then(|worker| worker.stopping),
            golden_failure: None,
        })
    }
}
