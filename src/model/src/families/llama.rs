//! Llama.

use crate::config::{Architecture, Bias, RopeDefaults};
use crate::family::FamilyFacts;

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
