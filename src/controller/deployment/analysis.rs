//! Whether a canary is worse than the stable revision: figures of both sides, held against each other with regard to
//! chance.
//!
//! Errors are compared by Fisher's exact test, medians by a z test on their standard errors; both one-sided. A test is
//! made once, when both sides have answered enough requests, so that looking again and again finds nothing by accident.

use crate::api::v1alpha1::{AnalysisStep, ModelReplica, Sample};

/// The chance of calling a canary worse that is as good as the stable revision, per test.
const SIGNIFICANCE: f64 = 0.05;
/// The standard normal distribution's 95th percentile.
const Z_95: f64 = 1.6449;
/// From the 10th to the 90th percentile of a normal distribution, in standard deviations: 2 × 1.2816.
const TENTH_TO_NINETIETH: f64 = 2.5631;
/// The standard error of a median over that of a mean, for large normal samples: √(π/2).
const OF_A_MEDIAN: f64 = 1.2533;
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
    fn exceeds(self, factor: f64, other: Self) -> bool {
        let difference = self.median - factor * other.median;
        let error = self.standard_error.hypot(factor * other.standard_error);
        difference > 0.0 && difference > Z_95 * error
    }
}

/// What is known of one revision's replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Side {
    answered: u64,
    failed: u64,
    restarts: i64,
    tokens_per_second: Option<Estimate>,
    first_token_seconds: Option<Estimate>,
    /// Measured over predicted decode speed.
    accuracy: Option<f64>,
}

