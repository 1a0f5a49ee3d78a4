//! What the agent knows of its node and its replicas after a pass of the sync loop.

use std::collections::BTreeMap;

use crate::models::ModelProblem;
use crate::node::pressure::Pressure;
use crate::replica::{ReplicaKey, Report};
use rooflet_api::v1alpha1::{Calibration, DownloadSpeed, NodeModel};
use rooflet_api::wire::EngineInfo;
use rooflet_base::units::Bytes;

/// What the agent knows of its node and its replicas after a pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reports {
    pub replicas: BTreeMap<ReplicaKey, Report>,
    /// Replicas of the API server that do not run here, because a manifest's has their key.
    pub displaced: BTreeMap<ReplicaKey, Report>,
    pub models: Vec<NodeModel>,
    /// Why the model directory cannot be listed.
    pub models_problem: Option<ModelProblem>,
    /// What its requests have taught about its speed.
    pub calibrations: Vec<Calibration>,
    /// Promised to replicas.
    pub reserved: Bytes,
    /// What replicas that were told how much may store on the disk together.
    pub disk_limit: Option<Bytes>,
    /// How fast models were downloaded.
    pub download: Option<DownloadSpeed>,
    /// What a worker says of its engine.
    pub engine: Option<EngineInfo>,
    /// The share of the chip's time that is promised to replicas, 0 to 1.
    pub promised_share: f64,
    /// No worker runs.
    pub idle: bool,
    /// Whether the machine's owner needs its memory back.
    pub pressure: Pressure,
    /// The pass knew that the probe wants the machine, and started nothing.
    pub probing: bool,
}
