//! Prefill speed and time to first token.
//!
//! ```text
//! t = (F_weights/e + a·F_scores·(1 + s/head)/(1 + s/128) + b·F_recurrence)/(rate·cores·n/(n+n₀))
//!     + W(n)/(0.8·BW) + t_fixed (+ ρ·resident if idle) (+ δ·vocabulary with mlx-lm)
//! ```
//!
//! n is the number of tokens that are not cached. F are floating-point operations (see
//! `rooflet_model::dimensions`). W is the bytes of weights that n tokens read, including the
//! experts that they use. ρ is the cost of making idle weights resident for the GPU again. It
//! dominates short prompts of large models on MLX after idle seconds. δ is the time in which mlx-lm
//! builds a detokenizer for each request; it delays the first token, but not the prefill. GPUs
//! before M3 emulate bfloat16, the type of most models for MLX. docs/roofline.md describes the
//! constants and their fit.

use super::build::EngineBuild;
use super::parameters::{EnginePrefill, Packing, PrefillParameters, release_factor};
use super::step_work::StepWork;
use super::{Basis, Constraint, Engine, Hardware, Interval, ModelCost, Parameters, Workload};
use crate::chip::ChipVariant;
use rooflet_model::dimensions::Attention;

/// Share of the nominal bandwidth at which weights are read during prefill.
const WEIGHT_READ_EFFICIENCY: f64 = 0.8;

/// Share of MLX's rate with emulated bfloat16. No row of the measurements determines it: an M2 Max
/// reached 133 and 178 tokens/s with one checkpoint in both float types (raullenchai/Rapid-MLX,
/// issue 3154).
const EMULATED_BFLOAT: f64 = 133.0 / 178.0;
/// Fixed milliseconds of servers without measurements. Known servers have 4 to 66 ms.
const UNKNOWN_SERVER_MS: f64 = 15.0;
/// First generation with native bfloat16.
const FIRST_BFLOAT_GENERATION: u32 = 3;

/// Size of a head to which the cost of scores refers.
const REFERENCE_HEAD: f64 = 128.0;

/// Tile size of prefill kernels (MLX's `qmm`, llama.cpp's `mul_mm`), in tokens. Fewer tokens need
/// the same time.
const TILE_TOKENS: f64 = 32.0;

/// Predicted prefill speed with its basis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillPrediction {
    /// Prompt tokens per second, without cached tokens.
    pub tokens_per_second: Interval,
    /// Seconds from the request to the first token on an idle engine.
    pub first_token_seconds: Interval,
    pub basis: Basis,
    pub binding: Constraint,
}

/// Bytes and operations of one prefill, independent of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillWork {
    /// Tokens that are not cached.
    pub tokens: f64,
    /// Operations in matrices.
    pub matrices: f64,
    pub scores: f64,
    /// Operations of attention divided by the size of a head: proportional to the number of scores.
    pub score_count: f64,
    /// Operations of the scores of latent attention.
    pub latent_scores: f64,
    /// Operations of linear layers, whose state passes from token to token.
    pub recurrence: f64,
    /// Bytes of weights that are read, and of these the bytes of routed experts.
    pub read: f64,
    pub expert_read: f64,
    pub resident: f64,
    pub bits_per_weight: f64,
    pub super_blocks: bool,
    pub experts: bool,
    pub native_floats: bool,
    /// Entries of the vocabulary.
    pub vocabulary: f64,
}

