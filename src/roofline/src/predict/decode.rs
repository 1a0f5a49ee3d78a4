//! Time of a decode step. Memory traffic and arithmetic overlap; launches add to them.
//!
//! ```text
//! t     = ⁴√(t_mem⁴ + t_alu⁴) + t_attn + (B−1)·P·c_b/cores + t_launch + t_program
//! t_mem = (W_dense + W_experts(B) + σ·state) / (η·BW) + E(B)·c·x·(768/width)^α/cores
//! t_attn = ⁴√((κ·KV/(η·BW))⁴ + (KV·queries/key·c_q/cores)⁴)
//! t_alu = P·c/cores                                   unpacking weights, by packing (MXFP4: · table)
//! t_launch = (τ·Σ_layers (1 + kinds) + t_0)·(generation)·(two dies)·(early build)
//! ```
//!
//! W are the bytes of weights that the step reads, P the parameters that a token is multiplied
//! with, B the batch. The rate of a stream is `1/t`, that of the batch `B/t`.
//!
//! Memory and arithmetic use different units of the GPU, so the longer one dominates. The fourth
//! power smooths the transition. Launches are serial: every kernel waits for the one before it, and
//! the number of kernels depends on the kind of layer. docs/roofline.md describes the constants and
//! their fit.

use super::build::EngineBuild;
use super::parameters::{
    DecodeParameters, EngineDecode, Packing, PrefillParameters, REFERENCE_EXPERT_WIDTH, release_factor,
};
pub use super::step_work::StepWork;
use super::{Basis, Constraint, Engine, Hardware, Interval, ModelCost, Parameters, Workload};
use crate::chip::{ChipTier, ChipVariant};

/// Sharpness of the transition between memory and arithmetic time.
const OVERLAP_POWER: i32 = 4;

/// First generation whose base chip reaches a smaller share of its bandwidth. An M4 reads about 100
/// of 120 GB/s, and an M5 118 of 154 (chips.csv).
const FIRST_LATE_BASE: u32 = 4;

/// Predicted decode speed with its basis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodePrediction {
    /// Tokens per second of one sequence.
    pub tokens_per_second: Interval,
    /// Tokens per second of the whole batch.
    pub aggregate_tokens_per_second: Interval,
    /// Bytes of weights and KV cache that one step reads, per generated token.
    pub bytes_per_token: f64,
    pub basis: Basis,
    pub binding: Constraint,
    pub working: StepTime,
}

/// Parts of a step's time, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    pub memory: f64,
    pub arithmetic: f64,
    pub overhead: f64,
    /// Total time. It is not the sum, because memory and arithmetic overlap.
    pub total: f64,
}

impl StepTime {
    /// Returns the time of `steps` consecutive steps.
    fn times(self, steps: f64) -> Self {
        Self {
            memory: self.memory * steps,
            arithmetic: self.arithmetic * steps,
            overhead: self.overhead * steps,
            total: self.total * steps,
        }
    }

    /// Returns the shorter of two times.
    fn at_most(self, other: Self) -> Self {
        if other.total < self.total { other } else { self }
    }

    fn binding(&self) -> Constraint {
        if self.overhead > self.memory.max(self.arithmetic) {
            Constraint::Overhead
        } else if self.arithmetic > self.memory {
            Constraint::Compute
        } else {
            Constraint::Bandwidth
        }
    }
}

impl DecodeParameters {
    /// Returns the time of a step on a chip by its data sheet.
    pub fn step_time(&self, work: &StepWork, chip: &ChipVariant, build: &EngineBuild) -> StepTime {
        let p = self.engine(build.engine);
        let cores = f64::from(chip.gpu_cores);
        let bandwidth = self.bandwidth(chip, build);
        // Without flash attention, every query head writes its scores to memory and reads them
        // again.
        let (cache, attention) = if build.flash_attention {
            (0.0, attention_seconds(work, p, bandwidth, cores))
        } else {
            let attended = work.attended + work.latent_attended;
            let traffic = work.kv + work.latent;
            (
                traffic * self.early.kv_traffic + attended * self.early.query_traffic,
                0.0,
            )
        };
        let bytes = work.dense + work.experts + cache + work.states * p.state_traffic;
        let per_billion = match Packing::of(work.bits_per_weight, work.super_blocks) {
            Packing::Float => p.float_ms * self.generation_arithmetic.of(chip.generation),
            Packing::Block => p.block_ms * self.generation_arithmetic.of(chip.generation),
            Packing::Mixed => self.mixed_arithmetic_ms.of(chip.generation),
        };
        let per_billion = match (build.engine, work.tabulated_experts) {
            (Engine::LlamaCpp, true) => per_billion * self.table_unpacking,
            (Engine::LlamaCpp, false) | (Engine::Mlx, _) => per_billion,
        };
        let narrow = (REFERENCE_EXPERT_WIDTH / work.expert_width.max(1.0)).powf(self.expert_width);
        let routed = work.expert_billions * per_billion * p.expert_unpacking * narrow / cores / 1e3;
        let memory = bytes / bandwidth + routed;
        let unpacking = work.active_billions * per_billion / cores / 1e3;
        let batched = (work.batch - 1.0) * work.active_billions * p.batch_ms / cores / 1e3
            * self.generation_arithmetic.of(chip.generation);
        let program = build.program.as_ref().and_then(|name| self.program_ms.get(name));
        let overhead = self.launch_seconds(work, chip, build, p) + program.copied().unwrap_or(0.0) / 1e3;
        let release = release_factor(&self.releases, &self.machines, chip, build);
        let streamed = (memory.powi(OVERLAP_POWER) + unpacking.powi(OVERLAP_POWER))
            .sqrt()
            .sqrt();
        StepTime {
            memory: (memory + attention) * release,
            arithmetic: (unpacking + batched) * release,
            overhead: overhead * release,
            total: (streamed + attention + batched + overhead) * release,
        }
    }

