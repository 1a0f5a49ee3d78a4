//! Widths of prediction intervals, as logarithms, from rows that were held out of the fit. The slow
//! and the fast side have separate widths, because unknown influences rather slow a machine down.

use serde::{Deserialize, Serialize};

use super::build::EngineBuild;
use super::parameters::DecodeParameters;
use super::step_work::StepWork;
use super::{Engine, Interval};
use crate::chip::{ChipTier, ChipVariant};

/// Limit of active parameters, in 10⁹, below which launches dominate and errors are larger.
const SMALL_MODEL_BILLIONS: f64 = 2.5;

/// First context length, in tokens, of the stratum [`Stratum::Long`]. Attention has a large share of
/// the time from here on.
const LONG_CONTEXT_TOKENS: u32 = 8_000;
/// First prompt length with the width of long prompts. Shorter prompts mostly consist of fixed
/// costs, which differ between programs.
const LONG_PROMPT_TOKENS: f64 = 256.0;
/// Additional width of the slow side for architectures with few rows (latent attention). The value
/// is an assumption.
const RARE_ARCHITECTURE: f64 = 0.15;

/// Distances from the prediction that contain 80 % of the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spreads {
    pub dense: ByFamiliarity,
    pub small: ByFamiliarity,
    pub experts: ByFamiliarity,
    pub long: ByFamiliarity,
    pub batched: ByFamiliarity,
    pub prefill: ByFamiliarity,
    pub short_prompts: ByFamiliarity,
    /// Tiers without any row.
    pub unmeasured: Unmeasured,
}

/// Tiers without measurements, by engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Unmeasured {
    pub mlx: Vec<ChipTier>,
    pub llama_cpp: Vec<ChipTier>,
}

impl Unmeasured {
    fn contains(&self, engine: Engine, tier: ChipTier) -> bool {
        match engine {
            Engine::Mlx => self.mlx.contains(&tier),
            Engine::LlamaCpp => self.llama_cpp.contains(&tier),
        }
    }
}

/// Distances of the tenth percentile of speed (slow) and of the ninetieth (fast) from the median, as
/// logarithms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sides {
    pub slow: f64,
    pub fast: f64,
}

impl Sides {
    /// Returns the larger of both widths on each side.
    pub fn max(self, other: Self) -> Self {
        Self {
            slow: self.slow.max(other.slow),
            fast: self.fast.max(other.fast),
        }
    }

    /// Returns whether the interval contains a figure at ln(measured / predicted) of speed.
    pub fn contain(self, error: f64) -> bool {
        (-self.slow..=self.fast).contains(&error)
    }

    /// Returns the interval around the median of a rate.
    pub(super) fn around_rate(self, rate: f64) -> Interval {
        Interval::around(rate, self.slow, self.fast)
    }
}

/// Widths by what was measured: the bin, the release, or neither.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ByFamiliarity {
    pub both: Sides,
    pub release_only: Sides,
    pub neither: Sides,
    #[serde(rename = "strange")]
    pub unmeasured_tier: Sides,
}

/// Measured parts of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Familiarity {
    Both,
    ReleaseOnly,
    /// The release was not measured. A measured bin then has little value, because releases differ
    /// as much as bins.
    Neither,
    /// No chip of this tier was measured with this engine.
    UnmeasuredTier,
}

/// Kinds of work with different errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stratum {
    Dense,
    Small,
    Experts,
    /// Long contexts of all architectures.
    Long,
    Batched,
}

impl Stratum {
    pub const ALL: [Self; 5] = [Self::Dense, Self::Small, Self::Experts, Self::Long, Self::Batched];

    pub fn of(work: &StepWork) -> Self {
        if work.batch > 1.0 {
            Self::Batched
        } else if work.context_tokens >= f64::from(LONG_CONTEXT_TOKENS) {
            Self::Long
        } else if work.expert_layers > 0.0 {
            Self::Experts
        } else if work.active_billions < SMALL_MODEL_BILLIONS {
            Self::Small
        } else {
            Self::Dense
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Small => "dense below 2.5B",
            Self::Experts => "experts",
            Self::Long => "context from 8,000 tokens",
            Self::Batched => "batch > 1",
        }
    }
}

impl Familiarity {
    pub const ALL: [Self; 4] = [Self::Both, Self::ReleaseOnly, Self::Neither, Self::UnmeasuredTier];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Both => "bin and release known",
            Self::ReleaseOnly => "release known",
            Self::Neither => "neither known",
            Self::UnmeasuredTier => "tier never measured",
        }
    }

    pub fn of(
        parameters: &DecodeParameters,
        unmeasured: &Unmeasured,
        chip: &ChipVariant,
        build: &EngineBuild,
    ) -> Self {
        if unmeasured.contains(build.engine, chip.tier) {
            return Self::UnmeasuredTier;
        }
        let release = build
            .release
            .as_ref()
            .is_some_and(|release| parameters.releases.contains_key(release));
        let bin = parameters.bin(chip).is_some();
        match (release, bin) {
            (true, true) => Self::Both,
            (true, false) => Self::ReleaseOnly,
            (false, _) => Self::Neither,
        }
    }
}

impl ByFamiliarity {
    pub fn of(&self, familiarity: Familiarity) -> Sides {
        match familiarity {
            Familiarity::Both => self.both,
            Familiarity::ReleaseOnly => self.release_only,
            Familiarity::Neither => self.neither,
            Familiarity::UnmeasuredTier => self.unmeasured_tier,
        }
    }
}

impl Spreads {
    pub fn stratum(&self, stratum: Stratum) -> &ByFamiliarity {
        match stratum {
            Stratum::Dense => &self.dense,
            Stratum::Small => &self.small,
            Stratum::Experts => &self.experts,
            Stratum::Long => &self.long,
            Stratum::Batched => &self.batched,
        }
    }

    pub(super) fn decode(
        &self,
        parameters: &DecodeParameters,
        work: &StepWork,
        chip: &ChipVariant,
        build: &EngineBuild,
    ) -> Sides {
        let familiarity = Familiarity::of(parameters, &self.unmeasured, chip, build);
        let sides = self.stratum(Stratum::of(work)).of(familiarity);
        if work.latent_layers > 0.0 {
            Sides {
                slow: sides.slow.hypot(RARE_ARCHITECTURE),
                ..sides
            }
        } else {
            sides
        }
    }

    /// Returns the widths of prompts with this number of tokens that are not cached.
    pub fn prompts(&self, tokens: f64) -> &ByFamiliarity {
        if is_short_prompt(tokens) {
            &self.short_prompts
        } else {
            &self.prefill
        }
    }

    pub(super) fn prefill(
        &self,
        parameters: &DecodeParameters,
        tokens: f64,
        chip: &ChipVariant,
        build: &EngineBuild,
    ) -> Sides {
        self.prompts(tokens)
            .of(Familiarity::of(parameters, &self.unmeasured, chip, build))
    }
}

/// Returns whether the fixed costs of a prompt have a large share of its time.
pub fn is_short_prompt(tokens: f64) -> bool {
    tokens < LONG_PROMPT_TOKENS
}
