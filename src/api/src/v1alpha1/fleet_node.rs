//! FleetNode: one machine of the fleet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Basis, NodeSpeed, Probe, TaintEffect};

/// Machine of the fleet: chip, measured speed, free capacity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[expect(
    clippy::duplicated_attributes,
    reason = "each `category`, `shortname` and `validation` adds one"
)]
#[kube(
    group = "rooflet.dev",
    version = "v1alpha1",
    kind = "FleetNode",
    plural = "fleetnodes",
    shortname = "fn",
    shortname = "mac",
    category = "rooflet",
    status = "FleetNodeStatus",
    derive = "PartialEq",
    doc = "FleetNode is one machine of the fleet. Its agent registers it and reports the chip, measured bandwidth and free capacity.",
    printcolumn(
        name = "Chip",
        type_ = "string",
        json_path = ".status.chip.name",
        description = "Name of the chip."
    ),
    printcolumn(
        name = "Memory",
        type_ = "string",
        json_path = ".status.summary.memory",
        description = "Allocatable memory / total memory."
    ),
    printcolumn(
        name = "Bandwidth(M/Spec)",
        type_ = "string",
        json_path = ".status.summary.bandwidth",
        description = "Memory bandwidth: measured / from the chip's data sheet."
    ),
    printcolumn(
        name = "Free-Mem",
        type_ = "string",
        json_path = ".status.summary.freeMemory",
        description = "Memory that no replica uses or has reserved."
    ),
    printcolumn(
        name = "Free-BW",
        type_ = "string",
        json_path = ".status.summary.freeBandwidth",
        description = "Measured bandwidth that no replica has reserved."
    ),
    printcolumn(
        name = "Replicas",
        type_ = "integer",
        json_path = ".status.replicas",
        description = "Replicas on the node."
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the agent sends heartbeats and can serve models."
    ),
    printcolumn(
        name = "Cordoned",
        type_ = "boolean",
        json_path = ".spec.unschedulable",
        description = "Whether the node is cordoned."
    ),
    printcolumn(
        name = "Drain",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Drained\")].reason",
        description = "Progress of a drain: Draining or Drained. Empty without a drain."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since the node joined."
    ),
    printcolumn(
        name = "OS",
        type_ = "string",
        json_path = ".status.nodeInfo.operatingSystem",
        description = "Operating system.",
        priority = 1
    ),
    printcolumn(
        name = "Engine",
        type_ = "string",
        json_path = ".status.nodeInfo.engine",
        description = "Inference engine and the device it runs on.",
        priority = 1
    ),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.nodeInfo.agentVersion",
        description = "The agent's version.",
        priority = 1
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".status.endpoint",
        description = "URL of the agent.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct FleetNodeSpec {
    /// If true, the node is cordoned: no new replica is scheduled on it.
    #[serde(default)]
    pub unschedulable: bool,
    /// If true, the node is cordoned and its replicas move to other nodes that have room, within
    /// `maxUnavailable` of their deployments. The condition Drained reports the progress.
    #[serde(default, skip_serializing_if = "is_false")]
    pub drain: bool,
    /// Taints that repel models without a matching toleration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// Taint that repels models without a matching toleration. Semantics of Kubernetes taints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Key of the taint.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Value that tolerations with operator Equal must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Effect on replicas without a matching toleration.
    pub effect: TaintEffect,
}

/// Observed state of a FleetNode, reported by its agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FleetNodeStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Chip of the machine.
    pub chip: Chip,
    /// Data sheet of the chip. Unset for unknown chips and in virtual machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_sheet: Option<DataSheet>,
    /// Software and identity of the machine.
    pub node_info: NodeInfo,
    /// Total resources of the machine.
    pub capacity: Resources,
    /// Resources that models may use.
    pub allocatable: Resources,
    /// Speed measured through the engine. Unset until the first probe has completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<NodeSpeed>,
    /// Deprecated: use `speed`, and the ConfigMap with the figures of the probe. Earlier agents wrote this
    /// field. Until version 0.2, it is read if `speed` is unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
    /// Measured speed of real requests on this node with the current engine. Corrects predictions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calibrations: Vec<Calibration>,
    /// Last deletion of the calibrations, because the engine, the operating system or the basis of
    /// predictions changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration_reset: Option<CalibrationReset>,
    /// Figures as short texts for the columns of `kubectl get`.
    pub summary: NodeSummary,
    /// Base URL at which the agent accepts requests for its replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// True if the agent serves the log of a gateway on this machine; see `rooflet logs gateway`.
    #[serde(skip_serializing_if = "is_false")]
    pub gateway_log: bool,
    /// Download speed. Unset until the node has downloaded a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadSpeed>,
    /// Models in the agent's `--model-dir`, and downloaded models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<NodeModel>,
    /// Number of replicas on the node.
    pub replicas: i32,
    /// Replicas on the node, as NAMESPACE/NAME.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replica_names: Vec<String>,
    /// Ready, MemoryPressure, DiskPressure, ThermalPressure, OnBattery, LidClosed, UserPresent,
    /// QuietHours, LowPowerMode, MemoryReduced, MatrixUnitsUnused, AnonymousAccess,
    /// DuplicateAgent, WiredMemoryLeaked, RebootRequired, ProbeFresh, VersionSkew, Drained. Some conditions act as
    /// taints: see docs/node-conditions.md.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Chip of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Chip {
    /// Brand string, such as `Apple M4 Pro`.
    pub name: String,
    /// Number of GPU cores, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_cores: Option<u32>,
    /// Number of CPU cores.
    pub cpu_cores: u32,
    /// Model identifier of the machine, such as `Mac16,10`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_model: Option<String>,
    /// True if the machine is not a physical Apple Silicon Mac. It can serve models for
    /// development, but data sheets and purchases ignore it.
    #[serde(skip_serializing_if = "is_false")]
    pub development: bool,
}

