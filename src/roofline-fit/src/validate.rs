//! Cross-validation: every chip, model, release and tier is held out once, and its rows are
//! predicted from the others.

use serde_json::Value;

use super::rows::Measurement;
use super::{Constants, constants, reported_step};
use rooflet_base::quantile::{quantile, sorted};
use rooflet_roofline::chip::ChipTier;
use rooflet_roofline::predict::Engine;
use rooflet_roofline::predict::spread::{ByFamiliarity, Familiarity, Spreads, Stratum, Unmeasured};

/// Share of rows inside an interval from the tenth to the ninetieth percentile.
const INTERVAL_SHARE: f64 = 0.8;
/// Minimum rows of one familiarity; with fewer, the rows of all familiarities are used.
const ENOUGH_ROWS: usize = 10;
/// Half-width without any row.
const WIDEST_GUESS: f64 = 0.4;

/// Rows that are held out of a fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldOut {
    Chip,
    Model,
    Release,
    /// All chips of a tier with one engine.
    Tier,
}

impl HeldOut {
    pub(super) const ALL: [Self; 4] = [Self::Chip, Self::Model, Self::Release, Self::Tier];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Chip => "chip",
            Self::Model => "model",
            Self::Release => "release",
            Self::Tier => "tier",
        }
    }

    fn key(self, row: &Measurement) -> String {
        match self {
            Self::Chip => row.chip().name.clone(),
            Self::Model => row.model.clone(),
            Self::Release => row.case.build.release().unwrap_or_default().to_owned(),
            Self::Tier => format!("{:?} with {}", row.chip().tier, row.case.build.engine),
        }
    }
}

/// Row that is predicted from others.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prediction {
    pub(super) held_out: HeldOut,
    /// Index of the row.
    pub(super) row: usize,
    pub(super) fold: String,
    pub(super) stratum: Stratum,
    pub(super) familiarity: Familiarity,
    /// ln(predicted / measured), of rates for decode and of times for prefill.
    pub(super) decode_error: Option<f64>,
    pub(super) prefill_error: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Validation {
    pub(super) predictions: Vec<Prediction>,
    unmeasured: Unmeasured,
}

impl Validation {
    pub(super) fn new(rows: &[Measurement], priors: &Value, all: &Constants) -> Self {
        let mut predictions = Vec::new();
        for held_out in HeldOut::ALL {
            let mut folds: Vec<String> = rows.iter().map(|row| held_out.key(row)).collect();
            folds.sort();
            folds.dedup();
            for fold in folds {
                let train: Vec<&Measurement> = rows.iter().filter(|row| held_out.key(row) != fold).collect();
                let constants = constants(&train, priors, Some(all));
                let unmeasured = unmeasured(&train);
                let tested = rows
                    .iter()
                    .enumerate()
                    .filter(|(_, row)| held_out.key(row) == fold);
                predictions.extend(tested.map(|(index, row)| Prediction {
                    held_out,
                    row: index,
                    fold: fold.clone(),
                    stratum: Stratum::of(&row.step),
                    familiarity: Familiarity::of(&constants.decode, &unmeasured, row.chip(), &row.case.build),
                    decode_error: decode_error(&constants, row),
                    prefill_error: prefill_error(&constants, row),
                }));
            }
        }
        let all: Vec<&Measurement> = rows.iter().collect();
        Self {
            predictions,
            unmeasured: unmeasured(&all),
        }
    }

    /// Returns the half-widths that contain [`INTERVAL_SHARE`] of the rows.
    pub(super) fn spreads(&self) -> Spreads {
        self.spreads_without_fold("")
    }

    /// Returns the half-widths from all folds except prediction.
    fn spreads_without_fold(&self, fold: &str) -> Spreads {
        let errors = |familiarity: Option<Familiarity>, stratum: Stratum| {
            self.predictions
                .iter()
                .filter(|prediction| prediction.fold != fold && prediction.stratum == stratum)
                .filter(|prediction| {
                    familiarity.is_none_or(|familiarity| is_representative(prediction, familiarity))
                })
                .filter_map(|prediction| prediction.decode_error)
                .collect::<Vec<f64>>()
        };
        let stratum = |stratum: Stratum| {
            by_familiarity(|familiarity| {
                let own = errors(Some(familiarity), stratum);
                let own = if own.len() < ENOUGH_ROWS {
                    errors(None, stratum)
                } else {
                    own
                };
                half_width(own).unwrap_or(WIDEST_GUESS)
            })
        };
        let prefill = by_familiarity(|familiarity| {
            let errors = self
                .predictions
                .iter()
                .filter(|prediction| prediction.fold != fold && is_representative(prediction, familiarity))
                .filter_map(|prediction| prediction.prefill_error)
                .collect();
            half_width(errors).unwrap_or(WIDEST_GUESS)
        });
        Spreads {
            dense: stratum(Stratum::Dense),
            small: stratum(Stratum::Small),
            experts: stratum(Stratum::Experts),
            batched: stratum(Stratum::Batched),
            prefill,
            unmeasured: self.unmeasured.clone(),
        }
    }

