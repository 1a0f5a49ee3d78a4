//! FleetNode: one machine of the fleet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Basis, Probe, TaintEffect};

/// One machine of the fleet: what its chip is, what was measured there, what is free.
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
    doc = "FleetNode is one machine of the fleet. Its agent registers it and reports what the chip is, what was measured and what is free.",
    printcolumn(
        name = "Chip",
        type_ = "string",
        json_path = ".status.chip.name",
        description = "The chip as it names itself."
    ),
    printcolumn(
        name = "Memory",
        type_ = "string",
        json_path = ".status.summary.memory",
        description = "Memory models may use / all memory."
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
        description = "Memory no replica holds or has reserved."
    ),
    printcolumn(
        name = "Free-BW",
        type_ = "string",
        json_path = ".status.summary.freeBandwidth",
        description = "Measured bandwidth promised to no replica."
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
        description = "Whether the agent reports and can serve."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since it joined."
    ),
    printcolumn(
        name = "Cordoned",
        type_ = "boolean",
        json_path = ".spec.unschedulable",
        description = "Whether new replicas are kept away.",
        priority = 1
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
        description = "Where the gateway reaches the agent.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct FleetNodeSpec {
    /// While true, no new replica is placed on the node (cordoned).
    #[serde(default)]
    pub unschedulable: bool,
    /// While true, the node is cordoned and its replicas are moved to other nodes that have room, one after the other where
    /// their deployments' `maxUnavailable` asks for it. The condition Drained tells how far that is.
    #[serde(default, skip_serializing_if = "is_false")]
    pub drain: bool,
    /// Keep away models that do not tolerate them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// A mark that keeps models away which do not tolerate it; Kubernetes' own rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// The taint's name.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Compared with a toleration's value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What happens to models that do not tolerate it.
    pub effect: TaintEffect,
}

/// What the agent says of its machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FleetNodeStatus {
    /// The generation of the spec this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The chip.
    pub chip: Chip,
    /// What the chip's maker says of it. Absent where the chip is not known, and in virtual machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_sheet: Option<DataSheet>,
    /// Software and identity of the machine.
    pub node_info: NodeInfo,
    /// All there is.
    pub capacity: Resources,
    /// What models may use.
    pub allocatable: Resources,
    /// What was measured through the engine. Absent until the first probe has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
    /// What real requests on this node have taught about its speed, with its present engine. Corrects predictions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calibrations: Vec<Calibration>,
    /// The figures above as short texts, for the columns of `kubectl get`.
    pub summary: NodeSummary,
    /// Base URL where the agent takes requests for its replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// How fast the node downloaded models. Absent until it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadSpeed>,
    /// Models in the agent's `--model-dir`, and those that were downloaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<NodeModel>,
    /// Replicas on the node.
    pub replicas: i32,
    /// Ready, MemoryPressure, DiskPressure, ThermalPressure, OnBattery, LidClosed, UserPresent, QuietHours, ProbeFresh, Drained.
    /// Those that speak against the node act as taints of their own: see docs/nodes.md.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The chip as the machine names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Chip {
    /// Brand string, such as `Apple M4 Pro`.
    pub name: String,
    /// GPU cores, where the machine tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_cores: Option<u32>,
    /// CPU cores.
    pub cpu_cores: u32,
    /// The machine's model, such as `Mac16,10`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_model: Option<String>,
    /// True where the machine is not a bare-metal Apple Silicon Mac: it may serve, for development, and never
    /// counts as the chip it may claim to be.
    pub development: bool,
}

/// Measured against predicted speed of models stored alike.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Calibration {
    /// Whole bits of a weight: 4 for weights in 4 bits with their scales.
    pub weight_bits: u32,
    /// Natural logarithm of measured over predicted time per token of the last runs, the oldest first. A run is the median over requests that
    /// no other run counts.
    pub log_time_ratios: Vec<f64>,
    /// The same of the time to the first token of requests that had the engine to themselves, without what they waited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log_first_token_ratios: Vec<f64>,
}

/// What a chip's maker says of it. Nothing of it was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DataSheet {
    /// Nominal.
    pub basis: Basis,
    /// Peak memory bandwidth.
    pub memory_bytes_per_second: f64,
    /// Who says so.
    pub source: String,
    /// Where sources disagree.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Software and identity of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// Stays the same across restarts and reinstalls of the agent.
    pub machine_id: String,
    /// Such as `macOS 26.4.1` or `Debian GNU/Linux 12`.
    pub operating_system: String,
    /// Build of the operating system.
    pub os_build: String,
    /// Such as `arm64`.
    pub architecture: String,
    /// The agent's version.
    pub agent_version: String,
    /// Inference engine, its version and device, such as `mlx 0.32.2 (metal)`.
    pub engine: String,
}

/// Amounts of what models consume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// Memory, as a quantity.
    pub memory: String,
    /// Memory bandwidth per second, as a quantity of bytes. Absent until it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bandwidth: Option<String>,
    /// The disk with the agent's files, as a quantity; of what is allocatable, what replicas with a
    /// spec.serving.kvCache.diskSize may store together, in whole gibibytes. Absent where nobody can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

