//! Granite.

use crate::family::FamilyFacts;

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["granite"],
    ..FamilyFacts::BASE
}];
