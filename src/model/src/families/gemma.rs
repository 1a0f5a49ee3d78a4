//! Gemma 1 and 2.

use crate::family::{FamilyFacts, Mixing, Windows};

pub(super) const MEMBERS: &[FamilyFacts] = &[
    FamilyFacts {
        model_types: &["gemma"],
        tied: true,
        ..FamilyFacts::BASE
    },
    FamilyFacts {
        model_types: &["gemma2"],
        mixing: Mixing::Attention(Windows::ExceptEvery(2)),
        tied: true,
        ..FamilyFacts::BASE
    },
];