/// Short texts for columns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSummary {
    /// Memory models may use / all memory.
    pub memory: String,
    /// Measured bandwidth / data-sheet bandwidth; `-` where there is none.
    pub bandwidth: String,
    /// Memory that no replica holds or has reserved.
    pub free_memory: String,
    /// Measured bandwidth that was promised to no replica; `-` where nothing was measured.
    pub free_bandwidth: String,
}

/// A model directory on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeModel {
    /// Name of the directory; `local://NAME` finds it. Of a model that was downloaded its source, `hf://OWNER/NAME@COMMIT`.
    pub name: String,
    /// `model_type` of its config.json.
    pub architecture: String,
    /// Bytes of its weights in memory.
    pub weights_bytes: u64,
    /// Bytes that one more token adds to the KV cache of one stream, while no window of the model is full.
    pub kv_bytes_per_token: u64,
    /// Bytes of intermediate results while a long prompt is read.
    pub activation_bytes: u64,
    /// What memory and speed depend on. Absent where the directory cannot be served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<ModelCost>,
    /// The longest context the model was made for, in tokens.
    pub max_context_tokens: u32,
    /// Why the directory cannot be served; absent where it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// How fast a node downloaded models from their hub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DownloadSpeed {
    /// Bytes per second, the median of the last downloads.
    pub median_bytes_per_second: f64,
    /// How many that is of; one that broke off and went on counts twice.
    pub downloads: u32,
}

/// The sizes of a model that its memory and speed follow from.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelCost {
    /// Bytes of weights that every decode step reads: attention, dense blocks, shared experts and output head.
    pub every_step_bytes: u64,
    /// Bytes of all routed experts; a step reads those it chooses.
    pub expert_bytes: u64,
    /// Bytes that are held and that no decode step reads: an untied embedding table, towers for images.
    pub idle_bytes: u64,
    /// Bits of one element of the KV cache on this node.
    pub kv_element_bits: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Tokens in the vocabulary.
    pub vocabulary_size: u32,
    /// Whether the output head is the embedding table.
    pub tied_embeddings: bool,
    /// Whether floats are of a type that every GPU computes with, float16 or float32; bfloat16 is emulated before M3.
    #[serde(skip_serializing_if = "is_false")]
    pub native_floats: bool,
    /// A second table of embeddings, with a vector per token and layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Layers, equal ones together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerGroup>,
}

/// Dimensions of a table of embeddings that every layer mixes in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PerLayerInputs {
    /// Tokens in the table.
    pub vocabulary_size: u32,
    /// Width of a vector.
    pub width: u32,
}

/// The most layers of a model that are computed with; none that was published has a tenth of them.
pub const MAX_LAYERS: u32 = 10_000;

/// Layers of the same dimensions.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerGroup {
    /// How many; of all groups of a model together at most 10 000.
    #[schemars(range(max = MAX_LAYERS))]
    pub count: u32,
    /// How they mix tokens.
    pub attention: LayerAttention,
    /// How they transform each token.
    pub feed_forward: LayerFeedForward,
}

/// Dimensions of a layer's attention. Which fields are set depends on `type`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerAttention {
    /// Grouped: softmax attention. Latent: multi-head latent attention. GatedDelta: linear attention with a state.
    #[serde(rename = "type")]
    pub kind: AttentionType,
    /// Query heads; value heads of GatedDelta.
    pub heads: u32,
    /// KV heads; key heads of GatedDelta.
    #[serde(skip_serializing_if = "is_zero")]
    pub kv_heads: u32,
    /// Width of a head; of a key head of GatedDelta; of a key's part without position of Latent.
    pub head_dim: u32,
    /// Width of a value head, where it is another one.
    #[serde(skip_serializing_if = "is_zero")]
    pub value_dim: u32,
    /// Tokens that are attended to and kept, where not all are.
    #[serde(skip_serializing_if = "is_zero")]
    pub window_tokens: u32,
    /// Rank of compressed keys and values.
    #[serde(skip_serializing_if = "is_zero")]
    pub kv_rank: u32,
    /// Rank of compressed queries.
    #[serde(skip_serializing_if = "is_zero")]
    pub query_rank: u32,
    /// Width of a key's part with position.
    #[serde(skip_serializing_if = "is_zero")]
    pub rope_dim: u32,
    /// Whether a gate multiplies the output.
    #[serde(skip_serializing_if = "is_false")]
    pub output_gate: bool,
    /// Whether one projection makes keys and values.
    #[serde(skip_serializing_if = "is_false")]
    pub keys_are_values: bool,
    /// Whether the layer attends to the cache of an earlier one and has none of its own.
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
    /// Matrices of the block: 3 with a gate, else 2.
    pub matrices: u32,
    /// Routed experts; 0 in a dense block.
    #[serde(skip_serializing_if = "is_zero")]
    pub experts: u32,
    /// Of them, those that one token uses.
    #[serde(skip_serializing_if = "is_zero")]
    pub active_experts: u32,
    /// Width of all shared experts together.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared_intermediate_size: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}