    /// Returns the number of rows inside intervals of the other folds, and the number of rows.
    pub(super) fn coverage(&self, familiarity: Familiarity, stratum: Stratum) -> (usize, usize) {
        let error =
            |prediction: &Prediction| prediction.decode_error.filter(|_| prediction.stratum == stratum);
        self.inside(familiarity, error, |spreads| *spreads.stratum(stratum))
    }

    /// Returns the same numbers for the time to first token.
    pub(super) fn prefill_coverage(&self, familiarity: Familiarity) -> (usize, usize) {
        self.inside(
            familiarity,
            |prediction| prediction.prefill_error,
            |spreads| spreads.prefill,
        )
    }

    fn inside(
        &self,
        familiarity: Familiarity,
        error: impl Fn(&Prediction) -> Option<f64>,
        width: impl Fn(&Spreads) -> ByFamiliarity,
    ) -> (usize, usize) {
        let (mut inside, mut all) = (0, 0);
        let mut known: Option<(&str, Spreads)> = None;
        for prediction in &self.predictions {
            let Some(error) = error(prediction).filter(|_| is_representative(prediction, familiarity)) else {
                continue;
            };
            if known.as_ref().is_none_or(|(fold, _)| *fold != prediction.fold) {
                known = Some((&prediction.fold, self.spreads_without_fold(&prediction.fold)));
            }
            let width = known
                .as_ref()
                .map_or(0.0, |(_, spreads)| width(spreads).of(familiarity));
            all += 1;
            inside += usize::from(error.abs() <= width);
        }
        (inside, all)
    }
}

/// Returns whether the held-out row is representative for predictions of this familiarity.
fn is_representative(prediction: &Prediction, familiarity: Familiarity) -> bool {
    match familiarity {
        Familiarity::Both => {
            prediction.held_out == HeldOut::Model && prediction.familiarity == Familiarity::Both
        }
        Familiarity::ReleaseOnly => {
            prediction.held_out == HeldOut::Chip && prediction.familiarity == Familiarity::ReleaseOnly
        }
        Familiarity::Neither => {
            matches!(prediction.held_out, HeldOut::Chip | HeldOut::Release)
                && prediction.familiarity == Familiarity::Neither
        }
        Familiarity::UnmeasuredTier => prediction.held_out == HeldOut::Tier,
    }
}

fn by_familiarity(width: impl Fn(Familiarity) -> f64) -> ByFamiliarity {
    let both = width(Familiarity::Both);
    let release_only = width(Familiarity::ReleaseOnly).max(both);
    let neither = width(Familiarity::Neither).max(release_only);
    ByFamiliarity {
        both,
        release_only,
        neither,
        unmeasured_tier: width(Familiarity::UnmeasuredTier).max(neither),
    }
}

/// Returns the half-width. With few rows, the quantile is increased by one part in their number,
/// because the next row is expected further out.
fn half_width(errors: Vec<f64>) -> Option<f64> {
    let share = INTERVAL_SHARE * (1.0 + (errors.len().max(1) as f64).recip());
    quantile(&sorted(errors.into_iter().map(f64::abs)), share.min(1.0))
}

fn unmeasured(rows: &[&Measurement]) -> Unmeasured {
    let missing = |engine: Engine| {
        let measured = |tier: &ChipTier| {
            rows.iter()
                .any(|row| row.case.build.engine == engine && row.chip().tier == *tier)
        };
        [ChipTier::Base, ChipTier::Pro, ChipTier::Max, ChipTier::Ultra]
            .into_iter()
            .filter(|tier| !measured(tier))
            .collect()
    };
    Unmeasured {
        mlx: missing(Engine::Mlx),
        llama_cpp: missing(Engine::LlamaCpp),
    }
}

fn decode_error(constants: &Constants, row: &Measurement) -> Option<f64> {
    let predicted = reported_step(row, &constants.decode, &constants.prefill);
    row.step_seconds().map(|measured| (measured / predicted).ln())
}

fn prefill_error(constants: &Constants, row: &Measurement) -> Option<f64> {
    let predicted = constants
        .prefill
        .time(&row.prefill, row.chip(), &row.case.build)
        .total();
    row.prefill_seconds.map(|measured| (predicted / measured).ln())
}
