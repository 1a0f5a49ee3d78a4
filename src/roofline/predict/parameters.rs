//! The fitted constants of the predictor: `parameters.json` beside this file.

use std::sync::LazyLock;

use serde::Deserialize;

use super::Engine;
use crate::roofline::chip::{ChipTier, ChipVariant};

static BUILT_IN: LazyLock<Parameters> = LazyLock::new(|| {
    serde_json::from_str(include_str!("parameters.json"))
        .expect("parameters.json is part of this program and a test reads it")
});

/// Constants by engine; see ROOFLINE's formulas in `decode` and `prefill`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Parameters {
    pub(super) mlx: EngineParameters,
    pub(super) llama_cpp: EngineParameters,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EngineParameters {
    /// Share of the data sheet's bandwidth that decoding reaches, by tier.
    pub(super) efficiency: ByTier,
    /// Time of the arithmetic of a billion active parameters on one GPU core, in milliseconds, by generation.
    pub(super) arithmetic_ms: ByGeneration,
    /// Of each further sequence in the batch.
    pub(super) batch_arithmetic_ms: f64,
    pub(super) layer_us: f64,
    pub(super) expert_layer_us: f64,
    pub(super) step_ms: f64,
    /// How much slower than weights the KV cache is read.
    pub(super) kv_penalty: f64,
    /// Effective operations per second and GPU core when prefilling, in 10¹², by generation.
    pub(super) prefill_tflops: ByGeneration,
    /// Prompt length at which half the rate is reached, in tokens.
    pub(super) prefill_half_tokens: f64,
    pub(super) attention_penalty: f64,
    pub(super) prefill_fixed_ms: f64,
    pub(super) expert_prefill_efficiency: f64,
    /// ln of the distance from p50 to p10 and p90.
    pub(super) decode_spread: f64,
    pub(super) prefill_spread: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ByTier {
    base: f64,
    pro: f64,
    max: f64,
    ultra: f64,
}

impl ByTier {
    pub(super) fn of(&self, chip: &ChipVariant) -> f64 {
        match chip.tier {
            ChipTier::Base => self.base,
            ChipTier::Pro => self.pro,
            ChipTier::Max => self.max,
            ChipTier::Ultra => self.ultra,
        }
    }
}

/// One value per generation from M1 on; later generations have the last one's.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub(super) struct ByGeneration(Vec<f64>);

impl ByGeneration {
    pub(super) fn of(&self, chip: &ChipVariant) -> f64 {
        let index = (chip.generation.max(1) as usize - 1).min(self.0.len() - 1);
        self.0[index]
    }
}

impl Parameters {
    /// Those fitted for this version.
    pub(crate) fn built_in() -> &'static Self {
        &BUILT_IN
    }

    pub(super) fn of(&self, engine: Engine) -> &EngineParameters {
        match engine {
            Engine::Mlx => &self.mlx,
            Engine::LlamaCpp => &self.llama_cpp,
        }
    }
}