    /// Returns the shortest time to a token for each sequence of a batch:
    ///
    /// - a step of the whole batch with decode kernels,
    /// - for many sequences, a step of the whole batch with prefill kernels,
    /// - a step per sequence, because the cost of batches was fitted on few rows and engines can
    ///   avoid it.
    ///
    /// `alone` is the work of a step with one sequence.
    pub fn batch_time(
        &self,
        prefill: &PrefillParameters,
        chip: &ChipVariant,
        build: &EngineBuild,
        (work, alone): (&StepWork, &StepWork),
    ) -> StepTime {
        let together = self.step_time(work, chip, build);
        if work.batch <= 1.0 {
            return together;
        }
        let as_prompt = prefill.step_compute(work, chip, build);
        let as_prompt = StepTime {
            arithmetic: as_prompt,
            total: together.memory + as_prompt + together.overhead,
            ..together
        };
        let separate_steps = self.step_time(alone, chip, build).times(work.batch);
        together.at_most(as_prompt).at_most(separate_steps)
    }

    /// Returns the bytes per second that long reads reach.
    fn bandwidth(&self, chip: &ChipVariant, build: &EngineBuild) -> f64 {
        let measured = self.bin(chip).unwrap_or(1.0);
        let engine = self.engine(build.engine);
        let generation =
            self.generation_efficiency.of(chip.generation) * engine.generation_efficiency.of(chip.generation);
        let late_base = chip.tier == ChipTier::Base && chip.generation >= FIRST_LATE_BASE;
        let base = if late_base { self.late_base } else { 1.0 };
        chip.bandwidth.0 * self.efficiency.of(chip.tier) * generation * base * measured
    }

    fn launch_seconds(
        &self,
        work: &StepWork,
        chip: &ChipVariant,
        build: &EngineBuild,
        p: &EngineDecode,
    ) -> f64 {
        let ultra = chip.tier == ChipTier::Ultra;
        let routed = if ultra { p.ultra_expert_layer } else { 1.0 };
        let plain_layers = work.layers
            + work.windowed_layers * p.windowed_layer
            + work.expert_layers * p.expert_layer * routed
            + work.linear_layers * p.linear_layer
            + work.latent_layers * p.latent_layer;
        let two_dies = match (ultra, build.early) {
            (false, _) => 1.0,
            (true, false) => self.ultra_launch,
            (true, true) => self.early.ultra_launch,
        };
        let early = if build.early { self.early.launch } else { 1.0 };
        let cost = self.generation_launch.of(chip.generation) * two_dies * early;
        (plain_layers * p.layer_us / 1e6 + p.step_ms / 1e3) * cost
    }
}

/// Returns the time of attention with a fused kernel: the longer of the reads of the cache, and of
/// the work of all query heads. The latter dominates if more than about four heads share a key.
fn attention_seconds(work: &StepWork, p: &EngineDecode, bandwidth: f64, cores: f64) -> f64 {
    let of_heads = p.attention_ps / cores / 1e12;
    let reading = work.kv * p.kv_traffic / bandwidth;
    let computing = work.attended * of_heads;
    let grouped = (reading.powi(OVERLAP_POWER) + computing.powi(OVERLAP_POWER))
        .sqrt()
        .sqrt();
    grouped + work.latent_attended * p.latent_attention * of_heads
}

impl DecodePrediction {
    pub fn new(
        parameters: &Parameters,
        hardware: Hardware,
        build: &EngineBuild,
        model: &ModelCost,
        workload: Workload,
    ) -> Self {
        let work = StepWork::new(model, workload);
        let alone = StepWork::new(model, Workload { batch: 1, ..workload });
        let spread_of = |chip, work| parameters.spread.decode(&parameters.decode, work, chip, build);
        let (working, spread, basis) = match hardware {
            Hardware::Chip(chip) => (
                parameters
                    .decode
                    .batch_time(&parameters.prefill, chip, build, (&work, &alone)),
                spread_of(chip, &work),
                Basis::Nominal,
            ),
            Hardware::Measured(machine) => (
                machine.step_time(&work, &parameters.decode),
                machine.spread(),
                Basis::Measured,
            ),
        };
        let mut per_stream = Interval::around(
            working.total.recip(),
            spread.slow,
            spread.fast + hardware.faster_when_cold(),
        );
        if let Some(chip) = hardware.chip() {
            let rate = parameters.decode.step_time(&alone, chip, build).total.recip();
            let rate = spread_of(chip, &alone).around_rate(rate);
            // A batch is never slower than separate sequences, and a stream is never faster than
            // alone.
            per_stream.p10 = per_stream.p10.max(rate.p10 / work.batch);
            // The rate cannot exceed the bandwidth of the data sheet.
            let ceiling = chip.bandwidth.0 / work.bytes();
            per_stream.p90 = per_stream.p90.min(rate.p90).min(ceiling).max(per_stream.p50);
        }
        Self {
            tokens_per_second: per_stream,
            aggregate_tokens_per_second: per_stream.scale(work.batch),
            bytes_per_token: work.bytes() / work.batch,
            basis,
            binding: working.binding(),
            working,
        }
    }
}
