//! Statistical comparison of a canary with the stable revision.
//!
//! Speeds are compared relative to the prediction for the stable revision on the same node and for
//! the same requests. Neither different chips nor different requests influence the result. Without
//! such a prediction, absolute speeds are compared. The analysis waits until every figure is
//! measured.
//!
//! Error shares are compared with Fisher's exact test, medians with a z-test on their standard
//! errors, both one-sided. The final decision is made once, when all figures are measured. Every
//! interim analysis increases the risk of a false alarm. It therefore uses the Haybittle-Peto
//! boundary of three standard errors, instead of 1.6.

use rooflet_api::v1alpha1::{AnalysisStep, ModelReplica, Sample};

/// Significance level of a test.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// Probability per test that an equally good canary is found worse.
    chance: f64,
    /// Quantile of the standard normal distribution for `chance`.
    z: f64,
    /// Number of standard errors by which a median must miss a fixed bound.
    of_bounds: f64,
}

/// Level of the final decision.
const ONCE: Level = Level {
    chance: 0.05,
    z: 1.6449,
    of_bounds: 0.0,
};
/// Level of interim analyses.
const REPEATED: Level = Level {
    chance: 0.001,
    z: 3.0902,
    of_bounds: 3.0902,
};
/// Distance between the 10th and the 90th percentile of a normal distribution in standard
/// deviations: 2 × 1.2816.
const TENTH_TO_NINETIETH: f64 = 2.5631;
/// Ratio of the standard errors of median and mean for large normal samples: √(π/2).
const OF_A_MEDIAN: f64 = 1.2533;
/// Share of the expected speed below which a revision counts as much slower than predicted. The
/// expected speed is the predicted one, or less if the stable revision does not reach its own
/// prediction.
const FAR_BEHIND: f64 = 0.5;
/// Minimum sample size of a median. The first requests of a worker are slower, and the error of a
/// smaller sample is unknown.
const ENOUGH_FOR_A_MEDIAN: u64 = 20;

/// Median with its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    median: f64,
    standard_error: f64,
    count: u64,
}

impl Estimate {
    fn of(sample: &Sample) -> Option<Self> {
        let count = sample.count as f64;
        let deviation = (sample.p90 - sample.p10) / TENTH_TO_NINETIETH;
        let estimate = Self {
            median: sample.p50,
            standard_error: OF_A_MEDIAN * deviation / count.sqrt(),
            count: sample.count,
        };
        (sample.count > 0 && estimate.median.is_finite() && estimate.standard_error.is_finite())
            .then_some(estimate)
    }

    /// Returns a fixed value without an error.
    fn exact(median: f64) -> Self {
        Self {
            median,
            standard_error: 0.0,
            count: 0,
        }
    }

    /// Returns the estimate relative to an expected value.
    fn over(self, expected: f64) -> Self {
        Self {
            median: self.median / expected,
            standard_error: self.standard_error / expected,
            ..self
        }
    }

    fn is_enough(&self) -> bool {
        self.count >= ENOUGH_FOR_A_MEDIAN
    }

    /// Combines the estimates of several replicas, weighted by their numbers of requests.
    fn pooled(samples: impl Iterator<Item = Self>) -> Option<Self> {
        let samples: Vec<_> = samples.collect();
        let count: u64 = samples.iter().map(|sample| sample.count).sum();
        let share = |sample: &Self| sample.count as f64 / count as f64;
        (count > 0).then(|| Self {
            median: samples.iter().map(|sample| share(sample) * sample.median).sum(),
            standard_error: samples
                .iter()
                .map(|sample| (share(sample) * sample.standard_error).powi(2))
                .sum::<f64>()
                .sqrt(),
            count,
        })
    }

    /// Returns whether the median exceeds `factor` times `other` by more than `z` standard errors.
    fn exceeds(self, factor: f64, other: Self, z: f64) -> bool {
        let difference = self.median - factor * other.median;
        let error = self.standard_error.hypot(factor * other.standard_error);
        difference > 0.0 && difference > z * error
    }
}

/// Predicted speed of the stable revision on a node, relative to the prediction of the replica's
/// own revision: decode speed and time to first token. Both are 1 for the stable revision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::deployment) struct Baseline {
    pub(in crate::deployment) decode: f64,
    pub(in crate::deployment) first_token: f64,
}

