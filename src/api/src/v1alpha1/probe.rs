//! What was measured on a machine: `FleetNode.status.probe`, and the same figures in the report that
//! `rooflet probe -o json` prints.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a figure comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Basis {
    /// Measured on this very machine.
    #[default]
    Measured,
    /// From the chip's data sheet.
    Nominal,
}

/// What was measured, through the engine that serves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    /// Measured, or it would not stand here.
    pub basis: Basis,
    /// The figures.
    #[serde(flatten)]
    pub measurements: Measurements,
    /// Whether the measured bandwidth can be that of the chip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plausibility: Option<Plausibility>,
    /// Engine and device that measured.
    pub engine: String,
    /// When, in RFC 3339.
    pub measured_at: String,
    /// When the figures are too old to rely on, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// How long it took, in seconds.
    pub duration_seconds: f64,
}

/// Every figure of one probe. Each is of the engine's own kernels, so that it predicts what the engine does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Measurements {
    /// Reading memory as fast as the engine can: the sum of a large buffer.
    pub read: Figure,
    /// One buffer read and one written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy: Option<Figure>,
    /// Two buffers read and one written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triad: Option<Figure>,
    /// 4-bit quantised matrix-vector products in groups of 64, the kernel that decoding lives on.
    pub qmv: Figure,
    /// The same with other bits and with several vectors at once; each of these is another kernel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quantized: Vec<QuantizedFigure>,
    /// Bits of a scale in memory: 16, or 32 where the engine computes in 32 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_bits: Option<u32>,
    /// One token's attention to the keys and values before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<AttentionFigure>,
    /// Seconds that one kernel costs whatever it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_seconds: Option<Spread>,
    /// Seconds from asking for one small result to having it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_seconds: Option<Spread>,
    /// The small kernels of one decoder layer, between its matrix products and its attention.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerFigure>,
    /// A large dense matrix product, in floating-point operations per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matmul_flops_per_second: Option<Spread>,
    /// 512 rows times a 4-bit quantised matrix, as in prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantized_matmul_flops_per_second: Option<Spread>,
    /// The 4-bit products again, for long enough to warm the machine up. Only where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustained: Option<Sustained>,
    /// Reading a file past the page cache. Only where there was a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read: Option<DiskFigure>,
    /// True where buffers are smaller than they should be, because the engine is slow here or memory is short.
    pub sizes_reduced: bool,
    /// How hot the machine was when the probe ended.
    pub thermal_state: ThermalState,
    /// What fed the machine.
    pub power_source: PowerSource,
    /// Whether the system saved power; absent where it does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_power_mode: Option<bool>,
}

/// A measured rate in bytes per second, over several repetitions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Figure {
    /// Half the repetitions were faster.
    pub median_bytes_per_second: f64,
    /// A tenth was slower.
    pub p10_bytes_per_second: f64,
    /// A tenth was faster.
    pub p90_bytes_per_second: f64,
    /// Repetitions.
    pub samples: u32,
    /// False where (p90 - p10) / median was above 5 % twice: something else was using the machine.
    pub steady: bool,
    /// Size of one buffer.
    pub buffer_bytes: u64,
    /// Distinct buffers used in turn, so that no byte is read again from a cache.
    pub buffers: u32,
}

/// A measured quantity over several repetitions; its unit is in the field's name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spread {
    /// Half the repetitions were below.
    pub median: f64,
    /// A tenth was below.
    pub p10: f64,
    /// A tenth was above.
    pub p90: f64,
    /// Repetitions.
    pub samples: u32,
    /// False where (p90 - p10) / median was above 5 % twice: something else was using the machine.
    pub steady: bool,
}

/// Quantised matrix × vectors. The bytes are those of the weights, whatever the number of vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QuantizedFigure {
    /// Bits per weight, scales not counted.
    pub bits: u32,
    /// Weights that share a scale and a bias.
    pub group_size: u32,
    /// Vectors multiplied at once.
    pub batch: u32,
    /// The rate.
    #[serde(flatten)]
    pub figure: Figure,
}

/// One token's attention. The bytes are those of the keys and values, whatever the number of queries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttentionFigure {
    /// Query heads that share a key and value head.
    pub queries_per_key: u32,
    /// The rate.
    #[serde(flatten)]
    pub figure: Figure,
}

/// Norms, rotary embedding, activation, residual sums and the cache's update of one layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerFigure {
    /// Width of the layer. The MLP is three times as wide.
    pub hidden_size: u32,
    /// Seconds for one token.
    pub seconds: Spread,
    /// Of these, the seconds in which the kernels are described to the engine, before the first of them runs. A
    /// model's next token is described while the device works on the last one.
    pub describing_seconds: f64,
}

/// What was left of the speed after a while.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Sustained {
    /// How long it was loaded.
    pub seconds: f64,
    /// Median rate of the first sixth.
    pub first_bytes_per_second: f64,
    /// Median rate of the last sixth.
    pub last_bytes_per_second: f64,
    /// Last / first.
    pub thermal_factor: f64,
}

/// Reading a file from its disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskFigure {
    /// The file.
    pub path: String,
    /// The rate.
    #[serde(flatten)]
    pub figure: Figure,
    /// Whether the system was made to read from the disk. Where false, memory may have answered.
    pub past_cache: bool,
}

/// Whether a measured bandwidth can be that of the chip.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Plausibility {
    /// The answer.
    pub verdict: PlausibilityVerdict,
    /// Measured read bandwidth / the data sheet's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_to_spec: Option<f64>,
    /// What it means.
    pub message: String,
}

/// The answers to whether a measured bandwidth can be that of the chip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PlausibilityVerdict {
    /// As such chips measure.
    Plausible,
    /// Less than such chips measure.
    TooLow,
    /// More than the chip's memory can give.
    TooHigh,
    /// There is no data sheet to compare with.
    #[default]
    NotJudged,
}

/// How hot a machine says it is; the steps are macOS's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ThermalState {
    /// Cool.
    Nominal,
    /// Fans are heard, background work waits.
    Fair,
    /// Slower, to stay within limits.
    Serious,
    /// Much slower.
    Critical,
    /// The system does not say.
    #[default]
    Unknown,
}

/// What feeds a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum PowerSource {
    /// The mains.
    Ac,
    /// A battery.
    Battery,
    /// An uninterruptible power supply.
    Ups,
    /// The system does not say.
    #[default]
    #[serde(rename = "Unknown")]
    Unknown,
}
