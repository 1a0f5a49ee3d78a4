//! Llama.

use crate::family::FamilyFacts;
use crate::model::{Architecture, Bias, RopeDefaults};

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["llama"],
    engine: Some(Architecture {
        name: "llama",
        feed_forward_bias: Bias::Stated,
        rope: RopeDefaults {
            theta: Some(10_000.0),
            ..RopeDefaults::BASE
        },
        ..Architecture::BASE
    }),
    ..FamilyFacts::BASE
}];
