//! Gemma 4.

use crate::family::{Blocks, Defaults, FamilyFacts, Mixing, Windows};

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["gemma4", "gemma4_text"],
    mixing: Mixing::Attention(Windows::ExceptEvery(6)),
    blocks: Blocks::DensePlusExperts,
    tied: true,
    defaults: Defaults {
        heads: Some(8),
        kv_heads: Some(1),
        head_dim: Some(256),
        vocabulary: Some(262_144),
        window: Some(512),
        context: Some(131_072),
    },
    ..FamilyFacts::BASE
}];
