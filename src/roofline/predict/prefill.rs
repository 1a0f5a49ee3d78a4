//! Prefill and the time to the first token.
//!
//! `t = max((F_lin + a·F_attn)/(rate·cores·n/(n+n0)), W/(0.8·BW)) + t_fix`, over the tokens that are not cached.

use super::{Basis, Constraint, Engine, Hardware, Interval, ModelCost, Parameters, Workload};

/// Share of the data sheet's bandwidth at which a short prompt's weights are read.
const WEIGHT_READ_EFFICIENCY: f64 = 0.8;

/// Speed of prefilling, with what it rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PrefillPrediction {
    /// Prompt tokens per second, over those that are not cached.
    pub(crate) tokens_per_second: Interval,
    /// From an idle engine to the first token, in seconds.
    pub(crate) first_token_seconds: Interval,
    pub(crate) basis: Basis,
    pub(crate) binding: Constraint,
}

impl PrefillPrediction {
    pub(crate) fn new(
        parameters: &Parameters,
        hardware: Hardware,
        engine: Engine,
        model: &ModelCost,
        workload: Workload,
    ) -> Self {
        let Hardware::Chip(chip) = hardware;
        let p = parameters.of(engine);
        let cached = workload
            .cached_tokens
            .min(workload.prompt_tokens.saturating_sub(1));
        let tokens = workload.prompt_tokens.max(1) - cached;
        let (matrices, scores) = model.dimensions.prefill_flops(tokens, cached);
        let experts = if model.dimensions.expert_layers() > 0 {
            p.expert_prefill_efficiency
        } else {
            1.0
        };
        let n = f64::from(tokens);
        let rate = p.prefill_tflops.of(chip) * 1e12 * f64::from(chip.gpu_cores) * experts * n
            / (n + p.prefill_half_tokens);
        let compute = (matrices + p.attention_penalty * scores) / rate;
        let weights = model.weights.streamed(&model.dimensions, tokens).0 as f64;
        let reading = weights / (WEIGHT_READ_EFFICIENCY * chip.bandwidth.0);
        let seconds = compute.max(reading) + p.prefill_fixed_ms / 1e3;
        let binding = if reading > compute {
            Constraint::Bandwidth
        } else {
            Constraint::Compute
        };
        Self {
            tokens_per_second: Interval::around(n / seconds, p.prefill_spread, p.prefill_spread),
            first_token_seconds: Interval::around(seconds, p.prefill_spread, p.prefill_spread),
            basis: Basis::Nominal,
            binding,
        }
    }
}
