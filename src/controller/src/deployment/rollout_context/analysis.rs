//! Whether a canary is worse than the stable revision: figures of both sides, held against each other with regard to
//! chance.
//!
//! Speeds are compared as parts of what the stable revision is predicted to do on each replica's node for such requests, so
//! that neither another chip nor other requests speak for or against a revision; where that cannot be told, as they are.
//! What has no figures yet is waited for: nothing passes because it was not measured.
//!
//! Errors are compared by Fisher's exact test, medians by a z test on their standard errors; both one-sided. They decide
//! once, when nothing is missing any more. Until then every look is one more chance to find something by accident, so only
//! what is beyond doubt counts, after Haybittle and Peto: three standard errors instead of 1.6.

use rooflet_api::v1alpha1::{AnalysisStep, ModelReplica, Sample};

/// When a difference is no accident.
#[derive(Debug, Clone, Copy)]
struct Level {
    /// The chance of calling a canary worse that is as good as the stable revision, per test.
    chance: f64,
    /// The same as a quantile of the standard normal distribution.
    z: f64,
    /// By how many standard errors a median has to miss a bound.
    of_bounds: f64,
}

/// Of the tests that decide.
const ONCE: Level = Level {
    chance: 0.05,
    z: 1.6449,
    of_bounds: 0.0,
};
/// Of those that are made again and again.
const REPEATED: Level = Level {
    chance: 0.001,
    z: 3.0902,
    of_bounds: 3.0902,
};
/// From the 10th to the 90th percentile of a normal distribution, in standard deviations: 2 × 1.2816.
const TENTH_TO_NINETIETH: f64 = 2.5631;
/// The standard error of a median over that of a mean, for large normal samples: √(π/2).
const OF_A_MEDIAN: f64 = 1.2533;
/// Less than this part of what the stable revision reaches is far behind the prediction.
const FAR_BEHIND: f64 = 0.5;
/// Figures behind a median. Of fewer its error cannot be told, and a worker's first requests are slower than others.
const ENOUGH_FOR_A_MEDIAN: u64 = 20;

/// A median and how far it may be off.
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

    /// What is not measured but given.
    fn exact(median: f64) -> Self {
        Self {
            median,
            standard_error: 0.0,
            count: 0,
        }
    }

    /// As a part of what was expected.
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

    /// Several replicas as one, each with the weight of its requests.
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

    /// Whether this is more than `factor` times `other` by more than chance explains.
    fn exceeds(self, factor: f64, other: Self, z: f64) -> bool {
        let difference = self.median - factor * other.median;
        let error = self.standard_error.hypot(factor * other.standard_error);
        difference > 0.0 && difference > z * error
    }
}

/// What the stable revision is predicted to do on a node over what a replica's own revision is: its decode speed, and the
/// time until its first token. 1 for replicas of the stable revision.
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

/// One figure of a side.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Measured {
    /// As it is.
    plain: Option<Estimate>,
    /// As a part of what is expected of the stable revision; `None` where that cannot be told of every replica.
    relative: Option<Estimate>,
}

impl Measured {
    /// Of each replica what was measured and what is expected.
    fn of(figures: &[(Estimate, Option<f64>)]) -> Self {
        let relative: Option<Vec<_>> = figures
            .iter()
            .map(|(estimate, expected)| Some(estimate.over(is_positive(*expected)?)))
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

    /// Both sides by the same measure, and whether it is a part of what is expected.
    fn beside(self, other: Self) -> Option<(Estimate, Estimate, bool)> {
        let relative = self.relative.zip(other.relative);
        let plain = || self.plain.zip(other.plain);
        relative
            .map(|(ours, theirs)| (ours, theirs, true))
            .or_else(|| plain().map(|(ours, theirs)| (ours, theirs, false)))
    }
}

fn is_positive(figure: Option<f64>) -> Option<f64> {
    figure.filter(|figure| figure.is_finite() && *figure > 0.0)
}

/// What is known of one revision's replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Side {
    answered: u64,
    failed: u64,
    restarts: i64,
    tokens_per_second: Measured,
    first_token_seconds: Measured,
    /// Measured over predicted decode speed, each of the revision itself.
    accuracy: Option<Estimate>,
}

impl Side {
    /// `baseline` tells of each replica's node.
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
                accuracy.extend(is_positive(own).map(|own| estimate.over(own)));
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

/// What the figures say.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Analysis {
    /// Too little is known yet.
    Waiting(String),
    Passed(String),
    Failed(String),
}

/// Holds the canary against the stable revision.
pub(super) fn analyse(step: &AnalysisStep, canary: Side, stable: Side) -> Analysis {
    // A crash needs no statistics.
    if canary.restarts > 0 {
        return Analysis::Failed(format!(
            "the canary's workers were started again {} times",
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
            true => Analysis::Passed(decisive.said.join(", ")),
            false => Analysis::Failed(decisive.worse.join(", ")),
        };
    }
    let interim = Comparison::new(step, canary, stable, REPEATED);
    match interim.worse.is_empty() {
        true => Analysis::Waiting(interim.missing.join("; ")),
        false => Analysis::Failed(interim.worse.join(", ")),
    }
}

/// What is to be said of each figure.
#[derive(Debug, Default)]
struct Comparison {
    said: Vec<String>,
    /// Of them, those in which the canary is worse.
    worse: Vec<String>,
    /// What is still to be measured.
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
            |ours, theirs| theirs.exceeds(1.0 / least, ours, level.z),
        ));
        comparison.add(compare(
            &FIRST_TOKEN,
            canary.first_token_seconds,
            stable.first_token_seconds,
            |ours, theirs| ours.exceeds(most, theirs, level.z),
        ));
        if let Some(least) = step.min_measured_percent {
            comparison.add(accuracy(canary, least, level));
        }
        comparison
    }

    fn add(&mut self, figure: Judged) {
        match figure {
            Ok((text, is_worse)) => {
                if is_worse {
                    self.worse.push(text.clone());
                }
                self.said.push(text);
            }
            Err(why) => self.missing.push(why.to_string()),
        }
    }
}

