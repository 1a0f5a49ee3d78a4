//! Sampling of the next tokens of all rows on the device, which avoids a copy of the logits.
//!
//! The steps, in this order:
//! 1. Divide the logits by the temperature.
//! 2. Keep the `top_k` most probable tokens.
//! 3. Keep tokens with at least `min_p` times the probability of the most probable token.
//! 4. Keep the smallest set of tokens with a total probability of at least `top_p`.
//! 5. Draw one of the remaining tokens.
//!
//! The random number of a row depends only on its seed and step, and rows are computed
//! independently. Equal requests with equal seeds produce equal text in any batch.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::{argmax_axis, take_axis};
use rooflet_mlx::mlx_rs::ops::{argsort_axis, concatenate, select, softmax_axis};
use rooflet_mlx::mlx_rs::{Array, ops};

use crate::sampling::adjustment::{Adjustment, Penalties};
use rooflet_text::grammar::mask::Mask;

/// Minimum temperature for sampling. Lower temperatures are greedy, because the division could
/// overflow.
const MIN_TEMPERATURE: f32 = 1e-5;

/// Sampling parameters of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sampling {
    /// Temperature; 0: greedy.
    pub temperature: f32,
    /// Total probability of the candidate tokens; 1: no limit.
    pub top_p: f32,
    /// Number of candidate tokens; 0: no limit.
    pub top_k: u32,
    /// Minimum probability relative to the most probable token; 0: no limit.
    pub min_p: f32,
    pub penalties: Penalties,
    pub seed: u64,
}

impl Sampling {
    /// Returns the seed of a choice. The first choice has the seed of the request.
    pub(crate) fn seed_of_choice(&self, index: usize) -> u64 {
        match index {
            0 => self.seed,
            // No completion reaches these step numbers, so the seeds differ from all random
            // numbers.
            index => mix(self.seed, u64::MAX - index as u64),
        }
    }
}

/// Inputs for sampling the next token of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw<'a> {
    pub sampling: &'a Sampling,
    /// Bias and penalties.
    pub adjustment: Option<&'a Adjustment>,
    /// Tokens that the grammar permits. `None`: all tokens.
    pub mask: Option<&'a Mask>,
    /// Number of most probable tokens to report. `None`: no logprobs.
    pub logprobs: Option<usize>,
    /// Number of tokens sampled before this one.
    pub step: u64,
}

/// Sampling method of a row. Rows with the same method are computed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Greedy,
    /// Sampling from all tokens.
    Full,
    /// Sampling from the tokens within `top_k`, `min_p` and `top_p`, which requires sorting.
    Truncated,
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
            Method::Greedy
        } else if top_p < 1.0 || min_p > 0.0 || (1..vocabulary.cast_unsigned()).contains(&top_k) {
            Method::Truncated
        } else {
            Method::Full
        }
    }

    /// Returns a uniform random number in `0..1`, a multiple of 2^-23. The product of such a number
    /// and a positive float is less than that float, which [`first_above`] relies on.
    fn uniform(&self) -> f32 {
        const BITS: u32 = 23;
        (mix(self.sampling.seed, self.step) >> (64 - BITS)) as f32 / (1_u32 << BITS) as f32
    }
}

