//! ModelReplica: one copy of a model on one node.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::{ArtifactSpec, GoldenPrompt, ModelSpec, ObjectivesSpec, PlacementSpec, ServingSpec};
use rooflet_base::quantile::{nearest, sorted};
use rooflet_base::units::Bytes;

/// Copy of a model on one node, comparable to a Pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[expect(
    clippy::duplicated_attributes,
    reason = "each `category`, `shortname` and `validation` adds one"
)]
#[kube(
    group = "rooflet.dev",
    version = "v1alpha1",
    kind = "ModelReplica",
    plural = "modelreplicas",
    shortname = "mrep",
    category = "all",
    category = "rooflet",
    namespaced,
    status = "ModelReplicaStatus",
    derive = "PartialEq",
    doc = "ModelReplica is one copy of a model on one node. The controller creates it, the scheduler sets spec.nodeName, and the agent of the node runs it.",
    selectable = ".spec.nodeName",
    printcolumn(
        name = "Model",
        type_ = "string",
        json_path = ".spec.serving.name",
        description = "Served model name."
    ),
    printcolumn(
        name = "Phase",
        type_ = "string",
        json_path = ".status.phase",
        description = "Phase of the replica's lifecycle."
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the replica serves requests."
    ),
    printcolumn(
        name = "Restarts",
        type_ = "integer",
        json_path = ".status.restarts",
        description = "Number of worker restarts."
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".spec.nodeName",
        description = "Node of the replica."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation."
    ),
    printcolumn(
        name = "Memory",
        type_ = "string",
        json_path = ".status.reservedMemory",
        description = "Memory reserved on the node.",
        priority = 1
    ),
    printcolumn(
        name = "Tok/s",
        type_ = "string",
        json_path = ".status.measured.tokensPerSecond",
        description = "Measured decode tokens/s of one stream.",
        priority = 1
    ),
    printcolumn(
        name = "Downloaded",
        type_ = "string",
        json_path = ".status.download.progress",
        description = "Downloaded percent / size of the model's files. Empty if they are complete.",
        priority = 1
    ),
    printcolumn(
        name = "Revision",
        type_ = "string",
        json_path = ".metadata.labels.rooflet\\.dev/revision",
        description = "ModelRevision of the replica.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.model == oldSelf.model && self.serving == oldSelf.serving").message("a replica's template is immutable; change the ModelDeployment instead"))]
#[x_kube(validation = Rule::new("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)").message("nodeName is immutable once set; delete the replica to move it").field_path(".nodeName"))]
pub struct ModelReplicaSpec {
    /// Model to serve. Hub models are pinned to a commit.
    pub model: ModelSpec,
    /// Facts about a hub model, used for scheduling. Unset for models in directories of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactSpec>,
    /// Settings for clients.
    #[schemars(transform = RecursiveTransform(without_rules))]
    pub serving: ServingSpec,
    /// Required speed, reserved on the node. Follows the ModelDeployment without a restart.
    #[serde(default, skip_serializing_if = "ObjectivesSpec::is_empty")]
    #[schemars(transform = RecursiveTransform(without_rules))]
    pub objectives: ObjectivesSpec,
    /// Constraints for the choice of the node. Follows the ModelDeployment.
    #[serde(default, skip_serializing_if = "PlacementSpec::is_empty")]
    #[schemars(transform = RecursiveTransform(without_rules))]
    pub placement: PlacementSpec,
    /// Priority. Replicas with a higher priority are scheduled first and may preempt this one.
    /// Follows the ModelDeployment.
    #[serde(default)]
    pub priority: i32,
    /// Prompts that the worker must answer as expected before it is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub golden_prompts: Vec<GoldenPrompt>,
    /// Name of the FleetNode that runs the replica. Only the scheduler sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
}

/// Removes validation rules that the ModelDeployment already enforces: objects stored before a rule
/// existed can still be copied.
pub(super) fn without_rules(schema: &mut Schema) {
    schema.remove("x-kubernetes-validations");
}

/// Phase of a replica's lifecycle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ReplicaPhase {
    /// The replica is not scheduled, or scheduled and not started.
    #[default]
    Pending,
    /// The agent downloads or checks the model's files.
    Pulling,
    /// The worker loads the weights.
    Loading,
    /// The worker runs its first forward pass.
    Warming,
    /// The replica serves requests.
    Ready,
    /// The replica accepts no new requests; in-flight requests finish.
    Draining,
    /// The replica was stopped on request.
    Succeeded,
    /// The replica cannot run; the conditions contain the reason.
    Failed,
}

