//! How the engine computes a family of models, as data: the switches of its blocks.

use std::fmt;

use super::layer::{Activation, ExpertNames, QueryKeyNorm};
use super::rope::RopeDefaults;

/// Everything by which the engine's blocks differ between families.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Architecture {
    /// The `model_type` under which messages list it.
    pub(crate) name: &'static str,
    /// Checkpoints contain layers that predict further tokens, for speculation only.
    pub(crate) predicts: bool,
    pub(crate) norms: BlockNorms,
    /// Value of `rms_norm_eps` if files may omit it.
    pub(crate) rms_norm_eps: Option<f32>,
    pub(crate) norm_adds_one: bool,
    pub(crate) scales_embeddings: bool,
    pub(crate) clips_residuals: bool,
    /// Fields that the engine supports only with the value false.
    pub(crate) only_false: &'static [&'static str],
    /// Fields that the engine supports only with the value null.
    pub(crate) only_null: &'static [&'static str],
    /// Two matrices make all inputs of a gated delta layer, their rows by key head.
    pub(crate) delta_inputs_by_head: bool,
    pub(crate) qkv_bias: Bias,
    pub(crate) output_bias: Bias,
    /// One matrix makes queries, keys and values.
    pub(crate) fused_attention: bool,
    pub(crate) query_key_norm: QueryKeyNorm,
    /// Field that switches the norm of queries and keys on.
    pub(crate) query_key_norm_field: Option<&'static str>,
    /// Default of `query_pre_attn_scalar`, for families that scale scores by it instead of the head
    /// size.
    pub(crate) query_scalar: Option<f32>,
    /// Each head has a score that belongs to no key.
    pub(crate) sinks: bool,
    /// Default of `no_rope_layer_interval`, for families with layers that do not rotate positions
    /// in.
    pub(crate) unrotated_interval: Option<u32>,
    pub(crate) rope: RopeDefaults,
    pub(crate) activation: DefaultActivation,
    /// One matrix makes gate and up of a dense block.
    pub(crate) fused_feed_forward: bool,
    /// Biases of dense blocks, stated in `mlp_bias`.
    pub(crate) feed_forward_bias: Bias,
    /// Router and experts have biases.
    pub(crate) expert_bias: bool,
    pub(crate) router: DefaultRouter,
    pub(crate) expert_names: ExpertNames,
    /// A gate weighs the shared expert.
    pub(crate) gates_shared_expert: bool,
    /// Checkpoints store the experts' gate and up projections in one tensor, row by row in turn
    /// (gpt-oss).
    pub(crate) packs_gate_with_up: bool,
}

/// Whether projections have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    /// As the field says, and none without it.
    Stated,
    Always,
    Never,
}

impl Bias {
    pub(super) fn resolve(self, stated: bool) -> bool {
        match self {
            Self::Stated => stated,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// The one activation that a family uses, and the field that must agree.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DefaultActivation {
    pub(crate) field: &'static str,
    pub(crate) name: &'static str,
    pub(crate) activation: Activation,
}

impl DefaultActivation {
    pub(crate) const SILU: Self = Self {
        field: "hidden_act",
        name: "silu",
        activation: Activation::Silu,
    };
}

/// How a family chooses experts, before the fields of `config.json` are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultRouter {
    ChosenSoftmax,
    Sigmoid,
    Softmax {
        /// Default of `norm_topk_prob`.
        renormalizes: bool,
    },
}

impl Architecture {
    /// The blocks of Llama, with biases as stated and no default of `rope_theta`.
    pub(crate) const BASE: Self = Self {
        name: "",
        predicts: false,
        norms: BlockNorms::BEFORE,
        rms_norm_eps: None,
        norm_adds_one: false,
        scales_embeddings: false,
        clips_residuals: false,
        only_false: &[],
        only_null: &[],
        delta_inputs_by_head: false,
        qkv_bias: Bias::Stated,
        output_bias: Bias::Stated,
        fused_attention: false,
        query_key_norm: QueryKeyNorm::None,
        query_key_norm_field: None,
        query_scalar: None,
        sinks: false,
        unrotated_interval: None,
        rope: RopeDefaults::BASE,
        activation: DefaultActivation::SILU,
        fused_feed_forward: false,
        feed_forward_bias: Bias::Never,
        expert_bias: false,
        router: DefaultRouter::Softmax { renormalizes: false },
        expert_names: ExpertNames::BASE,
        gates_shared_expert: true,
        packs_gate_with_up: false,
    };

    pub fn as_str(&self) -> &'static str {
        self.name
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which norms a block has, by the names of their modules: before attention and feed-forward, and
/// after them, on what is added to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockNorms {
    pub before_attention: Option<&'static str>,
    pub after_attention: Option<&'static str>,
    pub before_feed_forward: Option<&'static str>,
    pub after_feed_forward: Option<&'static str>,
}

impl BlockNorms {
    /// One norm before attention and one before the feed-forward block.
    pub(crate) const BEFORE: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_feed_forward: Some("post_attention_layernorm"),
        after_feed_forward: None,
    };
    /// Norms before and after both.
    pub(crate) const AROUND: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_feed_forward: Some("pre_feedforward_layernorm"),
        after_feed_forward: Some("post_feedforward_layernorm"),
    };

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [
            self.before_attention,
            self.after_attention,
            self.before_feed_forward,
            self.after_feed_forward,
        ]
        .into_iter()
        .flatten()
    }
}
