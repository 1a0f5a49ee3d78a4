//! Qwen 2 and 2.5.

use crate::config::{Architecture, Bias};
use crate::family::{Blocks, FamilyFacts, Mixing, Windows};

pub(super) const MEMBERS: &[FamilyFacts] = &[
    FamilyFacts {
        model_types: &["qwen2"],
        mixing: Mixing::Attention(Windows::Upper),
        engine: Some(Architecture {
            name: "qwen2",
            // Always present. `config.json` has no field for these biases.
            qkv_bias: Bias::Always,
            output_bias: Bias::Never,
            ..Architecture::BASE
        }),
        ..FamilyFacts::BASE
    },
    FamilyFacts {
        model_types: &["qwen2_moe"],
        mixing: Mixing::Attention(Windows::Upper),
        blocks: Blocks::Sparse,
        ..FamilyFacts::BASE
    },
];
