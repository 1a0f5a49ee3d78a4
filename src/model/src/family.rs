//! Facts about a family of models, as data: how to read its `config.json`, and how the engine
//! computes it.
//!
//! Field names and defaults are those of the published `config.json` files and of the configuration
//! classes that write them (transformers 4.57 to 5, mlx-lm 0.32).

use crate::config::Architecture;

/// Models whose `config.json` is read the same way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FamilyFacts {
    /// Values of `model_type` in `config.json`.
    pub(crate) model_types: &'static [&'static str],
    /// Attention kind, which decides the layout of the KV cache.
    pub(crate) mixing: Mixing,
    pub(crate) blocks: Blocks,
    /// Whether the output head is the embedding table if `config.json` omits `tie_word_embeddings`.
    pub(crate) tied: bool,
    pub(crate) defaults: Defaults,
    /// How the engine computes the family. `None`: the engine does not run it, and only its size is
    /// estimated.
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

    /// Whether a full-attention layer gates its output.
    pub(crate) fn output_gate(&self) -> bool {
        self.mixing == Mixing::GatedDelta
    }
}

/// How the layers of a family mix tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mixing {
    /// Softmax attention in every layer; `layer_types` may give some a window.
    Attention(Windows),
    /// Multi-head latent attention.
    Latent,
    /// Every `full_attention_interval`-th layer attends, the others are gated delta layers.
    GatedDelta,
}

/// Which layers of a family have a window where `layer_types` does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    /// None of them.
    Never,
    /// All of them, if `sliding_window` is set.
    Always,
    /// Those from `max_window_layers` on, if `use_sliding_window` is true.
    Upper,
    /// All but every so-manieth; `sliding_window_pattern` may say another number.
    AllBut(u32),
}

/// How the layers of a family transform each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocks {
    Dense,
    /// Every layer routes, with experts of `intermediate_size`.
    Routed,
    /// Layers by `decoder_sparse_step` and `mlp_only_layers` route, none where there are 0 experts,
    /// with one shared expert where there is a size for it.
    Sparse,
    /// Layers from `first_k_dense_replace` on route, with `n_shared_experts` of the experts' size.
    AfterDense,
    /// Every layer has a dense block and, beside it, experts where `enable_moe_block` is true.
    Beside,
}

/// Values of fields that published files of a family leave out.
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
