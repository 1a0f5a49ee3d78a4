//! Facts about a model family, as data: the format of its `config.json`, and the switches of the
//! engine's blocks.
//!
//! Field names and defaults follow published `config.json` files and the configuration classes that
//! write them (transformers 4.57 to 5, mlx-lm 0.32).

use crate::config::Architecture;

/// Models whose `config.json` has the same format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FamilyFacts {
    /// Values of `model_type` in `config.json`.
    pub(crate) model_types: &'static [&'static str],
    /// Attention kind, which determines the layout of the KV cache.
    pub(crate) mixing: Mixing,
    pub(crate) blocks: Blocks,
    /// Default of `tie_word_embeddings`: the output head is the embedding table.
    pub(crate) tied: bool,
    pub(crate) defaults: Defaults,
    /// Switches of the engine's blocks. `None`: the engine does not run the family, and rooflet
    /// only estimates its size.
    pub(crate) engine: Option<Architecture>,
}

impl FamilyFacts {
    /// Full attention in every layer, dense blocks, an untied head, no defaults and no engine
    /// support.
    pub(crate) const BASE: Self = Self {
        model_types: &[],
        mixing: Mixing::Attention(Windows::Never),
        blocks: Blocks::Dense,
        tied: false,
        defaults: Defaults::NONE,
        engine: None,
    };

    /// Returns whether full-attention layers gate their output.
    pub(crate) fn output_gate(&self) -> bool {
        self.mixing == Mixing::GatedDelta
    }
}

/// Token mixer of a family's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mixing {
    /// Softmax attention in every layer. `layer_types` may define a window for some layers.
    Attention(Windows),
    /// Multi-head latent attention.
    Latent,
    /// Softmax attention in every `full_attention_interval`-th layer, gated delta layers elsewhere.
    GatedDelta,
}

/// Layers with a sliding window, if the file has no `layer_types`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    /// No layer.
    Never,
    /// All layers, if `sliding_window` is set.
    Always,
    /// Layers from `max_window_layers` on, if `use_sliding_window` is true.
    Upper,
    /// All layers except every n-th. `sliding_window_pattern` overrides n.
    ExceptEvery(u32),
}

/// Feed-forward blocks of a family's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocks {
    Dense,
    /// Experts of width `intermediate_size` in every layer.
    Routed,
    /// Experts in the layers that `decoder_sparse_step` and `mlp_only_layers` select; no experts if
    /// their number is 0. One shared expert if the file has its width.
    Sparse,
    /// Experts in the layers from `first_k_dense_replace` on, with `n_shared_experts` shared
    /// experts of the same width.
    AfterDense,
    /// A dense block in every layer, plus experts if `enable_moe_block` is true.
    DensePlusExperts,
}

/// Default values of fields that published files of a family omit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Defaults {
    pub(crate) heads: Option<u32>,
    pub(crate) kv_heads: Option<u32>,
    pub(crate) head_dim: Option<u32>,
    pub(crate) vocabulary: Option<u32>,
    pub(crate) window: Option<u32>,
    pub(crate) context: Option<u32>,
}

impl Defaults {
    pub(crate) const NONE: Self = Self {
        heads: None,
        kv_heads: None,
        head_dim: None,
        vocabulary: None,
        window: None,
        context: None,
    };
}
