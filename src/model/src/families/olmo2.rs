//! OLMo 2.

use crate::config::{Architecture, BlockNorms, QueryKeyNorm, RopeDefaults};
use crate::family::FamilyFacts;

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["olmo2"],
    engine: Some(Architecture {
        name: "olmo2",
        norms: BlockNorms {
            before_attention: None,
            after_attention: Some("post_attention_layernorm"),
            before_feed_forward: None,
            after_feed_forward: Some("post_feedforward_layernorm"),
        },
        query_key_norm: QueryKeyNorm::Full,
        rope: RopeDefaults {
            theta: Some(10_000.0),
            ..RopeDefaults::BASE
        },
        ..Architecture::BASE
    }),
    ..FamilyFacts::BASE
}];
