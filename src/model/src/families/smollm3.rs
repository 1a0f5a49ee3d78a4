//! SmolLM3.

use crate::config::{Architecture, Bias};
use crate::family::{FamilyFacts, Mixing, Windows};

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["smollm3"],
    mixing: Mixing::Attention(Windows::Upper),
    tied: true,
    engine: Some(Architecture {
        name: "smollm3",
        feed_forward_bias: Bias::Stated,
        unrotated_interval: Some(4),
        ..Architecture::BASE
    }),
    ..FamilyFacts::BASE
}];
