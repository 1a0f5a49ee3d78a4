//! One decoder layer as the engine computes it: blocks with switches, set by `config.json`.

use super::rope::Rope;

/// One decoder layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerConfig {
    pub(crate) mixer: MixerConfig,
    pub(crate) feed_forward: FeedForwardConfig,
}

impl LayerConfig {
    /// Of every token something is kept as long as the sequence lasts, so that it can be cut back to any length.
    #[cfg(feature = "mlx")]
    pub(crate) fn keeps_all(&self) -> bool {
        match &self.mixer {
            MixerConfig::Attention(attention) => attention.window.is_none(),
            MixerConfig::GatedDelta(_) => false,
        }
    }
}

/// How a layer mixes tokens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MixerConfig {
    Attention(AttentionConfig),
    GatedDelta(GatedDeltaConfig),
}

/// Linear attention by the gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GatedDeltaConfig {
    pub(crate) key_heads: u32,
    pub(crate) key_dim: u32,
    pub(crate) value_heads: u32,
    pub(crate) value_dim: u32,
    /// Two matrices make all inputs, their rows by key head; else there are four.
    pub(crate) by_head: bool,
}

/// Softmax attention with grouped queries.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AttentionConfig {
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    /// What scores are multiplied with.
    pub(crate) scale: f32,
    /// Only the last so many tokens are attended to, the current one included.
    pub(crate) window: Option<u32>,
    /// `None`: positions are not rotated in.
    pub(crate) rope: Option<Rope>,
    /// One matrix makes queries, keys and values.
    pub(crate) fused: bool,
    pub(crate) qkv_bias: bool,
    pub(crate) output_bias: bool,
    pub(crate) query_key_norm: QueryKeyNorm,
    /// Each head has a score that goes to no key.
    pub(crate) sinks: bool,
    /// Queries come with a gate of their size, through which the output goes.
    pub(crate) output_gate: bool,
}

/// RMS norm of queries and keys before they are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryKeyNorm {
    None,
    /// Each head by itself.
    Head,
    /// All heads together.
    Full,
}

/// How a layer transforms each token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FeedForwardConfig {
    Dense(DenseConfig),
    Experts(ExpertsConfig),
}

/// A dense gated block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DenseConfig {
    pub(crate) intermediate: u32,
    pub(crate) activation: Activation,
    /// One matrix makes gate and up.
    pub(crate) fused: bool,
    pub(crate) bias: bool,
}

/// A mixture of experts, each a dense gated block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExpertsConfig {
    pub(crate) experts: u32,
    /// So many are used for each token.
    pub(crate) active: u32,
    pub(crate) intermediate: u32,
    pub(crate) activation: Activation,
    /// Of router and experts.
    pub(crate) bias: bool,
    pub(crate) router: Router,
    pub(crate) names: ExpertNames,
    pub(crate) shared: Option<SharedExpertConfig>,
}

/// How experts are chosen and weighed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Router {
    /// By their share of a softmax over all of them.
    Softmax {
        /// The shares of the chosen ones are made to add up to one.
        renormalizes: bool,
    },
    /// By score, weighed with a softmax over the chosen ones.
    ChosenSoftmax,
    /// By the sigmoid of their score plus a correction of their own, weighed without the correction (DeepSeek V3).
    Sigmoid {
        renormalizes: bool,
        scale: f32,
        /// Experts come in so many groups, of which only so many are looked at.
        groups: u32,
        chosen_groups: u32,
    },
}

/// The names of a block's modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    pub(crate) router: &'static str,
    pub(crate) experts: &'static str,
    pub(crate) shared: &'static str,
}

/// An expert that every token goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedExpertConfig {
    pub(crate) intermediate: u32,
    /// It is weighed by a gate of its own.
    pub(crate) gated: bool,
}

/// What the gate goes through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Activation {
    Silu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// `gate · σ(1.702·gate) · (up + 1)`, both held to `limit` (gpt-oss).
    ClampedSilu {
        limit: f32,
    },
}

impl AttentionConfig {
    /// Of all queries, and of keys or values.
    pub(crate) fn widths(&self) -> (u64, u64) {
        let head_dim = u64::from(self.head_dim);
        (
            u64::from(self.heads) * head_dim,
            u64::from(self.kv_heads) * head_dim,
        )
    }
}
