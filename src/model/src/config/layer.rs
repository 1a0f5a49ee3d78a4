//! Decoder layer as computed by the engine: blocks with switches that `config.json` sets.

use super::rope::Rope;

/// Decoder layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    pub mixer: MixerConfig,
    pub feed_forward: FeedForwardConfig,
}

impl LayerConfig {
    /// Returns whether the layer keeps state for every token, so that a sequence can be truncated
    /// to any length.
    pub fn keeps_all_tokens(&self) -> bool {
        match &self.mixer {
            MixerConfig::Attention(attention) => attention.window.is_none(),
            MixerConfig::GatedDelta(_) => false,
        }
    }
}

/// Token mixer of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum MixerConfig {
    Attention(AttentionConfig),
    GatedDelta(GatedDeltaConfig),
}

/// Linear attention with the gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaConfig {
    pub key_heads: u32,
    pub key_dim: u32,
    pub value_heads: u32,
    pub value_dim: u32,
    /// True if two matrices compute all inputs, with rows ordered by key head. Otherwise there are
    /// four matrices.
    pub by_head: bool,
}

/// Softmax attention with grouped queries.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Factor of the scores.
    pub scale: f32,
    /// Number of the last tokens, including the current one, that a query attends to.
    pub window: Option<u32>,
    /// `None`: no rotary embedding.
    pub rope: Option<Rope>,
    /// True if one matrix computes queries, keys and values.
    pub fused: bool,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub query_key_norm: QueryKeyNorm,
    /// True if each head has an attention sink: a score without a key.
    pub sinks: bool,
    /// True if the query projection includes a gate that multiplies the output.
    pub output_gate: bool,
}

/// RMS norm of queries and keys before the rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryKeyNorm {
    None,
    /// Per head.
    Head,
    /// Over all heads.
    Full,
}

/// Feed-forward block of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeedForwardConfig {
    Dense(DenseConfig),
    Experts(ExpertsConfig),
}

/// Dense gated block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenseConfig {
    pub intermediate: u32,
    pub activation: Activation,
    /// True if one matrix computes gate and up.
    pub fused: bool,
    pub bias: bool,
}

/// Mixture of experts, each a dense gated block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsConfig {
    pub experts: u32,
    /// Number of experts per token.
    pub active: u32,
    pub intermediate: u32,
    pub activation: Activation,
    /// True if the router and the experts have biases.
    pub bias: bool,
    pub router: Router,
    pub names: ExpertNames,
    pub shared: Option<SharedExpertConfig>,
}

/// Selection and weighting of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Router {
    /// Top experts by softmax over all experts.
    Softmax {
        /// True if the weights of the selected experts are normalised to a sum of one.
        renormalizes: bool,
    },
    /// Top experts by score, weighted by softmax over the selected experts.
    SelectedSoftmax,
    /// Top experts by the sigmoid of their score plus a correction per expert, weighted without the
    /// correction (DeepSeek V3).
    Sigmoid {
        renormalizes: bool,
        scale: f32,
        /// Number of expert groups, and of groups that experts are selected from.
        groups: u32,
        chosen_groups: u32,
    },
}

/// Names of a block's modules.
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

/// Expert that every token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpertConfig {
    pub intermediate: u32,
    /// True if a gate scales its output.
    pub gated: bool,
}

/// Activation function of the gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Silu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// `gate · σ(1.702·gate) · (up + 1)`, with gate and up clamped to `limit` (gpt-oss).
    ClampedSilu {
        limit: f32,
    },
}

impl AttentionConfig {
    /// Returns the widths of all queries, and of all keys (equal to all values).
    pub fn widths(&self) -> (u64, u64) {
        let head_dim = u64::from(self.head_dim);
        (
            u64::from(self.heads) * head_dim,
            u64::from(self.kv_heads) * head_dim,
        )
    }
}