impl Baseline {
    pub(super) const OWN: Self = Self {
        decode: 1.0,
        first_token: 1.0,
    };
}

/// Measurements of one figure for one revision.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Measured {
    /// Absolute value.
    plain: Option<Estimate>,
    /// Value relative to the prediction for the stable revision. `None` if a replica lacks it.
    relative: Option<Estimate>,
}

impl Measured {
    /// Combines the measured and the expected values of the replicas.
    fn of(figures: &[(Estimate, Option<f64>)]) -> Self {
        let relative: Option<Vec<_>> = figures
            .iter()
            .map(|(estimate, expected)| Some(estimate.over(positive(*expected)?)))
            .collect();
        Self {
            plain: Estimate::pooled(figures.iter().map(|(estimate, _)| *estimate)),
            relative: relative.and_then(|relative| Estimate::pooled(relative.into_iter())),
        }
    }

    fn count(&self) -> u64 {
        self.plain.map_or(0, |estimate| estimate.count)
    }

    fn is_enough(&self) -> bool {
        self.plain.is_some_and(|estimate| estimate.is_enough())
    }

    /// Returns comparable values of both revisions, and whether they are relative.
    fn beside(self, other: Self) -> Option<(Estimate, Estimate, bool)> {
        let relative = self.relative.zip(other.relative);
        let plain = || self.plain.zip(other.plain);
        relative
            .map(|(own, other)| (own, other, true))
            .or_else(|| plain().map(|(own, other)| (own, other, false)))
    }
}

fn positive(figure: Option<f64>) -> Option<f64> {
    figure.filter(|figure| figure.is_finite() && *figure > 0.0)
}

/// Figures of one revision's replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Side {
    answered: u64,
    failed: u64,
    restarts: i64,
    tokens_per_second: Measured,
    first_token_seconds: Measured,
    /// Ratio of measured to predicted decode speed of the revision itself.
    accuracy: Option<Estimate>,
}

impl Side {
    /// Collects the figures of a revision's replicas. `baseline` returns the baseline of a
    /// replica's node.
    pub(super) fn of(
        replicas: &[&ModelReplica],
        baseline: impl Fn(&ModelReplica) -> Option<Baseline>,
    ) -> Self {
        let mut side = Self::default();
        let (mut decode, mut first_token, mut accuracy) = (Vec::new(), Vec::new(), Vec::new());
        for replica in replicas {
            let Some(status) = &replica.status else { continue };
            side.restarts += i64::from(status.restarts);
            if let Some(requests) = &status.requests {
                side.answered += requests.completed + requests.failed;
                side.failed += requests.failed;
            }
            let Some(measured) = &status.measured else {
                continue;
            };
            let baseline = baseline(replica);
            let predicted = measured.predicted.as_ref();
            let estimate = |sample: &Option<Sample>| sample.as_ref().and_then(Estimate::of);
            if let Some(estimate) = estimate(&measured.tokens_per_second_sample) {
                let own = predicted.map(|predicted| predicted.tokens_per_second.p50);
                let expected = own.zip(baseline).map(|(own, baseline)| own * baseline.decode);
                decode.push((estimate, expected));
                accuracy.extend(positive(own).map(|own| estimate.over(own)));
            }
            if let Some(estimate) = estimate(&measured.time_to_first_token_sample) {
                let own = predicted.map(|predicted| predicted.time_to_first_token_seconds.p50);
                let expected = own
                    .zip(baseline)
                    .map(|(own, baseline)| own * baseline.first_token);
                first_token.push((estimate, expected));
            }
        }
        Self {
            tokens_per_second: Measured::of(&decode),
            first_token_seconds: Measured::of(&first_token),
            accuracy: Estimate::pooled(accuracy.into_iter()),
            ..side
        }
    }

    fn error_share(self) -> f64 {
        if self.answered == 0 {
            0.0
        } else {
            self.failed as f64 / self.answered as f64
        }
    }
}

/// Result of an analysis.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Analysis {
    /// More requests are needed. Contains the missing measurements.
    Waiting(String),
    Passed(String),
    Failed(String),
}

