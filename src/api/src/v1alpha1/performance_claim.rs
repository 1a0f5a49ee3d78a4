//! PerformanceClaim: published numbers and the result of their check.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Published statement about the speed or size of a model on a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[expect(
    clippy::duplicated_attributes,
    reason = "each `category`, `shortname` and `validation` adds one"
)]
#[kube(
    group = "rooflet.dev",
    version = "v1alpha1",
    kind = "PerformanceClaim",
    plural = "performanceclaims",
    shortname = "pclaim",
    category = "rooflet",
    namespaced,
    status = "PerformanceClaimStatus",
    derive = "PartialEq",
    doc = "PerformanceClaim contains published performance numbers. The controller checks them against the roofline, known facts and their own arithmetic.",
    printcolumn(
        name = "Verdict",
        type_ = "string",
        json_path = ".status.verdict",
        description = "Verdict on the whole claim."
    ),
    printcolumn(
        name = "Figures",
        type_ = "string",
        json_path = ".status.figures",
        description = "Figures and statements without a finding / all."
    ),
    printcolumn(
        name = "Model",
        type_ = "string",
        json_path = ".spec.model.name",
        priority = 1,
        description = "Model of the claim."
    ),
    printcolumn(
        name = "Chip",
        type_ = "string",
        json_path = ".spec.hardware.chip",
        priority = 1,
        description = "Chip of the claim."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct PerformanceClaimSpec {
    /// URL or title of the publication. Shown, but not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub source: Option<String>,
    /// Machine, as described by the claim.
    #[serde(default, skip_serializing_if = "ClaimedHardware::is_empty")]
    pub hardware: ClaimedHardware,
    /// Model, as described by the claim.
    #[serde(default, skip_serializing_if = "ClaimedModel::is_empty")]
    pub model: ClaimedModel,
    /// Inference engine, such as mlx-lm 0.28, llama.cpp or ollama.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub engine: Option<String>,
    /// Default conditions of all figures.
    #[serde(default, skip_serializing_if = "ClaimedConditions::is_empty")]
    pub workload: ClaimedConditions,
    /// Claimed numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub figures: Vec<ClaimedFigure>,
    /// Calculations in the claim, such as `16829/571 = 29.5` or `77.7 tok/s * 8.03 GB = 624 GB/s`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 1024)))]
    pub statements: Vec<String>,
}

/// Number as published: `77.7`, `~26`, `12-15`, `8.03 GB`, `94 %`. Its digits determine its
/// precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Published(pub Value);

impl JsonSchema for Published {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Published".into()
    }

    fn inline_schema() -> bool {
        true
    }

    // A number or a text. Structural schemas have only `int-or-string`, so the schema accepts any
    // value and the check reports errors.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Value::String(text) => f.write_str(text),
            other
            @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                write!(f, "{other}")
            }
        }
    }
}

impl From<&str> for Published {
    fn from(text: &str) -> Self {
        Self(Value::from(text))
    }
}

/// Machine, as described by the claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedHardware {
    /// Chip, such as `Apple M4 Pro`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub chip: Option<String>,
    /// Number of GPU cores. Distinguishes variants of a chip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub gpu_cores: Option<u32>,
    /// Memory, such as `24 GB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Published>,
    /// Claimed memory bandwidth of the chip, such as `273 GB/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Published>,
    /// Claimed memory that the GPU can use, such as `16 GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set: Option<Published>,
    /// Claimed memory sizes in which the chip is sold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub memory_options: Vec<Published>,
    /// Number of machines that run the model together. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub machines: Option<u32>,
}

