//! ModelReplica: one copy of a model on one node.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::{ArtifactSpec, GoldenPrompt, ModelSpec, ObjectivesSpec, PlacementSpec, ServingSpec};
use rooflet_base::quantile::{nearest, sorted};

/// One copy of a model on one node: what a Pod is to a Deployment.
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
    doc = "ModelReplica is one copy of a model on one node. The controller creates it, the scheduler writes spec.nodeName, the node's agent runs it.",
    selectable = ".spec.nodeName",
    printcolumn(
        name = "Model",
        type_ = "string",
        json_path = ".spec.serving.name",
        description = "The name clients use."
    ),
    printcolumn(
        name = "Phase",
        type_ = "string",
        json_path = ".status.phase",
        description = "Where it is between Pending and Ready."
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether it answers requests."
    ),
    printcolumn(
        name = "Restarts",
        type_ = "integer",
        json_path = ".status.restarts",
        description = "How often its worker was started again."
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".spec.nodeName",
        description = "Where it runs."
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
        description = "Memory kept for it on its node.",
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
        name = "Revision",
        type_ = "string",
        json_path = ".metadata.labels.rooflet\\.dev/revision",
        description = "The ModelRevision it was made from.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.model == oldSelf.model && self.serving == oldSelf.serving").message("a replica's template is immutable; change the ModelDeployment instead"))]
#[x_kube(validation = Rule::new("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)").message("nodeName may be set once and then never changes; delete the replica to move it").field_path(".nodeName"))]
pub struct ModelReplicaSpec {
    /// The model. One of a hub by its commit.
    pub model: ModelSpec,
    /// What its hub said of it, by which it is placed; absent for a model that nodes have in their directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactSpec>,
    /// How it is offered to clients.
    pub serving: ServingSpec,
    /// Speed that its node promises it. Follows the ModelDeployment without a restart.
    #[serde(default, skip_serializing_if = "ObjectivesSpec::is_empty")]
    #[schemars(transform = RecursiveTransform(without_rules))]
    pub objectives: ObjectivesSpec,
    /// Which nodes may serve it. Follows the ModelDeployment.
    #[serde(default, skip_serializing_if = "PlacementSpec::is_empty")]
    #[schemars(transform = RecursiveTransform(without_rules))]
    pub placement: PlacementSpec,
    /// Replicas of a higher priority are placed first and may take its place. Follows the ModelDeployment.
    #[serde(default)]
    pub priority: i32,
    /// What its worker has to answer before it counts as ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub golden_prompts: Vec<GoldenPrompt>,
    /// The FleetNode that runs it. Only the scheduler writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
}

/// Judged in the ModelDeployment, where a user writes it. What was let in there before there was a rule can still be copied.
fn without_rules(schema: &mut Schema) {
    schema.remove("x-kubernetes-validations");
}

/// Where a replica is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ReplicaPhase {
    /// Not placed yet, or placed and not started.
    #[default]
    Pending,
    /// The model's files are being fetched or checked.
    Pulling,
    /// The worker reads the weights.
    Loading,
    /// The worker does its first forward pass.
    Warming,
    /// Requests are answered.
    Ready,
    /// No new requests; running ones finish.
    Draining,
    /// Stopped as asked.
    Succeeded,
    /// Cannot run as it is; the conditions say why.
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

/// What the agent says of a replica.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelReplicaStatus {
    /// The generation of the spec this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the replica is in its life.
    pub phase: ReplicaPhase,
    /// The node where replicas of a lower priority are leaving for it. It may still be placed on another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominated_node_name: Option<String>,
    /// Memory kept for it on its node, as a quantity: weights, KV cache at full context and concurrency, runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_memory: Option<String>,
    /// The node's judgement, with its working.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<AdmissionStatus>,
    /// How far the download of its model is. Absent where its files are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadStatus>,
    /// What was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<LoadedModel>,
    /// Requests of its worker, since that was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestsStatus>,
    /// Speed of real requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredSpeed>,
    /// How often the worker was started again after it ended by itself.
    pub restarts: i32,
    /// How the worker ended the last time, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_termination: Option<Termination>,
    /// Scheduled, Admitted, ArtifactsReady, Loaded, Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How far a download is, as it was last reported: every ten seconds, or every twentieth of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownloadStatus {
    /// Bytes that are on the node's disk.
    pub bytes: u64,
    /// Bytes of all files of the model that a node needs.
    pub total_bytes: u64,
    /// When it was last seen to have grown.
    pub updated_at: Time,
}

/// Whether a node takes a replica, and every number behind it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdmissionStatus {
    /// Whether it was taken.
    pub admitted: bool,
    /// What rules, the first reason against it or the bound of its speed: Memory, WorkingSet, Context, Disk, Bandwidth, Compute, Overhead or Policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Tokens of context of each stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextWorking>,
    /// Memory that it reserves, in bytes.
    pub memory: MemoryWorking,
    /// What it takes of the node's disk, in bytes: what of its model is to be downloaded, and spec.serving.kvCache.diskSize.
    /// Absent where neither is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskWorking>,
    /// Speed with the chip to itself, all streams busy at full context. Absent where the node's speed is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedWorking>,
    /// Percent of the chip's time that it reserves.
    pub chip_time_percent: f64,
    /// Percent of the chip's time that was promised to nobody else.
    pub free_chip_time_percent: f64,
    /// Every reason against it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
    /// Changes of the ModelDeployment of which each alone would admit it here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<String>,
}