impl ReplicaPhase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Pulling => "Pulling",
            Self::Loading => "Loading",
            Self::Warming => "Warming",
            Self::Ready => "Ready",
            Self::Draining => "Draining",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// Observed state of a replica, reported by its agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelReplicaStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Phase of the replica's lifecycle.
    pub phase: ReplicaPhase,
    /// Node on which replicas with a lower priority are preempted for this replica. The scheduler
    /// may still choose another node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominated_node_name: Option<String>,
    /// Memory reserved on the node, as a quantity: weights, KV cache at full context and
    /// concurrency, runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_memory: Option<String>,
    /// Admission decision of the node, with its calculation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionStatus>,
    /// Progress of the model's download. Unset if the files are complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadStatus>,
    /// Facts about the loaded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<LoadedModel>,
    /// Requests since the worker's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestsStatus>,
    /// Measured speed of real requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredSpeed>,
    /// Number of restarts after unexpected exits of the worker.
    pub restarts: i32,
    /// Last exit of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_termination: Option<Termination>,
    /// Scheduled, Admitted, ArtifactsReady, Loaded, Ready. DisruptionTarget if the replica must
    /// leave its node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Progress of a download, reported every 10 seconds or 5 %.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownloadStatus {
    /// Bytes on the node's disk.
    pub bytes: u64,
    /// Bytes of all required files of the model.
    pub total_bytes: u64,
    /// Downloaded percent / size of all files, for the columns of `kubectl get`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub progress: String,
    /// Time of the last progress.
    pub updated_at: Time,
}

impl DownloadStatus {
    pub fn new(bytes: u64, total_bytes: u64, updated_at: Time) -> Self {
        let percent = bytes.saturating_mul(100).checked_div(total_bytes).unwrap_or(0);
        let total = Bytes(total_bytes).to_string().replace(' ', "");
        Self {
            bytes,
            total_bytes,
            progress: format!("{percent}%/{total}"),
            updated_at,
        }
    }
}

/// Admission decision of a node, with its calculation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdmissionStatus {
    /// True if the node admitted the replica.
    pub admitted: bool,
    /// Binding limit: the first reason for rejection, or the limit of the speed. One of Memory,
    /// WorkingSet, Context, Disk, Bandwidth, Compute, Overhead, Policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Context tokens of each stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextWorking>,
    /// Reserved memory, in bytes.
    pub memory: MemoryWorking,
    /// Required disk space, in bytes: missing files of the model and spec.serving.kvCache.diskSize.
    /// Unset if the replica needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskWorking>,
    /// Predicted speed without other replicas, all streams busy at full context. Unset if the
    /// node's speed is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedWorking>,
    /// Reserved share of the chip's time, in percent.
    pub chip_time_percent: f64,
    /// Share of the chip's time that no other replica has reserved, in percent.
    pub free_chip_time_percent: f64,
    /// Reasons for rejection.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
    /// Changes of the ModelDeployment, each of which alone leads to admission on this node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<String>,
}

/// Context tokens of each stream: requested, and limits of model and node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContextWorking {
    /// Tokens reserved for each stream.
    pub asked_tokens: u32,
    /// Maximum context of the model.
    pub model_tokens: u32,
    /// Largest context, up to the model's maximum, that fits into the unreserved memory with all
    /// streams. Unset if no context fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits_tokens: Option<u32>,
}

/// Memory of a replica, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryWorking {
    /// Weights in the engine's format.
    pub weights_bytes: u64,
    /// KV cache of every stream at full context.
    pub kv_bytes: u64,
    /// Intermediate results of one prefill step.
    pub activation_bytes: u64,
    /// Memory of the engine itself.
    pub runtime_bytes: u64,
    /// Allocatable memory of the node.
    pub limit_bytes: u64,
    /// Allocatable memory that no other replica has reserved.
    pub free_bytes: u64,
}

/// Disk space of a replica, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskWorking {
    /// Total required space.
    pub required_bytes: u64,
    /// Missing files of the model. Unset if the files are complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download_bytes: Option<u64>,
    /// Allocatable disk space of the node. Unset if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Allocatable disk space that no other replica has reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

