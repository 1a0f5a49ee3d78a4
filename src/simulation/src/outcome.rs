//! Result of one run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::rules::violation::Violation;
use crate::scenario::duration_text;
use crate::scenario::fault::FaultSpec;

/// Figures of a run. The same scenario and seed produce the same bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Origin of the figures: predictions from data sheets, not measurements.
    pub basis: &'static str,
    pub seed: u64,
    pub policy: String,
    #[serde(with = "duration_text")]
    pub duration: Duration,
    pub nodes: usize,
    pub deployments: Vec<DeploymentOutcome>,
    pub demand: Vec<DemandOutcome>,
    pub control: ControlOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessOutcome>,
    pub faults: Vec<FaultSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub violation: Option<Violation>,
    /// Writes, starts, ends and faults; empty unless the options request a journal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub journal: Vec<String>,
}

/// Availability of a deployment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentOutcome {
    pub name: String,
    /// Share of the time after the first ready replica with at least one ready replica, in percent.
    pub available_percent: f64,
    /// Mean number of ready replicas over the same time.
    pub mean_ready: f64,
    pub ready_at_end: usize,
    pub first_ready_seconds: Option<f64>,
    /// Desired numbers of replicas; empty if the number did not change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scaled: Vec<Scaled>,
}

/// Change of the desired number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scaled {
    #[serde(with = "duration_text")]
    pub at: Duration,
    pub replicas: i32,
}

/// Results of the requests of one demand.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DemandOutcome {
    pub deployment: String,
    pub requests: u64,
    pub answered: u64,
    /// Requests without a complete answer, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Requests answered within their objectives.
    pub as_promised: u64,
    /// Share of the completed requests that were answered within their objectives, in percent.
    pub slo_percent: f64,
    pub first_token_seconds: Option<Quantiles>,
    /// Decode speed of one stream.
    pub tokens_per_second: Option<Quantiles>,
    /// Tokens of all answers per second of the run.
    pub total_tokens_per_second: f64,
    /// Tokens of the answers within their objectives per second of the run.
    pub promised_tokens_per_second: f64,
}

/// Quantiles of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quantiles {
    pub p10: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

/// Work of the control plane.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlOutcome {
    /// Number of bindings.
    pub placements: u64,
    /// Number of evictions.
    pub moves: u64,
    pub worker_starts: u64,
    pub passes: u64,
    pub writes: u64,
    pub events: u64,
}

/// Decisions on API keys and certificates.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccessOutcome {
    /// Requests that gateways admitted.
    pub admitted: u64,
    /// Requests that gateways refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Handshakes between gateways and agents.
    pub handshakes: u64,
    /// Attempts with missing, unknown, deleted or stolen credentials. All of them were rejected.
    pub intrusions: u64,
    /// Certificates that were issued after the first one of each machine.
    pub renewals: u64,
    /// Authorities that were replaced and retired.
    pub rotations: u64,
    /// FleetNodes whose deletion revoked certificates.
    pub revocations: u64,
    /// Machines that an administrator joined again.
    pub rejoined: u64,
    pub gateway_restarts: u64,
}
