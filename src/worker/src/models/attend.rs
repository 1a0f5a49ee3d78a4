//! Softmax attention of one sequence's tokens over its keys and values. Where no kernel fuses the
//! scores with what follows, they are in memory, and a chunk of a prompt against a long cache would
//! have gigabytes of them: then it goes a few tokens at a time, as many as [`scored_at_once`]
//! allows, which is what the reservation counts on.

use std::ops::Range;

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::fast::scaled_dot_product_attention;
use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp;
use rooflet_mlx::mlx_rs::ops::{concatenate, pad, split_at_indices};

use super::mask::Masks;
use rooflet_mlx::backend::Backend;
use rooflet_roofline::memory::{FUSED_HEAD_DIMS, scored_at_once};

/// How many tokens' scores of so many heads against `keys` may be in memory.
pub(super) fn tokens_at_once(heads: i32, keys: i32) -> i32 {
    let tokens = scored_at_once(heads.unsigned_abs().into(), keys.unsigned_abs().into());
    i32::try_from(tokens).unwrap_or(i32::MAX)
}

/// Whether passes over many tokens go without scores in memory, or, on a CPU, have memory enough
/// for them: there it is only tests that run.
pub(super) fn is_fused(backend: Backend, head_dim: u32) -> bool {
    match backend {
        Backend::Cpu => true,
        Backend::Metal | Backend::Cuda => FUSED_HEAD_DIMS.contains(&head_dim),
    }
}

/// Attends with `queries`, whose last axis but one is the tokens, so many tokens at a time. Each
/// part is computed before the next one is described: what is only described is in memory together.
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

/// Whether every new number of tokens or keys costs a pass some 50 ms, measured on an H200: MLX
/// leaves such passes to cuDNN there, which makes a plan for each shape
/// (mlx/backend/cuda/scaled_dot_product_attention.cpp of MLX 0.32).
pub(super) fn plans_shapes(backend: Backend, head_dim: u32) -> bool {
    match backend {
        Backend::Cpu | Backend::Metal => false,
        Backend::Cuda => head_dim <= 128 && head_dim.is_multiple_of(8),
    }
}

/// The shape of another pass that includes this one: tokens before and after its own, those after
/// with keys of their own. There are few such shapes, and no more than an eighth of the keys is
/// added where there are thousands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Padding {
    before: i32,
    after: i32,
}

impl Padding {
    /// Keys come in steps of at least so many, and tokens in powers of two from there.
    const LEAST: i32 = 256;

    fn of(tokens: i32, keys: i32) -> Self {
        let step = (1 << keys.ilog2()).max(8 * Self::LEAST) / 8;
        let after = (keys + step - 1) / step * step - keys;
        let least = (tokens + after).max(Self::LEAST).cast_unsigned();
        let most = least.next_power_of_two().cast_signed().min(keys + after);
        Self {
            before: most - tokens - after,
            after,
        }
    }
}

/// Zeros around the tokens, in memory of its own: the way from token to token is part of what is
/// planned, too.
fn padded(array: &Array, before: i32, after: i32) -> Result<Array> {
    match (before, after) {
        (0, 0) => array.contiguous(),
        (before, after) => pad(array, &[(0, 0), (0, 0), (before, after), (0, 0)][..], None, None),
    }
}

/// Keys and values, `[1, kv_heads, known, head_dim]` each, and how they are read.
#[derive(Debug)]
pub(super) struct Floats<'a> {
    pub(super) keys: Array,
    pub(super) values: Array,
    pub(super) scale: f32,
    pub(super) window: Option<i32>,
    pub(super) sinks: Option<&'a Array>,
    /// Several tokens are read in one of few shapes.
    pub(super) pads: bool,
}

