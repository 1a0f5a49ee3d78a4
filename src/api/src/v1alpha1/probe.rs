//! Measurements of a machine: the speed in `FleetNode.status.speed`, and the figures of a probe in a
//! ConfigMap and in the output of `rooflet probe -o json`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Percentiles;

/// Basis of a figure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Basis {
    /// Measured on this machine.
    #[default]
    Measured,
    /// From the chip's data sheet.
    Nominal,
}

/// Measured speed of a machine: the values from which the speed of models is predicted. The
/// ConfigMap `fleetnode-NAME` in the namespace `kube-node-lease` has the figures of the probe.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpeed {
    /// Always Measured.
    pub basis: Basis,
    /// Engine and device of the measurement.
    pub engine: String,
    /// Time of the measurement, in RFC 3339.
    pub measured_at: String,
    /// Comparison of the read bandwidth with the chip's data sheet.
    pub verdict: PlausibilityVerdict,
    /// Median read bandwidth.
    pub read_bytes_per_second: f64,
    /// Median rate of 4-bit matrix-vector products, in bytes of weights per second.
    pub decode_bytes_per_second: f64,
    /// Read speed of the disk in bytes per second. Unset if it was not measured without the page
    /// cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read_bytes_per_second: Option<Percentiles>,
    /// Thermal state at the end of the probe.
    pub thermal_state: ThermalState,
    /// Power source during the probe.
    pub power_source: PowerSource,
    /// Deprecated: use `packedFactors`. Until version 0.2, it is read if `packedFactors` is unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factors: Option<SpeedFactors>,
    /// Values for predictions: the fields of `factors` as JSON on one line, so that `kubectl describe`
    /// stays short. Unset if the probe has no figures of the decode kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed_factors: Option<String>,
}

/// Values for predictions, computed from the figures of a probe. If the speed under sustained load was
/// measured, all values apply to the hot chip.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpeedFactors {
    /// Read bandwidth, in bytes per second.
    pub read_bytes_per_second: f64,
    /// Bits of a scale of quantised weights.
    pub scale_bits: f64,
    /// Seconds to multiply one vector with one 4-bit weight.
    pub seconds_per4_bit_weight: f64,
    /// Seconds to multiply one vector with one 8-bit weight.
    pub seconds_per8_bit_weight: f64,
    /// Time of a 4-bit product with several vectors relative to one vector, by number of vectors.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub batch_times: BTreeMap<String, f64>,
    /// Seconds of attention per byte of keys and values.
    pub attention_seconds_per_byte: f64,
    /// Additional seconds per byte for each query that shares a key.
    pub attention_seconds_per_query: f64,
    /// Seconds of one kernel launch.
    pub launch_seconds: f64,
    /// Seconds of a layer's small kernels at width zero.
    pub layer_seconds: f64,
    /// Additional seconds of a layer's small kernels per unit of width.
    pub layer_seconds_per_width: f64,
    /// Part of these seconds in which the CPU builds the graph.
    pub graph_seconds: f64,
    /// Seconds from the request of a small result to its arrival.
    pub round_trip_seconds: f64,
    /// Floating-point operations per second of dense products.
    pub flops_per_second: f64,
    /// Floating-point operations per second of 4-bit products.
    pub quantized_flops_per_second: f64,
    /// Half-width of the measurement, as a natural logarithm.
    pub spread: f64,
    /// Share of the speed that the hot chip sustains. Unset if not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustained: Option<f64>,
}

/// Result of a probe, measured through the inference engine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    /// Always Measured.
    pub basis: Basis,
    /// Measured figures.
    #[serde(flatten)]
    pub measurements: Measurements,
    /// Comparison of the measured bandwidth with the chip's data sheet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plausibility: Option<Plausibility>,
    /// Engine and device of the measurement.
    pub engine: String,
    /// Time of the measurement, in RFC 3339.
    pub measured_at: String,
    /// Time after which the figures are outdated, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Duration of the probe, in seconds.
    pub duration_seconds: f64,
}

