//! The families of models whose dimensions can be read from `config.json`: one row per `model_type`, with how its layers
//! attend and transform, and the defaults that published files leave out.
//!
//! Field names and defaults are those of the published `config.json` files and of the configuration classes that write
//! them (transformers 4.57 to 5, mlx-lm 0.32).

/// A `model_type` and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    pub model_type: &'static str,
    pub(super) mixing: Mixing,
    pub(super) blocks: Blocks,
    /// Whether the head is the embedding table where the file does not say.
    pub(super) tied: bool,
    pub(super) defaults: Defaults,
}

/// How the layers of a family mix tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mixing {
    /// Softmax attention in every layer; `layer_types` may give some a window.
    Attention(Windows),
    /// Multi-head latent attention.
    Latent,
    /// Every `full_attention_interval`-th layer attends, the others are gated delta layers.
    GatedDelta,
}

/// Which layers of a family have a window where `layer_types` does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
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
pub(super) enum Blocks {
    Dense,
    /// Every layer routes, with experts of `intermediate_size`.
    Routed,
    /// Layers by `decoder_sparse_step` and `mlp_only_layers` route, none where there are 0 experts, with one shared
    /// expert where there is a size for it.
    Sparse,
    /// Layers from `first_k_dense_replace` on route, with `n_shared_experts` of the experts' size.
    AfterDense,
    /// Every layer has a dense block and, beside it, experts where `enable_moe_block` is true.
    Beside,
}

/// Values of fields that published files of a family leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Defaults {
    pub(super) heads: Option<u32>,
    pub(super) kv_heads: Option<u32>,
    pub(super) head_dim: Option<u32>,
    pub(super) vocabulary: Option<u32>,
    pub(super) window: Option<u32>,
    pub(super) context: Option<u32>,
}

const NONE: Defaults = Defaults {
    heads: None,
    kv_heads: None,
    head_dim: None,
    vocabulary: None,
    window: None,
    context: None,
};

/// Gemma 3 files name only what differs from these (the 4B model has them all).
const GEMMA_3: Defaults = Defaults {
    heads: Some(8),
    kv_heads: Some(4),
    head_dim: Some(256),
    vocabulary: Some(262_208),
    window: Some(4096),
    context: Some(131_072),
};

const GEMMA_4: Defaults = Defaults {
    heads: Some(8),
    kv_heads: Some(1),
    head_dim: Some(256),
    vocabulary: Some(262_144),
    window: Some(512),
    context: Some(131_072),
};

const QWEN_3_5: Defaults = Defaults {
    head_dim: Some(256),
    ..NONE
};

const FULL: Mixing = Mixing::Attention(Windows::Never);

const fn row(model_type: &'static str, mixing: Mixing, blocks: Blocks) -> Family {
    Family {
        model_type,
        mixing,
        blocks,
        tied: false,
        defaults: NONE,
    }
}

const fn tied(row: Family, defaults: Defaults) -> Family {
    Family {
        tied: true,
        defaults,
        ..row
    }
}

const fn with(row: Family, defaults: Defaults) -> Family {
    Family { defaults, ..row }
}

/// Sorted by name.
const FAMILIES: &[Family] = &[
    row("deepseek_v2", Mixing::Latent, Blocks::AfterDense),
    row("deepseek_v3", Mixing::Latent, Blocks::AfterDense),
    tied(row("gemma", FULL, Blocks::Dense), NONE),
    tied(
        row("gemma2", Mixing::Attention(Windows::AllBut(2)), Blocks::Dense),
        NONE,
    ),
    tied(
        row("gemma3", Mixing::Attention(Windows::AllBut(6)), Blocks::Dense),
        GEMMA_3,
    ),
    tied(
        row(
            "gemma3_text",
            Mixing::Attention(Windows::AllBut(6)),
            Blocks::Dense,
        ),
        GEMMA_3,
    ),
    tied(
        row("gemma4", Mixing::Attention(Windows::AllBut(6)), Blocks::Beside),
        GEMMA_4,
    ),
    tied(
        row(
            "gemma4_text",
            Mixing::Attention(Windows::AllBut(6)),
            Blocks::Beside,
        ),
        GEMMA_4,
    ),
    row("glm4", FULL, Blocks::Dense),
    row("glm4_moe", FULL, Blocks::AfterDense),
    row("glm4_moe_lite", Mixing::Latent, Blocks::AfterDense),
    row("gpt_oss", Mixing::Attention(Windows::AllBut(2)), Blocks::Routed),
    row("granite", FULL, Blocks::Dense),
    row("kimi_k2", Mixing::Latent, Blocks::AfterDense),
    row("llama", FULL, Blocks::Dense),
    row("ministral3", FULL, Blocks::Dense),
    row("mistral", Mixing::Attention(Windows::Always), Blocks::Dense),
    row("mistral3", Mixing::Attention(Windows::Always), Blocks::Dense),
    row("mixtral", FULL, Blocks::Routed),
    row("olmo2", FULL, Blocks::Dense),
    row("phi3", Mixing::Attention(Windows::Always), Blocks::Dense),
    row("qwen2", Mixing::Attention(Windows::Upper), Blocks::Dense),
    row("qwen2_moe", Mixing::Attention(Windows::Upper), Blocks::Sparse),
    row("qwen3", Mixing::Attention(Windows::Upper), Blocks::Dense),
    with(row("qwen3_5", Mixing::GatedDelta, Blocks::Dense), QWEN_3_5),
    with(row("qwen3_5_moe", Mixing::GatedDelta, Blocks::Sparse), QWEN_3_5),
    with(
        row("qwen3_5_moe_text", Mixing::GatedDelta, Blocks::Sparse),
        QWEN_3_5,
    ),
    with(row("qwen3_5_text", Mixing::GatedDelta, Blocks::Dense), QWEN_3_5),
    row("qwen3_moe", Mixing::Attention(Windows::Upper), Blocks::Sparse),
    with(row("qwen3_next", Mixing::GatedDelta, Blocks::Sparse), QWEN_3_5),
    tied(
        row("smollm3", Mixing::Attention(Windows::Upper), Blocks::Dense),
        NONE,
    ),
];

impl Family {
    pub fn find(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.model_type == model_type)
    }

    /// All of them, for messages.
    pub fn names() -> String {
        FAMILIES
            .iter()
            .map(|family| family.model_type)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Whether a full-attention layer gates its output.
    pub(super) fn output_gate(&self) -> bool {
        self.mixing == Mixing::GatedDelta
    }
}
