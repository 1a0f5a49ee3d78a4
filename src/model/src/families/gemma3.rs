//! Gemma 3. Files omit fields that equal the default of the configuration class; the 4B model omits
//! all of them.

use crate::config::{Activation, Architecture, BlockNorms, DefaultActivation, QueryKeyNorm, RopeDefaults};
use crate::family::{Defaults, FamilyFacts, Mixing, Windows};

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["gemma3", "gemma3_text"],
    mixing: Mixing::Attention(Windows::ExceptEvery(6)),
    tied: true,
    defaults: Defaults {
        heads: Some(8),
        kv_heads: Some(4),
        head_dim: Some(256),
        vocabulary: Some(262_208),
        window: Some(4096),
        context: Some(131_072),
    },
    engine: Some(Architecture {
        name: "gemma3_text",
        norms: BlockNorms::AROUND,
        rms_norm_eps: Some(1e-6),
        norm_adds_one: true,
        scales_embeddings: true,
        clips_residuals: true,
        only_false: &["use_bidirectional_attention"],
        only_null: &["final_logit_softcapping", "attn_logit_softcapping"],
        query_key_norm: QueryKeyNorm::Head,
        query_scalar: Some(256.0),
        activation: DefaultActivation {
            field: "hidden_activation",
            name: "gelu_pytorch_tanh",
            activation: Activation::GeluTanh,
        },
        rope: RopeDefaults {
            theta: Some(1_000_000.0),
            local_theta: Some(10_000.0),
            ..RopeDefaults::BASE
        },
        ..Architecture::BASE
    }),
    ..FamilyFacts::BASE
}];
