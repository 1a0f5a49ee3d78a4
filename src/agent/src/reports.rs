//! Result of a sync pass: state of the node and of its replicas.

use std::collections::BTreeMap;

use crate::models::ModelProblem;
use crate::node::pressure::Pressure;
use crate::replica::{ReplicaKey, Report};
use rooflet_api::v1alpha1::{Calibration, CalibrationReset, DownloadSpeed, NodeModel};
use rooflet_api::wire::EngineInfo;
use rooflet_base::units::Bytes;

/// State of the node and of its replicas after a sync pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reports {
    pub replicas: BTreeMap<ReplicaKey, Report>,
    /// Replicas of the API server that do not run because a manifest defines a replica with the
    /// same key.
    pub displaced: BTreeMap<ReplicaKey, Report>,
    pub models: Vec<NodeModel>,
    /// Error that prevents listing the model directory.
    pub models_problem: Option<ModelProblem>,
    /// Calibration of predictions by the node's own requests.
    pub calibrations: Vec<Calibration>,
    /// Last deletion of the calibrations.
    pub calibration_reset: Option<CalibrationReset>,
    /// Memory reserved for replicas.
    pub reserved: Bytes,
    /// Maximum of the sum of the disk limits that replicas set for cached prefixes.
    pub disk_limit: Option<Bytes>,
    /// Measured speed of model downloads.
    pub download: Option<DownloadSpeed>,
    /// Engine that a worker of this node reports.
    pub engine: Option<EngineInfo>,
    /// Share of the chip's time that is reserved for replicas, 0 to 1.
    pub reserved_share: f64,
    /// True if no worker runs.
    pub idle: bool,
    /// Memory pressure of the node.
    pub pressure: Pressure,
    /// Recent kernel panics of the watchdog while models ran.
    pub watchdog_panics: u32,
    /// True if the probe has requested the machine, so that this pass started no worker.
    pub probing: bool,
}