/// Ratios of measured to predicted time for one model on a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Calibration {
    /// Class of the model's architecture. Corrections of one class are similar. Unset in objects of
    /// earlier versions, whose ratios apply to all models with the same weight bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<ArchitectureClass>,
    /// Bytes of the model's weights in memory, as in `status.models`. Models of one class with equal
    /// weights share a calibration.
    pub weights_bytes: u64,
    /// Bits of a weight without scales, such as 4.
    pub weight_bits: u32,
    /// Last runs of decode, oldest first. A run is the median over several requests; each request
    /// belongs to one run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decode: Vec<CalibrationRun>,
    /// Last runs of the time to first token, for requests that used the engine alone, without
    /// queueing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first_token: Vec<CalibrationRun>,
    /// Deprecated: use `decode`. Natural logarithm of (measured / predicted time per token) of the
    /// last runs, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log_time_ratios: Vec<f64>,
    /// Deprecated: use `firstToken`. Natural logarithm of (measured / predicted time to first
    /// token).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log_first_token_ratios: Vec<f64>,
}

/// Class of model architectures whose predictions have similar errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ArchitectureClass {
    /// Without experts.
    Dense,
    /// Without experts and below 2.5 billion parameters, so that kernel launches dominate.
    Small,
    /// Without experts; linear (recurrent) attention in some layers.
    Linear,
    /// Mixture of experts.
    Experts,
    /// Mixture of experts; linear (recurrent) attention in some layers.
    LinearExperts,
    /// Multi-head latent attention.
    Latent,
}

/// Measured run of a model on a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CalibrationRun {
    /// Mean number of cached tokens of a sequence during decode, or length of the prompts in tokens.
    pub tokens: f64,
    /// Natural logarithm of (measured / predicted time).
    pub log_time_ratio: f64,
    /// Time of the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Time>,
    /// Number of current runs that this run counts as. It starts at 1 and halves every 14 days; the
    /// agent updates it once per day.
    pub weight: f64,
}

/// Deletion of a node's calibrations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CalibrationReset {
    /// EngineChanged, OperatingSystemChanged or PredictionBasisChanged.
    pub reason: String,
    /// Former and current value.
    pub message: String,
    /// Time of the deletion.
    pub time: Time,
}

/// Data sheet of a chip. Nothing in it was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DataSheet {
    /// Always Nominal.
    pub basis: Basis,
    /// Peak memory bandwidth.
    pub memory_bytes_per_second: f64,
    /// Source of the figure.
    pub source: String,
    /// Note for disagreeing sources.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Software and identity of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// Identifier that is stable across restarts and reinstallations of the agent.
    pub machine_id: String,
    /// Operating system, such as `macOS 26.4.1` or `Debian GNU/Linux 12`.
    pub operating_system: String,
    /// Build of the operating system.
    pub os_build: String,
    /// CPU architecture, such as `arm64`.
    pub architecture: String,
    /// Version of the agent.
    pub agent_version: String,
    /// Inference engine, its version and device, such as `mlx 0.32.2 (metal)`.
    pub engine: String,
}

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// Memory, as a quantity.
    pub memory: String,
    /// Memory bandwidth in bytes per second, as a quantity. Unset until it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bandwidth: Option<String>,
    /// Disk with the agent's files, as a quantity. In `allocatable`: space for all replicas with
    /// spec.serving.kvCache.diskSize, in whole GiB. Unset if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

/// Texts for the columns of `kubectl get`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSummary {
    /// Allocatable memory / total memory.
    pub memory: String,
    /// Measured bandwidth / data-sheet bandwidth; `-` for a missing figure.
    pub bandwidth: String,
    /// Memory that no replica uses or has reserved.
    pub free_memory: String,
    /// Measured bandwidth that no replica has reserved; `-` if nothing was measured.
    pub free_bandwidth: String,
}

