//! The constants of the predictor: `parameters.json` beside this file, which
//! `cargo xtask fit-roofline` writes.
//!
//! What a constant means stands in `decode` and `prefill`, where it is used. All are positive; the
//! fit moves their logarithms.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::spread::Spreads;
use super::{Engine, EngineBuild};
use crate::chip::{ChipTier, ChipVariant};

static BUILT_IN: LazyLock<Parameters> = LazyLock::new(|| {
    serde_json::from_str(include_str!("parameters.json"))
        .expect("parameters.json is part of this program and a test reads it")
});

/// Raised when a constant is added, dropped or changes its meaning.
pub const SCHEMA_VERSION: u32 = 4;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameters {
    pub schema_version: u32,
    /// Measurements that the constants rest on.
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

/// See [`super::decode`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DecodeParameters {
    /// Share of the data sheet's bandwidth that a long read reaches, and what a generation
    /// multiplies it with.
    pub efficiency: ByTier,
    pub generation_efficiency: ByGeneration,
    /// Relative cost of a kernel launch, and of a GPU core's arithmetic.
    pub generation_launch: ByGeneration,
    pub generation_arithmetic: ByGeneration,
    /// A launch on two dies costs so many times one on a single die.
    pub ultra_launch: f64,
    pub mlx: EngineDecode,
    pub llama_cpp: EngineDecode,
    /// One core's milliseconds for the arithmetic of a billion weights in a K mix, which old cores
    /// are slow at.
    pub mixed_arithmetic_ms: ByGeneration,
    /// llama.cpp before 2025.
    pub early: EarlyBuild,
    /// Milliseconds per step that a program adds to its kernels'.
    pub program_ms: BTreeMap<String, f64>,
    /// Milliseconds per request between its arrival and its end in which a server decodes nothing
    /// for it.
    pub request_ms: f64,
    /// Bins that were measured, by name and GPU cores: what multiplies their bandwidth.
    pub chips: BTreeMap<String, BTreeMap<u32, f64>>,
    /// Releases of engines that were measured: what multiplies their step time; and beyond that,
    /// with one bin.
    pub releases: BTreeMap<String, f64>,
    pub machines: Machines,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineDecode {
    /// Launches of a plain layer, in microseconds.
    pub layer_us: f64,
    /// Launches of a layer of each kind beyond those of a plain one, as a multiple of them.
    pub windowed_layer: f64,
    pub expert_layer: f64,
    pub linear_layer: f64,
    /// The same for a layer with experts on two dies.
    pub ultra_expert_layer: f64,
    /// Launches of a step besides its layers: embedding, head, sampling.
    pub step_ms: f64,
    /// Bandwidth at which chosen experts are gathered, as a share of that of dense weights.
    pub expert_efficiency: f64,
    /// Times that the bytes of the KV cache and of linear layers' states count.
    pub kv_traffic: f64,
    pub state_traffic: f64,
    /// One core's milliseconds for the arithmetic of a billion weights: in floating point, or in
    /// plain blocks.
    pub float_ms: f64,
    pub block_ms: f64,
    /// The same for each further sequence of a batch.
    pub batch_ms: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EarlyBuild {
    /// Times that launches cost; on two dies.
    pub launch: f64,
    pub ultra_launch: f64,
    /// Times that the bytes of the KV cache count without flash attention, and what they count
    /// again for each query head.
    pub kv_traffic: f64,
    pub query_traffic: f64,
}

/// See [`super::prefill`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrefillParameters {
    /// Operations per second of one GPU core that matrix products of a plain engine reach, in 10¹².
    pub tflops: ByGeneration,
    pub mlx: EnginePrefill,
    pub llama_cpp: EnginePrefill,
    /// Times that operations of attention scores count without flash attention.
    pub unfused_score_cost: f64,
    /// Milliseconds that a server takes instead of its engine's fixed ones.
    pub server_ms: BTreeMap<String, f64>,
    /// Releases of engines that were measured: what multiplies their time; and beyond that, with
    /// one bin.
    pub releases: BTreeMap<String, f64>,
    pub machines: Machines,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnginePrefill {
    /// How far the engine's kernels exploit the cores, relative to others; and what differs by
    /// generation.
    pub utilization: f64,
    pub generation_utilization: ByGeneration,
    /// How many times faster matrix units are, where the chip has them and the engine uses them.
    pub matrix_units: f64,
    /// Share of the rate that is left after unpacking weights.
    pub packing: ByPacking,
    /// Prompt length at which half the rate is reached, in tokens.
    pub half_tokens: f64,
    /// Times that operations of attention scores count, and those of linear layers' recurrences.
    pub score_cost: f64,
    pub recurrence_cost: f64,
    /// Share of the rate that is left where tokens go to experts.
    pub expert_efficiency: f64,
    /// Milliseconds per gigabyte of resident weights: an idle engine's pages are made resident for
    /// the GPU again.
    pub residency_ms: f64,
    pub fixed_ms: f64,
}

/// What one bin showed with one release beyond what both showed elsewhere: most often one person's
/// machine, its memory, its heat and the way of measuring. By release, chip and GPU cores.
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

    /// What multiplies times of `release` on `chip` is `factor`.
    pub fn insert(&mut self, release: &str, chip: &ChipVariant, factor: f64) {
        let chips = self.0.entry(release.to_owned()).or_default();
        let bins = chips.entry(chip.name.clone()).or_default();
        bins.insert(chip.gpu_cores, factor);
    }
}

/// What multiplies the times of a release that was measured: anywhere, and on this bin.
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

/// One value per generation from M1 on; later generations have the last one's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByGeneration(Vec<f64>);

impl ByGeneration {
    pub(super) fn of(&self, generation: u32) -> f64 {
        let index = (generation.max(1) as usize - 1).min(self.0.len() - 1);
        self.0[index]
    }
}

/// How weights are packed, as far as unpacking them costs arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    Float,
    /// One scale per block: MLX's affine groups, Q4_0, Q8_0.
    Block,
    /// Scales of scales, several formats in one file: the K mixes.
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
    /// Those fitted for this version.
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }
}

impl DecodeParameters {
    /// What multiplies the bandwidth of this very bin, where it was measured.
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
