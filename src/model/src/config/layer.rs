//! One decoder layer as the engine computes it: blocks with switches, set by `config.json`.

use super::rope::Rope;

/// One decoder layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    pub mixer: MixerConfig,
    pub feed_forward: FeedForwardConfig,
}

impl LayerConfig {
    /// Of every token something is kept as long as the sequence lasts, so that it can be cut back
    /// to any length.
    pub fn keeps_all(&self) -> bool {
        match &self.mixer {
            MixerConfig::Attention(attention) => attention.window.is_none(),
            MixerConfig::GatedDelta(_) => false,
        }
    }
}

/// How a layer mixes tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum MixerConfig {
    Attention(AttentionConfig),
    GatedDelta(GatedDeltaConfig),
}

/// Linear attention by the gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaConfig {
    pub key_heads: u32,
    pub key_dim: u32,
    pub value_heads: u32,
    pub value_dim: u32,
    /// Two matrices make all inputs, their rows by key head; else there are four.
    pub by_head: bool,
}

/// Softmax attention with grouped queries.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// What scores are multiplied with.
    pub scale: f32,
    /// Only the last so many tokens are attended to, the current one included.
    pub window: Option<u32>,
    /// `None`: positions are not rotated in.
    pub rope: Option<Rope>,
    /// One matrix makes queries, keys and values.
    pub fused: bool,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub query_key_norm: QueryKeyNorm,
    /// Each head has a score that goes to no key.
    pub sinks: bool,
    /// Queries come with a gate of their size, through which the output goes.
    pub output_gate: bool,
}

/// RMS norm of queries and keys before they are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryKeyNorm {
    None,
    /// Each head by itself.
    Head,
    /// All heads together.
    Full,
}

/// How a layer transforms each token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeedForwardConfig {
    Dense(DenseConfig),
    Experts(ExpertsConfig),
}

/// A dense gated block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenseConfig {
    pub intermediate: u32,
    pub activation: Activation,
    /// One matrix makes gate and up.
    pub fused: bool,
    pub bias: bool,
}

/// A mixture of experts, each a dense gated block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsConfig {
    pub experts: u32,
    /// So many are used for each token.
    pub active: u32,
    pub intermediate: u32,
    pub activation: Activation,
    /// Of router and experts.
    pub bias: bool,
    pub router: Router,
    pub names: ExpertNames,
    pub shared: Option<SharedExpertConfig>,
}

/// How experts are chosen and weighed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Router {
    /// By their share of a softmax over all of them.
    Softmax {
        /// The shares of the chosen ones are made to add up to one.
        renormalizes: bool,
    },
    /// By score, weighed with a softmax over the chosen ones.
    ChosenSoftmax,
    /// By the sigmoid of their score plus a correction of their own, weighed without the correction
    /// (DeepSeek V3).
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
pub struct ExpertNames {
    pub router: &'static str,
    pub experts: &'static str,
    pub shared: &'static str,
}

impl ExpertNames {
    pub(crate) const BASE: Self = Self {
        router: "gate",
        experts: "switch_mlp",
        shared: "shared_experts",
    };
}

/// An expert that every token goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpertConfig {
    pub intermediate: u32,
    /// It is weighed by a gate of its own.
    pub gated: bool,
}

/// What the gate goes through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
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
    pub fn widths(&self) -> (u64, u64) {
        let head_dim = u64::from(self.head_dim);
        (
            u64::from(self.heads) * head_dim,
            u64::from(self.kv_heads) * head_dim,
        )
    }
}
