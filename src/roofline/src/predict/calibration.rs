//! Calibration of predictions by runs on a node: one factor of decode and one of the first token
//! per weight format, between predicted and measured times. A node has one chip; a new release of
//! its engine resets the calibration.
//!
//! The prior of the logarithm of measured/predicted time is the interval of the prediction, so a
//! few runs change it slightly and many runs dominate. Errors of runs follow Student's t, so a
//! disturbed run has almost no influence.

use super::{Interval, ModelCost};
use rooflet_base::quantile::{nearest, sorted};

/// Number of runs that are kept. Older runs had another driver, temperature or cooling.
const MAX_RUNS: usize = 32;
/// Degrees of freedom of a run's error in Student's t.
const DEGREES_OF_FREEDOM: f64 = 3.0;
/// Standard deviations between the median and the tenth percentile.
const DEVIATIONS_TO_P10: f64 = 1.2816;
/// Minimum tokens of a run. Shorter answers are dominated by the first step.
const MIN_TOKENS: u64 = 32;
/// Minimum tokens of a prompt. Shorter prompts are dominated by the fixed part of the first token.
const MIN_PROMPT_TOKENS: u64 = 256;
/// Maximum ratio of measured and predicted time. A larger one belongs to another machine or model.
const MAX_FACTOR: f64 = 4.0;
/// Number of iterations; the weights converge in a few.
const STEPS: usize = 50;

/// Deviations of a measured quantity, as logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measure {
    /// Deviation of one run.
    run_deviation: f64,
    /// Deviation between models, contexts and temperatures of one node.
    open_deviation: f64,
}

const DECODE: Measure = Measure {
    run_deviation: 0.03,
    open_deviation: 0.015,
};
/// The values are assumptions, because no such runs are published. Prompts differ more in length
/// than contexts do, and one factor covers all of them.
const FIRST_TOKEN: Measure = Measure {
    run_deviation: 0.05,
    open_deviation: 0.05,
};

/// Measured run of a model on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Tokens per second: measured, and predicted without calibration.
    pub measured: f64,
    pub predicted: f64,
    /// Number of measured tokens.
    pub tokens: u64,
    /// Maximum rate by the bandwidth of the data sheet. `None` without a data sheet.
    pub ceiling: Option<f64>,
}

/// Measured prefill of prompts on a node, one at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillRun {
    /// Seconds from the start of a request's processing to the first token: measured, and predicted
    /// without calibration.
    pub measured: f64,
    pub predicted: f64,
    /// Number of prompt tokens of a request.
    pub prompt_tokens: f64,
}

/// Reason why a run is not used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum UnusableRun {
    #[error("it generated {tokens} tokens, fewer than {MIN_TOKENS}")]
    TooShort { tokens: u64 },
    #[error("its prompts have {tokens:.0} tokens, fewer than {MIN_PROMPT_TOKENS}")]
    ShortPrompts { tokens: f64 },
    #[error("{measured:.1} tokens/s is more than the memory's bandwidth allows, {ceiling:.1}")]
    AboveRoofline { measured: f64, ceiling: f64 },
    #[error("measured {measured:.2}, predicted {predicted:.2}: not the same machine or model")]
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

/// Calibration of one node for one weight format.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Weight format; see [`weight_bits`].
    pub weight_bits: u32,
    /// ln(measured / predicted time) of the last runs, oldest first.
    decode: Vec<f64>,
    first_token: Vec<f64>,
}

/// Returns the weight format for calibrations: integer bits of the weights that every step reads,
/// such as 4 for 4 bits with scales.
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

    /// Creates a calibration from published figures. Impossible values are dropped.
    pub fn published(weight_bits: u32, decode: &[f64], first_token: &[f64]) -> Self {
        let last = |errors: &[f64]| {
            let possible = |error: &&f64| error.abs() <= MAX_FACTOR.ln();
            let kept: Vec<_> = errors.iter().filter(possible).copied().collect();
            kept[kept.len().saturating_sub(MAX_RUNS)..].to_vec()
        };
        Self {
            weight_bits,
            decode: last(decode),
            first_token: last(first_token),
        }
    }

    /// Returns the calibration for models like `model`.
    pub fn of<'a>(calibrations: &'a [Self], model: &ModelCost) -> Option<&'a Self> {
        let bits = weight_bits(model);
        calibrations
            .iter()
            .find(|calibration| calibration.weight_bits == bits)
    }

    /// Adds a run. If the run is unusable, the calibration does not change.
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
        push_error(&mut self.decode, predicted / measured)
            .ok_or(UnusableRun::Implausible { measured, predicted })
    }

    /// Adds a measured prefill. If it is unusable, the calibration does not change.
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
        push_error(&mut self.first_token, measured / predicted)
            .ok_or(UnusableRun::Implausible { measured, predicted })
    }

    /// Returns ln(measured / predicted time per token), oldest first.
    pub fn decode_errors(&self) -> &[f64] {
        &self.decode
    }

    /// Returns ln(measured / predicted time to first token), oldest first.
    pub fn first_token_errors(&self) -> &[f64] {
        &self.first_token
    }

    /// Returns the calibrated decode rate, or `None` without runs.
    pub fn decode(&self, rate: Interval) -> Option<Interval> {
        let (factor, spread) = posterior_factor(&self.decode, rate, DECODE)?;
        Some(Interval::around(rate.p50 * (-factor).exp(), spread, spread))
    }

    /// Returns the calibrated time to first token, or `None` without runs.
    pub fn first_token(&self, seconds: Interval) -> Option<Interval> {
        let (factor, spread) = posterior_factor(&self.first_token, seconds, FIRST_TOKEN)?;
        Some(Interval::around(seconds.p50 * factor.exp(), spread, spread))
    }
}

