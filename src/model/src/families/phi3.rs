//! Phi-3 and Phi-4.

use crate::config::{Architecture, Bias, RopeDefaults};
use crate::family::{FamilyFacts, Mixing, Windows};

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["phi3"],
    mixing: Mixing::Attention(Windows::Always),
    engine: Some(Architecture {
        name: "phi3",
        qkv_bias: Bias::Never,
        output_bias: Bias::Never,
        fused_attention: true,
        fused_feed_forward: true,
        rope: RopeDefaults {
            theta: Some(10_000.0),
            ..RopeDefaults::BASE
        },
        ..Architecture::BASE
    }),
    ..FamilyFacts::BASE
}];
