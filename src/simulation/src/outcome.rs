//! Result of one run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::rules::violation::Violation;
use crate::scenario::duration_text;
use crate::scenario::fault::FaultSpec;

/// Everything that is told of one run. The same seed gives the same bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Nothing here was measured: speeds are what the roofline predicts from data sheets.
    pub basis: &'static str,
    pub seed: u64,
    pub policy: String,
    #[serde(with = "duration_text")]
    pub duration: Duration,
    pub nodes: usize,
    pub deployments: Vec<DeploymentOutcome>,
    pub demand: Vec<DemandOutcome>,
    pub control: ControlOutcome,
    pub faults: Vec<FaultSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub violation: Option<Violation>,
    /// What happened, line by line, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub journal: Vec<String>,
}

/// How long a deployment could be asked.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentOutcome {
    pub name: String,
    /// Of the time after it was ready first, the share with a ready replica, in percent.
    pub available_percent: f64,
    /// Ready replicas, on average over that time.
    pub mean_ready: f64,
    pub ready_at_end: usize,
    pub first_ready_seconds: Option<f64>,
    /// The number that was wanted, from when on; only where it changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scaled: Vec<Scaled>,
}

/// A change of the number of replicas that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scaled {
    #[serde(with = "duration_text")]
    pub at: Duration,
    pub replicas: i32,
}

/// What became of the requests of one demand.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DemandOutcome {
    pub deployment: String,
    pub requests: u64,
    pub answered: u64,
    /// Not answered, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Answered and as fast as promised.
    pub as_promised: u64,
    /// The same of all that have ended, in percent.
    pub slo_percent: f64,
    pub first_token_seconds: Option<Quantiles>,
    /// Of one stream.
    pub tokens_per_second: Option<Quantiles>,
    /// Of all answers together, over the whole time; and of those that came as fast as promised.
    pub total_tokens_per_second: f64,
    pub promised_tokens_per_second: f64,
}

/// Half lie below `p50`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quantiles {
    pub p10: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

/// What the control plane had to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlOutcome {
    /// Replicas that were given a node.
    pub placements: u64,
    /// Replicas that were taken from a node against its will.
    pub moves: u64,
    pub worker_starts: u64,
    pub passes: u64,
    pub writes: u64,
    pub events: u64,
}
