//! Qwen 3.

use crate::config::{Architecture, QueryKeyNorm};
use crate::family::{Blocks, FamilyFacts, Mixing, Windows};

pub(super) const MEMBERS: &[FamilyFacts] = &[
    FamilyFacts {
        model_types: &["qwen3"],
        mixing: Mixing::Attention(Windows::Upper),
        engine: Some(Architecture {
            name: "qwen3",
            query_key_norm: QueryKeyNorm::Head,
            ..Architecture::BASE
        }),
        ..FamilyFacts::BASE
    },
    FamilyFacts {
        model_types: &["qwen3_moe"],
        mixing: Mixing::Attention(Windows::Upper),
        blocks: Blocks::Sparse,
        engine: Some(Architecture {
            name: "qwen3_moe",
            query_key_norm: QueryKeyNorm::Head,
            ..Architecture::BASE
        }),
        ..FamilyFacts::BASE
    },
];
