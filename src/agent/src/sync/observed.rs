//! What is on this node: an input of the sync plan.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::node::pressure::Pressure;
use crate::replica::{BadModel, ReplicaKey, ReplicaSpec};
use rooflet_base::units::Bytes;
use rooflet_roofline::memory::{Held, NodeMemory};
use rooflet_roofline::predict::Hardware;
use rooflet_roofline::predict::calibration::Calibration;

/// What is on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub replicas: BTreeMap<ReplicaKey, Seen>,
    pub memory: NodeMemory,
    /// What replicas that were told how much may store on the disk together.
    pub disk_limit: Bytes,
    /// What the speed of models can be predicted from, if anything can.
    pub hardware: Option<Hardware>,
    /// What runs here have taught about it.
    pub calibrations: Vec<Calibration>,
    /// By fingerprint, models that took the machine down, and what is to be said of them.
    pub quarantined: BTreeMap<u64, String>,
    /// Memory of workers that are gone, which the kernel did not give back.
    pub stranded: Option<Bytes>,
    /// The bandwidth probe is running and wants the machine for itself.
    pub probing: bool,
    /// Whether the machine's owner needs its memory back.
    pub pressure: Pressure,
    /// How much would have to be given back.
    pub shortfall: Bytes,
    /// What is to stay free beside one that has given way and comes back.
    pub relapse: Bytes,
}

impl Observed {
    /// Disk of everything that has a process.
    pub(super) fn promised_disk(&self) -> Bytes {
        let running = self
            .replicas
            .values()
            .filter(|seen| seen.worker != WorkerState::None);
        running.map(|seen| seen.spec.disk()).sum()
    }
}

/// One replica as the agent last acted on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub uid: String,
    pub generation: i64,
    pub spec: ReplicaSpec,
    pub worker: WorkerState,
    pub held: Held,
    /// Requests under way or waiting, as its worker last said.
    pub requests: u64,
    /// It was stopped for the machine's owner.
    pub gave_way: bool,
    /// No start before this.
    pub backoff_until: Option<Timestamp>,
    pub bad_model: Option<BadModel>,
}

/// Whether a replica has a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    None,
    Running,
    /// It runs and has not answered for too long.
    Unresponsive,
    Stopping,
    /// It should have ended long ago: a driver may hold it.
    Stuck,
}
