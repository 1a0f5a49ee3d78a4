//! Prefill and the time to the first token.
//!
//! ```text
//! t = (F_weights/e + a·F_scores + b·F_recurrence)/(rate·cores·n/(n+n₀)) + W(n)/(0.8·BW) + ρ·resident + t_fixed
//! ```
//!
//! over the n tokens that are not cached. F are floating-point operations (see `dimensions`), W the
//! weights that n tokens read, with experts as many as they touch. ρ is what it costs to make idle
//! weights resident for the GPU again; it rules short prompts of large models on MLX; a server that
//! stays warm does not pay it. GPUs before M3 emulate bfloat16, in which most models are published
//! for MLX. Constants and their fit: docs/roofline.md.

use super::build::EngineBuild;
use super::parameters::{EnginePrefill, Packing, PrefillParameters, release_factor};
use super::step_work::StepWork;
use super::{Basis, Constraint, Engine, Hardware, Interval, ModelCost, Parameters, Workload};
use crate::chip::ChipVariant;
use rooflet_model::dimensions::Attention;

/// Share of the data sheet's bandwidth at which a prompt's weights are read.
const WEIGHT_READ_EFFICIENCY: f64 = 0.8;

/// Share of MLX's rate that is left where the GPU emulates bfloat16. No row that the constants are
/// fitted on tells it: of one checkpoint whose floats were stored both ways, an M2 Max read 133 and
/// 178 tokens/s (raullenchai/Rapid-MLX, issue 3154).
const EMULATED_BFLOAT: f64 = 133.0 / 178.0;
/// M3's GPU computes with bfloat16.
const FIRST_BFLOAT_GENERATION: u32 = 3;

/// What kernels for prompts compute at once (MLX's `qmm`, llama.cpp's `mul_mm`); fewer tokens take
/// as long.
const TILE_TOKENS: f64 = 32.0;

/// Speed of prefilling, with what it rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillPrediction {
    /// Prompt tokens per second, over those that are not cached.
    pub tokens_per_second: Interval,
    /// From an idle engine to the first token, in seconds.
    pub first_token_seconds: Interval,
    pub basis: Basis,
    pub binding: Constraint,
}

/// What prefilling one prompt moves and computes, whatever runs it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillWork {
    /// Tokens that are not cached.
    pub tokens: f64,
    /// Operations.
    pub matrices: f64,
    pub scores: f64,
    /// Of linear layers, whose state goes from token to token.
    pub recurrence: f64,
    /// Bytes.
    pub read: f64,
    pub resident: f64,
    pub bits_per_weight: f64,
    pub super_blocks: bool,
    pub experts: bool,
    pub native_floats: bool,
}

impl PrefillWork {
    pub fn new(model: &ModelCost, workload: Workload) -> Self {
        let cached = workload
            .cached_tokens
            .min(workload.prompt_tokens.saturating_sub(1));
        let tokens = workload.prompt_tokens.max(1) - cached;
        let (matrices, scores) = model.dimensions.prefill_flops(tokens, cached);
        let recurrence: f64 = model
            .dimensions
            .layers
            .iter()
            .filter(|layer| matches!(layer.attention, Attention::GatedDelta { .. }))
            .map(|layer| layer.attention.score_flops(tokens, cached))
            .sum();
        Self {
            tokens: f64::from(tokens),
            matrices,
            scores: scores - recurrence,
            recurrence,
            read: model.weights.streamed(&model.dimensions, tokens).0 as f64,
            resident: model.weights.resident().0 as f64,
            bits_per_weight: StepWork::new(model, workload).bits_per_weight,
            super_blocks: model.weights.super_blocks,
            experts: model.dimensions.expert_layers() > 0,
            native_floats: model.weights.native_floats,
        }
    }

    /// The matrix products of a decode step with the kernels that read prompts, for `tokens` rows of
    /// `weights` weights.
    fn of_step(step: &StepWork, tokens: f64, weights: f64) -> Self {
        Self {
            tokens,
            matrices: 2.0 * weights * tokens,
            scores: 0.0,
            recurrence: 0.0,
            read: 0.0,
            resident: 0.0,
            bits_per_weight: step.bits_per_weight,
            super_blocks: step.super_blocks,
            experts: step.expert_layers > 0.0,
            native_floats: step.native_floats,
        }
    }
}

/// The parts of a prefill's time, in seconds.
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
    /// Operations of attention, in those of matrix products that take as long. `score_cost`: of the
    /// kernel that is used.
    pub(super) fn attention_flops(&self, work: &PrefillWork, score_cost: f64) -> f64 {
        score_cost * work.scores + self.recurrence_cost * work.recurrence
    }
}

impl PrefillParameters {
    /// On a chip by its data sheet.
    pub fn time(&self, work: &PrefillWork, chip: &ChipVariant, build: &EngineBuild) -> PrefillTime {
        let p = self.engine(build.engine);
        let units = if chip.neural_accelerators && build.matrix_units {
            p.matrix_units
        } else {
            1.0
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
        PrefillTime {
            compute: (work.matrices / experts + p.attention_flops(work, score_cost)) / rate * release,
            reading: work.read / (WEIGHT_READ_EFFICIENCY * chip.bandwidth.0) * release,
            fixed: self.fixed_ms(work, build) / 1e3 * release,
        }
    }
}

impl PrefillParameters {
    /// Seconds that the matrix products of a decode step take with the kernels that read prompts: a
    /// row for each sequence, and at least a tile for every weight that is read, however few of the
    /// sequences chose its expert.
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
            program.copied().unwrap_or(p.fixed_ms)
        } else {
            work.resident / 1e9 * p.residency_ms + p.fixed_ms
        }
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
                parameters.spread.prefill(&parameters.decode, chip, build),
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
        let seconds = Interval::around(time.total(), spread + hardware.faster_when_cold(), spread);
        Self {
            tokens_per_second: seconds.recip().scale(work.tokens),
            first_token_seconds: seconds,
            basis,
            binding: time.binding(),
        }
    }
}
