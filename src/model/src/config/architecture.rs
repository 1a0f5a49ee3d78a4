//! Switches of the engine's blocks for a model family, as data.

use std::fmt;

use super::layer::{Activation, ExpertNames, QueryKeyNorm};
use super::rope::RopeDefaults;

/// Differences between families in the engine's blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Architecture {
    /// `model_type` for messages.
    pub(crate) name: &'static str,
    /// True if checkpoints contain multi-token prediction layers. The engine does not load them.
    pub(crate) has_prediction_layers: bool,
    pub(crate) norms: BlockNorms,
    /// Default of `rms_norm_eps`. `None`: the field is required.
    pub(crate) rms_norm_eps: Option<f32>,
    pub(crate) norm_adds_one: bool,
    pub(crate) scales_embeddings: bool,
    pub(crate) clips_residuals: bool,
    /// Fields that the engine supports only with the value false.
    pub(crate) only_false: &'static [&'static str],
    /// Fields that the engine supports only with the value null.
    pub(crate) only_null: &'static [&'static str],
    /// True if two matrices compute all inputs of a gated delta layer, with rows ordered by key
    /// head.
    pub(crate) delta_inputs_by_head: bool,
    pub(crate) qkv_bias: Bias,
    pub(crate) output_bias: Bias,
    /// True if one matrix computes queries, keys and values.
    pub(crate) fused_attention: bool,
    pub(crate) query_key_norm: QueryKeyNorm,
    /// Boolean field that enables the norm of queries and keys.
    pub(crate) query_key_norm_field: Option<&'static str>,
    /// Default of `query_pre_attn_scalar`, for families that scale scores by this field and not by
    /// the head size.
    pub(crate) query_scalar: Option<f32>,
    /// True if each head has an attention sink: a score without a key.
    pub(crate) sinks: bool,
    /// Default of `no_rope_layer_interval`, for families with layers without rotary embedding.
    pub(crate) unrotated_interval: Option<u32>,
    pub(crate) rope: RopeDefaults,
    pub(crate) activation: DefaultActivation,
    /// True if one matrix computes gate and up of a dense block.
    pub(crate) fused_feed_forward: bool,
    /// Biases of dense blocks; the field is `mlp_bias`.
    pub(crate) feed_forward_bias: Bias,
    /// True if the router and the experts have biases.
    pub(crate) expert_bias: bool,
    pub(crate) router: DefaultRouter,
    pub(crate) expert_names: ExpertNames,
    /// True if a gate scales the output of the shared expert.
    pub(crate) gates_shared_expert: bool,
    /// True if checkpoints store the gate and up projections of the experts in one tensor with
    /// alternating rows (gpt-oss).
    pub(crate) packs_gate_with_up: bool,
}

/// Presence of biases in projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    /// Set by the field of `config.json`; absent by default.
    Stated,
    Always,
    Never,
}

impl Bias {
    pub(super) fn resolve(self, configured: bool) -> bool {
        match self {
            Self::Stated => configured,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Activation of a family, and the `config.json` field that must agree with it.
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

/// Router of a family. Fields of `config.json` complete it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultRouter {
    SelectedSoftmax,
    Sigmoid,
    Softmax {
        /// Default of `norm_topk_prob`.
        renormalizes: bool,
    },
}

impl Architecture {
    /// Blocks of Llama, with biases set by `config.json` and no default of `rope_theta`.
    pub(crate) const BASE: Self = Self {
        name: "",
        has_prediction_layers: false,
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

/// Norms of a layer, as names of modules: before attention and feed-forward block, and after them
/// on their output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockNorms {
    pub before_attention: Option<&'static str>,
    pub after_attention: Option<&'static str>,
    pub before_feed_forward: Option<&'static str>,
    pub after_feed_forward: Option<&'static str>,
}

impl BlockNorms {
    /// Norms before attention and before the feed-forward block.
    pub(crate) const BEFORE: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_feed_forward: Some("post_attention_layernorm"),
        after_feed_forward: None,
    };
    /// Norms before and after attention and feed-forward block.
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