/// Compares the canary with the stable revision.
pub(super) fn analyse(step: &AnalysisStep, canary: Side, stable: Side) -> Analysis {
    // A restart fails the analysis without statistics.
    if canary.restarts > 0 {
        return Analysis::Failed(format!(
            "the canary's workers restarted {} times",
            canary.restarts
        ));
    }
    let enough = u64::from(step.min_requests);
    if canary.answered < enough || stable.answered < enough {
        return Analysis::Waiting(format!(
            "{} of {enough} requests answered by the canary, {} by the stable revision",
            canary.answered, stable.answered
        ));
    }
    let decisive = Comparison::new(step, canary, stable, ONCE);
    if decisive.missing.is_empty() {
        return match decisive.worse.is_empty() {
            true => Analysis::Passed(decisive.texts.join(", ")),
            false => Analysis::Failed(decisive.worse.join(", ")),
        };
    }
    let interim = Comparison::new(step, canary, stable, REPEATED);
    match interim.worse.is_empty() {
        true => Analysis::Waiting(interim.missing.join("; ")),
        false => Analysis::Failed(interim.worse.join(", ")),
    }
}

/// Results of all figures.
#[derive(Debug, Default)]
struct Comparison {
    texts: Vec<String>,
    /// Texts of the figures in which the canary is worse.
    worse: Vec<String>,
    /// Descriptions of missing measurements.
    missing: Vec<String>,
}

impl Comparison {
    fn new(step: &AnalysisStep, canary: Side, stable: Side, level: Level) -> Self {
        let mut comparison = Self::default();
        let errors = format!(
            "{:.1} % of requests failed, {:.1} % with the stable revision",
            percent(canary.error_share()),
            percent(stable.error_share())
        );
        let above_limit = step
            .max_error_percent
            .is_some_and(|limit| percent(canary.error_share()) > limit);
        let more_fail = above_limit || more_failures(canary, stable) < level.chance;
        comparison.add(Ok((errors, more_fail)));
        let least = f64::from(step.min_tokens_per_second_percent) / 100.0;
        let most = f64::from(step.max_time_to_first_token_percent) / 100.0;
        comparison.add(compare(
            &DECODE,
            canary.tokens_per_second,
            stable.tokens_per_second,
            |canary, stable| stable.exceeds(1.0 / least, canary, level.z),
        ));
        comparison.add(compare(
            &FIRST_TOKEN,
            canary.first_token_seconds,
            stable.first_token_seconds,
            |canary, stable| canary.exceeds(most, stable, level.z),
        ));
        if let Some(least) = step.min_measured_percent {
            comparison.add(accuracy(canary, least, level));
        }
        comparison
    }

    fn add(&mut self, figure: FigureResult) {
        match figure {
            Ok((text, is_worse)) => {
                if is_worse {
                    self.worse.push(text.clone());
                }
                self.texts.push(text);
            }
            Err(why) => self.missing.push(why.to_string()),
        }
    }
}

/// Returns a message if the new replicas of a rollout without canary decode much slower than
/// predicted, and those of the stable revision do not. Returns `None` if the samples are too small.
pub(super) fn lags(new: Side, stable: Side) -> Option<String> {
    let measured = new.accuracy.filter(Estimate::is_enough)?;
    // If both predictions are wrong, the revision is not the cause.
    let as_predicted = Estimate::exact(1.0);
    let reference = stable.accuracy.filter(Estimate::is_enough);
    let expected = reference
        .filter(|reference| reference.median < 1.0)
        .unwrap_or(as_predicted);
    let comparison = reference.map_or_else(String::new, |reference| {
        format!(
            ", compared with {:.0} % for the stable revision",
            reference.median * 100.0
        )
    });
    expected.exceeds(1.0 / FAR_BEHIND, measured, ONCE.z).then(|| {
        format!(
            "the new replicas reach {:.0} % of their predicted tokens/s, over {} answers{comparison}",
            measured.median * 100.0,
            measured.count
        )
    })
}

/// Figure that is compared between both revisions, with its texts.
struct Compared {
    /// Description of the samples.
    samples: &'static str,
    /// Formats the relative values of canary and stable revision.
    relative: fn(f64, f64) -> String,
    /// Formats the absolute values of canary and stable revision.
    plain: fn(f64, f64) -> String,
}