/// Adds a run that took `ratio` times the predicted time. Returns `None` if the ratio is
/// implausible.
fn push_error(errors: &mut Vec<f64>, ratio: f64) -> Option<()> {
    let error = ratio.ln();
    if error.is_nan() || error.abs() > MAX_FACTOR.ln() {
        return None;
    }
    if errors.len() == MAX_RUNS {
        errors.remove(0);
    }
    errors.push(error);
    Some(())
}

/// Returns the logarithm of the correction of the predicted time, and the half-width of the
/// corrected interval.
fn posterior_factor(errors: &[f64], predicted: Interval, measure: Measure) -> Option<(f64, f64)> {
    if errors.is_empty() {
        return None;
    }
    let prior = ((predicted.p90 / predicted.p10).ln() / 2.0 / DEVIATIONS_TO_P10).max(measure.open_deviation);
    let (factor, deviation) = posterior(errors, prior, measure.run_deviation);
    let spread = DEVIATIONS_TO_P10 * deviation.hypot(measure.open_deviation).min(prior);
    Some((factor, spread))
}

/// Returns mean and deviation of the logarithm, given the deviation of the prior. The iteration
/// starts at the median run, so that it converges to the majority of the runs. Between two groups
/// of runs, the likelihood may have no maximum.
fn posterior(errors: &[f64], prior: f64, run_deviation: f64) -> (f64, f64) {
    let prior_precision = prior.powi(-2);
    let middle = nearest(&sorted(errors.iter().copied()), 0.5).unwrap_or_default();
    let mut mean = middle * (1.0 - (errors.len() as f64).recip());
    let mut precision = prior_precision;
    for _ in 0..STEPS {
        let (mut weighted, mut weights) = (0.0, 0.0);
        for error in errors {
            let scaled = (error - mean) / run_deviation;
            let weight =
                (DEGREES_OF_FREEDOM + 1.0) / (DEGREES_OF_FREEDOM + scaled * scaled) * run_deviation.powi(-2);
            weighted += weight * error;
            weights += weight;
        }
        precision = prior_precision + weights;
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

    /// Returns the calibrated time after runs with these first-token times, for a predicted time of
    /// two seconds.
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
    fn runs_move_and_narrow_the_prediction() {
        let few = after([46.0]);
        let many = after([46.0; 10]);
        assert!(46.0 < few.p50 && few.p50 < 50.0, "{few:?}");
        assert!((many.p50 / 46.0 - 1.0).abs() < 0.005, "{many:?}");
        let width = |interval: Interval| interval.p90 / interval.p10;
        assert!(width(many) < width(few) && width(few) < width(PREDICTED));
        assert_eq!(Calibration::new(4).decode(PREDICTED), None);
    }

    #[test]
    fn first_token_has_a_separate_factor() {
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
    fn rejects_short_and_implausible_runs() {
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
        fn one_bad_run_has_little_influence(
            truth in 40.0f64..60.0, good in 4usize..30, bad in 13.0f64..79.0, at in 0usize..30,
        ) {
            let mut runs = vec![truth; good];
            runs.insert(at.min(good), bad);
            let disturbed = after(runs).p50;
            let clean = after(vec![truth; good]).p50;
            prop_assert!((disturbed / clean - 1.0).abs() < 0.02, "{disturbed} {clean}");
        }

        #[test]
        fn one_bad_first_token_has_little_influence(
            truth in 1.4f64..2.8, good in 5usize..30, bad in 0.6f64..7.9, at in 0usize..30,
        ) {
            let mut runs = vec![truth; good];
            runs.insert(at.min(good), bad);
            let disturbed = first_token_after(runs).unwrap().p50;
            let clean = first_token_after(vec![truth; good]).unwrap().p50;
            prop_assert!((disturbed / clean - 1.0).abs() < 0.04, "{disturbed} {clean}");
        }

        #[test]
        fn interval_stays_in_order_and_never_widens(
            rates in proptest::collection::vec(13.0f64..80.0, 0..100),
        ) {
            let interval = after(rates);
            prop_assert!(interval.p10.is_finite() && 0.0 < interval.p10);
            prop_assert!(interval.p10 <= interval.p50 && interval.p50 <= interval.p90);
            prop_assert!(interval.p90 / interval.p10 <= PREDICTED.p90 / PREDICTED.p10 * 1.001);
        }
    }
}
