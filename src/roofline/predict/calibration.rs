//! What runs on a node teach about it: one factor per format of weights, between what was predicted and what was
//! measured. A node has one chip; with another release of its engine it starts anew.
//!
//! The logarithm of measured/predicted time has the prediction's own spread as its prior, so a few runs move it a
//! little and many decide. Errors of runs follow Student's t: a run beside which something else used the machine has next
//! to no say.

use super::{Interval, ModelCost};

/// Runs that are remembered; older ones were of another driver, season or fan.
const REMEMBERED_RUNS: usize = 32;
/// Scale of one run's error, as a logarithm, and how heavy its tails are.
const RUN_DEVIATION: f64 = 0.03;
const DEGREES_OF_FREEDOM: f64 = 3.0;
/// What one factor leaves open: other models, contexts and temperatures on the same node.
const OPEN_DEVIATION: f64 = 0.015;
/// Standard deviations from the median to the tenth percentile.
const TENTH: f64 = 1.2816;
/// Shorter answers measure the clock and the first step.
const MIN_TOKENS: u64 = 32;
/// A run so many times faster or slower than predicted says that the prediction is about another machine or model.
const MAX_FACTOR: f64 = 4.0;
/// Fitting steps; the weights settle in a few.
const STEPS: usize = 50;

/// One measured run of a model on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Run {
    /// Tokens per second: measured, and predicted before any calibration.
    pub(crate) measured: f64,
    pub(crate) predicted: f64,
    /// Tokens that the measured rate rests on.
    pub(crate) tokens: u64,
    /// The rate that the data sheet's bandwidth would allow with nothing else to do; `None` where there is none.
    pub(crate) ceiling: Option<f64>,
}

/// Why a run teaches nothing.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub(crate) enum UnusableRun {
    #[error("it made {tokens} tokens, fewer than {MIN_TOKENS}")]
    TooShort { tokens: u64 },
    #[error("{measured:.1} tokens/s is more than the memory's bandwidth allows, {ceiling:.1}")]
    AboveRoofline { measured: f64, ceiling: f64 },
    #[error("{measured:.1} tokens/s where {predicted:.1} were predicted: not the same machine or model")]
    Implausible { measured: f64, predicted: f64 },
}

impl UnusableRun {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::TooShort { .. } => "TooFewTokens",
            Self::AboveRoofline { .. } => "AboveRoofline",
            Self::Implausible { .. } => "Implausible",
        }
    }
}

/// What is known of one node with one format of weights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Calibration {
    /// The format: see [`weight_bits`].
    pub(crate) weight_bits: u32,
    /// ln(measured / predicted time) of the last runs, the oldest first.
    errors: Vec<f64>,
}

/// The format of a model's weights as far as calibration tells formats apart: whole bits of a weight that every step
/// reads, 4 for what is stored in 4 bits with its scales.
pub(crate) fn weight_bits(model: &ModelCost) -> u32 {
    let parameters = model.dimensions.core_parameters() as f64;
    (model.weights.every_step.0 as f64 * 8.0 / parameters).floor() as u32
}

impl Calibration {
    pub(crate) fn new(weight_bits: u32) -> Self {
        Self {
            weight_bits,
            errors: Vec::new(),
        }
    }

    /// As it was published; figures that no run can have left are dropped.
    pub(crate) fn published(weight_bits: u32, errors: &[f64]) -> Self {
        let possible = |error: &&f64| error.abs() <= MAX_FACTOR.ln();
        let kept: Vec<_> = errors.iter().filter(possible).copied().collect();
        Self {
            weight_bits,
            errors: kept[kept.len().saturating_sub(REMEMBERED_RUNS)..].to_vec(),
        }
    }