/// Model on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeModel {
    /// NAME of `local://NAME`, or the source `hf://OWNER/NAME@COMMIT` of a downloaded model.
    pub name: String,
    /// `model_type` of its config.json.
    pub architecture: String,
    /// Bytes of its weights in memory.
    pub weights_bytes: u64,
    /// KV cache bytes of one token, before any sliding window is full.
    pub kv_bytes_per_token: u64,
    /// Bytes of intermediate results during prefill. Unset in the status of a node.
    #[serde(skip_serializing_if = "is_zero_bytes")]
    pub activation_bytes: u64,
    /// Dimensions that determine memory and speed. Unset if the model cannot be served. In the status
    /// of a node, agents write `packedCost` instead. Until version 0.2, this field is read there, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<ModelCost>,
    /// Value of `cost` as JSON on one line, so that `kubectl describe` stays short. Read if `cost` is
    /// unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed_cost: Option<String>,
    /// Maximum context length of the model, in tokens.
    pub max_context_tokens: u32,
    /// End of the download, by the clock of the node, rounded up to whole seconds. Unset for models in the
    /// agent's `--model-dir`. A request to delete the model contains this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downloaded_time: Option<Time>,
    /// Last start of a worker with a downloaded model. Unset for models in the agent's `--model-dir`,
    /// and until the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_time: Option<Time>,
    /// Reason why the model cannot be served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Download speed of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DownloadSpeed {
    /// Median bytes per second of the last downloads.
    pub median_bytes_per_second: f64,
    /// Number of downloads in the median. A resumed download counts twice.
    pub downloads: u32,
}

/// Dimensions of a model that determine its memory and speed.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelCost {
    /// Bytes of weights that every decode step reads: attention, dense blocks, shared experts and
    /// output head.
    pub every_step_bytes: u64,
    /// Bytes of all routed experts. A step reads only the selected experts.
    pub expert_bytes: u64,
    /// Bytes in memory that no decode step reads, such as an untied embedding table or an image
    /// encoder.
    pub idle_bytes: u64,
    /// Bits of one element of the KV cache on this node.
    pub kv_element_bits: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Size of the vocabulary, in tokens.
    pub vocabulary_size: u32,
    /// True if the output head shares the embedding table.
    pub tied_embeddings: bool,
    /// True if all GPUs support the float type natively (float16, float32). bfloat16 is emulated
    /// before M3.
    #[serde(skip_serializing_if = "is_false")]
    pub native_floats: bool,
    /// Second embedding table, with one vector per token and layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Groups of equal layers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerGroup>,
}

/// Dimensions of an embedding table that every layer uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PerLayerInputs {
    /// Number of tokens in the table.
    pub vocabulary_size: u32,
    /// Width of a vector.
    pub width: u32,
}

/// Maximum number of layers of a model. Published models have less than a tenth.
pub const MAX_LAYERS: u32 = 10_000;

/// Layers of the same dimensions.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerGroup {
    /// Number of layers. All groups of a model together have at most 10,000.
    #[schemars(range(max = MAX_LAYERS))]
    pub count: u32,
    /// Attention of the layers.
    pub attention: LayerAttention,
    /// Feed-forward block of the layers.
    pub feed_forward: LayerFeedForward,
}

/// Dimensions of a layer's attention. The set fields depend on `type`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerAttention {
    /// Grouped: softmax attention. Latent: multi-head latent attention. GatedDelta: linear
    /// attention with a recurrent state.
    #[serde(rename = "type")]
    pub kind: AttentionType,
    /// Number of query heads (GatedDelta: value heads).
    pub heads: u32,
    /// Number of KV heads (GatedDelta: key heads).
    #[serde(skip_serializing_if = "is_zero")]
    pub kv_heads: u32,
    /// Width of a head (GatedDelta: of a key head; Latent: of the key part without position).
    pub head_dim: u32,
    /// Width of a value head, if it differs.
    #[serde(skip_serializing_if = "is_zero")]
    pub value_dim: u32,
    /// Length of the sliding window, in tokens; 0 without one.
    #[serde(skip_serializing_if = "is_zero")]
    pub window_tokens: u32,
    /// Rank of compressed keys and values.
    #[serde(skip_serializing_if = "is_zero")]
    pub kv_rank: u32,
    /// Rank of compressed queries.
    #[serde(skip_serializing_if = "is_zero")]
    pub query_rank: u32,
    /// Width of the key part with position.
    #[serde(skip_serializing_if = "is_zero")]
    pub rope_dim: u32,
    /// True if a gate multiplies the output.
    #[serde(skip_serializing_if = "is_false")]
    pub output_gate: bool,
    /// True if keys and values come from one projection.
    #[serde(skip_serializing_if = "is_false")]
    pub keys_are_values: bool,
    /// True if the layer uses the KV cache of an earlier layer instead of its own.
    #[serde(skip_serializing_if = "is_false")]
    pub shares_cache: bool,
}

/// Kinds of attention.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum AttentionType {
    #[default]
    Grouped,
    Latent,
    GatedDelta,
}

/// Dimensions of a layer's feed-forward block.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerFeedForward {
    /// Width of the dense block, or of one expert.
    pub intermediate_size: u32,
    /// Number of matrices: 3 with a gate, otherwise 2.
    pub matrices: u32,
    /// Number of routed experts; 0 in a dense block.
    #[serde(skip_serializing_if = "is_zero")]
    pub experts: u32,
    /// Number of experts per token.
    #[serde(skip_serializing_if = "is_zero")]
    pub active_experts: u32,
    /// Total width of the shared experts.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared_intermediate_size: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero_bytes(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}