impl Floats<'_> {
    /// What `queries`, `[1, heads, tokens, head_dim]`, read of the keys and values that end with
    /// their own, each of those up to itself.
    pub(super) fn read(&self, queries: &Array, at_once: i32, masks: &mut Masks) -> Result<Array> {
        let (tokens, known) = (queries.dim(2), self.keys.dim(2));
        if let (1, Some(window)) = (tokens, self.window)
            && known > window
        {
            let seen = known - window..;
            let keys = self.keys.try_index((.., .., seen.clone()))?;
            let values = self.values.try_index((.., .., seen))?;
            return self.attend(queries, &keys, &values, masks);
        }
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
        let (tokens, known) = (queries.dim(2), keys.dim(2));
        if !self.pads || tokens == 1 {
            return self.fused(queries, keys, values, masks);
        }
        // Each token sees the same keys as before: those that are added come after it.
        let Padding { before, after } = Padding::of(tokens, known);
        let queries = padded(queries, before, after)?;
        let (keys, values) = (padded(keys, 0, after)?, padded(values, 0, after)?);
        let attended = self.fused(&queries, &keys, &values, masks)?;
        attended.try_index((.., .., before..before + tokens))
    }

    fn fused(&self, queries: &Array, keys: &Array, values: &Array, masks: &mut Masks) -> Result<Array> {
        let mask = masks.mask(queries.dim(2), keys.dim(2), self.window)?;
        scaled_dot_product_attention(queries, keys, values, self.scale, mask, self.sinks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use rooflet_mlx as mlx;

    /// Numbers without a pattern.
    fn array(shape: &[i32], seed: f32) -> Array {
        let number = |at: i32| ((at as f32 + seed) * 12.9898).sin();
        let count: i32 = shape.iter().product();
        Array::from_slice(&(0..count).map(number).collect::<Vec<f32>>(), shape)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// However many tokens are read at a time, and in whatever shape, with windows and sinks
        /// and without.
        #[test]
        fn parts_make_up_the_whole(
            (tokens, before) in (1..24_i32, 0..24_i32),
            at_once in 1..24_i32,
            window in proptest::option::of(1..30_i32),
            with_sinks in any::<bool>(),
            pads in any::<bool>(),
        ) {
            let _mlx = mlx::exclusive();
            let known = tokens + before;
            let sinks = array(&[4], 5.0);
            let floats = |pads| Floats {
                keys: array(&[1, 2, known, 8], 0.0),
                values: array(&[1, 2, known, 8], 1.0),
                scale: 0.35,
                window,
                sinks: with_sinks.then_some(&sinks),
                pads,
            };
            let queries = array(&[1, 4, tokens, 8], 2.0);
            let read = |at_once, pads| {
                floats(pads).read(&queries, at_once, &mut Masks::default()).unwrap()
            };
            let (whole, parts) = (read(i32::MAX, false), read(at_once, pads));
            prop_assert_eq!(whole.shape(), parts.shape());
            let apart = whole.subtract(&parts).unwrap().abs().unwrap().max(None).unwrap();
            prop_assert!(apart.item_exact::<f32>() < 1e-5);
        }
    }

    proptest! {
        #[test]
        fn few_shapes_include_every_pass((keys, tokens) in (2..200_000_i32).prop_flat_map(|keys| (Just(keys), 2..=keys))) {
            let Padding { before, after } = Padding::of(tokens, keys);
            prop_assert!(before >= 0 && after >= 0);
            let (all_tokens, all_keys) = (before + tokens + after, keys + after);
            prop_assert!(all_tokens <= all_keys);
            prop_assert!(all_tokens == all_keys || all_tokens.cast_unsigned().is_power_of_two());
            prop_assert!(all_keys % Padding::LEAST == 0 && after < Padding::LEAST.max(keys / 8 + 1));
            // A shape is included in none but itself.
            prop_assert_eq!(Padding::of(all_tokens, all_keys), Padding { before: 0, after: 0 });
        }
    }

    #[test]
    fn prompts_of_a_length_share_a_shape() {
        let shape = |tokens, keys| {
            let Padding { before, after } = Padding::of(tokens, keys);
            (before + tokens + after, keys + after)
        };
        assert_eq!(shape(999, 999), (1024, 1024));
        // Its end, after a pass had room for 50 of its tokens.
        assert_eq!(shape(949, 999), (1024, 1024));
        assert_eq!(shape(2, 2), (256, 256));
        assert_eq!(shape(2048, 4096), (2048, 4096));
        assert_eq!(shape(2048, 4097), (4096, 4608));
    }

    #[test]
    fn parts_are_as_large_as_scores_may_be() {
        // Gemma 3 12B: 16 heads of 256 elements. 2048 tokens against 128 K would have 17 GB of
        // scores.
        assert!(!is_fused(Backend::Metal, 256));
        assert!(is_fused(Backend::Metal, 128));
        assert_eq!(tokens_at_once(16, 128 << 10), 32);
        assert_eq!(tokens_at_once(16, 1 << 10), 4096);
        assert_eq!(tokens_at_once(i32::MAX, i32::MAX), 1);
    }
}
