//! gpt-oss.

use crate::config::{
    Activation, Architecture, Bias, DefaultActivation, DefaultRouter, ExpertNames, RopeDefaults,
};
use crate::family::{Blocks, FamilyFacts, Mixing, Windows};

pub(super) const MEMBERS: &[FamilyFacts] = &[FamilyFacts {
    model_types: &["gpt_oss"],
    mixing: Mixing::Attention(Windows::ExceptEvery(2)),
    blocks: Blocks::Routed,
    engine: Some(Architecture {
        name: "gpt_oss",
        // Published files set `attention_bias`; the configuration class assumes it.
        qkv_bias: Bias::Always,
        output_bias: Bias::Always,
        sinks: true,
        expert_bias: true,
        router: DefaultRouter::SelectedSoftmax,
        expert_names: ExpertNames {
            router: "router",
            experts: "experts",
            shared: "shared_experts",
        },
        activation: DefaultActivation {
            activation: Activation::ClampedSilu { limit: 7.0 },
            ..DefaultActivation::SILU
        },
        packs_gate_with_up: true,
        rope: RopeDefaults {
            theta: Some(150_000.0),
            ..RopeDefaults::BASE
        },
        ..Architecture::BASE
    }),
    ..FamilyFacts::BASE
}];