/// Why replicas that are not compared step by step should not be followed by more: they decode far more slowly than was
/// predicted of them, by more than chance explains, and those of the stable revision do not. `None` also while too little is
/// known.
pub(super) fn lags(new: Side, stable: Side) -> Option<String> {
    let ours = new.accuracy.filter(Estimate::is_enough)?;
    // Where the predictions of both are wrong it is not for the revision.
    let as_predicted = Estimate::exact(1.0);
    let theirs = stable.accuracy.filter(Estimate::is_enough);
    let expected = theirs
        .filter(|theirs| theirs.median < 1.0)
        .unwrap_or(as_predicted);
    let beside = theirs.map_or_else(String::new, |theirs| {
        format!(", where the stable revision has {:.0} %", theirs.median * 100.0)
    });
    expected.exceeds(1.0 / FAR_BEHIND, ours, ONCE.z).then(|| {
        format!(
            "its replicas have {:.0} % of the tokens/s that were predicted of them, over {} answers{beside}",
            ours.median * 100.0,
            ours.count
        )
    })
}

/// A figure that both sides have, and its words.
struct Compared {
    /// What has to be measured.
    samples: &'static str,
    /// As parts of what the stable revision is predicted to do; of the canary and of the stable revision.
    relative: fn(f64, f64) -> String,
    /// As they are.
    plain: fn(f64, f64) -> String,
}

const DECODE: Compared = Compared {
    samples: "decode speeds of answers of several tokens",
    relative: |ours, theirs| {
        format!(
            "{:.0} % of the tokens/s that the stable revision is predicted to have there, which itself has {:.0} %",
            percent(ours),
            percent(theirs)
        )
    },
    plain: |ours, theirs| format!("{ours:.1} tokens/s against {theirs:.1}"),
};

const FIRST_TOKEN: Compared = Compared {
    // A system prompt that all requests share is cached after the first.
    samples: "times to the first token of prompts of which nothing was cached",
    relative: |ours, theirs| {
        format!(
            "first token after {:.0} % of the time that the stable revision is predicted to take there, which itself takes {:.0} %",
            percent(ours),
            percent(theirs)
        )
    },
    plain: |ours, theirs| format!("first token after {ours:.3} s against {theirs:.3} s"),
};

fn percent(share: f64) -> f64 {
    share * 100.0
}

/// Text that reports a figure, and whether the canary is worse.
type Judged = Result<(String, bool), TooFewSamples>;

/// Figure that has too few samples for a decision.
#[derive(Debug, thiserror::Error)]
enum TooFewSamples {
    #[error("{canary} of {ENOUGH_FOR_A_MEDIAN} {samples} by the canary, {stable} by the stable revision")]
    Compared {
        canary: u64,
        samples: &'static str,
        stable: u64,
    },
    #[error(
        "{canary} of {ENOUGH_FOR_A_MEDIAN} decode speeds of the canary for which something was predicted"
    )]
    Predicted { canary: u64 },
}

fn compare(
    figure: &Compared,
    canary: Measured,
    stable: Measured,
    is_worse: impl FnOnce(Estimate, Estimate) -> bool,
) -> Judged {
    let beside = canary.beside(stable);
    match beside.filter(|_| canary.is_enough() && stable.is_enough()) {
        Some((ours, theirs, is_relative)) => {
            let words = if is_relative {
                figure.relative
            } else {
                figure.plain
            };
            Ok((words(ours.median, theirs.median), is_worse(ours, theirs)))
        }
        None => Err(TooFewSamples::Compared {
            canary: canary.count(),
            samples: figure.samples,
            stable: stable.count(),
        }),
    }
}

/// Whether the canary has so many percent of its own prediction.
fn accuracy(canary: Side, least: u32, level: Level) -> Judged {
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

/// The chance of so many failures among the canary's requests, or more, if both revisions fail alike: the upper tail
/// of the hypergeometric distribution.
fn more_failures(canary: Side, stable: Side) -> f64 {
    let (ours, theirs) = (canary.answered, stable.answered);
    let failed = canary.failed + stable.failed;
    if canary.failed == 0 {
        return 1.0;
    }
    let all = ln_choose(ours + theirs, failed);
    (canary.failed..=failed.min(ours))
        .filter(|count| failed - count <= theirs)
        .map(|count| (ln_choose(ours, count) + ln_choose(theirs, failed - count) - all).exp())
        .sum::<f64>()
        .min(1.0)
}

fn ln_choose(n: u64, k: u64) -> f64 {
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

/// Exact for small numbers; Stirling's series from there on, whose next term is below 1e-10.
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
