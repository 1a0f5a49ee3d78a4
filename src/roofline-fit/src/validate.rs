//! Cross-validation: every chip, model, release, source and tier is held out once, and its rows are
//! predicted from the others.

use serde_json::Value;

use super::rows::{DataSet, Measurement};
use super::{Constants, constants, reported_step};
use rooflet_base::quantile::{quantile, sorted};
use rooflet_roofline::cases::ReportedRate;
use rooflet_roofline::chip::ChipTier;
use rooflet_roofline::predict::Engine;
use rooflet_roofline::predict::spread::{
    ByFamiliarity, Familiarity, Sides, Spreads, Stratum, Unmeasured, is_short_prompt,
};

/// Share of rows beyond each end of an interval from the tenth to the ninetieth percentile. It is
/// slightly below a tenth, because rows of one source are not independent.
const TAIL_SHARE: f64 = 0.09;
/// Minimum widths of batches, which few sources measured.
const NARROWEST_BATCH: Sides = Sides {
    slow: 0.25,
    fast: 0.22,
};
/// Minimum widths of long contexts. Most of their sources measured one or two models, so held-out rows
/// repeat the errors of the others. The value is an assumption, equal to that for rare
/// architectures.
const NARROWEST_LONG: Sides = Sides {
    slow: 0.15,
    fast: 0.15,
};
/// Minimum width of each side: the repeatability of a careful measurement.
const NARROWEST: f64 = 0.02;
/// Minimum rows of one familiarity; with fewer, the rows of all familiarities are used.
const ENOUGH_ROWS: usize = 10;
/// Widths without any row.
const WIDEST_GUESS: Sides = Sides { slow: 0.4, fast: 0.4 };

/// Rows that are held out of a fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldOut {
    Chip,
    Model,
    Release,
    /// All rows of one publication, which share its machines and its method.
    Source,
    /// All chips of a tier with one engine.
    Tier,
    /// The second or the third data set: sources, releases, and many chips and models at the same
    /// time.
    LaterSet,
}

impl HeldOut {
    pub(super) const ALL: [Self; 6] = [
        Self::Chip,
        Self::Model,
        Self::Release,
        Self::Source,
        Self::Tier,
        Self::LaterSet,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Chip => "chip",
            Self::Model => "model",
            Self::Release => "release",
            Self::Source => "source",
            Self::Tier => "tier",
            Self::LaterSet => "later set",
        }
    }

    fn key(self, row: &Measurement) -> String {
        match self {
            Self::Chip => row.chip().name.clone(),
            Self::Model => row.model.clone(),
            Self::Release => row.case.build.release().unwrap_or_default().to_owned(),
            Self::Source => row.source.clone(),
            Self::Tier => format!("{:?} with {}", row.chip().tier, row.case.build.engine),
            Self::LaterSet => row.set.as_str().to_owned(),
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
    pub(super) short_prompt: bool,
    /// True if the rate counts whole requests, which have a width of their own.
    pub(super) requests: bool,
    pub(super) familiarity: Familiarity,
    /// ln(measured / predicted) of speed.
    pub(super) decode_error: Option<f64>,
    pub(super) prefill_error: Option<f64>,
}

impl Prediction {
    /// Returns ln(predicted / measured) of the rate of decode.
    pub(super) fn decode_excess(&self) -> Option<f64> {
        self.decode_error.map(|error| -error)
    }
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
            folds.retain(|fold| fold != DataSet::First.as_str());
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
                    short_prompt: is_short_prompt(row.prefill.tokens),
                    requests: matches!(row.case.reported, ReportedRate::Requests { .. }),
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

    /// Returns the widths of both sides, with [`TAIL_SHARE`] of the rows beyond each.
    pub(super) fn spreads(&self) -> Spreads {
        self.spreads_without_fold("")
    }

    /// Returns the half-widths from all folds except prediction.
    fn spreads_without_fold(&self, fold: &str) -> Spreads {
        let errors = |familiarity: Option<Familiarity>, stratum: Stratum| {
            self.predictions
                .iter()
                .filter(|prediction| prediction.fold != fold && prediction.stratum == stratum)
                .filter(|prediction| !prediction.requests)
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
                sides(own).unwrap_or(WIDEST_GUESS)
            })
        };
        let prompts = |short: bool| {
            by_familiarity(|familiarity| {
                let of_length = || {
                    let others = self
                        .predictions
                        .iter()
                        .filter(|prediction| prediction.fold != fold);
                    others.filter(|prediction| prediction.short_prompt == short)
                };
                let own = of_length().filter(|prediction| is_representative(prediction, familiarity));
                let mut errors: Vec<f64> = own.filter_map(|prediction| prediction.prefill_error).collect();
                if errors.len() < ENOUGH_ROWS {
                    errors = of_length()
                        .filter_map(|prediction| prediction.prefill_error)
                        .collect();
                }
                sides(errors).unwrap_or(WIDEST_GUESS)
            })
        };
        Spreads {
            dense: stratum(Stratum::Dense),
            small: stratum(Stratum::Small),
            experts: stratum(Stratum::Experts),
            long: at_least(stratum(Stratum::Long), NARROWEST_LONG),
            batched: at_least(stratum(Stratum::Batched), NARROWEST_BATCH),
            prefill: prompts(false),
            short_prompts: prompts(true),
            unmeasured: self.unmeasured.clone(),
        }
    }

    /// Returns the number of rows inside intervals of the other folds, and the number of rows.
    pub(super) fn coverage(&self, familiarity: Familiarity, stratum: Stratum) -> (usize, usize) {
        let error = |prediction: &Prediction| {
            prediction
                .decode_error
                .filter(|_| prediction.stratum == stratum && !prediction.requests)
        };
        self.inside(familiarity, error, |spreads| *spreads.stratum(stratum))
    }

    /// Returns the same numbers for the time to first token.
    pub(super) fn prefill_coverage(&self, familiarity: Familiarity, short: bool) -> (usize, usize) {
        self.inside(
            familiarity,
            |prediction| {
                prediction
                    .prefill_error
                    .filter(|_| prediction.short_prompt == short)
            },
            |spreads| {
                if short {
                    spreads.short_prompts
                } else {
                    spreads.prefill
                }
            },
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
            let contains = known
                .as_ref()
                .is_some_and(|(_, spreads)| width(spreads).of(familiarity).contain(error));
            all += 1;
            inside += usize::from(contains);
        }
        (inside, all)
    }
}

