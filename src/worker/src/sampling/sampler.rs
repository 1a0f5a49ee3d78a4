//! From logits to the next tokens of all rows at once, on the device, so that a step needs no copy
//! of the logits.
//!
//! Temperature first, then the `top_k` most probable tokens, then those at least `min_p` times as
//! probable as the most probable one, then the smallest set that holds `top_p` of what is left. A
//! row's random number comes from its seed and step alone, and rows are computed independently:
//! equal requests with equal seeds give equal text, whatever else is running.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::{argmax_axis, take_axis};
use rooflet_mlx::mlx_rs::ops::{argsort_axis, concatenate, select, softmax_axis};
use rooflet_mlx::mlx_rs::{Array, ops};

use crate::sampling::adjustment::{Adjustment, Penalties};
use rooflet_text::grammar::mask::Mask;

/// Below this, the most probable token is all that is left, and dividing by it would overflow.
const MIN_TEMPERATURE: f32 = 1e-5;

/// How one request's tokens are chosen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sampling {
    /// 0 = always the most probable token.
    pub temperature: f32,
    /// 1 = no limit.
    pub top_p: f32,
    /// 0 = no limit.
    pub top_k: u32,
    /// 0 = no limit.
    pub min_p: f32,
    pub penalties: Penalties,
    pub seed: u64,
}

impl Sampling {
    /// Seeds of several choices of one request; the first is the request's own.
    pub(crate) fn seed_of_choice(&self, index: usize) -> u64 {
        match index {
            0 => self.seed,
            // The last steps of all: no completion comes so far.
            index => mixed(self.seed, u64::MAX - index as u64),
        }
    }
}

/// What a row's next token is chosen by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw<'a> {
    pub sampling: &'a Sampling,
    /// State of what changes the logits before.
    pub adjustment: Option<&'a Adjustment>,
    /// The tokens it must be of, where not all will do.
    pub mask: Option<&'a Mask>,
    /// How many of the most probable tokens are asked for; `None`: no logprobs at all.
    pub logprobs: Option<usize>,
    /// Tokens chosen before this one.
    pub step: u64,
}

/// The steps that a row needs. Rows that need the same are computed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    MostProbable,
    /// Among all tokens.
    Free,
    /// Among those that `top_k`, `min_p` and `top_p` leave, which takes sorting.
    Limited,
}

impl Draw<'_> {
    fn method(&self, vocabulary: i32) -> Method {
        let Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            ..
        } = *self.sampling;
        if temperature < MIN_TEMPERATURE {
            Method::MostProbable
        } else if top_p < 1.0 || min_p > 0.0 || (1..vocabulary.cast_unsigned()).contains(&top_k) {
            Method::Limited
        } else {
            Method::Free
        }
    }

    /// Uniform in `0..1`, in steps of 2^-23: any of these times a positive float is less than that
    /// float, which the choice below rests on.
    fn uniform(&self) -> f32 {
        const BITS: u32 = 23;
        (mixed(self.sampling.seed, self.step) >> (64 - BITS)) as f32 / (1_u32 << BITS) as f32
    }
}

