//! Qwen 3.5, dense and mixtures of experts.

use crate::config::{Architecture, DefaultRouter, ExpertNames, QueryKeyNorm, RopeDefaults};
use crate::family::{Blocks, Defaults, FamilyFacts, Mixing};

pub(super) const MEMBERS: &[FamilyFacts] = &[
    FamilyFacts {
        model_types: &["qwen3_5", "qwen3_5_text"],
        mixing: Mixing::GatedDelta,
        defaults: Defaults {
            head_dim: Some(256),
            ..Defaults::NONE
        },
        engine: Some(Architecture {
            name: "qwen3_5",
            has_prediction_layers: true,
            query_key_norm: QueryKeyNorm::Head,
            router: DefaultRouter::Softmax { renormalizes: true },
            expert_names: ExpertNames {
                shared: "shared_expert",
                ..ExpertNames::BASE
            },
            rope: RopeDefaults {
                theta: Some(100_000.0),
                share: 0.25,
                ..RopeDefaults::BASE
            },
            ..Architecture::BASE
        }),
        ..FamilyFacts::BASE
    },
    FamilyFacts {
        model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
        mixing: Mixing::GatedDelta,
        blocks: Blocks::Sparse,
        defaults: Defaults {
            head_dim: Some(256),
            ..Defaults::NONE
        },
        engine: Some(Architecture {
            name: "qwen3_5_moe",
            has_prediction_layers: true,
            query_key_norm: QueryKeyNorm::Head,
            router: DefaultRouter::Softmax { renormalizes: true },
            expert_names: ExpertNames {
                shared: "shared_expert",
                ..ExpertNames::BASE
            },
            rope: RopeDefaults {
                theta: Some(100_000.0),
                share: 0.25,
                ..RopeDefaults::BASE
            },
            ..Architecture::BASE
        }),
        ..FamilyFacts::BASE
    },
];
