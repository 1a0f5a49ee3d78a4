//! What can be said of few, skewed samples: quantiles with bootstrap intervals, and whether two targets differ.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;

use rooflet_base::quantile::sorted;

const RESAMPLES: usize = 2000;
/// Up to so many pairs, every way to flip their signs is tried.
const MOST_EXACT: usize = 14;
/// The same samples give the same interval.
const SEED: u64 = 7;

/// Of fewer rounds nothing is shown at 95 %: no interval between values that were seen holds the median as often, and even if
/// all agree which target is better, they do so by accident more often than in 5 %.
pub(crate) const LEAST_ROUNDS: usize = 6;
/// The standard normal's quantile at 97.5 %.
const Z: f64 = 1.959_964;

/// A quantile and its 95 % confidence interval, or where there are fewer than [`LEAST_ROUNDS`] the smallest and the largest
/// value. What lies beyond the largest value no interval tells.
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
    /// Second over first: geometric mean over the rounds, with its 95 % confidence interval; of one round that has no end.
    #[serde(flatten)]
    pub(crate) of: Estimate,
    /// Chance of a ratio as far from 1 if the targets were alike, by flipping which is which in every round.
    pub(crate) p: f64,
    pub(crate) rounds: usize,
}

/// The value that `fraction` of all are at or below, midway where two are (Hyndman and Fan 1996, definition 2). Not
/// `rooflet_base::quantile`'s, by which the 99th percentile of a hundred skewed times is next to the second largest.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let rank = fraction * sorted.len() as f64;
    let at = |rank: f64| sorted[(rank as usize).clamp(1, sorted.len()) - 1];
    f64::midpoint(at(rank.ceil()), at(rank.floor() + 1.0))
}

/// `None` of no values. Rounds are drawn, again and again, and not values: those of one round are alike.
pub(super) fn estimate(rounds: &[Vec<f64>], fraction: f64) -> Option<Estimate> {
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

/// What is cut off at each end of the resampled: less than 2.5 %, since few rounds spread less than what they were drawn from
/// (the expanded percentiles of Hesterberg 2015).
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

/// Student's quantile at 97.5 %, within 0.3 %, of one degree of freedom or more.
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
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    // Student's interval: to resample so few makes it too narrow.
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
    fn of_few_rounds_all_is_told_that_was_seen() {
        let told = |rounds: &[Vec<f64>]| estimate(rounds, 0.5).map(|of| (of.low, of.value, of.high));
        assert_eq!(told(&[vec![4.0, 1.0], vec![], vec![2.0]]), Some((1.0, 2.0, 4.0)));
        assert_eq!(told(&[vec![], vec![]]), None);
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
    fn the_tables_of_statistics_are_met() {
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

    /// A normal value, as the sum of twelve uniform ones.
    fn normal(random: &mut StdRng) -> f64 {
        (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
    }

    /// Share of experiments whose interval holds the truth.
    fn coverage(mut holds: impl FnMut(&mut StdRng) -> bool) -> f64 {
        const EXPERIMENTS: usize = 200;
        let mut random = StdRng::seed_from_u64(1);
        (0..EXPERIMENTS).filter(|_| holds(&mut random)).count() as f64 / EXPERIMENTS as f64
    }

    /// Within two standard deviations of 200 experiments, or above.
    const COVERED: f64 = 0.92;

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        for rounds in [3, 8] {
            let share = coverage(|random| {
                let pairs: Vec<_> = (0..rounds).map(|_| (1.0, (0.2 * normal(random)).exp())).collect();
                let of = ratio(&pairs).unwrap().of;
                of.low <= 1.0 && of.high >= 1.0
            });
            assert!(share >= COVERED, "a ratio of {rounds} rounds: {share}");
        }
        // What is measured together is alike.
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
