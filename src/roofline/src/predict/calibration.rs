//! What runs on a node teach about it: two factors per format of weights, one of decode and one of
//! first tokens, between what was predicted and what was measured. A node has one chip; with
//! another release of its engine it starts anew.
//!
//! The logarithm of measured/predicted time has the prediction's own spread as its prior, so a few
//! runs move it a little and many decide. Errors of runs follow Student's t: a run beside which
//! something else used the machine has next to no say.

use super::{Interval, ModelCost};
use rooflet_base::quantile::{nearest, sorted};

/// Runs that are remembered; older ones were of another driver, season or fan.
const REMEMBERED_RUNS: usize = 32;
/// How heavy the tails of one run's error are.
const DEGREES_OF_FREEDOM: f64 = 3.0;
/// Standard deviations from the median to the tenth percentile.
const TENTH: f64 = 1.2816;
/// Shorter answers measure the clock and the first step.
const MIN_TOKENS: u64 = 32;
/// Of shorter prompts the fixed part of a first token is too much for them to tell of longer ones.
const MIN_PROMPT_TOKENS: u64 = 256;
/// A run so many times faster or slower than predicted says that the prediction is about another
/// machine or model.
const MAX_FACTOR: f64 = 4.0;
/// Fitting steps; the weights settle in a few.
const STEPS: usize = 50;

/// What is measured, with the scale of its errors as logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measure {
    /// Of one run.
    run_deviation: f64,
    /// What one factor leaves open: other models, contexts and temperatures on the same node.
    open_deviation: f64,
}

const DECODE: Measure = Measure {
    run_deviation: 0.03,
    open_deviation: 0.015,
};
/// Assumed, as nobody published such runs: prompts differ more in their lengths than contexts do,
/// and one factor stands for all of them.
const FIRST_TOKEN: Measure = Measure {
    run_deviation: 0.05,
    open_deviation: 0.05,
};

/// One measured run of a model on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Tokens per second: measured, and predicted before any calibration.
    pub measured: f64,
    pub predicted: f64,
    /// Tokens that the measured rate rests on.
    pub tokens: u64,
    /// The rate that the data sheet's bandwidth would allow with nothing else to do; `None` where
    /// there is none.
    pub ceiling: Option<f64>,
}

/// Prompts of a model that a node read, one at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillRun {
    /// Seconds to the first token: measured from a request's turn, and predicted before any
    /// calibration.
    pub measured: f64,
    pub predicted: f64,
    /// In the prompt of each.
    pub prompt_tokens: f64,
}

/// Why a run teaches nothing.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum UnusableRun {
    #[error("it made {tokens} tokens, fewer than {MIN_TOKENS}")]
    TooShort { tokens: u64 },
    #[error("its prompts have {tokens:.0} tokens, fewer than {MIN_PROMPT_TOKENS}")]
    ShortPrompts { tokens: f64 },
    #[error("{measured:.1} tokens/s is more than the memory's bandwidth allows, {ceiling:.1}")]
    AboveRoofline { measured: f64, ceiling: f64 },
    #[error("{measured:.2} measured where {predicted:.2} were predicted: not the same machine or model")]
    Implausible { measured: f64, predicted: f64 },
}

impl UnusableRun {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooShort { .. } | Self::ShortPrompts { .. } => "TooFewTokens",
            Self::AboveRoofline { .. } => "AboveRoofline",
            Self::Implausible { .. } => "Implausible",
        }
    }
}

/// What is known of one node with one format of weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// The format: see [`weight_bits`].
    pub weight_bits: u32,
    /// ln(measured / predicted time) of the last runs, the oldest first.
    decode: Vec<f64>,
    first_token: Vec<f64>,
}

/// The format of a model's weights as far as calibration tells formats apart: whole bits of a
/// weight that every step reads, 4 for what is stored in 4 bits with its scales.
pub fn weight_bits(model: &ModelCost) -> u32 {
    let parameters = model.dimensions.core_parameters() as f64;
    (model.weights.every_step.0 as f64 * 8.0 / parameters).floor() as u32
}

