//! Constants of the predictor: `parameters.json` beside this file, which `cargo xtask fit-roofline`
//! writes.
//!
//! `decode` and `prefill` define the constants. All are positive; the fit optimises their
//! logarithms.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::spread::Spreads;
use super::{Engine, EngineBuild};
use crate::chip::{ChipTier, ChipVariant};

static BUILT_IN: LazyLock<Parameters> = LazyLock::new(|| {
    serde_json::from_str(include_str!("parameters.json"))
        .expect("parameters.json is built in and a test parses it")
});

/// Version of the format. It increases if a constant is added, removed or redefined.
pub const SCHEMA_VERSION: u32 = 7;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameters {
    pub schema_version: u32,
    /// Number of measurements behind the constants.
    pub rows: RowCounts,
    pub decode: DecodeParameters,
    pub prefill: PrefillParameters,
    pub spread: Spreads,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RowCounts {
    pub decode: usize,
    pub prefill: usize,
}

/// Constants of [`super::decode`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DecodeParameters {
    /// Share of the nominal bandwidth that long reads reach, and its factor per generation.
    pub efficiency: ByTier,
    pub generation_efficiency: ByGeneration,
    /// Bandwidth factor of base chips from M4 on.
    pub late_base: f64,
    /// Relative cost of a kernel launch, and of a GPU core's arithmetic.
    pub generation_launch: ByGeneration,
    pub generation_arithmetic: ByGeneration,
    /// Cost of a launch on two dies, relative to one die.
    pub ultra_launch: f64,
    pub mlx: EngineDecode,
    pub llama_cpp: EngineDecode,
    /// Milliseconds of one core to unpack a billion weights of a K mix, which is slow on old cores.
    pub mixed_arithmetic_ms: ByGeneration,
    /// Time of llama.cpp to unpack a model with MXFP4 experts, whose values it looks up in a table,
    /// relative to plain blocks.
    pub table_unpacking: f64,
    /// Exponent of the cost of routed experts by their width: narrow experts cost more per weight.
    pub expert_width: f64,
    /// Releases of llama.cpp before 2025.
    pub early: EarlyBuild,
    /// Milliseconds per step that a program adds to its kernels.
    pub program_ms: BTreeMap<String, f64>,
    /// Milliseconds of a request in which a server does not decode for it.
    pub request_ms: f64,
    /// Bandwidth factors of measured bins, by name and GPU cores.
    pub chips: BTreeMap<String, BTreeMap<u32, f64>>,
    /// Time factors of measured engine releases, and of their combinations with one bin.
    pub releases: BTreeMap<String, f64>,
    pub machines: Machines,
}

