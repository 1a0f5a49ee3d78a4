//! How good the constants are on what they were not fitted on: every chip, every model and every release is left out
//! once, and its rows are predicted from the others.

use serde_json::Value;

use super::rows::Measurement;
use super::{Constants, constants, waiting_per_token};
use crate::roofline::predict::spread::{ByFamiliarity, Familiarity, Spreads, Stratum};

/// Share of rows that an interval is to contain: from the tenth to the ninetieth percentile.
const INTERVAL_SHARE: f64 = 0.8;
/// A stratum's own rows count for as much as what is known of all once it has so many.
const OWN_ROWS: f64 = 12.0;
/// Of releases that nobody measured on chips that nobody measured, rows are fewest and errors largest.
const LEAST_PREFILL_SPREAD: f64 = 0.08;

/// What was left out when a row was predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeftOut {
    Chip,
    Model,
    Release,
}

impl LeftOut {
    pub(super) const ALL: [Self; 3] = [Self::Chip, Self::Model, Self::Release];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Chip => "chip",
            Self::Model => "model",
            Self::Release => "release",
        }
    }

    fn key(self, row: &Measurement) -> String {
        match self {
            Self::Chip => row.chip().name.clone(),
            Self::Model => row.model.clone(),
            Self::Release => row.case.build.release().unwrap_or_default().to_owned(),
        }
    }
}

/// One row, predicted from others.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prediction {
    pub(super) left_out: LeftOut,
    /// Of the rows.
    pub(super) row: usize,
    pub(super) fold: String,
    pub(super) stratum: Stratum,
    pub(super) familiarity: Familiarity,
    /// ln(predicted / measured): of rates for decoding, of times for prefill.
    pub(super) decode_error: Option<f64>,
    pub(super) prefill_error: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Validation {
    pub(super) predictions: Vec<Prediction>,
}

impl Validation {
    pub(super) fn new(rows: &[Measurement], beliefs: &Value, all: &Constants) -> Self {
        let mut predictions = Vec::new();
        for left_out in LeftOut::ALL {
            let mut folds: Vec<String> = rows.iter().map(|row| left_out.key(row)).collect();
            folds.sort();
            folds.dedup();
            for fold in folds {
                let train: Vec<&Measurement> = rows.iter().filter(|row| left_out.key(row) != fold).collect();
                let constants = constants(&train, beliefs, Some(all));
                let tested = rows
                    .iter()
                    .enumerate()
                    .filter(|(_, row)| left_out.key(row) == fold);
                predictions.extend(tested.map(|(index, row)| Prediction {
                    left_out,
                    row: index,
                    fold: fold.clone(),
                    stratum: Stratum::of(&row.step),
                    familiarity: Familiarity::of(&constants.decode, row.chip(), &row.case.build),
                    decode_error: decode_error(&constants, row),
                    prefill_error: prefill_error(&constants, row),
                }));
            }
        }
        Self { predictions }
    }

    /// Half-widths that contain [`INTERVAL_SHARE`] of the rows.
    pub(super) fn spreads(&self) -> Spreads {
        self.spreads_without("")
    }

    /// The same, of all folds but one.
    fn spreads_without(&self, fold: &str) -> Spreads {
        let errors = |familiarity: Familiarity, stratum: Option<Stratum>| {
            self.predictions
                .iter()
                .filter(|one| one.fold != fold && speaks_for(one, familiarity))
                .filter(|one| stratum.is_none_or(|stratum| one.stratum == stratum))
                .filter_map(|one| one.decode_error)
                .collect::<Vec<f64>>()
        };
        let stratum = |stratum: Stratum| {
            by_familiarity(|familiarity| {
                let own = errors(familiarity, Some(stratum));
                let weight = own.len() as f64 / (own.len() as f64 + OWN_ROWS);
                let all = half_width(errors(familiarity, None)).unwrap_or(0.3);
                half_width(own).map_or(all, |own| weight * own + (1.0 - weight) * all)
            })
        };
        let prefill = by_familiarity(|familiarity| {
            let errors = self
                .predictions
                .iter()
                .filter(|one| one.fold != fold && speaks_for(one, familiarity))
                .filter_map(|one| one.prefill_error)
                .collect();
            half_width(errors).unwrap_or(0.3).max(LEAST_PREFILL_SPREAD)
        });
        Spreads {
            dense: stratum(Stratum::Dense),
            small: stratum(Stratum::Small),
            experts: stratum(Stratum::Experts),
            batched: stratum(Stratum::Batched),
            prefill,
        }
    }

    /// Of the rows in question, those inside intervals learnt without their fold, and how many there are.
    pub(super) fn coverage(&self, familiarity: Familiarity, stratum: Stratum) -> (usize, usize) {
        let (mut inside, mut all) = (0, 0);
        let mut known: Option<(&str, Spreads)> = None;
        for one in &self.predictions {
            let wanted = one.stratum == stratum && speaks_for(one, familiarity);
            let Some(error) = one.decode_error.filter(|_| wanted) else {
                continue;
            };
            if known.as_ref().is_none_or(|(fold, _)| *fold != one.fold) {
                known = Some((&one.fold, self.spreads_without(&one.fold)));
            }
            let width = known
                .as_ref()
                .map_or(0.0, |(_, spreads)| spreads.stratum(stratum).of(familiarity));
            all += 1;
            inside += usize::from(error.abs() <= width);
        }
        (inside, all)
    }
}

/// Which left-out rows tell how far off a prediction of this familiarity is.
fn speaks_for(one: &Prediction, familiarity: Familiarity) -> bool {
    match familiarity {
        Familiarity::Both => one.left_out == LeftOut::Model && one.familiarity == Familiarity::Both,
        Familiarity::ReleaseOnly => {
            one.left_out == LeftOut::Chip && one.familiarity == Familiarity::ReleaseOnly
        }
        Familiarity::Neither => one.left_out != LeftOut::Model && one.familiarity == Familiarity::Neither,
    }
}

fn by_familiarity(width: impl Fn(Familiarity) -> f64) -> ByFamiliarity {
    let both = width(Familiarity::Both);
    let release_only = width(Familiarity::ReleaseOnly).max(both);
    ByFamiliarity {
        both,
        release_only,
        neither: width(Familiarity::Neither).max(release_only),
    }
}

fn half_width(errors: Vec<f64>) -> Option<f64> {
    quantile(errors.into_iter().map(f64::abs).collect(), INTERVAL_SHARE)
}

/// Of unsorted values; between two ranks, linearly.
pub(super) fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let rank = share * last as f64;
    let (below, part) = (rank.floor() as usize, rank.fract());
    Some(values[below] + part * (values[(below + 1).min(last)] - values[below]))
}

fn decode_error(constants: &Constants, row: &Measurement) -> Option<f64> {
    let step = constants
        .decode
        .step_time(&row.step, row.chip(), &row.case.build)
        .total;
    let predicted = step + waiting_per_token(row, &constants.prefill);
    row.step_seconds().map(|measured| (measured / predicted).ln())
}

fn prefill_error(constants: &Constants, row: &Measurement) -> Option<f64> {
    let predicted = constants
        .prefill
        .time(&row.prefill, row.chip(), &row.case.build)
        .total();
    row.prefill_seconds.map(|measured| (predicted / measured).ln())
}