const DECODE: Compared = Compared {
    samples: "decode speeds of answers with several tokens",
    relative: |canary, stable| {
        format!(
            "{:.0} % of the tokens/s predicted for the stable revision on the same nodes, {:.0} % with the stable revision",
            percent(canary),
            percent(stable)
        )
    },
    plain: |canary, stable| format!("{canary:.1} tokens/s, {stable:.1} with the stable revision"),
};

const FIRST_TOKEN: Compared = Compared {
    // Cached prompts are excluded, because a system prompt is cached after its first request.
    samples: "times to first token of uncached prompts",
    relative: |canary, stable| {
        format!(
            "time to first token {:.0} % of the prediction for the stable revision on the same nodes, {:.0} % with the stable revision",
            percent(canary),
            percent(stable)
        )
    },
    plain: |canary, stable| {
        format!("time to first token {canary:.3} s, {stable:.3} s with the stable revision")
    },
};

fn percent(share: f64) -> f64 {
    share * 100.0
}

/// Text of a figure and whether the canary is worse.
type FigureResult = Result<(String, bool), TooFewSamples>;

/// Figure that has too few samples for a decision.
#[derive(Debug, thiserror::Error)]
enum TooFewSamples {
    #[error("{canary} of {ENOUGH_FOR_A_MEDIAN} {samples} by the canary, {stable} by the stable revision")]
    Compared {
        canary: u64,
        samples: &'static str,
        stable: u64,
    },
    #[error("{canary} of {ENOUGH_FOR_A_MEDIAN} decode speeds of the canary with a prediction")]
    Predicted { canary: u64 },
}

fn compare(
    figure: &Compared,
    canary: Measured,
    stable: Measured,
    is_worse: impl FnOnce(Estimate, Estimate) -> bool,
) -> FigureResult {
    let beside = canary.beside(stable);
    match beside.filter(|_| canary.is_enough() && stable.is_enough()) {
        Some((canary, stable, is_relative)) => {
            let text = if is_relative {
                figure.relative
            } else {
                figure.plain
            };
            Ok((text(canary.median, stable.median), is_worse(canary, stable)))
        }
        None => Err(TooFewSamples::Compared {
            canary: canary.count(),
            samples: figure.samples,
            stable: stable.count(),
        }),
    }
}

/// Compares the canary's decode speed with its own prediction. `least` is in percent.
fn accuracy(canary: Side, least: u32, level: Level) -> FigureResult {
    let bound = Estimate::exact(f64::from(least) / 100.0);
    match canary.accuracy.filter(Estimate::is_enough) {
        Some(accuracy) => {
            let reached = percent(accuracy.median);
            let text = format!("{reached:.0} % of the predicted tokens/s");
            Ok((text, bound.exceeds(1.0, accuracy, level.of_bounds)))
        }
        None => Err(TooFewSamples::Predicted {
            canary: canary.accuracy.map_or(0, |accuracy| accuracy.count),
        }),
    }
}

/// Returns the probability of at least this number of failures among the canary's requests if both
/// revisions have the same error rate: the upper tail of the hypergeometric distribution.
fn more_failures(canary: Side, stable: Side) -> f64 {
    let failed = canary.failed + stable.failed;
    if canary.failed == 0 {
        return 1.0;
    }
    let all = ln_choose(canary.answered + stable.answered, failed);
    (canary.failed..=failed.min(canary.answered))
        .filter(|count| failed - count <= stable.answered)
        .map(|count| {
            let combinations = ln_choose(canary.answered, count) + ln_choose(stable.answered, failed - count);
            (combinations - all).exp()
        })
        .sum::<f64>()
        .min(1.0)
}

fn ln_choose(n: u64, k: u64) -> f64 {
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

/// Returns `ln(n!)`. The value is exact for small numbers. Larger ones use Stirling's series, whose
/// first omitted term is below 1e-10.
fn ln_factorial(n: u64) -> f64 {
    const EXACT: u64 = 128;
    if n <= EXACT {
        return (2..=n).map(|k| (k as f64).ln()).sum();
    }
    let x = n as f64;
    x * x.ln() - x + 0.5 * (std::f64::consts::TAU * x).ln() + 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3))
}

#[cfg(test)]
mod tests;
