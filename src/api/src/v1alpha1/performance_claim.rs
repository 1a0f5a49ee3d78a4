//! PerformanceClaim: a published number, and what physics and arithmetic say about it.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A published statement about the speed or size of a model on a machine.
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
    doc = "PerformanceClaim is a published number. The controller checks it against physics, known facts and its own arithmetic.",
    printcolumn(
        name = "Verdict",
        type_ = "string",
        json_path = ".status.verdict",
        description = "What the check says of the whole claim."
    ),
    printcolumn(
        name = "Figures",
        type_ = "string",
        json_path = ".status.figures",
        description = "Figures and statements without fault / all."
    ),
    printcolumn(
        name = "Model",
        type_ = "string",
        json_path = ".spec.model.name",
        priority = 1,
        description = "The model the claim is about."
    ),
    printcolumn(
        name = "Chip",
        type_ = "string",
        json_path = ".spec.hardware.chip",
        priority = 1,
        description = "The chip the claim is about."
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
    /// Where it was published: a URL or a title. Shown, never judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub source: Option<String>,
    /// The machine, as the claim describes it.
    #[serde(default, skip_serializing_if = "ClaimedHardware::is_empty")]
    pub hardware: ClaimedHardware,
    /// The model, as the claim describes it.
    #[serde(default, skip_serializing_if = "ClaimedModel::is_empty")]
    pub model: ClaimedModel,
    /// The program that ran the model, such as mlx-lm 0.28, llama.cpp or ollama.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub engine: Option<String>,
    /// What was asked of the model; holds for every figure that does not say otherwise.
    #[serde(default, skip_serializing_if = "ClaimedConditions::is_empty")]
    pub workload: ClaimedConditions,
    /// The numbers claimed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub figures: Vec<ClaimedFigure>,
    /// Arithmetic that the claim states, such as `16829/571 = 29.5` or `77.7 tok/s * 8.03 GB = 624 GB/s`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(min = 1, max = 1024)))]
    pub statements: Vec<String>,
}

/// A number as published: `77.7`, `~26`, `12-15`, `8.03 GB`, `94 %`. The digits given decide how exactly it is meant.
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

    // A number or a text. Structural schemas know `int-or-string` only, so any value passes and the check tells.
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

/// A machine, as far as the claim describes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedHardware {
    /// The chip, such as `Apple M4 Pro`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub chip: Option<String>,
    /// Its GPU cores; they tell bins of one chip apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub gpu_cores: Option<u32>,
    /// Its memory, such as `24 GB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Published>,
    /// Memory bandwidth that the claim gives for the chip, such as `273 GB/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Published>,
    /// Memory the claim says the GPU may use, such as `16 GiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set: Option<Published>,
    /// Memory sizes the claim says the chip comes with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub memory_options: Vec<Published>,
    /// Machines that work together on one model. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub machines: Option<u32>,
}

impl ClaimedHardware {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A model, as far as the claim describes it. What is stated beside the name is checked against the model of that name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedModel {
    /// Its name, such as `gemma-3-12b-it-4bit` or `mlx-community/Qwen2.5-7B-Instruct-4bit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// The format of its weights, such as `mlx4`, `4bit`, `q4_k_m` or `bf16`. Default: what the name ends in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub quantization: Option<String>,
    /// All its parameters, such as `12B`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Published>,
    /// Parameters one token uses, such as `3B`, where that is fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_parameters: Option<Published>,
    /// Size of its files, such as `8.03 GB`. Towers for images count here and not in what decoding reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size: Option<Published>,
    /// Decoder layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// Width of the residual stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_size: Option<u32>,
    /// Query heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<u32>,
    /// Key-value heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<u32>,
    /// Width of a head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<u32>,
    /// Routed experts per layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<u32>,
    /// Routed experts that one token uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_experts: Option<u32>,
    /// Dimensions of a model that is not known by name, in the terse form of `rooflet fit --shapes`, such as
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

/// Under which conditions a figure was taken.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedConditions {
    /// Tokens of the prompt, such as `3018` or `4K`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Published>,
    /// Of the prompt, tokens that a prefix cache held already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<Published>,
    /// Tokens in the KV cache while decoding. Default: those of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Published>,
    /// Tokens generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<Published>,
    /// Sequences decoded together. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub batch: Option<u32>,
    /// Bits of one element of the KV cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub kv_bits: Option<u32>,
    /// A draft model or several prediction heads propose tokens: one pass may yield more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculative: Option<bool>,
    /// Whether the prefix cache was empty (`cold`) or held the prompt (`warm`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<CacheState>,
    /// What the clock ran over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<ClaimTiming>,
    /// How it was measured, in words. Does not excuse that two figures for the same thing differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub method: Option<String>,
    /// What else was different about this run, in words: figures of different variants are not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub variant: Option<String>,
    /// Another chip than that of `hardware`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub chip: Option<String>,
    /// GPU cores of that chip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub gpu_cores: Option<u32>,
    /// Memory of that machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Published>,
    /// Another model than that of `model`, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub model: Option<String>,
    /// Another format of weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub quantization: Option<String>,
    /// Another engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub engine: Option<String>,
}

impl ClaimedConditions {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These where they say something, `fallback` where not.
    pub fn or(&self, fallback: &Self) -> Self {
        // Cores and memory belong to the chip they stand beside.
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

/// What the prefix cache held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CacheState {
    Cold,
    Warm,
}

/// What a rate was timed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ClaimTiming {
    /// From the first token to the last.
    DecodeOnly,
    /// The whole request: prefill, HTTP and all.
    WallClock,
}

/// One number of the claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedFigure {
    /// What the claim calls it. Figures of a general kind (ratio, seconds, bytes …) are compared by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// What it is.
    pub kind: FigureKind,
    /// The number, with its unit where the kind does not name one: `77.7`, `~26`, `12-15`, `8.03 GB`, `94 %`.
    pub value: Published,
    /// Where its conditions differ from `workload`.
    #[serde(default, skip_serializing_if = "ClaimedConditions::is_empty")]
    pub under: ClaimedConditions,
    /// Where the number comes from. Default: measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<ClaimBasis>,
    /// What the claim shows it as, where that is something else than it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presented_as: Option<ClaimBasis>,
    /// What the number is paid or saved for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<FigurePer>,
    /// For a time that is said to go into reading: the bytes that are read, such as `550 MB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Published>,
}