/// Rows of a later data set, predicted from the earlier ones.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LaterSet {
    pub(super) set: DataSet,
    pub(super) earlier_rows: usize,
    /// Errors with the widths of their intervals, by subset.
    pub(super) decode: Vec<(&'static str, Vec<(f64, Sides)>)>,
    pub(super) prefill: Vec<(&'static str, Vec<(f64, Sides)>)>,
}

impl LaterSet {
    pub(super) fn new(set: DataSet, rows: &[Measurement], priors: &Value) -> Self {
        let is_earlier = |row: &&Measurement| row.set < set;
        let earlier: Vec<Measurement> = rows.iter().filter(is_earlier).cloned().collect();
        let train: Vec<&Measurement> = earlier.iter().collect();
        let constants = constants(&train, priors, None);
        let validation = Validation::new(&earlier, priors, &constants);
        let spreads = validation.spreads();
        let familiarity = |row: &Measurement| {
            Familiarity::of(
                &constants.decode,
                &spreads.unmeasured,
                row.chip(),
                &row.case.build,
            )
        };
        let later = || rows.iter().filter(|row| row.set == set);
        let decode = |stratum: Option<Stratum>| -> Vec<(f64, Sides)> {
            let of_stratum =
                later().filter(|row| stratum.is_none_or(|stratum| Stratum::of(&row.step) == stratum));
            let errors = of_stratum.filter_map(|row| {
                let sides = spreads.stratum(Stratum::of(&row.step)).of(familiarity(row));
                Some((decode_error(&constants, row)?, sides))
            });
            errors.collect()
        };
        let prompts = |short: bool| -> Vec<(f64, Sides)> {
            let of_length = later().filter(|row| is_short_prompt(row.prefill.tokens) == short);
            let errors = of_length.filter_map(|row| {
                let sides = spreads.prompts(row.prefill.tokens).of(familiarity(row));
                Some((prefill_error(&constants, row)?, sides))
            });
            errors.collect()
        };
        let mut by_stratum = vec![("all decode", decode(None))];
        by_stratum.extend(Stratum::ALL.map(|stratum| (stratum.as_str(), decode(Some(stratum)))));
        Self {
            set,
            earlier_rows: earlier.len(),
            decode: by_stratum,
            prefill: vec![
                ("first token", prompts(false)),
                ("first token, prompt below 256 tokens", prompts(true)),
            ],
        }
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
            matches!(
                prediction.held_out,
                HeldOut::Chip | HeldOut::Release | HeldOut::Source | HeldOut::LaterSet
            ) && prediction.familiarity != Familiarity::Both
                && prediction.familiarity != Familiarity::ReleaseOnly
        }
        Familiarity::UnmeasuredTier => prediction.held_out == HeldOut::Tier,
    }
}