impl PrefillWork {
    pub fn new(model: &ModelCost, workload: Workload) -> Self {
        let cached = workload
            .cached_tokens
            .min(workload.prompt_tokens.saturating_sub(1));
        let tokens = workload.prompt_tokens.max(1) - cached;
        let (matrices, scores) = model.dimensions.prefill_flops(tokens, cached);
        let of_kind = |kind: fn(&Attention) -> bool| -> f64 {
            let attentions = model.dimensions.layers.iter().map(|layer| layer.attention);
            attentions
                .filter(kind)
                .map(|attention| attention.score_flops(tokens, cached))
                .sum()
        };
        let recurrence = of_kind(|attention| matches!(attention, Attention::GatedDelta { .. }));
        let latent_scores = of_kind(|attention| matches!(attention, Attention::Latent { .. }));
        let score_count = |attention: Attention| match attention {
            Attention::Grouped { head_dim, .. } => {
                attention.score_flops(tokens, cached) / f64::from(head_dim.max(1))
            }
            Attention::Latent { .. } | Attention::GatedDelta { .. } => 0.0,
        };
        let read = model.weights.streamed(&model.dimensions, tokens).0 as f64;
        Self {
            tokens: f64::from(tokens),
            matrices,
            scores: scores - recurrence - latent_scores,
            score_count: model
                .dimensions
                .layers
                .iter()
                .map(|layer| score_count(layer.attention))
                .sum(),
            latent_scores,
            recurrence,
            read,
            expert_read: read - model.weights.every_step.0 as f64,
            resident: model.weights.resident().0 as f64,
            bits_per_weight: StepWork::new(model, workload).bits_per_weight,
            super_blocks: model.weights.super_blocks,
            experts: model.dimensions.expert_layers() > 0,
            native_floats: model.weights.native_floats,
            vocabulary: f64::from(model.dimensions.vocabulary),
        }
    }

    /// Returns the matrix products of a decode step with prefill kernels, for `tokens` rows and
    /// `weights` parameters.
    fn of_step(step: &StepWork, tokens: f64, weights: f64) -> Self {
        Self {
            tokens,
            matrices: 2.0 * weights * tokens,
            scores: 0.0,
            score_count: 0.0,
            latent_scores: 0.0,
            recurrence: 0.0,
            read: 0.0,
            expert_read: 0.0,
            resident: 0.0,
            bits_per_weight: step.bits_per_weight,
            super_blocks: step.super_blocks,
            experts: step.expert_layers > 0.0,
            native_floats: step.native_floats,
            vocabulary: 0.0,
        }
    }
}

/// Parts of a prefill's time, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillTime {
    pub compute: f64,
    pub reading: f64,
    pub fixed: f64,
}

impl PrefillTime {
    pub fn total(&self) -> f64 {
        self.compute + self.reading + self.fixed
    }

    fn binding(&self) -> Constraint {
        if self.fixed > self.compute.max(self.reading) {
            Constraint::Overhead
        } else if self.reading > self.compute {
            Constraint::Bandwidth
        } else {
            Constraint::Compute
        }
    }
}

impl EnginePrefill {
    /// Returns the operations of attention, converted to operations of matrix products.
    /// `score_cost` and `latent` are the factors of the kernels. A score costs an exponential
    /// whatever the size of its head, so small heads cost more per operation.
    pub(super) fn attention_flops(&self, work: &PrefillWork, score_cost: f64, latent: f64) -> f64 {
        let exponentials = self.score_width / REFERENCE_HEAD;
        let scores = (work.scores + self.score_width * work.score_count) / (1.0 + exponentials);
        score_cost * (scores + latent * work.latent_scores) + self.recurrence_cost * work.recurrence
    }
}

impl PrefillParameters {
    /// Returns the time on a chip by its data sheet.
    pub fn time(&self, work: &PrefillWork, chip: &ChipVariant, build: &EngineBuild) -> PrefillTime {
        let p = self.engine(build.engine);
        let (units, scores_on_units) = if chip.neural_accelerators && build.matrix_units {
            (p.matrix_units, p.matrix_unit_scores)
        } else {
            (1.0, 1.0)
        };
        let packing = p.packing.of(Packing::of(work.bits_per_weight, work.super_blocks));
        let emulates = build.engine == Engine::Mlx && chip.generation < FIRST_BFLOAT_GENERATION;
        let floats = if emulates && !work.native_floats {
            EMULATED_BFLOAT
        } else {
            1.0
        };
        let tflops =
            self.tflops.of(chip.generation) * p.utilization * p.generation_utilization.of(chip.generation);
        let rate = tflops * 1e12 * floats * f64::from(chip.gpu_cores) * units * packing * work.tokens
            / (work.tokens + p.half_tokens);
        let experts = if work.experts { p.expert_efficiency } else { 1.0 };
        let release = release_factor(&self.releases, &self.machines, chip, build);
        let score_cost = if build.flash_attention {
            p.score_cost
        } else {
            self.unfused_score_cost
        };
        let attention = p.attention_flops(work, score_cost, self.latent_score_cost) * scores_on_units;
        let read = work.read - work.expert_read * (1.0 - self.expert_reads);
        PrefillTime {
            compute: (work.matrices / experts + attention) / rate * release,
            reading: read / (WEIGHT_READ_EFFICIENCY * chip.bandwidth.0) * release,
            fixed: self.fixed_ms(work, build) / 1e3 * release,
        }
    }