/// What a figure is. Rates are tokens per second, times are seconds unless the value names another unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FigureKind {
    /// Tokens per second while generating. With `batch` above 1: of all sequences together.
    DecodeTokensPerSecond,
    /// Tokens per second called no more than "throughput": it must say what was timed.
    ThroughputTokensPerSecond,
    /// Tokens generated over the time of whole requests, said to be that.
    EndToEndTokensPerSecond,
    /// What the claim calls the theoretical maximum of decoding.
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
    /// Time to load a model or a cache; give `bytes`.
    LoadSeconds,
    /// Time said to be spent reading from disk; give `bytes`.
    DiskReadSeconds,
    /// Memory bandwidth that was measured.
    Bandwidth,
    /// Memory bandwidth that decoding is said to use.
    BandwidthUsed,
    /// Memory traffic that the KV cache is said to cause.
    KvBandwidth,
    /// Weights in memory.
    WeightBytes,
    /// Bytes that one token reads.
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
    /// By how much a time became shorter.
    TimeReduction,
    /// By how much a throughput rose.
    ThroughputGain,
    /// Any other ratio, percentage or factor; compared by name.
    Ratio,
    /// Any other time; compared by name.
    Seconds,
    /// Any other number of bytes; compared by name.
    Bytes,
    /// Anything else; kept and told to be beyond this check.
    Other,
}

/// Where a number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ClaimBasis {
    Measured,
    /// Computed from other measurements.
    Extrapolated,
    Estimated,
    Planned,
}

/// What a cost or a saving is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FigurePer {
    Token,
    Request,
}

/// What the check says, the gravest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClaimVerdict {
    /// Breaks a limit of bandwidth, compute, memory or disk.
    ExceedsRoofline,
    /// Its own numbers exclude each other.
    Contradictory,
    /// A calculation it states comes out differently.
    ArithmeticError,
    /// A fact about the chip or the model is wrong.
    WrongFact,
    /// What was timed, or on what, does not become clear, or is not what the name says.
    MethodUnclear,
    /// Checked, and possible.
    Plausible,
    /// Nothing in it can be checked.
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

    /// Whether something is wrong.
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

/// One fault of a claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimFinding {
    /// What kind of fault.
    pub verdict: ClaimVerdict,
    /// The field of the spec it is about, such as `figures[0]`.
    pub field: String,
    /// What is wrong, by how much, and why.
    pub message: String,
    /// What the claim says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<String>,
    /// What would be right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right: Option<String>,
    /// `right` as a bare number in the unit of `claimed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_value: Option<f64>,
    /// The claimed number over the right one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
}

/// What the check says of one figure, statement or stated fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimCheck {
    /// The field of the spec, such as `figures[0]`.
    pub field: String,
    /// It, in short.
    pub subject: String,
    /// The gravest fault found in it, or Plausible, or Untestable.
    pub verdict: ClaimVerdict,
    /// How the check came to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// The outcome of the check.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PerformanceClaimStatus {
    /// The generation of the spec this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the check says of the whole claim: the gravest fault, or Plausible, or Untestable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<ClaimVerdict>,
    /// Checks without fault / all checks, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<String>,
    /// Every fault, the gravest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<ClaimFinding>,
    /// Every figure, statement and fact that was looked at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<ClaimCheck>,
    /// Judged (the check has run) and Plausible (it found no fault).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
