//! From logits to the next token, on the device, so that a step needs no copy of the logits.
//!
//! Temperature first, then the `top_k` most probable tokens, then the smallest set that holds `top_p` of what is left.
//! The random numbers of a step come from the request's seed and the step alone: equal requests with equal seeds give
//! equal text, whatever else is running.

use mlx_rs::error::Result;
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::ops::{argsort_axis, softmax_axis};
use mlx_rs::{Array, Dtype, ops, random};

/// Below this, the most probable token is all that is left, and dividing by it would overflow.
const MIN_TEMPERATURE: f32 = 1e-5;

/// How one request's tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampling {
    /// 0 = always the most probable token.
    pub(crate) temperature: f32,
    /// 1 = no limit.
    pub(crate) top_p: f32,
    /// 0 = no limit.
    pub(crate) top_k: u32,
    pub(crate) seed: u64,
}

impl Sampling {
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature < MIN_TEMPERATURE
    }

    fn is_limited(&self, vocabulary: i32) -> bool {
        self.top_p < 1.0 || (1..vocabulary.cast_unsigned()).contains(&self.top_k)
    }
}

/// Chooses the token of step `step` from `logits`, `[1, vocabulary]` in float32. Lazy.
pub(crate) fn sample(logits: &Array, sampling: &Sampling, step: u64) -> Result<Array> {
    if sampling.is_greedy() {
        return argmax_axis(logits, -1, false);
    }
    let key = random::key(step_seed(sampling.seed, step))?;
    let scaled = logits.divide(Array::from_f32(sampling.temperature))?;
    if !sampling.is_limited(logits.dim(-1)) {
        return random::categorical(&scaled, -1, None, Some(&key));
    }
    let order = argsort_axis(scaled.negative()?, -1)?;
    let sorted = scaled.take_along_axis(&order, -1)?;
    let limited = limit(&sorted, sampling)?;
    let choice = random::categorical(&limited, -1, None, Some(&key))?;
    order
        .take_along_axis(choice.expand_dims(-1)?, -1)?
        .squeeze_axes(&[-1])
}

/// Puts what `top_k` and `top_p` leave out of reach. `sorted` is descending; its first entry always stays.
fn limit(sorted: &Array, sampling: &Sampling) -> Result<Array> {
    let vocabulary = sorted.dim(-1);
    let out = Array::from_f32(f32::NEG_INFINITY);
    let mut limited = sorted.clone();
    if (1..vocabulary.cast_unsigned()).contains(&sampling.top_k) {
        let rank = ops::arange::<_, i32>(0, vocabulary, None)?;
        let within = rank.lt(Array::from_int(sampling.top_k.cast_signed()))?;
        limited = ops::select(within, &limited, &out)?;
    }
    if sampling.top_p < 1.0 {
        let probabilities = softmax_axis(&limited, -1, true)?;
        let before = probabilities.cumsum(-1, false, false)?;
        // Nothing is before the first entry, so it stays even for top_p = 0.
        let within = before.lt(Array::from_f32(sampling.top_p.max(f32::MIN_POSITIVE)))?;
        limited = ops::select(within, &limited, &out)?;
    }
    limited.as_dtype(Dtype::Float32)
}

/// Spreads seed and step over 64 bits (the finaliser of splitmix64), so that neighbouring seeds share nothing.
fn step_seed(seed: u64, step: u64) -> u64 {
    let mut mixed = seed.wrapping_add((step + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::mlx;

    fn draw(logits: &[f32], sampling: &Sampling, step: u64) -> u32 {
        let size = i32::try_from(logits.len()).unwrap();
        sample(&Array::from_slice(logits, &[1, size]), sampling, step)
            .unwrap()
            .item_exact()
    }

    fn sampling(temperature: f32, top_p: f32, top_k: u32, seed: u64) -> Sampling {
        Sampling {
            temperature,
            top_p,
            top_k,
            seed,
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

    /// 16 equally probable tokens, 1600 draws: each should come about 100 times; 4 standard deviations are 39.
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