/// Chooses each row's token from `logits`, `[rows, vocabulary]` in float32; `draws` has an entry
/// per row. Lazy.
pub(crate) fn sample(logits: &Array, draws: &[Draw<'_>]) -> Result<Array> {
    let vocabulary = logits.dim(-1);
    let methods: Vec<Method> = draws.iter().map(|draw| draw.method(vocabulary)).collect();
    if let Some(first) = methods.first()
        && methods.iter().all(|method| method == first)
    {
        return choose(*first, logits, draws);
    }
    let (mut order, mut chosen) = (Vec::new(), Vec::new());
    for method in [Method::MostProbable, Method::Free, Method::Limited] {
        let rows: Vec<usize> = (0..draws.len()).filter(|row| methods[*row] == method).collect();
        if !rows.is_empty() {
            let draws: Vec<Draw> = rows.iter().map(|row| draws[*row]).collect();
            let logits = take_axis(logits, indices(&rows), 0)?;
            chosen.push(choose(method, &logits, &draws)?);
            order.extend(rows);
        }
    }
    let mut places = vec![0; order.len()];
    for (place, row) in order.into_iter().enumerate() {
        places[row] = place;
    }
    take_axis(concatenate(&chosen, 0)?, indices(&places), 0)
}

/// Rows by their places, `[n]`.
pub(crate) fn indices(rows: &[usize]) -> Array {
    let place = |row: &usize| u32::try_from(*row).expect("rows are few");
    let places: Vec<u32> = rows.iter().map(place).collect();
    Array::from_slice(&places, &[length(&places)])
}

/// A value for each row, `[n, 1]`.
pub(crate) fn column(values: &[f32]) -> Array {
    Array::from_slice(values, &[length(values), 1])
}

fn length<T>(values: &[T]) -> i32 {
    i32::try_from(values.len()).expect("rows are few")
}

fn choose(method: Method, logits: &Array, draws: &[Draw<'_>]) -> Result<Array> {
    if method == Method::MostProbable {
        return argmax_axis(logits, -1, false);
    }
    let each = |value: fn(&Draw<'_>) -> f32| column(&draws.iter().map(value).collect::<Vec<f32>>());
    let scaled = logits.divide(each(|draw| draw.sampling.temperature))?;
    let uniform = each(|draw| draw.uniform());
    if method == Method::Free {
        let probabilities = softmax_axis(&scaled, -1, true)?;
        return first_beyond(&probabilities, &uniform);
    }
    let order = argsort_axis(scaled.negative()?, -1)?;
    let sorted = scaled.take_along_axis(&order, -1)?;
    let probabilities = limited(&sorted, draws)?;
    let place = first_beyond(&probabilities, &uniform)?;
    order
        .take_along_axis(place.expand_dims(-1)?, -1)?
        .squeeze_axes(&[-1])
}

/// Probabilities, zero where `top_k`, `min_p` and `top_p` leave a token out. `sorted` is
/// descending; its first entry stays.
fn limited(sorted: &Array, draws: &[Draw<'_>]) -> Result<Array> {
    let vocabulary = sorted.dim(-1);
    // No vocabulary is too large for single precision to count.
    let count = |draw: &Draw<'_>| match draw.sampling.top_k {
        0 => f32::INFINITY,
        top_k => top_k as f32,
    };
    let counts = column(&draws.iter().map(count).collect::<Vec<f32>>());
    let rank = ops::arange::<_, f32>(0, vocabulary, None)?;
    let out = Array::from_f32(f32::NEG_INFINITY);
    let mut kept = select(rank.lt(counts)?, sorted, &out)?;
    if draws.iter().any(|draw| draw.sampling.min_p > 0.0) {
        // A ratio of probabilities is a difference of logits; for 0 the logarithm is minus
        // infinity: no limit.
        let least = column(
            &draws
                .iter()
                .map(|draw| draw.sampling.min_p.ln())
                .collect::<Vec<f32>>(),
        );
        let first = take_axis(sorted, Array::from_slice(&[0], &[1]), -1)?;
        kept = select(sorted.ge(first.add(least)?)?, kept, &out)?;
    }
    let probabilities = softmax_axis(kept, -1, true)?;
    let share = |draw: &Draw<'_>| match draw.sampling.top_p {
        // Adding up in single precision may come to a little more than 1.
        top_p if top_p >= 1.0 => f32::INFINITY,
        // Nothing is before the first entry, so it stays even for 0.
        top_p => top_p.max(f32::MIN_POSITIVE),
    };
    let shares = column(&draws.iter().map(share).collect::<Vec<f32>>());
    let before = probabilities.cumsum(-1, false, false)?;
    select(before.lt(shares)?, probabilities, Array::from_f32(0.0))
}

/// Inverts the distribution function: the first place where the probabilities add up to more than
/// `uniform` of their sum.
fn first_beyond(probabilities: &Array, uniform: &Array) -> Result<Array> {
    let sums = probabilities.cumsum(-1, false, true)?;
    first_above(probabilities, &sums, uniform)
}

/// Sums that were made in parallel may fall by a rounding from one place to the next, also to a
/// place without a probability: only one that has one counts. Where rounding leaves none, it is the
/// most probable place.
fn first_above(probabilities: &Array, sums: &Array, uniform: &Array) -> Result<Array> {
    let last = sums.dim(-1) - 1;
    let total = take_axis(sums, Array::from_slice(&[last], &[1]), -1)?;
    let above = sums.gt(uniform.multiply(total)?)?;
    let found = above.logical_and(probabilities.gt(Array::from_f32(0.0))?)?;
    // Of equal ones the first is the largest.
    let order = select(found, Array::from_f32(f32::INFINITY), probabilities)?;
    argmax_axis(order, -1, false)
}

/// Spreads seed and step over 64 bits (the finaliser of splitmix64), so that neighbouring seeds
/// share nothing.
fn mixed(seed: u64, step: u64) -> u64 {
    let mut mixed = seed.wrapping_add(step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use rooflet_mlx as mlx;

    fn draw(logits: &[f32], sampling: &Sampling, step: u64) -> u32 {
        draw_rows(&[logits], &[free(sampling, step)])[0]
    }

    fn draw_rows(logits: &[&[f32]], draws: &[Draw<'_>]) -> Vec<u32> {
        let shape = [logits.len(), logits[0].len()].map(|size| i32::try_from(size).unwrap());
        sample(&Array::from_slice(&logits.concat(), &shape), draws)
            .unwrap()
            .to_vec_exact()
            .unwrap()
    }

    fn sampling(temperature: f32, top_p: f32, top_k: u32, seed: u64) -> Sampling {
        Sampling {
            temperature,
            top_p,
            top_k,
            min_p: 0.0,
            penalties: Penalties::default(),
            seed,
        }
    }

    fn free(sampling: &Sampling, step: u64) -> Draw<'_> {
        Draw {
            sampling,
            adjustment: None,
            mask: None,
            logprobs: None,
            step,
        }
    }

    /// Tokens by falling probability.
    fn ranked(logits: &[f32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        order
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn temperature_zero_takes_the_most_probable(logits in proptest::collection::vec(-9.0_f32..9.0, 2..40)) {
            let _mlx = mlx::exclusive();
            let token = draw(&logits, &sampling(0.0, 0.3, 2, 7), 0);
            prop_assert_eq!(token as usize, ranked(&logits)[0]);
        }

        #[test]
        fn top_k_keeps_to_the_k_most_probable(
            logits in proptest::collection::vec(-2.0_f32..2.0, 8..40), top_k in 1_u32..8, seed: u64,
        ) {
            let _mlx = mlx::exclusive();
            let allowed: BTreeSet<usize> = ranked(&logits).into_iter().take(top_k as usize).collect();
            for step in 0..12 {
                prop_assert!(allowed.contains(&(draw(&logits, &sampling(1.5, 1.0, top_k, seed), step) as usize)));
            }
        }

        #[test]
        fn min_p_keeps_to_what_is_near_the_most_probable(
            logits in proptest::collection::vec(-3.0_f32..3.0, 4..40), min_p in 0.01_f32..1.0, seed: u64,
        ) {
            let _mlx = mlx::exclusive();
            let temperature = 1.3;
            let most = logits.iter().copied().fold(f32::MIN, f32::max);
            for step in 0..12 {
                let sampling = Sampling { min_p, ..sampling(temperature, 1.0, 0, seed) };
                let token = draw(&logits, &sampling, step);
                let ratio = ((logits[token as usize] - most) / temperature).exp();
                // A little slack: the sampler compares logarithms in single precision.
                prop_assert!(ratio >= min_p * 0.9999, "{ratio} of the most probable, {min_p} asked for");
            }
        }

        #[test]
        fn top_p_keeps_to_the_smallest_set_that_holds_it(
            logits in proptest::collection::vec(-3.0_f32..3.0, 4..40), top_p in 0.0_f32..0.95, seed: u64,
        ) {
            let _mlx = mlx::exclusive();
            let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
            let mut held = 0.0;
            let allowed: BTreeSet<usize> = ranked(&logits)
                .into_iter()
                .take_while(|index| {
                    // A little slack: the sampler adds up in single precision.
                    let inside = held < f64::from(top_p) + 1e-4 || held == 0.0;
                    held += f64::from(logits[*index]).exp() / total;
                    inside
                })
                .collect();
            for step in 0..12 {
                prop_assert!(allowed.contains(&(draw(&logits, &sampling(1.0, top_p, 0, seed), step) as usize)));
            }
        }
    }

    /// Greedy, free and limited rows in one call, each as when it is alone.
    #[test]
    fn rows_are_drawn_as_if_alone() {
        let _mlx = mlx::exclusive();
        let logits: Vec<Vec<f32>> = (0..9_u8)
            .map(|row| {
                (0..50_u8)
                    .map(|at| f32::from(at.wrapping_mul(37 + row) % 41) / 10.0)
                    .collect()
            })
            .collect();
        let mut several = BTreeSet::new();
        for step in 0..20 {
            let samplings: Vec<Sampling> = (0..9_u8)
                .map(|row| {
                    let (top_p, top_k) = [(1.0, 0), (0.9, 0), (1.0, 7)][usize::from(row % 3)];
                    let temperature = if row > 6 { 0.0 } else { 0.6 + f32::from(row) / 10.0 };
                    Sampling {
                        min_p: if row == 5 { 0.1 } else { 0.0 },
                        ..sampling(temperature, top_p, top_k, u64::from(row))
                    }
                })
                .collect();
            let draws: Vec<Draw<'_>> = samplings.iter().map(|sampling| free(sampling, step)).collect();
            let rows: Vec<&[f32]> = logits.iter().map(Vec::as_slice).collect();
            let together = draw_rows(&rows, &draws);
            for row in 0..9 {
                assert_eq!(
                    together[row],
                    draw_rows(&rows[row..=row], &draws[row..=row])[0],
                    "row {row}"
                );
            }
            several.extend(together);
        }
        assert!(several.len() > 9, "{several:?}");
    }

    /// Four tokens with 1/2, 1/4, 1/8 and 1/8, 4000 draws, each way; 4 standard deviations are at
    /// most 127.
    #[test]
    fn tokens_come_as_often_as_they_are_probable() {
        let _mlx = mlx::exclusive();
        let logits = [2.0_f32.ln(), 4.0_f32.ln(), 1.0_f32.ln(), 1.0_f32.ln()];
        for top_p in [1.0, 0.999_99] {
            let mut counts = [0_u32; 4];
            for from in (0..4000).step_by(500) {
                let sampling = sampling(1.0, top_p, 0, 3);
                let draws: Vec<Draw<'_>> = (from..from + 500).map(|step| free(&sampling, step)).collect();
                for token in draw_rows(&vec![&logits[..]; 500], &draws) {
                    counts[token as usize] += 1;
                }
            }
            for (count, expected) in counts.iter().zip([1000, 2000, 500, 500_u32]) {
                assert!(count.abs_diff(expected) < 127, "{counts:?}");
            }
        }
    }

    /// As a GPU adds them up, block by block.
    #[test]
    fn a_place_without_probability_is_never_taken() {
        let _mlx = mlx::exclusive();
        let place = |probabilities: [f32; 4], sums: [f32; 4], uniform: f32| {
            let [probabilities, sums] = [probabilities, sums].map(|row| Array::from_slice(&row, &[1, 4]));
            let place = first_above(&probabilities, &sums, &column(&[uniform])).unwrap();
            place.to_vec_exact::<u32>().unwrap()[0]
        };
        let low = 0.5 - f32::EPSILON;
        // The second block begins below the end of the first.
        assert_eq!(place([0.5, 0.0, 0.0, 0.5], [0.5, 0.5, low, 1.0], 0.5), 3);
        assert_eq!(place([0.5, 0.0, 0.0, 0.5], [low, 0.5, 0.5, 1.0], low), 3);
        assert_eq!(place([0.5, 0.0, 0.5, 0.0], [0.5, 0.5, 1.0, 1.0], 0.0), 0);
        // All that has a probability is below.
        assert_eq!(place([0.3, 0.7, 0.0, 0.0], [0.3, 0.9, 0.9, 1.0], 0.95), 1);
    }

    #[test]
    fn what_is_no_number_gives_a_token_that_exists() {
        let _mlx = mlx::exclusive();
        for top_k in [0, 2] {
            assert!(draw(&[f32::NAN; 5], &sampling(1.0, 1.0, top_k, 1), 0) < 5);
        }
    }

    #[test]
    fn a_seed_gives_the_same_draws_and_another_gives_others() {
        let _mlx = mlx::exclusive();
        let logits = vec![0.0; 1000];
        let draws = |seed| {
            (0..16)
                .map(|step| draw(&logits, &sampling(1.0, 1.0, 0, seed), step))
                .collect::<Vec<_>>()
        };
        assert_eq!(draws(5), draws(5));
        assert_ne!(draws(5), draws(6));
        assert!(
            draws(5).iter().collect::<BTreeSet<_>>().len() > 12,
            "the steps of one seed are spread out"
        );
    }

    /// 16 equally probable tokens, 1600 draws: each should come about 100 times; 4 standard
    /// deviations are 39.
    #[test]
    fn equal_chances_are_equal() {
        let _mlx = mlx::exclusive();
        let mut counts = [0_u32; 16];
        for step in 0..1600 {
            counts[draw(&[0.5; 16], &sampling(0.7, 0.999_99, 0, 11), step) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (61..=139).contains(count)),
            "{counts:?}"
        );
    }
}
