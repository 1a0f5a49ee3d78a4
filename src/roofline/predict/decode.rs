//! One decode step: memory traffic and arithmetic overlap, launches come on top.
//!
//! `t = ∛(t_mem³ + t_cmp³) + (B−1)·t_batch + L·τ + n_moe·τ_moe + t0`, with `t_mem = (W(B) + κ·KV)/(η·BW)`.

use super::{Basis, Constraint, Engine, Hardware, Interval, ModelCost, Parameters, Workload};

/// Speed of decoding, with what it rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DecodePrediction {
    /// Tokens per second that one sequence gets.
    pub(crate) tokens_per_second: Interval,
    /// Of all sequences of the batch together.
    pub(crate) aggregate_tokens_per_second: Interval,
    /// Weights and KV cache that one step reads, over the tokens it makes.
    pub(crate) bytes_per_token: f64,
    pub(crate) basis: Basis,
    pub(crate) binding: Constraint,
    pub(crate) working: StepTime,
}

/// The parts of one step's time, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepTime {
    pub(crate) memory: f64,
    pub(crate) arithmetic: f64,
    pub(crate) overhead: f64,
    /// Not the sum: memory and arithmetic overlap.
    pub(crate) total: f64,
}

impl DecodePrediction {
    pub(crate) fn new(
        parameters: &Parameters,
        hardware: Hardware,
        engine: Engine,
        model: &ModelCost,
        workload: Workload,
    ) -> Self {
        let Hardware::Chip(chip) = hardware;
        let p = parameters.of(engine);
        let batch = workload.batch.max(1);
        let cores = f64::from(chip.gpu_cores);
        let dimensions = &model.dimensions;

        let weights = model.weights.streamed(dimensions, batch).0 as f64;
        let kv = dimensions
            .kv_read_bytes(workload.context_tokens, workload.kv_bits)
            .0 as f64
            * f64::from(batch);
        let memory = (weights + p.kv_penalty * kv) / (p.efficiency.of(chip) * chip.bandwidth.0);

        let billions = dimensions.active_parameters() as f64 / 1e9;
        let arithmetic = billions * p.arithmetic_ms.of(chip) / cores / 1e3;
        let batched = f64::from(batch - 1) * billions * p.batch_arithmetic_ms / cores / 1e3;
        let overhead = dimensions.layers.len() as f64 * p.layer_us / 1e6
            + dimensions.expert_layers() as f64 * p.expert_layer_us / 1e6
            + p.step_ms / 1e3;
        let total = (memory.powi(3) + arithmetic.powi(3)).cbrt() + batched + overhead;

        let binding = if overhead > memory && overhead > arithmetic + batched {
            Constraint::Overhead
        } else if arithmetic + batched > memory {
            Constraint::Compute
        } else {
            Constraint::Bandwidth
        };
        let per_stream = Interval::around(total.recip(), p.decode_spread, p.decode_spread);
        Self {
            tokens_per_second: per_stream,
            aggregate_tokens_per_second: per_stream.scale(f64::from(batch)),
            bytes_per_token: (weights + kv) / f64::from(batch),
            basis: Basis::Nominal,
            binding,
            working: StepTime {
                memory,
                arithmetic: arithmetic + batched,
                overhead,
                total,
            },
        }
    }
}
