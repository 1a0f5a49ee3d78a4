//! Softmax attention of one sequence's tokens over its keys and values. Where no kernel fuses the scores with what follows,
//! they are in memory, and a chunk of a prompt against a long cache would have gigabytes of them: then it goes a few
//! tokens at a time, as many as [`scored_at_once`] allows, which is what the reservation counts on.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::error::Result;
use mlx_rs::fast::scaled_dot_product_attention;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, split_at_indices};

use super::mask::Masks;
use crate::mlx::device::Backend;
use crate::roofline::memory::{FUSED_HEAD_DIMS, scored_at_once};

/// How many tokens' scores of so many heads against `keys` may be in memory.
pub(super) fn tokens_at_once(heads: i32, keys: i32) -> i32 {
    let tokens = scored_at_once(heads.unsigned_abs().into(), keys.unsigned_abs().into());
    i32::try_from(tokens).unwrap_or(i32::MAX)
}

/// Whether passes over many tokens go without scores in memory, or, on a CPU, have memory enough for them: there it is only
/// tests that run.
pub(super) fn is_fused(backend: Backend, head_dim: u32) -> bool {
    match backend {
        Backend::Cpu => true,
        Backend::Metal | Backend::Cuda => FUSED_HEAD_DIMS.contains(&head_dim),
    }
}

/// Attends with `queries`, whose last axis but one is the tokens, so many tokens at a time. Each part is computed before
/// the next one is described: what is only described is in memory together.
pub(super) fn in_parts(
    queries: &Array,
    at_once: i32,
    mut attend: impl FnMut(&Array, Range<i32>) -> Result<Array>,
) -> Result<Array> {
    let tokens = queries.dim(-2);
    if tokens <= at_once {
        return attend(queries, 0..tokens);
    }
    let cuts: Vec<i32> = (1..)
        .map(|part| part * at_once)
        .take_while(|at| *at < tokens)
        .collect();
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([tokens]);
    let mut attended = Vec::with_capacity(cuts.len() + 1);
    for (part, (start, end)) in split_at_indices(queries, &cuts, -2)?.iter().zip(starts.zip(ends)) {
        let part = attend(part, start..end)?;
        part.eval()?;
        attended.push(part);
    }
    concatenate(&attended, -2)
}

/// Keys and values, `[1, kv_heads, known, head_dim]` each, and how they are read.
#[derive(Debug)]
pub(super) struct Floats<'a> {
    pub(super) keys: Array,
    pub(super) values: Array,
    pub(super) scale: f32,
    pub(super) window: Option<i32>,
    pub(super) sinks: Option<&'a Array>,
}

impl Floats<'_> {
    /// What `queries`, `[1, heads, tokens, head_dim]`, read of the keys and values that end with their own, each of
    /// those up to itself.
    pub(super) fn read(&self, queries: &Array, at_once: i32, masks: &mut Masks) -> Result<Array> {
        let (tokens, known) = (queries.dim(2), self.keys.dim(2));
        in_parts(queries, at_once, |part, at| {
            let count = part.dim(2);
            if count == tokens {
                return self.attend(part, &self.keys, &self.values, masks);
            }
            // Of the keys, only those that some token of the part sees.
            let before = known - tokens;
            let first = self
                .window
                .map_or(0, |window| (before + at.start + 1 - window).max(0));
            let seen = first..before + at.end;
            let keys = self.keys.try_index((.., .., seen.clone()))?;
            let values = self.values.try_index((.., .., seen))?;
            self.attend(part, &keys, &values, masks)
        })
    }

    fn attend(&self, queries: &Array, keys: &Array, values: &Array, masks: &mut Masks) -> Result<Array> {
        let mask = masks.mask(queries.dim(2), keys.dim(2), self.window)?;
        scaled_dot_product_attention(queries, keys, values, self.scale, mask, self.sinks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mlx;

    /// Numbers without a pattern.
    fn array(shape: &[i32], seed: f32) -> Array {
        let number = |at: i32| ((at as f32 + seed) * 12.9898).sin();
        let count: i32 = shape.iter().product();
        Array::from_slice(&(0..count).map(number).collect::<Vec<f32>>(), shape)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// However many tokens are read at a time, with windows and sinks and without.
        #[test]
        fn parts_make_up_the_whole(
            (tokens, before) in (1..24_i32, 0..24_i32),
            at_once in 1..24_i32,
            window in proptest::option::of(1..30_i32),
            with_sinks in any::<bool>(),
        ) {
            let _mlx = mlx::exclusive();
            let known = tokens + before;
            // A cache gives a single token no more than its window.
            let known = if tokens == 1 { known.min(window.unwrap_or(known)) } else { known };
            let sinks = array(&[4], 5.0);
            let floats = Floats {
                keys: array(&[1, 2, known, 8], 0.0),
                values: array(&[1, 2, known, 8], 1.0),
                scale: 0.35,
                window,
                sinks: with_sinks.then_some(&sinks),
            };
            let queries = array(&[1, 4, tokens, 8], 2.0);
            let read = |at_once| {
                floats.read(&queries, at_once, &mut Masks::default()).unwrap()
            };
            let (whole, parts) = (read(i32::MAX), read(at_once));
            prop_assert_eq!(whole.shape(), parts.shape());
            let apart = whole.subtract(&parts).unwrap().abs().unwrap().max(None).unwrap();
            prop_assert!(apart.item_exact::<f32>() < 1e-5);
        }
    }

    #[test]
    fn parts_are_as_large_as_scores_may_be() {
        // Gemma 3 12B: 16 heads of 256 elements. 2048 tokens against 128 K would have 17 GB of scores.
        assert!(!is_fused(Backend::Metal, 256));
        assert!(is_fused(Backend::Metal, 128));
        assert_eq!(tokens_at_once(16, 128 << 10), 32);
        assert_eq!(tokens_at_once(16, 1 << 10), 4096);
        assert_eq!(tokens_at_once(i32::MAX, i32::MAX), 1);
    }
}