/// Tokens of context of each stream: asked for, and what model and node allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContextWorking {
    /// What is reserved for each stream.
    pub asked_tokens: u32,
    /// What the model was made for.
    pub model_tokens: u32,
    /// The most, at most what the model was made for, for which the node has memory that is not reserved by others, as many
    /// streams as they are. Absent where there is not enough for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fits_tokens: Option<u32>,
}

/// Memory of a replica, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryWorking {
    /// Weights as the engine holds them.
    pub weights_bytes: u64,
    /// KV cache of every stream at full context.
    pub kv_bytes: u64,
    /// Intermediate results of one prefill step.
    pub activation_bytes: u64,
    /// The engine itself.
    pub runtime_bytes: u64,
    /// What models may use of the node.
    pub limit_bytes: u64,
    /// What of it no other replica has reserved.
    pub free_bytes: u64,
}

/// Disk of a replica, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskWorking {
    /// All that it takes.
    pub required_bytes: u64,
    /// What of that is its model's, still to be downloaded. Absent where its files are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download_bytes: Option<u64>,
    /// What all replicas that ask for a size may store on the node. Absent where the node does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// What of it no other replica was promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

/// Predicted speed of a replica.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpeedWorking {
    /// Tokens per second of each stream.
    pub tokens_per_second: Percentiles,
    /// Bytes of memory that one token moves.
    pub bytes_per_token: f64,
    /// Seconds to the first token.
    pub time_to_first_token_seconds: Percentiles,
    /// The length of the prompt for which that holds, in tokens.
    pub prompt_tokens: u32,
    /// Percent of its speed that the chip keeps when it is hot: the figures above are what stays. Absent where that was not
    /// measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustained_percent: Option<f64>,
    /// Of tokens per second: Measured, Calibrated or Nominal.
    pub basis: String,
    /// Of the time to the first token: Measured or Nominal.
    pub time_to_first_token_basis: String,
}

/// A figure with its spread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Percentiles {
    /// A tenth of cases lies below.
    pub p10: f64,
    /// Half of the cases lie below.
    pub p50: f64,
    /// A tenth of cases lies above.
    pub p90: f64,
}

/// Facts of a loaded model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadedModel {
    /// `model_type` of its config.json.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of its weights in memory.
    pub weights_bytes: u64,
    /// Bytes one token takes in the KV cache.
    pub kv_bytes_per_token: u64,
    /// Tokens one request may have.
    pub context_tokens: u32,
}

/// Speed of the last requests a replica answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeasuredSpeed {
    /// Decode tokens/s of one stream, for people and comparison: a decimal number.
    pub tokens_per_second: String,
    /// Seconds from request to first token: a decimal number.
    pub time_to_first_token_seconds: String,
    /// Requests behind these figures.
    pub requests: u64,
    /// How decode tokens/s of one stream are spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_sample: Option<Sample>,
    /// How times to the first token are spread, of prompts of which nothing was cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_sample: Option<Sample>,
    /// What was predicted for requests like these: as long, and as many at the same time. Absent where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<PredictedSpeed>,
    /// How fast prompts were read: of requests that had the engine to themselves, and of whose prompts nothing was cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<MeasuredPrefill>,
}

/// Prompts that a replica read with nothing else to do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MeasuredPrefill {
    /// Seconds from a request's turn to its first token, median: a decimal number.
    pub seconds: String,
    /// Requests behind that.
    pub requests: u64,
    /// What was predicted for prompts as long. Absent where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<PredictedPrefill>,
}

/// The prediction that measured prompts are held against.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PredictedPrefill {
    /// Seconds from a request's turn to its first token.
    pub seconds: Percentiles,
    /// Tokens in such a prompt, median.
    pub prompt_tokens: f64,
    /// Measured, Calibrated or Nominal.
    pub basis: String,
}

/// Measured figures, by their quantiles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Sample {
    /// How many there are.
    pub count: u64,
    /// A tenth of them lies below.
    pub p10: f64,
    /// Half of them lie below.
    pub p50: f64,
    /// A tenth of them lies above.
    pub p90: f64,
}

impl Sample {
    /// Of values that were seen, with three digits behind the point; `None` of no values.
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

/// Requests of a worker. Written at most every ten seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestsStatus {
    /// Being answered.
    pub running: u64,
    /// Waiting for their turn.
    pub waiting: u64,
    /// Answered.
    pub completed: u64,
    /// Ended by an error of the engine. Refused and cancelled ones do not count.
    pub failed: u64,
    /// Since when there is none. Absent while there are some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
}

/// The prediction that measured requests are held against.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PredictedSpeed {
    /// Decode tokens/s of one stream.
    pub tokens_per_second: Percentiles,
    /// Seconds from a request's turn to its first token, nothing of its prompt cached.
    pub time_to_first_token_seconds: Percentiles,
    /// Streams that were answered at the same time, on average.
    pub streams: f64,
    /// Tokens in the prompt of such a request, median.
    pub prompt_tokens: f64,
    /// Tokens in the cache of such a request, on average.
    pub context_tokens: f64,
    /// Measured, Calibrated or Nominal.
    pub basis: String,
}

/// How a worker ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Termination {
    /// The process's exit code, if it exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// A CamelCase word.
    pub reason: String,
    /// What the worker said.
    pub message: String,
    /// When, in RFC 3339.
    pub finished_at: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_the_nearest_ranks() {
        let tenths: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let quantiles =
            |values: &[f64]| Sample::of(values.iter().copied()).map(|s| (s.count, s.p10, s.p50, s.p90));
        assert_eq!(quantiles(&tenths), Some((11, 1.0, 5.0, 9.0)));
        assert_eq!(quantiles(&[0.123_456]), Some((1, 0.123, 0.123, 0.123)));
        assert_eq!(quantiles(&[]), None);
    }
}
