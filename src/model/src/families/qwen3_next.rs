//! Qwen3-Next.

use crate::config::{Architecture, ExpertNames, QueryKeyNorm, RopeDefaults};
use crate::family::{Blocks, Defaults, FamilyFacts, Mixing};

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["qwen3_next"],
    mixing: Mixing::GatedDelta,
    blocks: Blocks::Sparse,
    defaults: Defaults {
        head_dim: Some(256),
        ..Defaults::NONE
    },
    engine: Some(Architecture {
        name: "qwen3_next",
        has_prediction_layers: true,
        delta_inputs_by_head: true,
        query_key_norm: QueryKeyNorm::Head,
        expert_names: ExpertNames {
            shared: "shared_expert",
            ..ExpertNames::BASE
        },
        rope: RopeDefaults {
            share: 0.25,
            ..RopeDefaults::BASE
        },
        ..Architecture::BASE
    }),
    ..FamilyFacts::BASE
}];
