//! Statistics of few, skewed samples: quantiles with bootstrap intervals, and a test whether two
//! targets differ.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;

use rooflet_base::quantile::sorted;

const RESAMPLES: usize = 2000;
/// Maximum number of pairs for the exact sign-flip test, which tries all patterns of signs.
const MOST_EXACT: usize = 14;
/// Fixed seed, so that the same samples give the same interval.
const SEED: u64 = 7;

/// Minimum number of rounds for a 95 % statement. With fewer rounds, no interval between observed
/// values contains the median that often. Even if all rounds favour the same target, this happens
/// by chance in more than 5 % of cases.
pub const LEAST_ROUNDS: usize = 6;
/// 97.5 % quantile of the standard normal distribution.
const Z: f64 = 1.959_964;

/// Quantile and its 95 % confidence interval. With fewer than [`LEAST_ROUNDS`] rounds: smallest and
/// largest value. No interval extends beyond the largest value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Ratio of one target to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ratio {
    /// Geometric mean of second over first over the rounds, with its 95 % confidence interval.
    /// Unbounded for one round.
    #[serde(flatten)]
    pub of: Estimate,
    /// Probability of a ratio at least as far from 1 if the targets are equal, from a sign-flip
    /// test over the rounds.
    pub p: f64,
    pub rounds: usize,
}

/// Returns the value that `fraction` of all values do not exceed, or the midpoint if two values
/// qualify (Hyndman and Fan 1996, definition 2). Differs from `rooflet_base::quantile`, whose 99th
/// percentile of 100 skewed times is nearly the second largest value.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let rank = fraction * sorted.len() as f64;
    let at = |rank: f64| sorted[(rank as usize).clamp(1, sorted.len()) - 1];
    f64::midpoint(at(rank.ceil()), at(rank.floor() + 1.0))
}

/// Estimates a quantile. `None` without values. The bootstrap resamples rounds, because values of
/// one round are correlated.
pub(crate) fn estimate(rounds: &[Vec<f64>], fraction: f64) -> Option<Estimate> {
    let rounds: Vec<&Vec<f64>> = rounds.iter().filter(|round| !round.is_empty()).collect();
    let all = |rounds: &[&Vec<f64>]| sorted(rounds.iter().copied().flatten().copied());
    let values = all(&rounds);
    let (first, last) = (values.first()?, values.last()?);
    let value = quantile(&values, fraction);
    if rounds.len() < LEAST_ROUNDS {
        let (low, high) = (*first, *last);
        return Some(Estimate { value, low, high });
    }
    let mut random = StdRng::seed_from_u64(SEED);
    let mut drawn = || -> Vec<_> {
        let draw = |_| rounds[random.random_range(0..rounds.len())];
        rounds.iter().map(draw).collect()
    };
    let resampled = (0..RESAMPLES).map(|_| quantile(&all(&drawn()), fraction));
    let resampled = sorted(resampled);
    let tail = tail(rounds.len());
    Some(Estimate {
        value,
        low: quantile(&resampled, tail),
        high: quantile(&resampled, 1.0 - tail),
    })
}

/// Returns the probability to cut off at each end of the resampled values: less than 2.5 %, because
/// few rounds spread less than their population (expanded percentiles of Hesterberg 2015).
fn tail(rounds: usize) -> f64 {
    let n = rounds as f64;
    let x = (n / (n - 1.0)).sqrt() * student(rounds - 1);
    // Abramowitz and Stegun 26.2.17.
    let t = 1.0 / (1.0 + 0.231_641_9 * x);
    let series = [
        1.330_274_429,
        -1.821_255_978,
        1.781_477_937,
        -0.356_563_782,
        0.319_381_530,
    ];
    let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    density * series.iter().fold(0.0, |sum, factor| (sum + factor) * t)
}

/// Returns the 97.5 % quantile of Student's t distribution, within 0.3 %, for one or more degrees
/// of freedom.
fn student(degrees: usize) -> f64 {
    match degrees {
        ..=1 => 12.706_2,
        2 => 4.302_65,
        3 => 3.182_45,
        _ => {
            // Abramowitz and Stegun 26.7.5.
            let (z, n) = (Z, degrees as f64);
            let first = (z.powi(3) + z) / 4.0;
            let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
            let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
            z + first / n + second / n.powi(2) + third / n.powi(3)
        }
    }
}

/// Returns the ratio over the rounds that both targets completed, or `None` if there are none.
pub(crate) fn ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let logs: Vec<f64> = pairs
        .iter()
        .filter(|(first, second)| *first > 0.0 && *second > 0.0)
        .map(|(first, second)| (second / first).ln())
        .collect();
    if logs.is_empty() {
        return None;
    }
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    // Student's interval, because a bootstrap of so few values is too narrow.
    let half = match logs.len() {
        1 => f64::INFINITY,
        rounds => {
            let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
            student(rounds - 1) * (squares / (n - 1.0) / n).sqrt()
        }
    };
    Some(Ratio {
        of: Estimate {
            value: mean.exp(),
            low: (mean - half).exp(),
            high: (mean + half).exp(),
        },
        p: sign_flips(&logs),
        rounds: logs.len(),
    })
}