impl Side {
    pub(super) fn of<'a>(replicas: impl Iterator<Item = &'a ModelReplica>) -> Self {
        let statuses: Vec<_> = replicas.filter_map(|replica| replica.status.as_ref()).collect();
        let requests = || statuses.iter().filter_map(|status| status.requests.as_ref());
        let measured = || statuses.iter().filter_map(|status| status.measured.as_ref());
        let accuracies: Vec<_> = measured()
            .filter_map(|measured| {
                let predicted = measured.predicted.as_ref()?.tokens_per_second.p50;
                let ratio = measured.tokens_per_second.parse::<f64>().ok()? / predicted;
                ratio.is_finite().then_some(ratio)
            })
            .collect();
        let estimate = |of: fn(&crate::api::v1alpha1::MeasuredSpeed) -> Option<&Sample>| {
            Estimate::pooled(measured().filter_map(of).filter_map(Estimate::of))
        };
        Self {
            answered: requests()
                .map(|requests| requests.completed + requests.failed)
                .sum(),
            failed: requests().map(|requests| requests.failed).sum(),
            restarts: statuses.iter().map(|status| i64::from(status.restarts)).sum(),
            tokens_per_second: estimate(|measured| measured.tokens_per_second_sample.as_ref()),
            first_token_seconds: estimate(|measured| measured.time_to_first_token_sample.as_ref()),
            accuracy: (!accuracies.is_empty())
                .then(|| accuracies.iter().sum::<f64>() / accuracies.len() as f64),
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
    let mut worse = Vec::new();
    let percent = |share: f64| share * 100.0;
    let errors = format!(
        "{:.1} % of requests failed, {:.1} % with the stable revision",
        percent(canary.error_share()),
        percent(stable.error_share())
    );
    let above_limit = step
        .max_error_percent
        .is_some_and(|limit| percent(canary.error_share()) > limit);
    if above_limit || more_failures(canary, stable) < SIGNIFICANCE {
        worse.push(errors.clone());
    }
    let mut said = vec![errors];
    let is_enough = |estimate: &Estimate| estimate.count >= ENOUGH_FOR_A_MEDIAN;
    if let (Some(ours), Some(theirs)) = (
        canary.tokens_per_second.filter(is_enough),
        stable.tokens_per_second.filter(is_enough),
    ) {
        let text = format!("{:.1} tokens/s against {:.1}", ours.median, theirs.median);
        let least = f64::from(step.min_tokens_per_second_percent) / 100.0;
        if theirs.exceeds(1.0 / least, ours) {
            worse.push(text.clone());
        }
        said.push(text);
    }
    if let (Some(ours), Some(theirs)) = (
        canary.first_token_seconds.filter(is_enough),
        stable.first_token_seconds.filter(is_enough),
    ) {
        let text = format!(
            "first token after {:.3} s against {:.3} s",
            ours.median, theirs.median
        );
        let most = f64::from(step.max_time_to_first_token_percent) / 100.0;
        if ours.exceeds(most, theirs) {
            worse.push(text.clone());
        }
        said.push(text);
    }
    if let (Some(least), Some(accuracy)) = (step.min_measured_percent, canary.accuracy) {
        let text = format!("{:.0} % of the predicted tokens/s", percent(accuracy));
        if percent(accuracy) < f64::from(least) {
            worse.push(text.clone());
        }
        said.push(text);
    }
    if worse.is_empty() {
        Analysis::Passed(said.join(", "))
    } else {
        Analysis::Failed(worse.join(", "))
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
mod tests {
    use super::*;

    fn side(answered: u64, failed: u64) -> Side {
        Side {
            answered,
            failed,
            restarts: 0,
            tokens_per_second: None,
            first_token_seconds: None,
            accuracy: None,
        }
    }

    fn estimate(median: f64, standard_error: f64) -> Option<Estimate> {
        Some(Estimate {
            median,
            standard_error,
            count: 40,
        })
    }

    /// Fisher's own example of the tea (3 of 4 against 1 of 4), and two tables that scipy.stats.fisher_exact
    /// with `alternative="greater"` gives in its documentation's manner.
    #[test]
    fn failures_are_compared_by_fishers_exact_test() {
        let p = |a: (u64, u64), b: (u64, u64)| more_failures(side(a.0, a.1), side(b.0, b.1));
        assert!((p((4, 3), (4, 1)) - 17.0 / 70.0).abs() < 1e-12);
        assert!((p((4, 4), (4, 0)) - 1.0 / 70.0).abs() < 1e-12);
        assert!((p((10, 0), (10, 5)) - 1.0).abs() < 1e-12);
        // One failure each of two: C(2,1) C(2,1) / C(4,2) + C(2,2) C(2,0) / C(4,2).
        assert!((p((2, 1), (2, 1)) - 5.0 / 6.0).abs() < 1e-12);
    }

    #[test]
    fn factorials_of_large_numbers_are_continued_without_a_step() {
        let exact: f64 = (2..=1000u64).map(|k| (k as f64).ln()).sum();
        assert!((ln_factorial(1000) - exact).abs() < 1e-8);
        assert!((ln_factorial(129) - ln_factorial(128) - 129f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn too_few_requests_say_nothing() {
        let step = AnalysisStep::default();
        let told = analyse(&step, side(19, 19), side(100, 0));
        assert_eq!(
            told,
            Analysis::Waiting(
                "19 of 20 requests answered by the canary, 100 by the stable revision".to_owned()
            )
        );
        assert!(matches!(
            analyse(&step, side(20, 0), side(19, 0)),
            Analysis::Waiting(_)
        ));
    }

    #[test]
    fn more_errors_than_chance_explains_fail() {
        let step = AnalysisStep::default();
        assert!(matches!(
            analyse(&step, side(20, 1), side(200, 2)),
            Analysis::Passed(_)
        ));
        assert_eq!(
            analyse(&step, side(20, 5), side(200, 2)),
            Analysis::Failed("25.0 % of requests failed, 1.0 % with the stable revision".to_owned())
        );
        let strict = AnalysisStep {
            max_error_percent: Some(4.0),
            ..AnalysisStep::default()
        };
        assert!(matches!(
            analyse(&strict, side(20, 1), side(200, 2)),
            Analysis::Failed(_)
        ));
        let crashed = Side {
            restarts: 1,
            ..side(0, 0)
        };
        assert!(matches!(
            analyse(&step, crashed, side(200, 0)),
            Analysis::Failed(_)
        ));
    }

    #[test]
    fn slower_than_allowed_fails_when_it_is_no_accident() {
        let step = AnalysisStep::default();
        let with = |rate: Option<Estimate>, first: Option<Estimate>| Side {
            tokens_per_second: rate,
            first_token_seconds: first,
            ..side(40, 0)
        };
        let stable = with(estimate(50.0, 1.0), estimate(0.2, 0.01));
        let verdict = |canary: Side| match analyse(&step, canary, stable) {
            Analysis::Failed(why) => why,
            Analysis::Passed(_) => String::new(),
            Analysis::Waiting(why) => panic!("{why}"),
        };
        // 90 % of 50 are 45.
        assert_eq!(verdict(with(estimate(46.0, 1.0), estimate(0.2, 0.01))), "");
        assert_eq!(verdict(with(estimate(44.0, 5.0), estimate(0.2, 0.01))), "");
        assert_eq!(
            verdict(with(estimate(40.0, 1.0), None)),
            "40.0 tokens/s against 50.0"
        );
        // 120 % of 0.2 s are 0.24 s.
        assert_eq!(verdict(with(None, estimate(0.25, 0.05))), "");
        assert_eq!(
            verdict(with(None, estimate(0.4, 0.02))),
            "first token after 0.400 s against 0.200 s"
        );
    }
}