/// Width of an expert for which [`EngineDecode::expert_unpacking`] applies.
pub(super) const REFERENCE_EXPERT_WIDTH: f64 = 768.0;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineDecode {
    /// Bandwidth factor per generation, beyond that of all engines.
    pub generation_efficiency: ByGeneration,
    /// Launch time of a plain layer, in microseconds.
    pub layer_us: f64,
    /// Additional launches by kind of layer, relative to those of a plain layer.
    pub windowed_layer: f64,
    pub expert_layer: f64,
    pub linear_layer: f64,
    pub latent_layer: f64,
    /// Factor of `expert_layer` on two dies.
    pub ultra_expert_layer: f64,
    /// Launch time outside the layers: embedding, head, sampling.
    pub step_ms: f64,
    /// Time to unpack routed experts of [`REFERENCE_EXPERT_WIDTH`], relative to dense weights. It
    /// does not overlap with reads.
    pub expert_unpacking: f64,
    /// Picoseconds of one core per byte of keys and values and query head. Heads that share a key
    /// read the key from the cache of the GPU.
    pub attention_ps: f64,
    /// Factor of `attention_ps` for latent attention, which consists of matrix products.
    pub latent_attention: f64,
    /// Traffic factors of the KV cache and of linear layers' states.
    pub kv_traffic: f64,
    pub state_traffic: f64,
    /// Milliseconds of one core for a billion weights: in floating point, and in plain blocks.
    pub float_ms: f64,
    pub block_ms: f64,
    /// Milliseconds of one core for a billion weights, per further sequence of a batch.
    pub batch_ms: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EarlyBuild {
    /// Factors of launches, on one and on two dies.
    pub launch: f64,
    pub ultra_launch: f64,
    /// Traffic factors of the KV cache without flash attention: per byte, and additionally per
    /// query head.
    pub kv_traffic: f64,
    pub query_traffic: f64,
}

/// Constants of [`super::prefill`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrefillParameters {
    /// Operations per second of one GPU core in matrix products of a reference engine, in 10¹².
    pub tflops: ByGeneration,
    pub mlx: EnginePrefill,
    pub llama_cpp: EnginePrefill,
    /// Cost factor of attention scores without flash attention.
    pub unfused_score_cost: f64,
    /// Fixed milliseconds of servers, instead of those of their engines.
    pub server_ms: BTreeMap<String, f64>,
    /// Microseconds per entry of the vocabulary to build a detokenizer, before the first token of
    /// each request to mlx-lm.
    pub detokenizer_us: f64,
    /// Factor of attention scores in latent attention, which has no fused kernel.
    pub latent_score_cost: f64,
    /// Share of the routed experts' reads, relative to independent tokens. Tokens of one prompt
    /// share experts.
    pub expert_reads: f64,
    /// Time factors of measured engine releases, and of their combinations with one bin.
    pub releases: BTreeMap<String, f64>,
    pub machines: Machines,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnginePrefill {
    /// Utilisation of the cores by the engine's kernels, relative to others, and its factor per
    /// generation.
    pub utilization: f64,
    pub generation_utilization: ByGeneration,
    /// Speed-up by matrix units, if the chip has them and the engine uses them.
    pub matrix_units: f64,
    /// Rate factor of unpacking weights.
    pub packing: ByPacking,
    /// Prompt length at which half of the rate is reached, in tokens.
    pub half_tokens: f64,
    /// Cost factors of attention scores and of linear layers' recurrences.
    pub score_cost: f64,
    pub recurrence_cost: f64,
    /// Size of a head with which the work per score equals that of its products.
    pub score_width: f64,
    /// Factor of both costs on matrix units, which accelerate attention less than matrix products.
    pub matrix_unit_scores: f64,
    /// Rate factor of routed experts.
    pub expert_efficiency: f64,
    /// Milliseconds per gigabyte of resident weights to make an idle engine's pages resident for
    /// the GPU again.
    pub residency_ms: f64,
    pub fixed_ms: f64,
}

/// Time factors of one bin with one release beyond the separate factors of both. They mostly
/// reflect one person's machine: its memory, heat and method of measurement. By release, chip and
/// GPU cores.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Machines(BTreeMap<String, BTreeMap<String, BTreeMap<u32, f64>>>);

impl Machines {
    pub fn of(&self, release: &str, chip: &ChipVariant) -> f64 {
        let bins = self.0.get(release).and_then(|chips| chips.get(&chip.name));
        bins.and_then(|bins| bins.get(&chip.gpu_cores))
            .copied()
            .unwrap_or(1.0)
    }

    /// Sets the time factor of `release` on `chip`.
    pub fn insert(&mut self, release: &str, chip: &ChipVariant, factor: f64) {
        let chips = self.0.entry(release.to_owned()).or_default();
        let bins = chips.entry(chip.name.clone()).or_default();
        bins.insert(chip.gpu_cores, factor);
    }
}

/// Returns the time factor of a measured release, including that of this bin.
pub(super) fn release_factor(
    releases: &BTreeMap<String, f64>,
    machines: &Machines,
    chip: &ChipVariant,
    build: &EngineBuild,
) -> f64 {
    build.release().map_or(1.0, |release| {
        releases.get(release).copied().unwrap_or(1.0) * machines.of(release, chip)
    })
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByTier {
    base: f64,
    pro: f64,
    max: f64,
    ultra: f64,
}

impl ByTier {
    pub(super) fn of(&self, tier: ChipTier) -> f64 {
        match tier {
            ChipTier::Base => self.base,
            ChipTier::Pro => self.pro,
            ChipTier::Max => self.max,
            ChipTier::Ultra => self.ultra,
        }
    }
}

/// Values by generation, from M1 on. Later generations have the last value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByGeneration(Vec<f64>);

impl ByGeneration {
    pub(super) fn of(&self, generation: u32) -> f64 {
        let index = (generation.max(1) as usize - 1).min(self.0.len() - 1);
        self.0[index]
    }
}

/// Packing of weights, by the cost of unpacking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    Float,
    /// Blocks with one scale: MLX's affine groups, Q4_0, Q8_0.
    Block,
    /// Quantised scales and several formats in one file: K mixes.
    Mixed,
}

impl Packing {
    pub(super) fn of(bits_per_weight: f64, super_blocks: bool) -> Self {
        if bits_per_weight > 12.0 {
            Self::Float
        } else if super_blocks {
            Self::Mixed
        } else {
            Self::Block
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByPacking {
    float: f64,
    block: f64,
    mixed: f64,
}

impl ByPacking {
    pub(super) fn of(&self, packing: Packing) -> f64 {
        match packing {
            Packing::Float => self.float,
            Packing::Block => self.block,
            Packing::Mixed => self.mixed,
        }
    }
}

impl Parameters {
    /// Returns the constants of this version.
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }
}

impl DecodeParameters {
    /// Returns the bandwidth factor of a measured bin.
    pub(super) fn bin(&self, chip: &ChipVariant) -> Option<f64> {
        self.chips.get(&chip.name)?.get(&chip.gpu_cores).copied()
    }

    pub(super) fn engine(&self, engine: Engine) -> &EngineDecode {
        match engine {
            Engine::Mlx => &self.mlx,
            Engine::LlamaCpp => &self.llama_cpp,
        }
    }
}

impl PrefillParameters {
    pub(super) fn engine(&self, engine: Engine) -> &EnginePrefill {
        match engine {
            Engine::Mlx => &self.mlx,
            Engine::LlamaCpp => &self.llama_cpp,
        }
    }
}