impl Calibration {
    pub fn new(weight_bits: u32) -> Self {
        Self {
            weight_bits,
            decode: Vec::new(),
            first_token: Vec::new(),
        }
    }

    /// As it was published; figures that no run can have left are dropped.
    pub fn published(weight_bits: u32, decode: &[f64], first_token: &[f64]) -> Self {
        let last = |errors: &[f64]| {
            let possible = |error: &&f64| error.abs() <= MAX_FACTOR.ln();
            let kept: Vec<_> = errors.iter().filter(possible).copied().collect();
            kept[kept.len().saturating_sub(REMEMBERED_RUNS)..].to_vec()
        };
        Self {
            weight_bits,
            decode: last(decode),
            first_token: last(first_token),
        }
    }

    /// The one of `calibrations` that is about models like `model`.
    pub fn of<'a>(calibrations: &'a [Self], model: &ModelCost) -> Option<&'a Self> {
        let bits = weight_bits(model);
        calibrations.iter().find(|one| one.weight_bits == bits)
    }

    /// Takes a run in, or says why not; then nothing changes.
    pub fn observe(&mut self, run: &Run) -> Result<(), UnusableRun> {
        let Run {
            measured, predicted, ..
        } = *run;
        if run.tokens < MIN_TOKENS {
            return Err(UnusableRun::TooShort { tokens: run.tokens });
        }
        if let Some(ceiling) = run.ceiling.filter(|ceiling| measured > *ceiling) {
            return Err(UnusableRun::AboveRoofline { measured, ceiling });
        }
        remember(&mut self.decode, predicted / measured)
            .ok_or(UnusableRun::Implausible { measured, predicted })
    }

    /// The same for first tokens.
    pub fn observe_prefill(&mut self, run: &PrefillRun) -> Result<(), UnusableRun> {
        let PrefillRun {
            measured,
            predicted,
            prompt_tokens,
        } = *run;
        if prompt_tokens < MIN_PROMPT_TOKENS as f64 {
            return Err(UnusableRun::ShortPrompts {
                tokens: prompt_tokens,
            });
        }
        remember(&mut self.first_token, measured / predicted)
            .ok_or(UnusableRun::Implausible { measured, predicted })
    }

    /// ln(measured / predicted time per token), the oldest first.
    pub fn decode_errors(&self) -> &[f64] {
        &self.decode
    }

    /// ln(measured / predicted time to the first token), the oldest first.
    pub fn first_token_errors(&self) -> &[f64] {
        &self.first_token
    }

    /// A predicted decode rate with what the runs say; `None` where there were none.
    pub fn decode(&self, rate: Interval) -> Option<Interval> {
        let (factor, spread) = learned(&self.decode, rate, DECODE)?;
        Some(Interval::around(rate.p50 * (-factor).exp(), spread, spread))
    }

    /// A predicted time to the first token with what the runs say; `None` where there were none.
    pub fn first_token(&self, seconds: Interval) -> Option<Interval> {
        let (factor, spread) = learned(&self.first_token, seconds, FIRST_TOKEN)?;
        Some(Interval::around(seconds.p50 * factor.exp(), spread, spread))
    }
}

/// Adds a run that took `ratio` times as long as predicted; `None` where that cannot be.
fn remember(errors: &mut Vec<f64>, ratio: f64) -> Option<()> {
    let error = ratio.ln();
    if error.is_nan() || error.abs() > MAX_FACTOR.ln() {
        return None;
    }
    if errors.len() == REMEMBERED_RUNS {
        errors.remove(0);
    }
    errors.push(error);
    Some(())
}

/// Logarithm of what the predicted time has to be multiplied with, and half-width of the interval
/// then.
fn learned(errors: &[f64], predicted: Interval, measure: Measure) -> Option<(f64, f64)> {
    if errors.is_empty() {
        return None;
    }
    let prior = ((predicted.p90 / predicted.p10).ln() / 2.0 / TENTH).max(measure.open_deviation);
    let (factor, deviation) = posterior(errors, prior, measure.run_deviation);
    let spread = TENTH * deviation.hypot(measure.open_deviation).min(prior);
    Some((factor, spread))
}

