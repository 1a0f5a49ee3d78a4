//! DeepSeek V2 and V3, and Kimi K2 with the architecture of DeepSeek V3.

use crate::family::{Blocks, FamilyFacts, Mixing};

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["deepseek_v2", "deepseek_v3", "kimi_k2"],
    mixing: Mixing::Latent,
    blocks: Blocks::AfterDense,
    ..FamilyFacts::BASE
}];
