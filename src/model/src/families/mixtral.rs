//! Mixtral.

use crate::family::{Blocks, FamilyFacts};

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["mixtral"],
    blocks: Blocks::Routed,
    ..FamilyFacts::BASE
}];
