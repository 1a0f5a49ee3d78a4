//! GLM-4, dense and mixtures of experts.

use crate::config::{Architecture, Bias, BlockNorms, DefaultRouter, QueryKeyNorm, RopeDefaults};
use crate::family::{Blocks, FamilyFacts, Mixing};

pub(super) const MEMBERS: &[FamilyFacts] = &[
    FamilyFacts {
        model_types: &["glm4"],
        engine: Some(Architecture {
            name: "glm4",
            norms: BlockNorms {
                before_attention: Some("input_layernorm"),
                after_attention: Some("post_self_attn_layernorm"),
                before_feed_forward: Some("post_attention_layernorm"),
                after_feed_forward: Some("post_mlp_layernorm"),
            },
            output_bias: Bias::Never,
            fused_feed_forward: true,
            rope: RopeDefaults {
                theta: Some(10_000.0),
                traditional: true,
                share: 0.5,
                ..RopeDefaults::BASE
            },
            ..Architecture::BASE
        }),
        ..FamilyFacts::BASE
    },
    FamilyFacts {
        model_types: &["glm4_moe"],
        blocks: Blocks::AfterDense,
        engine: Some(Architecture {
            name: "glm4_moe",
            has_prediction_layers: true,
            output_bias: Bias::Never,
            query_key_norm: QueryKeyNorm::Head,
            query_key_norm_field: Some("use_qk_norm"),
            router: DefaultRouter::Sigmoid,
            gates_shared_expert: false,
            rope: RopeDefaults {
                theta: Some(10_000.0),
                share: 0.5,
                ..RopeDefaults::BASE
            },
            ..Architecture::BASE
        }),
        ..FamilyFacts::BASE
    },
    FamilyFacts {
        model_types: &["glm4_moe_lite"],
        mixing: Mixing::Latent,
        blocks: Blocks::AfterDense,
        ..FamilyFacts::BASE
    },
];
