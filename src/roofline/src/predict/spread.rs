//! Half-widths of prediction intervals, as logarithms, from rows that were held out of the fit.

use serde::{Deserialize, Serialize};

use super::Engine;
use super::build::EngineBuild;
use super::parameters::DecodeParameters;
use super::step_work::StepWork;
use crate::chip::{ChipTier, ChipVariant};

/// Limit of active parameters, in 10⁹, below which launches dominate and errors are larger.
const SMALL_MODEL_BILLIONS: f64 = 2.5;

/// Distances from the prediction that contain 80 % of the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spreads {
    pub dense: ByFamiliarity,
    pub small: ByFamiliarity,
    pub experts: ByFamiliarity,
    pub batched: ByFamiliarity,
    pub prefill: ByFamiliarity,
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

/// Half-widths by what was measured: the bin, the release, or neither.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ByFamiliarity {
    pub both: f64,
    pub release_only: f64,
    pub neither: f64,
    #[serde(rename = "strange")]
    pub unmeasured_tier: f64,
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
    Batched,
}

impl Stratum {
    pub const ALL: [Self; 4] = [Self::Dense, Self::Small, Self::Experts, Self::Batched];

    pub fn of(work: &StepWork) -> Self {
        if work.batch > 1.0 {
            Self::Batched
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
    pub fn of(&self, familiarity: Familiarity) -> f64 {
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
            Stratum::Batched => &self.batched,
        }
    }

    pub(super) fn decode(
        &self,
        parameters: &DecodeParameters,
        work: &StepWork,
        chip: &ChipVariant,
        build: &EngineBuild,
    ) -> f64 {
        self.stratum(Stratum::of(work))
            .of(Familiarity::of(parameters, &self.unmeasured, chip, build))
    }

    pub(super) fn prefill(
        &self,
        parameters: &DecodeParameters,
        chip: &ChipVariant,
        build: &EngineBuild,
    ) -> f64 {
        self.prefill
            .of(Familiarity::of(parameters, &self.unmeasured, chip, build))
    }
}
