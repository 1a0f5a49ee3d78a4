//! Hardware that predictions for this node use: chip and probe results. Pure.

use k8s_openapi::jiff::Timestamp;

use super::probe::{ProbeResult, ProbeState};
use rooflet_api::v1alpha1::{Basis, Chip, NodeSpeed, Probe};
use rooflet_api::wire::EngineInfo;
use rooflet_base::units::Bytes;
use rooflet_roofline::predict::Hardware;
use rooflet_roofline::published;

/// Returns the hardware from which the speed of models on this node is predicted, or `None` if it
/// is unknown. The result is the same as for readers of the node's status at time `now`.
pub(crate) fn node_hardware(
    chip: &Chip,
    memory: Bytes,
    probe: &ProbeState,
    now: Timestamp,
) -> Option<Hardware> {
    let is_expired = |last: &ProbeResult| last.remaining_validity(now).is_zero();
    let expired = probe.last.as_ref().is_some_and(is_expired);
    published::hardware_of(chip, Some(memory), published_speed(probe).as_ref(), expired)
}

/// Returns the speed for the status of the node.
pub(super) fn published_speed(state: &ProbeState) -> Option<NodeSpeed> {
    state
        .last
        .as_ref()
        .map(|last| published::measured_speed(&probe_of(last)))
}

/// Returns the figures of a measurement, for the node's ConfigMap.
pub(super) fn probe_of(last: &ProbeResult) -> Probe {
    let ProbeResult { report, duration } = last;
    Probe {
        basis: Basis::Measured,
        measurements: report.measurements.clone(),
        plausibility: Some(report.plausibility.clone()),
        engine: show_engine(&report.engine),
        measured_at: report.measured_at.clone(),
        expires_at: Some(report.expires_at.clone()),
        duration_seconds: duration.as_secs_f64(),
    }
}

/// Returns the name, version and device of an engine, such as `mlx 0.32.2 (metal)`.
pub(crate) fn show_engine(engine: &EngineInfo) -> String {
    format!("{} {} ({})", engine.name, engine.version, engine.device)
}
