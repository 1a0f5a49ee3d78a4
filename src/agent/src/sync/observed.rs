//! Observed state of this node: input of the sync plan.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use crate::node::pressure::Pressure;
use crate::replica::{BadModel, ReplicaKey, ReplicaSpec};
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::{Held, NodeMemory};
use rooflet_roofline::predict::Hardware;
use rooflet_roofline::predict::calibration::Calibration;

/// Observed state of this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub replicas: BTreeMap<ReplicaKey, ObservedReplica>,
    pub memory: NodeMemory,
    /// Maximum of the sum of the disk limits that replicas set for cached prefixes.
    pub disk_limit: Bytes,
    /// Hardware from which model speeds are predicted. `None` if it is unknown.
    pub hardware: Option<Hardware>,
    /// Calibration of the predictions by requests on this node.
    pub calibrations: Vec<Calibration>,
    /// Quarantined models by fingerprint, with the message for their conditions.
    pub quarantined: BTreeMap<u64, String>,
    /// Fingerprints of models that do not start yet, because a panic report about them may still be
    /// written.
    pub held_back: BTreeSet<u64>,
    /// Recent kernel panics of the watchdog while models ran.
    pub watchdog_panics: u32,
    /// Wired memory of exited workers that the kernel did not free.
    pub leaked: Option<Bytes>,
    /// True while the bandwidth probe runs or waits for the workers.
    pub probing: bool,
    /// Level of memory pressure.
    pub pressure: Pressure,
    /// Memory that must become available for pressure to end.
    pub shortfall: Bytes,
    /// Additional memory that must stay free when a replica restarts that was stopped for memory
    /// pressure, or when a new replica starts soon after such a stop.
    pub restart_headroom: Bytes,
    /// True if replicas were recently stopped for memory pressure.
    pub stopped_recently: bool,
}

impl Observed {
    /// Returns the disk space that replicas with a process have reserved.
    pub(super) fn reserved_disk(&self) -> Bytes {
        let running = self
            .replicas
            .values()
            .filter(|seen| seen.worker != WorkerState::None);
        running.map(|seen| seen.spec.disk()).sum()
    }
}

/// State of one replica after the agent's last action.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedReplica {
    pub uid: String,
    pub generation: i64,
    pub spec: ReplicaSpec,
    pub worker: WorkerState,
    pub held: Held,
    /// Share of the chip's time that the worker reserved at its start, 0 to 1.
    pub reserved_share: f64,
    pub has_objectives: bool,
    /// In-flight and waiting requests, as the worker last reported.
    pub requests: u64,
    /// True if the replica was stopped for memory pressure and has not restarted.
    pub stopped_for_memory: bool,
    /// Earliest time of the next start.
    pub backoff_until: Option<Timestamp>,
    pub bad_model: Option<BadModel>,
}

/// State of a replica's worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    None,
    Running,
    /// The process runs, but its worker has not responded for too long.
    Unresponsive,
    Stopping,
    /// The process did not exit in time, for example because a driver blocks it.
    Stuck,
}
