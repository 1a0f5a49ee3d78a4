//! Mistral and Ministral.

use crate::config::{Architecture, Bias, RopeDefaults};
use crate::family::{FamilyFacts, Mixing, Windows};

pub(super) const MEMBERS: &[FamilyFacts] = &[
    FamilyFacts {
        model_types: &["ministral3"],
        ..FamilyFacts::BASE
    },
    FamilyFacts {
        model_types: &["mistral"],
        mixing: Mixing::Attention(Windows::Always),
        engine: Some(Architecture {
            name: "mistral",
            feed_forward_bias: Bias::Stated,
            rope: RopeDefaults {
                theta: Some(10_000.0),
                ..RopeDefaults::BASE
            },
            ..Architecture::BASE
        }),
        ..FamilyFacts::BASE
    },
    FamilyFacts {
        model_types: &["mistral3"],
        mixing: Mixing::Attention(Windows::Always),
        ..FamilyFacts::BASE
    },
];