    /// The one of `calibrations` that is about models like `model`.
    pub(crate) fn of<'a>(calibrations: &'a [Self], model: &ModelCost) -> Option<&'a Self> {
        let bits = weight_bits(model);
        calibrations
            .iter()
            .find(|one| one.weight_bits == bits && one.runs() > 0)
    }

    /// Takes a run in, or says why not; then nothing changes.
    pub(crate) fn observe(&mut self, run: &Run) -> Result<(), UnusableRun> {
        let Run {
            measured, predicted, ..
        } = *run;
        if run.tokens < MIN_TOKENS {
            return Err(UnusableRun::TooShort { tokens: run.tokens });
        }
        if let Some(ceiling) = run.ceiling.filter(|ceiling| measured > *ceiling) {
            return Err(UnusableRun::AboveRoofline { measured, ceiling });
        }
        let error = (predicted / measured).ln();
        if error.is_nan() || error.abs() > MAX_FACTOR.ln() {
            return Err(UnusableRun::Implausible { measured, predicted });
        }
        if self.errors.len() == REMEMBERED_RUNS {
            self.errors.remove(0);
        }
        self.errors.push(error);
        Ok(())
    }

    pub(crate) fn runs(&self) -> usize {
        self.errors.len()
    }

    pub(crate) fn errors(&self) -> &[f64] {
        &self.errors
    }

    /// A predicted rate with what the runs say; as it is where there were none.
    pub(crate) fn apply(&self, rate: Interval) -> Interval {
        if self.errors.is_empty() {
            return rate;
        }
        let prior = ((rate.p90 / rate.p10).ln() / 2.0 / TENTH).max(OPEN_DEVIATION);
        let (factor, deviation) = self.posterior(prior);
        let spread = TENTH * deviation.hypot(OPEN_DEVIATION).min(prior);
        Interval::around(rate.p50 * (-factor).exp(), spread, spread)
    }

    /// Mean and deviation of the logarithm, given the prior's. Starts at the runs' median, so that the majority wins.
    fn posterior(&self, prior: f64) -> (f64, f64) {
        let belief = prior.powi(-2);
        let mut sorted = self.errors.clone();
        sorted.sort_by(f64::total_cmp);
        let mut mean = sorted[sorted.len() / 2] * (1.0 - (self.errors.len() as f64).recip());
        let mut precision = belief;
        for _ in 0..STEPS {
            let (mut weighted, mut weights) = (0.0, 0.0);
            for error in &self.errors {
                let scaled = (error - mean) / RUN_DEVIATION;
                let weight = (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + scaled * scaled)
                    * RUN_DEVIATION.powi(-2);
                weighted += weight * error;
                weights += weight;
            }
            precision = belief + weights;
            mean = weighted / precision;
        }
        (mean, precision.recip().sqrt())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PREDICTED: Interval = Interval {
        p10: 45.24,
        p50: 50.0,
        p90: 55.26,
    };

    fn run(measured: f64) -> Run {
        Run {
            measured,
            predicted: 50.0,
            tokens: 200,
            ceiling: Some(80.0),
        }
    }

    fn after(measured: impl IntoIterator<Item = f64>) -> Interval {
        let mut calibration = Calibration::new(4);
        for rate in measured {
            calibration.observe(&run(rate)).unwrap();
        }
        calibration.apply(PREDICTED)
    }

    #[test]
    fn runs_pull_the_prediction_towards_them_and_narrow_it() {
        let few = after([46.0]);
        let many = after([46.0; 10]);
        assert!(46.0 < few.p50 && few.p50 < 50.0, "{few:?}");
        assert!((many.p50 / 46.0 - 1.0).abs() < 0.005, "{many:?}");
        let width = |interval: Interval| interval.p90 / interval.p10;
        assert!(width(many) < width(few) && width(few) < width(PREDICTED));
        assert_eq!(Calibration::new(4).apply(PREDICTED), PREDICTED);
    }

    #[test]
    fn what_is_no_measurement_of_the_machine_is_refused() {
        let mut calibration = Calibration::new(4);
        let mut reason = |run: Run| calibration.observe(&run).unwrap_err().reason();
        assert_eq!(
            reason(Run {
                tokens: 5,
                ..run(50.0)
            }),
            "TooFewTokens"
        );
        assert_eq!(reason(run(90.0)), "AboveRoofline");
        assert_eq!(reason(run(3.0)), "Implausible");
        assert_eq!(reason(run(f64::NAN)), "Implausible");
        assert_eq!(calibration.runs(), 0);
    }

    proptest! {
        #[test]
        fn one_bad_run_does_not_spoil_it(
            truth in 40.0f64..60.0, good in 4usize..30, bad in 13.0f64..79.0, at in 0usize..30,
        ) {
            let mut runs = vec![truth; good];
            runs.insert(at.min(good), bad);
            let spoilt = after(runs).p50;
            let clean = after(vec![truth; good]).p50;
            prop_assert!((spoilt / clean - 1.0).abs() < 0.02, "{spoilt} {clean}");
        }

        #[test]
        fn whatever_was_measured_the_interval_is_in_order_and_no_wider(
            rates in proptest::collection::vec(13.0f64..80.0, 0..100),
        ) {
            let interval = after(rates);
            prop_assert!(interval.p10.is_finite() && 0.0 < interval.p10);
            prop_assert!(interval.p10 <= interval.p50 && interval.p50 <= interval.p90);
            prop_assert!(interval.p90 / interval.p10 <= PREDICTED.p90 / PREDICTED.p10 * 1.001);
        }
    }
}