fn by_familiarity(width: impl Fn(Familiarity) -> Sides) -> ByFamiliarity {
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

/// Returns widths that are at least `narrowest`.
fn at_least(widths: ByFamiliarity, narrowest: Sides) -> ByFamiliarity {
    by_familiarity(|familiarity| widths.of(familiarity).max(narrowest))
}

/// Returns the widths of both sides. With few rows, the quantiles move outward by one part in their
/// number, because the next row is expected further out.
fn sides(errors: Vec<f64>) -> Option<Sides> {
    let tail = TAIL_SHARE * (1.0 - (errors.len().max(1) as f64).recip());
    let errors = sorted(errors);
    let sides = Sides {
        slow: (-quantile(&errors, tail)?).max(NARROWEST),
        fast: quantile(&errors, 1.0 - tail)?.max(NARROWEST),
    };
    Some(at_least_as_slow(sides))
}

/// Shares a width evenly between both sides if the fast side has more of it.
///
/// Such errors come from one fast machine that dominates a stratum: without its rows, it is faster
/// than predicted, and with them, all other machines are slower than predicted. The sign of the
/// error therefore does not apply to an unknown machine.
fn at_least_as_slow(sides: Sides) -> Sides {
    if sides.slow >= sides.fast {
        return sides;
    }
    let middle = f64::midpoint(sides.slow, sides.fast);
    Sides {
        slow: middle,
        fast: middle,
    }
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

/// Returns ln(measured / predicted) of the rate of decode.
fn decode_error(constants: &Constants, row: &Measurement) -> Option<f64> {
    let predicted = reported_step(row, &constants.decode, &constants.prefill);
    row.step_seconds().map(|measured| (predicted / measured).ln())
}

/// Returns ln(measured / predicted) of the rate of prefill.
fn prefill_error(constants: &Constants, row: &Measurement) -> Option<f64> {
    let predicted = row.predicted_prefill(&constants.prefill);
    row.prefill_seconds.map(|measured| (predicted / measured).ln())
}

#[cfg(test)]
mod tests {
    use rooflet_model::shapes::ShapeFile;
    use rooflet_roofline::predict::Parameters;

    use super::*;
    use crate::rows;

    #[test]
    fn slow_side_has_at_least_half_of_the_width() {
        let errors = |slow: f64, fast: f64| {
            let side = |width: f64| (1..=50).map(move |part| width * f64::from(part) / 50.0);
            let errors = side(-slow).chain(side(fast)).collect();
            sides(errors).unwrap()
        };
        let (faster, slower) = (errors(0.1, 0.3), errors(0.3, 0.1));
        assert_eq!(faster.slow, faster.fast);
        assert!((0.12..0.2).contains(&faster.slow), "{faster:?}");
        assert!(
            (0.2..0.3).contains(&slower.slow) && slower.fast < 0.1,
            "{slower:?}"
        );
        assert!((faster.slow + faster.fast - slower.slow - slower.fast).abs() < 1e-9);
    }

    /// The slow side of an interval ([`Sides::contain`]) is that of negative errors.
    #[test]
    fn slow_measurements_have_negative_errors() {
        let shapes = ShapeFile::parse(include_str!("../../model/src/shapes.json")).unwrap();
        let rows = rows::parse(include_str!("measurements.csv"), &shapes)
            .unwrap()
            .rows;
        let Parameters { decode, prefill, .. } = Parameters::built_in().clone();
        let constants = Constants { decode, prefill };
        let has_both = |row: &&Measurement| row.decode_rate.is_some() && row.prefill_seconds.is_some();
        let row = rows.iter().find(has_both).unwrap();
        let scaled = |speed: f64| {
            let mut scaled = row.clone();
            scaled.decode_rate = row.decode_rate.map(|rate| rate * speed);
            scaled.prefill_seconds = row.prefill_seconds.map(|seconds| seconds / speed);
            scaled
        };
        for error in [decode_error, prefill_error] {
            assert!(error(&constants, &scaled(0.1)).unwrap() < 0.0);
            assert!(error(&constants, &scaled(10.0)).unwrap() > 0.0);
        }
    }
}