impl ClaimedHardware {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Model, as described by the claim. The other fields are checked against the model of this name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedModel {
    /// Name, such as `gemma-3-12b-it-4bit` or `mlx-community/Qwen2.5-7B-Instruct-4bit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Format of the weights, such as `mlx4`, `4bit`, `q4_k_m` or `bf16`. Default: the suffix of
    /// the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub quantization: Option<String>,
    /// Number of parameters, such as `12B`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Published>,
    /// Number of active parameters per token, such as `3B`, if smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_parameters: Option<Published>,
    /// Size of the files, such as `8.03 GB`. Includes image encoders, which decoding does not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size: Option<Published>,
    /// Number of decoder layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// Width of the residual stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_size: Option<u32>,
    /// Number of query heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<u32>,
    /// Number of KV heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<u32>,
    /// Width of a head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<u32>,
    /// Number of routed experts per layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<u32>,
    /// Number of routed experts per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_experts: Option<u32>,
    /// Dimensions of an unknown model in the form of `rooflet fit --shapes`, such as
    /// `{L: 32, d: 4096, ff: 14336, nh: 32, nkv: 8, hd: 128, V: 128256, mats: 3, tied: 0}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub shape: Option<Value>,
}

impl ClaimedModel {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// Conditions of a figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedConditions {
    /// Prompt length in tokens, such as `3018` or `4K`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Published>,
    /// Number of prompt tokens in the prefix cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<Published>,
    /// Tokens in the KV cache during decoding. Default: prompt length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Published>,
    /// Number of generated tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<Published>,
    /// Batch size: sequences decoded together. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub batch: Option<u32>,
    /// Bits of one element of the KV cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub kv_bits: Option<u32>,
    /// True if speculative decoding was used: one pass may generate several tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculative: Option<bool>,
    /// State of the prefix cache, for `loadSeconds` of the file cache: empty (`cold`) or filled (`warm`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<CacheState>,
    /// Time span of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<ClaimTiming>,
    /// Method of the measurement as text. Figures of different methods are still compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub method: Option<String>,
    /// Variant of the run as text. Figures of different variants are not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub variant: Option<String>,
    /// Chip, if it differs from `hardware`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub chip: Option<String>,
    /// Number of GPU cores of that chip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub gpu_cores: Option<u32>,
    /// Memory of that machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Published>,
    /// Name of the model, if it differs from `model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub model: Option<String>,
    /// Format of the weights, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub quantization: Option<String>,
    /// Engine, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub engine: Option<String>,
}

impl ClaimedConditions {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns these conditions with unset fields from `fallback`.
    pub fn or(&self, fallback: &Self) -> Self {
        // Cores and memory belong to the chip in the same object.
        let machine = if self.chip.is_some() { self } else { fallback };
        Self {
            prompt: self.prompt.clone().or_else(|| fallback.prompt.clone()),
            cached: self.cached.clone().or_else(|| fallback.cached.clone()),
            context: self.context.clone().or_else(|| fallback.context.clone()),
            generated: self.generated.clone().or_else(|| fallback.generated.clone()),
            batch: self.batch.or(fallback.batch),
            kv_bits: self.kv_bits.or(fallback.kv_bits),
            speculative: self.speculative.or(fallback.speculative),
            state: self.state.or(fallback.state),
            timing: self.timing.or(fallback.timing),
            method: self.method.clone().or_else(|| fallback.method.clone()),
            variant: self.variant.clone().or_else(|| fallback.variant.clone()),
            chip: machine.chip.clone(),
            gpu_cores: self.gpu_cores.or(machine.gpu_cores),
            memory: self.memory.clone().or_else(|| machine.memory.clone()),
            model: self.model.clone().or_else(|| fallback.model.clone()),
            quantization: self
                .quantization
                .clone()
                .or_else(|| fallback.quantization.clone()),
            engine: self.engine.clone().or_else(|| fallback.engine.clone()),
        }
    }
}

/// State of the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CacheState {
    Cold,
    Warm,
}

/// Time span of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ClaimTiming {
    /// From the first token to the last.
    DecodeOnly,
    /// Whole request, including prefill and HTTP.
    WallClock,
}

/// Claimed number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedFigure {
    /// Name in the claim. Figures of general kinds (ratio, seconds, bytes …) are compared by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Kind of the figure.
    pub kind: FigureKind,
    /// Number, with a unit unless the kind defines one: `77.7`, `~26`, `12-15`, `8.03 GB`, `94 %`.
    pub value: Published,
    /// Conditions that differ from `workload`.
    #[serde(default, skip_serializing_if = "ClaimedConditions::is_empty")]
    pub under: ClaimedConditions,
    /// Basis of the number. Default: measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<ClaimBasis>,
    /// Basis that the claim suggests, if it differs from `basis`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presented_as: Option<ClaimBasis>,
    /// Unit of work of a cost or saving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<FigurePer>,
    /// For read times: number of bytes, such as `550 MB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Published>,
}