/// Mean and deviation of the logarithm, given the prior's. Starts at a run in the middle, so that
/// the majority wins: between two that disagree there may be none.
fn posterior(errors: &[f64], prior: f64, run_deviation: f64) -> (f64, f64) {
    let belief = prior.powi(-2);
    let middle = nearest(&sorted(errors.iter().copied()), 0.5).unwrap_or_default();
    let mut mean = middle * (1.0 - (errors.len() as f64).recip());
    let mut precision = belief;
    for _ in 0..STEPS {
        let (mut weighted, mut weights) = (0.0, 0.0);
        for error in errors {
            let scaled = (error - mean) / run_deviation;
            let weight =
                (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + scaled * scaled) * run_deviation.powi(-2);
            weighted += weight * error;
            weights += weight;
        }
        precision = belief + weights;
        mean = weighted / precision;
    }
    (mean, precision.recip().sqrt())
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
        calibration.decode(PREDICTED).unwrap_or(PREDICTED)
    }

    /// First tokens that took so many seconds where two were predicted.
    fn first_token_after(measured: impl IntoIterator<Item = f64>) -> Option<Interval> {
        let mut calibration = Calibration::new(4);
        for seconds in measured {
            let run = PrefillRun {
                measured: seconds,
                predicted: 2.0,
                prompt_tokens: 1000.0,
            };
            calibration.observe_prefill(&run).unwrap();
        }
        calibration.first_token(Interval::around(2.0, 0.3, 0.3))
    }

    #[test]
    fn runs_pull_the_prediction_towards_them_and_narrow_it() {
        let few = after([46.0]);
        let many = after([46.0; 10]);
        assert!(46.0 < few.p50 && few.p50 < 50.0, "{few:?}");
        assert!((many.p50 / 46.0 - 1.0).abs() < 0.005, "{many:?}");
        let width = |interval: Interval| interval.p90 / interval.p10;
        assert!(width(many) < width(few) && width(few) < width(PREDICTED));
        assert_eq!(Calibration::new(4).decode(PREDICTED), None);
    }

    #[test]
    fn first_tokens_have_a_factor_of_their_own() {
        assert_eq!(first_token_after([]), None);
        let (few, many) = (
            first_token_after([3.0]).unwrap(),
            first_token_after([3.0; 10]).unwrap(),
        );
        assert!(2.0 < few.p50 && few.p50 < 3.0, "{few:?}");
        assert!((many.p50 / 3.0 - 1.0).abs() < 0.01, "{many:?}");
        assert!(many.p90 / many.p10 < few.p90 / few.p10);
        let mut calibration = Calibration::new(4);
        let mut reason = |measured, prompt_tokens| {
            let run = PrefillRun {
                measured,
                predicted: 2.0,
                prompt_tokens,
            };
            calibration.observe_prefill(&run).unwrap_err().reason()
        };
        assert_eq!(reason(2.0, 255.0), "TooFewTokens");
        assert_eq!(reason(9.0, 1000.0), "Implausible");
        assert_eq!(reason(0.0, 1000.0), "Implausible");
        assert_eq!(calibration, Calibration::new(4));
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
        assert_eq!(calibration.decode_errors(), &[] as &[f64]);
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
        fn one_bad_first_token_does_not_spoil_it(
            truth in 1.4f64..2.8, good in 5usize..30, bad in 0.6f64..7.9, at in 0usize..30,
        ) {
            let mut runs = vec![truth; good];
            runs.insert(at.min(good), bad);
            let spoilt = first_token_after(runs).unwrap().p50;
            let clean = first_token_after(vec![truth; good]).unwrap().p50;
            prop_assert!((spoilt / clean - 1.0).abs() < 0.04, "{spoilt} {clean}");
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
