//! What can be said of few, skewed samples: quantiles with bootstrap intervals, and whether two targets differ.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;

const RESAMPLES: usize = 2000;
/// Up to so many pairs, every way to flip their signs is tried.
const MOST_EXACT: usize = 14;
/// The same samples give the same interval.
const SEED: u64 = 7;

/// A quantile and its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// How one target does against another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ratio {
    /// Second over first: geometric mean over the rounds, with its 95 % confidence interval.
    #[serde(flatten)]
    pub(crate) of: Estimate,
    /// Chance of a ratio as far from 1 if the targets were alike, by flipping which is which in every round.
    pub(crate) p: f64,
    pub(crate) rounds: usize,
}

/// The value that `fraction` of all are at or below, midway where two are (Hyndman and Fan 1996, definition 2).
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let rank = fraction * sorted.len() as f64;
    let at = |rank: f64| sorted[(rank as usize).clamp(1, sorted.len()) - 1];
    f64::midpoint(at(rank.ceil()), at(rank.floor() + 1.0))
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Draws as many values as there are, again and again, and returns the middle 95 % of `statistic`.
fn bootstrap(values: &[f64], statistic: impl Fn(Vec<f64>) -> f64) -> (f64, f64) {
    let mut random = StdRng::seed_from_u64(SEED);
    let resampled = sorted(
        (0..RESAMPLES)
            .map(|_| {
                let draw = values
                    .iter()
                    .map(|_| values[random.random_range(0..values.len())]);
                statistic(draw.collect())
            })
            .collect(),
    );
    (quantile(&resampled, 0.025), quantile(&resampled, 0.975))
}

/// `None` of no values.
pub(super) fn estimate(values: &[f64], fraction: f64) -> Option<Estimate> {
    if values.is_empty() {
        return None;
    }
    let (low, high) = bootstrap(values, |draw| quantile(&sorted(draw), fraction));
    Some(Estimate {
        value: quantile(&sorted(values.to_vec()), fraction),
        low,
        high,
    })
}

/// Of what both targets did in the same rounds. `None` of no pairs.
pub(super) fn ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let logs: Vec<f64> = pairs
        .iter()
        .filter(|(first, second)| *first > 0.0 && *second > 0.0)
        .map(|(first, second)| (second / first).ln())
        .collect();
    if logs.is_empty() {
        return None;
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (low, high) = bootstrap(&logs, |draw| mean(&draw));
    Some(Ratio {
        of: Estimate {
            value: mean(&logs).exp(),
            low: low.exp(),
            high: high.exp(),
        },
        p: sign_flips(&logs),
        rounds: logs.len(),
    })
}

/// Share of sign patterns whose sum is at least as far from 0 as the one that was seen.
fn sign_flips(logs: &[f64]) -> f64 {
    let seen = logs.iter().sum::<f64>().abs() * (1.0 - 1e-12);
    if logs.len() <= MOST_EXACT {
        let patterns = 1_u32 << logs.len();
        let sum = |pattern: u32| -> f64 {
            let signed = logs
                .iter()
                .enumerate()
                .map(|(at, log)| if pattern >> at & 1 == 1 { -log } else { *log });
            signed.sum()
        };
        let as_far = (0..patterns).filter(|pattern| sum(*pattern).abs() >= seen);
        return as_far.count() as f64 / f64::from(patterns);
    }
    let mut random = StdRng::seed_from_u64(SEED);
    let as_far = (0..RESAMPLES)
        .filter(|_| {
            let flipped = logs.iter().map(|log| if random.random() { -log } else { *log });
            flipped.sum::<f64>().abs() >= seen
        })
        .count();
    // The pattern that was seen is one of them.
    (as_far + 1) as f64 / (RESAMPLES + 1) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_interval_holds_its_value_and_lies_within_the_samples(
            values in proptest::collection::vec(0.001..1000.0_f64, 1..30), fraction in 0.05..0.99_f64,
        ) {
            let estimate = estimate(&values, fraction).unwrap();
            prop_assert!(estimate.low <= estimate.high);
            let within = |value: f64| values.iter().any(|v| *v <= value) && values.iter().any(|v| *v >= value);
            prop_assert!(within(estimate.value) && within(estimate.low) && within(estimate.high));
        }

        #[test]
        fn swapping_the_targets_inverts_the_ratio(
            pairs in proptest::collection::vec((0.1..10.0_f64, 0.1..10.0_f64), 1..12),
        ) {
            let swapped: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
            let (one, two) = (ratio(&pairs).unwrap(), ratio(&swapped).unwrap());
            prop_assert!((one.of.value * two.of.value - 1.0).abs() < 1e-9);
            prop_assert!((one.p - two.p).abs() < 1e-12);
        }
    }

    /// Three rounds, all of them faster: 2 of the 8 patterns of signs are as far from zero, so nothing is proven.
    #[test]
    fn few_rounds_prove_nothing() {
        let alike = |rounds| ratio(&vec![(1.0, 2.0); rounds]).unwrap();
        assert_eq!(alike(3).p, 0.25);
        assert_eq!(alike(6).p, 2.0 / 64.0);
        assert!((alike(3).of.value - 2.0).abs() < 1e-12);
        assert!(alike(20).p < 0.001);
    }

    #[test]
    fn quantiles_lie_midway_where_two_values_are_one() {
        let values: Vec<f64> = (1..=100_u8).map(f64::from).collect();
        for (fraction, value) in [(0.5, 50.5), (0.95, 95.5), (0.99, 99.5), (0.123, 13.0)] {
            assert_eq!(estimate(&values, fraction).unwrap().value, value);
        }
        assert_eq!(estimate(&[1.0, 2.0, 4.0], 0.5).unwrap().value, 2.0);
        assert_eq!(estimate(&[53.3, 56.3], 0.5).unwrap().value, 54.8);
        // The rank of the median of 100 draws has a standard deviation of 5.
        let median = estimate(&values, 0.5).unwrap();
        assert!(
            (36.0..46.0).contains(&median.low) && (55.0..65.0).contains(&median.high),
            "{median:?}"
        );
    }
}
