//! One decoder layer as the engine computes it: blocks with switches, set by `config.json`.

use super::rope::Rope;

/// One decoder layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerConfig {
    pub(crate) attention: AttentionConfig,
    pub(crate) feed_forward: FeedForwardConfig,
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

/// A dense gated block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FeedForwardConfig {
    pub(crate) intermediate: u32,
    pub(crate) activation: Activation,
    /// One matrix makes gate and up.
    pub(crate) fused: bool,
    pub(crate) bias: bool,
}

/// What the gate goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    /// GELU in its tanh approximation.
    GeluTanh,
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