    /// Returns the seconds between a request and the start of its prefill: mlx-lm builds a
    /// detokenizer from the vocabulary for each request. Its own figures of the prefill begin later.
    fn preparation(&self, work: &PrefillWork, chip: &ChipVariant, build: &EngineBuild) -> f64 {
        let per_entry = if build.builds_detokenizers() {
            self.detokenizer_us / 1e6
        } else {
            0.0
        };
        work.vocabulary * per_entry * release_factor(&self.releases, &self.machines, chip, build)
    }

    /// Returns the seconds from the request to the first token.
    pub fn first_token(&self, work: &PrefillWork, chip: &ChipVariant, build: &EngineBuild) -> f64 {
        self.time(work, chip, build).total() + self.preparation(work, chip, build)
    }
}

impl PrefillParameters {
    /// Returns the seconds of a decode step's matrix products with prefill kernels: one row per
    /// sequence, and at least one tile for every weight, even if few sequences use its expert.
    pub(super) fn step_compute(&self, step: &StepWork, chip: &ChipVariant, build: &EngineBuild) -> f64 {
        let compute = |tokens, weights| {
            self.time(&PrefillWork::of_step(step, tokens, weights), chip, build)
                .compute
        };
        let read_weights = (step.dense + step.experts) * 8.0 / step.bits_per_weight;
        let rows = compute(step.batch.max(TILE_TOKENS), 1e9 * step.active_billions);
        rows.max(compute(TILE_TOKENS, read_weights))
    }

    fn fixed_ms(&self, work: &PrefillWork, build: &EngineBuild) -> f64 {
        let p = self.engine(build.engine);
        if build.warm_server {
            let program = build.program.as_ref().and_then(|name| self.server_ms.get(name));
            program.copied().unwrap_or(UNKNOWN_SERVER_MS)
        } else if build.idle {
            self.residency_ms(work, build) + p.fixed_ms
        } else {
            p.fixed_ms
        }
    }

    /// Returns the milliseconds to make the weights of an idle engine resident for the GPU again.
    fn residency_ms(&self, work: &PrefillWork, build: &EngineBuild) -> f64 {
        work.resident / 1e9 * self.engine(build.engine).residency_ms
    }
}

impl PrefillPrediction {
    pub fn new(
        parameters: &Parameters,
        hardware: Hardware,
        build: &EngineBuild,
        model: &ModelCost,
        workload: Workload,
    ) -> Self {
        let work = PrefillWork::new(model, workload);
        let (time, spread, basis) = match hardware {
            Hardware::Chip(chip) => (
                parameters.prefill.time(&work, chip, build),
                parameters
                    .spread
                    .prefill(&parameters.decode, work.tokens, chip, build),
                Basis::Nominal,
            ),
            Hardware::Measured(machine) => {
                let step = machine.step_time(&StepWork::new(model, workload), &parameters.decode);
                (
                    machine.prefill_time(&work, step, &parameters.prefill.mlx),
                    machine.spread(),
                    Basis::Measured,
                )
            }
        };
        let preparation = hardware
            .chip()
            .map_or(0.0, |chip| parameters.prefill.preparation(&work, chip, build));
        let fast = spread.fast + hardware.faster_when_cold();
        let mut seconds = Interval::around(time.total(), fast, spread.slow);
        if build.program.is_none() && hardware.chip().is_some() {
            // The engine may have been idle before the request.
            seconds.p90 += parameters.prefill.residency_ms(&work, build) / 1e3;
        }
        Self {
            tokens_per_second: seconds.recip().scale(work.tokens),
            first_token_seconds: seconds.scale(1.0 + preparation / time.total()),
            basis,
            binding: time.binding(),
        }
    }
}