/// Returns the share of sign patterns whose sum is at least as far from 0 as the observed sum.
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
    // The observed pattern counts as one of them.
    (as_far + 1) as f64 / (RESAMPLES + 1) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn interval_contains_its_value_and_lies_within_the_samples(
            rounds in proptest::collection::vec(proptest::collection::vec(0.001..1000.0_f64, 1..4), 1..12),
            fraction in 0.05..0.99_f64,
        ) {
            let estimate = estimate(&rounds, fraction).unwrap();
            let values = rounds.concat();
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
            prop_assert!(pairs.len() == 1 || (one.of.low * two.of.high - 1.0).abs() < 1e-9);
            prop_assert!((one.p - two.p).abs() < 1e-12);
        }
    }

    /// Three rounds favour one target: 2 of the 8 sign patterns are as far from zero, so the
    /// difference is not significant.
    #[test]
    fn few_rounds_are_not_significant() {
        let alike = |rounds| ratio(&vec![(1.0, 2.0); rounds]).unwrap();
        assert_eq!(alike(3).p, 0.25);
        assert_eq!(alike(6).p, 2.0 / 64.0);
        assert!((alike(3).of.value - 2.0).abs() < 1e-12);
        assert!(alike(20).p < 0.001);
    }

    #[test]
    fn quantile_is_the_midpoint_of_two_values() {
        let each = |values: &[f64]| values.iter().map(|value| vec![*value]).collect::<Vec<_>>();
        let values: Vec<f64> = (1..=100_u8).map(f64::from).collect();
        let values = each(&values);
        for (fraction, value) in [(0.5, 50.5), (0.95, 95.5), (0.99, 99.5), (0.123, 13.0)] {
            assert_eq!(estimate(&values, fraction).unwrap().value, value);
        }
        // The rank of the median of 100 draws has a standard deviation of 5.
        let median = estimate(&values, 0.5).unwrap();
        assert!(
            (36.0..46.0).contains(&median.low) && (55.0..65.0).contains(&median.high),
            "{median:?}"
        );
    }

    #[test]
    fn few_rounds_give_smallest_and_largest_value() {
        let interval = |rounds: &[Vec<f64>]| estimate(rounds, 0.5).map(|of| (of.low, of.value, of.high));
        assert_eq!(
            interval(&[vec![4.0, 1.0], vec![], vec![2.0]]),
            Some((1.0, 2.0, 4.0))
        );
        assert_eq!(interval(&[vec![], vec![]]), None);
        let once = ratio(&[(1.0, 2.0)]).unwrap().of;
        assert_eq!((once.low, once.high), (0.0, f64::INFINITY));
        // exp(ln 2 ± 12.706 * 0.1 / sqrt 2), whose spread is known.
        let (up, down) = (2.0 * 0.1_f64.exp(), 2.0 * (-0.1_f64).exp());
        let twice = ratio(&[(1.0, up), (1.0, down)]).unwrap().of;
        assert!(
            (twice.high / twice.value - 1.2706_f64.exp()).abs() < 1e-3,
            "{twice:?}"
        );
    }

    #[test]
    fn quantiles_match_statistical_tables() {
        for (degrees, value) in [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (5, 2.571),
            (7, 2.365),
            (19, 2.093),
        ] {
            let found = student(degrees);
            assert!((found / value - 1.0).abs() < 0.003, "{degrees}: {found}");
        }
        // 0.5 erfc(sqrt(8 / 7) 2.3646 / sqrt 2)
        assert!((tail(8) - 0.005_738).abs() < 3e-5, "{}", tail(8));
        assert!((tail(10_000) - 0.025).abs() < 1e-4);
    }

    /// Returns a normal value: the sum of twelve uniform ones.
    fn normal(random: &mut StdRng) -> f64 {
        (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
    }

    /// Returns the share of experiments whose interval contains the true value.
    fn coverage(mut holds: impl FnMut(&mut StdRng) -> bool) -> f64 {
        const EXPERIMENTS: usize = 200;
        let mut random = StdRng::seed_from_u64(1);
        (0..EXPERIMENTS).filter(|_| holds(&mut random)).count() as f64 / EXPERIMENTS as f64
    }

    /// Lower limit of two standard deviations for 200 experiments.
    const COVERED: f64 = 0.92;

    #[test]
    fn intervals_contain_the_true_value_as_often_as_stated() {
        for rounds in [3, 8] {
            let share = coverage(|random| {
                let pairs: Vec<_> = (0..rounds).map(|_| (1.0, (0.2 * normal(random)).exp())).collect();
                let of = ratio(&pairs).unwrap().of;
                of.low <= 1.0 && of.high >= 1.0
            });
            assert!(share >= COVERED, "a ratio of {rounds} rounds: {share}");
        }
        // Values of one round are correlated.
        for answers in [1, 4] {
            let share = coverage(|random| {
                let mut round = |_| {
                    let common = normal(random);
                    let mut answer = |_| (0.25 * common + 0.2 * normal(random)).exp();
                    (0..answers).map(&mut answer).collect::<Vec<_>>()
                };
                let rounds: Vec<_> = (0..8).map(&mut round).collect();
                let of = estimate(&rounds, 0.5).unwrap();
                of.low <= 1.0 && of.high >= 1.0
            });
            assert!(share >= COVERED, "a median of 8 rounds of {answers}: {share}");
        }
    }
}