/// Kind of a figure. Rates are tokens per second and times are seconds, unless the value has
/// another unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FigureKind {
    /// Decode tokens per second. With `batch` above 1, the sum of all sequences.
    DecodeTokensPerSecond,
    /// Tokens per second without a defined time span ("throughput"). Requires `timing`.
    ThroughputTokensPerSecond,
    /// Generated tokens divided by the time of whole requests.
    EndToEndTokensPerSecond,
    /// Claimed theoretical maximum of the decode speed.
    MaximumDecodeTokensPerSecond,
    /// Prompt tokens per second.
    PrefillTokensPerSecond,
    /// Time to process the prompt.
    PrefillSeconds,
    TimeToFirstTokenSeconds,
    /// Time of a whole request.
    TotalSeconds,
    /// Time from the first token to the last.
    DecodeSeconds,
    /// Time to load a model or cache. Requires `bytes`.
    LoadSeconds,
    /// Time to read from disk. Requires `bytes`.
    DiskReadSeconds,
    /// Measured memory bandwidth.
    Bandwidth,
    /// Memory bandwidth used by decoding.
    BandwidthUsed,
    /// Memory bandwidth used by the KV cache.
    KvBandwidth,
    /// Weights in memory.
    WeightBytes,
    /// Bytes read per token.
    StreamedBytes,
    /// Size of the model's files.
    FileBytes,
    /// KV cache at the stated context.
    KvBytes,
    KvBytesPerToken,
    /// Memory in use with the model loaded.
    MemoryBytes,
    BitsPerWeight,
    Parameters,
    ActiveParameters,
    /// Share of the chip's bandwidth that decoding reaches.
    ShareOfBandwidth,
    /// Share of the theoretical maximum, or efficiency.
    ShareOfMaximum,
    /// Memory in use as a share of what the GPU can use.
    ShareOfMemory,
    /// Reduction of a time.
    TimeReduction,
    /// Increase of a throughput.
    ThroughputGain,
    /// Any other ratio, percentage or factor; compared by name.
    Ratio,
    /// Any other time; compared by name.
    Seconds,
    /// Any other number of bytes; compared by name.
    Bytes,
    /// Any other figure; reported as not checked.
    Other,
}

/// Basis of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ClaimBasis {
    Measured,
    /// Computed from other measurements.
    Extrapolated,
    Estimated,
    Planned,
}

/// Unit of work of a cost or saving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FigurePer {
    Token,
    Request,
}

/// Verdict of the check, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClaimVerdict {
    /// The figure exceeds a limit of bandwidth, compute, memory or disk.
    ExceedsRoofline,
    /// Numbers of the claim contradict each other.
    Contradictory,
    /// A calculation of the claim is wrong.
    ArithmeticError,
    /// A fact about the chip or the model is wrong.
    WrongFact,
    /// The measurement is not defined, or differs from its name.
    MethodUnclear,
    /// The claim was checked and is possible.
    Plausible,
    /// Nothing in the claim can be checked.
    Untestable,
}

impl ClaimVerdict {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ExceedsRoofline => "ExceedsRoofline",
            Self::Contradictory => "Contradictory",
            Self::ArithmeticError => "ArithmeticError",
            Self::WrongFact => "WrongFact",
            Self::MethodUnclear => "MethodUnclear",
            Self::Plausible => "Plausible",
            Self::Untestable => "Untestable",
        }
    }

    /// Returns true if the verdict is a finding.
    pub const fn is_flag(self) -> bool {
        match self {
            Self::ExceedsRoofline
            | Self::Contradictory
            | Self::ArithmeticError
            | Self::WrongFact
            | Self::MethodUnclear => true,
            Self::Plausible | Self::Untestable => false,
        }
    }
}

impl fmt::Display for ClaimVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Finding of the check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimFinding {
    /// Kind of the finding.
    pub verdict: ClaimVerdict,
    /// Field of the spec, such as `figures[0]`.
    pub field: String,
    /// Explanation with amount and reason.
    pub message: String,
    /// Claimed value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<String>,
    /// Correct value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right: Option<String>,
    /// `right` as a number in the unit of `claimed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_value: Option<f64>,
    /// Claimed number divided by the correct number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
}

/// Verdict on one figure, statement or fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimCheck {
    /// Field of the spec, such as `figures[0]`.
    pub field: String,
    /// Short form of the figure, statement or fact.
    pub subject: String,
    /// Most severe finding, or Plausible, or Untestable.
    pub verdict: ClaimVerdict,
    /// Calculation and assumptions of the check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Result of the check.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PerformanceClaimStatus {
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Verdict on the whole claim: the most severe finding, or Plausible, or Untestable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<ClaimVerdict>,
    /// Checks without a finding / all checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<String>,
    /// Findings, most severe first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<ClaimFinding>,
    /// Verdicts on all figures, statements and facts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<ClaimCheck>,
    /// Ready (the check has completed) and Plausible (no findings).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