/// Samples one token per row from `logits`, `[rows, vocabulary]` in float32. `draws` has one entry
/// per row. Lazy.
pub(crate) fn sample(logits: &Array, draws: &[Draw<'_>]) -> Result<Array> {
    let vocabulary = logits.dim(-1);
    let methods: Vec<Method> = draws.iter().map(|draw| draw.method(vocabulary)).collect();
    if let Some(first) = methods.first()
        && methods.iter().all(|method| method == first)
    {
        return sample_with(*first, logits, draws);
    }
    let (mut order, mut sampled) = (Vec::new(), Vec::new());
    for method in [Method::Greedy, Method::Full, Method::Truncated] {
        let rows: Vec<usize> = (0..draws.len()).filter(|row| methods[*row] == method).collect();
        if !rows.is_empty() {
            let draws: Vec<Draw> = rows.iter().map(|row| draws[*row]).collect();
            let logits = take_axis(logits, indices(&rows), 0)?;
            sampled.push(sample_with(method, &logits, &draws)?);
            order.extend(rows);
        }
    }
    let mut places = vec![0; order.len()];
    for (place, row) in order.into_iter().enumerate() {
        places[row] = place;
    }
    take_axis(concatenate(&sampled, 0)?, indices(&places), 0)
}

/// Returns row indices as an array, `[n]`.
pub(crate) fn indices(rows: &[usize]) -> Array {
    let place = |row: &usize| u32::try_from(*row).expect("a batch has few rows");
    let places: Vec<u32> = rows.iter().map(place).collect();
    Array::from_slice(&places, &[length(&places)])
}

/// Returns one value per row as an array, `[n, 1]`.
pub(crate) fn column(values: &[f32]) -> Array {
    Array::from_slice(values, &[length(values), 1])
}

fn length<T>(values: &[T]) -> i32 {
    i32::try_from(values.len()).expect("a batch has few rows")
}

fn sample_with(method: Method, logits: &Array, draws: &[Draw<'_>]) -> Result<Array> {
    if method == Method::Greedy {
        return argmax_axis(logits, -1, false);
    }
    let per_row = |value: fn(&Draw<'_>) -> f32| column(&draws.iter().map(value).collect::<Vec<f32>>());
    let scaled = logits.divide(per_row(|draw| draw.sampling.temperature))?;
    let uniform = per_row(|draw| draw.uniform());
    if method == Method::Full {
        let probabilities = softmax_axis(&scaled, -1, true)?;
        return sample_inverse(&probabilities, &uniform);
    }
    let order = argsort_axis(scaled.negative()?, -1)?;
    let sorted = scaled.take_along_axis(&order, -1)?;
    let probabilities = truncated_probabilities(&sorted, draws)?;
    let place = sample_inverse(&probabilities, &uniform)?;
    order
        .take_along_axis(place.expand_dims(-1)?, -1)?
        .squeeze_axes(&[-1])
}

/// Returns probabilities with zeros for tokens outside `top_k`, `min_p` and `top_p`. `sorted` must
/// be in descending order. Always keeps the first entry.
fn truncated_probabilities(sorted: &Array, draws: &[Draw<'_>]) -> Result<Array> {
    let vocabulary = sorted.dim(-1);
    // Single precision represents all ranks of a vocabulary exactly.
    let count = |draw: &Draw<'_>| match draw.sampling.top_k {
        0 => f32::INFINITY,
        top_k => top_k as f32,
    };
    let counts = column(&draws.iter().map(count).collect::<Vec<f32>>());
    let rank = ops::arange::<_, f32>(0, vocabulary, None)?;
    let excluded = Array::from_f32(f32::NEG_INFINITY);
    let mut kept = select(rank.lt(counts)?, sorted, &excluded)?;
    if draws.iter().any(|draw| draw.sampling.min_p > 0.0) {
        // A ratio of probabilities corresponds to a difference of logits. The logarithm of 0 is
        // minus infinity, which excludes no token.
        let least = column(
            &draws
                .iter()
                .map(|draw| draw.sampling.min_p.ln())
                .collect::<Vec<f32>>(),
        );
        let first = take_axis(sorted, Array::from_slice(&[0], &[1]), -1)?;
        kept = select(sorted.ge(first.add(least)?)?, kept, &excluded)?;
    }
    let probabilities = softmax_axis(kept, -1, true)?;
    let share = |draw: &Draw<'_>| match draw.sampling.top_p {
        // A sum in single precision may slightly exceed 1.
        top_p if top_p >= 1.0 => f32::INFINITY,
        // The sum before the first entry is 0, so a positive limit keeps that entry.
        top_p => top_p.max(f32::MIN_POSITIVE),
    };
    let shares = column(&draws.iter().map(share).collect::<Vec<f32>>());
    let before = probabilities.cumsum(-1, false, false)?;
    select(before.lt(shares)?, probabilities, Array::from_f32(0.0))
}

/// Samples by inversion of the cumulative distribution: returns the first index at which the
/// cumulative probability exceeds `uniform` times the total.
fn sample_inverse(probabilities: &Array, uniform: &Array) -> Result<Array> {
    let sums = probabilities.cumsum(-1, false, true)?;
    first_above(probabilities, &sums, uniform)
}

/// Returns the first index with a positive probability whose cumulative sum exceeds `uniform` times
/// the total. If rounding leaves no such index, returns the index of the highest probability.
///
/// Parallel cumulative sums are not always monotonic due to rounding. Without the check for a
/// positive probability, an index with zero probability could be returned.
fn first_above(probabilities: &Array, sums: &Array, uniform: &Array) -> Result<Array> {
    let last = sums.dim(-1) - 1;
    let total = take_axis(sums, Array::from_slice(&[last], &[1]), -1)?;
    let above = sums.gt(uniform.multiply(total)?)?;
    let found = above.logical_and(probabilities.gt(Array::from_f32(0.0))?)?;
    // `argmax` returns the first of equal values.
    let order = select(found, Array::from_f32(f32::INFINITY), probabilities)?;
    argmax_axis(order, -1, false)
}

/// Hashes seed and step to 64 bits with the finaliser of splitmix64, so that results of adjacent
/// seeds are unrelated.
fn mix(seed: u64, step: u64) -> u64 {
    let mut hash = seed.wrapping_add(step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use rooflet_mlx as mlx;

    fn draw(logits: &[f32], sampling: &Sampling, step: u64) -> u32 {
        draw_rows(&[logits], &[draw_inputs(sampling, step)])[0]
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

    fn draw_inputs(sampling: &Sampling, step: u64) -> Draw<'_> {
        Draw {
            sampling,
            adjustment: None,
            mask: None,
            logprobs: None,
            step,
        }
    }

    /// Returns the tokens in descending order of probability.
    fn ranked(logits: &[f32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        order
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn temperature_zero_is_greedy(logits in proptest::collection::vec(-9.0_f32..9.0, 2..40)) {
            let _mlx = mlx::exclusive();
            let token = draw(&logits, &sampling(0.0, 0.3, 2, 7), 0);
            prop_assert_eq!(token as usize, ranked(&logits)[0]);
        }

        #[test]
        fn top_k_samples_from_k_most_probable_tokens(
            logits in proptest::collection::vec(-2.0_f32..2.0, 8..40), top_k in 1_u32..8, seed: u64,
        ) {
            let _mlx = mlx::exclusive();
            let allowed: BTreeSet<usize> = ranked(&logits).into_iter().take(top_k as usize).collect();
            for step in 0..12 {
                prop_assert!(allowed.contains(&(draw(&logits, &sampling(1.5, 1.0, top_k, seed), step) as usize)));
            }
        }

        #[test]
        fn min_p_excludes_tokens_below_relative_probability(
            logits in proptest::collection::vec(-3.0_f32..3.0, 4..40), min_p in 0.01_f32..1.0, seed: u64,
        ) {
            let _mlx = mlx::exclusive();
            let temperature = 1.3;
            let maximum = logits.iter().copied().fold(f32::MIN, f32::max);
            for step in 0..12 {
                let sampling = Sampling { min_p, ..sampling(temperature, 1.0, 0, seed) };
                let token = draw(&logits, &sampling, step);
                let ratio = ((logits[token as usize] - maximum) / temperature).exp();
                // The tolerance covers the sampler's comparison of logarithms in single precision.
                prop_assert!(ratio >= min_p * 0.9999, "relative probability {ratio}, min_p {min_p}");
            }
        }

        #[test]
        fn top_p_samples_from_smallest_sufficient_set(
            logits in proptest::collection::vec(-3.0_f32..3.0, 4..40), top_p in 0.0_f32..0.95, seed: u64,
        ) {
            let _mlx = mlx::exclusive();
            let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
            let mut cumulative = 0.0;
            let allowed: BTreeSet<usize> = ranked(&logits)
                .into_iter()
                .take_while(|index| {
                    // The tolerance covers the sampler's sums in single precision.
                    let inside = cumulative < f64::from(top_p) + 1e-4 || cumulative == 0.0;
                    cumulative += f64::from(logits[*index]).exp() / total;
                    inside
                })
                .collect();
            for step in 0..12 {
                prop_assert!(allowed.contains(&(draw(&logits, &sampling(1.0, top_p, 0, seed), step) as usize)));
            }
        }
    }

    /// The call mixes greedy, full and truncated rows.
    #[test]
    fn rows_are_sampled_independently() {
        let _mlx = mlx::exclusive();
        let logits: Vec<Vec<f32>> = (0..9_u8)
            .map(|row| {
                (0..50_u8)
                    .map(|at| f32::from(at.wrapping_mul(37 + row) % 41) / 10.0)
                    .collect()
            })
            .collect();
        let mut tokens = BTreeSet::new();
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
            let draws: Vec<Draw<'_>> = samplings
                .iter()
                .map(|sampling| draw_inputs(sampling, step))
                .collect();
            let rows: Vec<&[f32]> = logits.iter().map(Vec::as_slice).collect();
            let together = draw_rows(&rows, &draws);
            for row in 0..9 {
                assert_eq!(
                    together[row],
                    draw_rows(&rows[row..=row], &draws[row..=row])[0],
                    "row {row}"
                );
            }
            tokens.extend(together);
        }
        assert!(tokens.len() > 9, "{tokens:?}");
    }

    /// Draws 4000 of four tokens with probabilities 1/4, 1/2, 1/8 and 1/8, with the full and the
    /// truncated method. Four standard deviations are at most 127.
    #[test]
    fn token_frequencies_match_probabilities() {
        let _mlx = mlx::exclusive();
        let logits = [2.0_f32.ln(), 4.0_f32.ln(), 1.0_f32.ln(), 1.0_f32.ln()];
        for top_p in [1.0, 0.999_99] {
            let mut counts = [0_u32; 4];
            for from in (0..4000).step_by(500) {
                let sampling = sampling(1.0, top_p, 0, 3);
                let draws: Vec<Draw<'_>> = (from..from + 500)
                    .map(|step| draw_inputs(&sampling, step))
                    .collect();
                for token in draw_rows(&vec![&logits[..]; 500], &draws) {
                    counts[token as usize] += 1;
                }
            }
            for (count, expected) in counts.iter().zip([1000, 2000, 500, 500_u32]) {
                assert!(count.abs_diff(expected) < 127, "{counts:?}");
            }
        }
    }

    /// The sums have the rounding errors of a GPU's blockwise cumulative sum.
    #[test]
    fn never_samples_index_with_zero_probability() {
        let _mlx = mlx::exclusive();
        let place = |probabilities: [f32; 4], sums: [f32; 4], uniform: f32| {
            let [probabilities, sums] = [probabilities, sums].map(|row| Array::from_slice(&row, &[1, 4]));
            let place = first_above(&probabilities, &sums, &column(&[uniform])).unwrap();
            place.to_vec_exact::<u32>().unwrap()[0]
        };
        let low = 0.5 - f32::EPSILON;
        // The sum decreases between the first and the second block.
        assert_eq!(place([0.5, 0.0, 0.0, 0.5], [0.5, 0.5, low, 1.0], 0.5), 3);
        assert_eq!(place([0.5, 0.0, 0.0, 0.5], [low, 0.5, 0.5, 1.0], low), 3);
        assert_eq!(place([0.5, 0.0, 0.5, 0.0], [0.5, 0.5, 1.0, 1.0], 0.0), 0);
        // No index with a positive probability exceeds the threshold.
        assert_eq!(place([0.3, 0.7, 0.0, 0.0], [0.3, 0.9, 0.9, 1.0], 0.95), 1);
    }

    #[test]
    fn nan_logits_return_token_within_vocabulary() {
        let _mlx = mlx::exclusive();
        for top_k in [0, 2] {
            assert!(draw(&[f32::NAN; 5], &sampling(1.0, 1.0, top_k, 1), 0) < 5);
        }
    }

    #[test]
    fn equal_seeds_repeat_draws_and_different_seeds_differ() {
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
            "steps of one seed have different random numbers"
        );
    }

    /// Draws 1600 of 16 equally probable tokens. The expectation is 100 per token, and four
    /// standard deviations are 39.
    #[test]
    fn equally_probable_tokens_are_equally_frequent() {
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