/// Predicted speed of a replica.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpeedWorking {
    /// Tokens per second of each stream.
    pub tokens_per_second: Percentiles,
    /// Memory traffic per token, in bytes.
    pub bytes_per_token: f64,
    /// Seconds to the first token.
    pub time_to_first_token_seconds: Percentiles,
    /// Prompt length of the time to first token, in tokens.
    pub prompt_tokens: u32,
    /// Share of the speed that remains when the chip is hot, in percent. It is included in the
    /// figures above. Unset if not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustained_percent: Option<f64>,
    /// Basis of the tokens per second: Measured, Calibrated or Nominal.
    pub basis: String,
    /// Basis of the time to first token: Measured or Nominal.
    pub time_to_first_token_basis: String,
}

/// Percentiles of a figure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Percentiles {
    /// 10th percentile.
    pub p10: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
}

/// Facts about a loaded model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadedModel {
    /// `model_type` of its config.json.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of its weights in memory.
    pub weights_bytes: u64,
    /// KV cache bytes per token.
    pub kv_bytes_per_token: u64,
    /// Maximum tokens of a request.
    pub context_tokens: u32,
}

/// Measured speed of a replica's last requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeasuredSpeed {
    /// Decode tokens/s of one stream, as a decimal number.
    pub tokens_per_second: String,
    /// Seconds from request to first token, as a decimal number.
    pub time_to_first_token_seconds: String,
    /// Number of requests in these figures.
    pub requests: u64,
    /// Distribution of the decode tokens/s of one stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_sample: Option<Sample>,
    /// Distribution of the time to first token of uncached prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_sample: Option<Sample>,
    /// Prediction for requests of the same length and concurrency. Unset without a prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<PredictedSpeed>,
    /// Prefill speed of uncached requests that used the engine alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<MeasuredPrefill>,
}

/// Measured prefill of requests that used the engine alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeasuredPrefill {
    /// Median seconds from the start of the prefill to the first token, as a decimal number.
    pub seconds: String,
    /// Number of requests in the median.
    pub requests: u64,
    /// Prediction for prompts of the same length. Unset without a prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<PredictedPrefill>,
}

/// Prediction to compare with measured prefill.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PredictedPrefill {
    /// Seconds from the start of the prefill to the first token.
    pub seconds: Percentiles,
    /// Median tokens of the prompts.
    pub prompt_tokens: f64,
    /// Measured, Calibrated or Nominal.
    pub basis: String,
}

/// Quantiles of measured values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Sample {
    /// Number of values.
    pub count: u64,
    /// 10th percentile.
    pub p10: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
}

impl Sample {
    /// Returns the quantiles, rounded to three decimals. `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(values);
        let at = |share| nearest(&sorted, share).map(|value| (value * 1e3).round() / 1e3);
        Some(Self {
            count: sorted.len() as u64,
            p10: at(0.1)?,
            p50: at(0.5)?,
            p90: at(0.9)?,
        })
    }
}

/// Requests of a worker. Updated at most every 10 seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestsStatus {
    /// Number of in-flight requests.
    pub running: u64,
    /// Number of queued requests.
    pub waiting: u64,
    /// Number of completed requests.
    pub completed: u64,
    /// Number of requests that failed with an engine error. Rejected and cancelled requests do not
    /// count.
    pub failed: u64,
    /// Time since which there are no requests. Unset while there are requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
}

/// Prediction to compare with measured requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PredictedSpeed {
    /// Decode tokens/s of one stream.
    pub tokens_per_second: Percentiles,
    /// Seconds from the start of the prefill to the first token, for uncached prompts.
    pub time_to_first_token_seconds: Percentiles,
    /// Average number of concurrent streams.
    pub streams: f64,
    /// Median tokens of the prompts.
    pub prompt_tokens: f64,
    /// Average tokens in the KV cache of a request.
    pub context_tokens: f64,
    /// Measured, Calibrated or Nominal.
    pub basis: String,
}

/// Exit of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Termination {
    /// Exit code of the process, if it exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal that terminated the process, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Reason in CamelCase.
    pub reason: String,
    /// Last message of the worker.
    pub message: String,
    /// Time of the exit, in RFC 3339.
    pub finished_at: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_uses_nearest_ranks() {
        let tenths: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let quantiles =
            |values: &[f64]| Sample::of(values.iter().copied()).map(|s| (s.count, s.p10, s.p50, s.p90));
        assert_eq!(quantiles(&tenths), Some((11, 1.0, 5.0, 9.0)));
        assert_eq!(quantiles(&[0.123_456]), Some((1, 0.123, 0.123, 0.123)));
        assert_eq!(quantiles(&[]), None);
    }
}