/// Figures of a probe. They are measured with the engine's own kernels, so that they predict the
/// engine's speed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Measurements {
    /// Read bandwidth: sum of a large buffer.
    pub read: Figure,
    /// Copy bandwidth: one buffer read, one written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy: Option<Figure>,
    /// Triad bandwidth: two buffers read, one written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triad: Option<Figure>,
    /// Matrix-vector products with 4-bit weights in groups of 64, the main kernel of decoding.
    pub qmv: Figure,
    /// Products with other bits or several vectors, which use other kernels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quantized: Vec<QuantizedFigure>,
    /// Bits of a scale in memory: 16, or 32 if the engine computes in 32 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_bits: Option<u32>,
    /// Attention of one token to the KV cache.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<AttentionFigure>,
    /// Overhead of one kernel launch, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_seconds: Option<Spread>,
    /// Round trip of one small result, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_seconds: Option<Spread>,
    /// Small kernels of a decoder layer, without matrix products and attention.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerFigure>,
    /// Large dense matrix product, in floating-point operations per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matmul_flops_per_second: Option<Spread>,
    /// Product of 512 rows and a 4-bit matrix, as in prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantized_matmul_flops_per_second: Option<Spread>,
    /// 4-bit products under sustained load, to measure throttling. Set only on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sustained: Option<Sustained>,
    /// Read speed of the disk without the page cache. Set only if a file was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read: Option<DiskFigure>,
    /// True if buffers are smaller than usual because the engine is slow or memory is low.
    pub sizes_reduced: bool,
    /// Thermal state at the end of the probe.
    pub thermal_state: ThermalState,
    /// Power source during the probe.
    pub power_source: PowerSource,
    /// True if low power mode was on. Unset if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_power_mode: Option<bool>,
    /// Running threads per CPU core in the minute before the probe. Unset if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_load: Option<f64>,
    /// Share of the time before the probe in which the GPU was busy. Unset if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_use: Option<f64>,
}

/// Measured rate over several repetitions, in bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Figure {
    /// Median rate.
    pub median_bytes_per_second: f64,
    /// 10th percentile of the rate.
    pub p10_bytes_per_second: f64,
    /// 90th percentile of the rate.
    pub p90_bytes_per_second: f64,
    /// Number of repetitions.
    pub samples: u32,
    /// False if (p90 - p10) / median was above 5 % twice, which indicates other load on the
    /// machine.
    pub steady: bool,
    /// Size of one buffer.
    pub buffer_bytes: u64,
    /// Number of buffers used in turn, so that reads miss the caches.
    pub buffers: u32,
}

/// Measured quantity over several repetitions. The field's name contains the unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub p10: f64,
    /// 90th percentile.
    pub p90: f64,
    /// Number of repetitions.
    pub samples: u32,
    /// False if (p90 - p10) / median was above 5 % twice, which indicates other load on the
    /// machine.
    pub steady: bool,
}

/// Product of a quantised matrix and vectors. The rate counts the bytes of the weights, for any
/// number of vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QuantizedFigure {
    /// Bits per weight, without scales.
    pub bits: u32,
    /// Number of weights that share a scale and a bias.
    pub group_size: u32,
    /// Number of vectors.
    pub batch: u32,
    /// Measured rate.
    #[serde(flatten)]
    pub figure: Figure,
}

/// Attention of one token. The rate counts the bytes of keys and values, for any number of queries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttentionFigure {
    /// Number of query heads per KV head.
    pub queries_per_key: u32,
    /// Measured rate.
    #[serde(flatten)]
    pub figure: Figure,
}

/// Norms, rotary embedding, activation, residual sums and the cache's update of one layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerFigure {
    /// Width of the layer. The feed-forward block is three times as wide.
    pub hidden_size: u32,
    /// Seconds for one token.
    pub seconds: Spread,
    /// Part of `seconds` in which the CPU builds the graph, before the first kernel runs. During
    /// generation it overlaps with the computation of the previous token.
    pub describing_seconds: f64,
}

/// Speed under sustained load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Sustained {
    /// Duration of the load, in seconds.
    pub seconds: f64,
    /// Median rate in the first sixth of the time.
    pub first_bytes_per_second: f64,
    /// Median rate in the last sixth of the time.
    pub last_bytes_per_second: f64,
    /// Ratio of last to first rate.
    pub thermal_factor: f64,
}

/// Read speed of a disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskFigure {
    /// Path of the file.
    pub path: String,
    /// Measured rate.
    #[serde(flatten)]
    pub figure: Figure,
    /// True if the page cache was bypassed. If false, some reads may have come from memory.
    pub past_cache: bool,
}

/// Comparison of a measured bandwidth with the chip's data sheet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Plausibility {
    /// Result of the comparison.
    pub verdict: PlausibilityVerdict,
    /// Ratio of measured read bandwidth to the data sheet's bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_to_spec: Option<f64>,
    /// Explanation.
    pub message: String,
}

/// Result of the comparison with the data sheet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PlausibilityVerdict {
    /// Within the usual range for this chip.
    Plausible,
    /// Below the usual range for this chip.
    TooLow,
    /// Above the bandwidth of the chip's memory.
    TooHigh,
    /// No data sheet is available.
    #[default]
    NotJudged,
}

/// Thermal state of a machine, as defined by macOS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ThermalState {
    /// No throttling.
    Nominal,
    /// Fans run faster; background work is deferred.
    Fair,
    /// The system reduces performance.
    Serious,
    /// The system reduces performance strongly.
    Critical,
    /// The system does not report it.
    #[default]
    Unknown,
}

/// Power source of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum PowerSource {
    /// AC power.
    Ac,
    /// Battery.
    Battery,
    /// Uninterruptible power supply.
    Ups,
    /// The system does not report it.
    #[default]
    #[serde(rename = "Unknown")]
    Unknown,
}
