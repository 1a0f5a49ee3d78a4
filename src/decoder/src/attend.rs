//! Softmax attention of one sequence's tokens over its keys and values. If no kernel fuses the
//! scores with the softmax, the scores are in memory, and those of a prompt chunk against a long
//! cache would need gigabytes. Attention then processes as many tokens at a time as
//! [`scored_at_once`] permits. The memory reservation assumes the same limit.

use std::ops::Range;

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::fast::scaled_dot_product_attention;
use rooflet_mlx::mlx_rs::ops::indexing::TryIndexOp;
use rooflet_mlx::mlx_rs::ops::{concatenate, pad, split_at_indices};

use super::mask::Masks;
use rooflet_mlx::backend::Backend;
use rooflet_roofline::memory::{FUSED_HEAD_DIMS, scored_at_once};

/// Returns the number of tokens whose scores of `heads` heads against `keys` keys may be in memory.
pub(super) fn tokens_at_once(heads: i32, keys: i32) -> i32 {
    let tokens = scored_at_once(heads.unsigned_abs().into(), keys.unsigned_abs().into());
    i32::try_from(tokens).unwrap_or(i32::MAX)
}

/// Returns true if passes over many tokens need no limit of scores: a fused kernel has none in
/// memory. On a CPU, which only runs tests, memory is sufficient.
pub(super) fn is_fused(backend: Backend, head_dim: u32) -> bool {
    match backend {
        Backend::Cpu => true,
        Backend::Metal | Backend::Cuda => FUSED_HEAD_DIMS.contains(&head_dim),
    }
}

/// Attends with `queries`, whose second-to-last axis is the tokens, `at_once` tokens at a time.
/// Each part is evaluated before the next one is built, because all unevaluated parts would be in
/// memory together.
pub(super) fn in_parts(
    queries: &Array,
    at_once: i32,
    mut attend: impl FnMut(&Array, Range<i32>) -> Result<Array>,
) -> Result<Array> {
    let tokens = queries.dim(-2);
    if tokens <= at_once {
        return attend(queries, 0..tokens);
    }
    let split_points: Vec<i32> = (1..)
        .map(|part| part * at_once)
        .take_while(|at| *at < tokens)
        .collect();
    let starts = std::iter::once(0).chain(split_points.iter().copied());
    let ends = split_points.iter().copied().chain([tokens]);
    let mut attended = Vec::with_capacity(split_points.len() + 1);
    for (part, (start, end)) in split_at_indices(queries, &split_points, -2)?
        .iter()
        .zip(starts.zip(ends))
    {
        let part = attend(part, start..end)?;
        part.eval()?;
        attended.push(part);
    }
    concatenate(&attended, -2)
}

/// Returns true if every new number of tokens or keys costs about 50 ms per pass (measured on an
/// H200). In these cases, MLX uses cuDNN, which builds a plan for each shape
/// (mlx/backend/cuda/scaled_dot_product_attention.cpp of MLX 0.32).
pub(super) fn compiles_per_shape(backend: Backend, head_dim: u32) -> bool {
    match backend {
        Backend::Cpu | Backend::Metal => false,
        Backend::Cuda => head_dim <= 128 && head_dim.is_multiple_of(8),
    }
}

/// Padding of a pass to one of few shapes: tokens before and after its own tokens; the tokens after
/// have keys of their own. With thousands of keys, the padding adds at most one eighth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Padding {
    before: i32,
    after: i32,
}

impl Padding {
    /// Minimum step to which the number of keys is rounded up, and minimum number of tokens. Larger
    /// numbers of tokens are rounded up to powers of two.
    const MIN_STEP: i32 = 256;

    fn of(tokens: i32, keys: i32) -> Self {
        let step = (1 << keys.ilog2()).max(8 * Self::MIN_STEP) / 8;
        let after = (keys + step - 1) / step * step - keys;
        let least = (tokens + after).max(Self::MIN_STEP).cast_unsigned();
        let most = least.next_power_of_two().cast_signed().min(keys + after);
        Self {
            before: most - tokens - after,
            after,
        }
    }
}

/// Pads the tokens with zeros in separate memory, because cuDNN's plans also depend on the strides.
fn padded(array: &Array, before: i32, after: i32) -> Result<Array> {
    match (before, after) {
        (0, 0) => array.contiguous(),
        (before, after) => pad(array, &[(0, 0), (0, 0), (before, after), (0, 0)][..], None, None),
    }
}

/// Attention over float keys and values, `[1, kv_heads, known, head_dim]` each.
#[derive(Debug)]
pub(super) struct FloatAttention<'a> {
    pub(super) keys: Array,
    pub(super) values: Array,
    pub(super) scale: f32,
    pub(super) window: Option<i32>,
    pub(super) sinks: Option<&'a Array>,
    /// Set if passes over several tokens are padded to one of few shapes.
    pub(super) pads: bool,
}

impl FloatAttention<'_> {
    /// Attends with `queries`, `[1, heads, tokens, head_dim]`. The last `tokens` keys and values
    /// belong to the queries, and each query attends to keys up to its own.
    pub(super) fn apply(&self, queries: &Array, at_once: i32, masks: &mut Masks) -> Result<Array> {
        let (tokens, known) = (queries.dim(2), self.keys.dim(2));
        if let (1, Some(window)) = (tokens, self.window)
            && known > window
        {
            let visible = known - window..;
            let keys = self.keys.try_index((.., .., visible.clone()))?;
            let values = self.values.try_index((.., .., visible))?;
            return self.attend(queries, &keys, &values, masks);
        }
        in_parts(queries, at_once, |part, at| {
            let count = part.dim(2);
            if count == tokens {
                return self.attend(part, &self.keys, &self.values, masks);
            }
            // Omits keys that no token of the part attends to.
            let before = known - tokens;
            let first = self
                .window
                .map_or(0, |window| (before + at.start + 1 - window).max(0));
            let visible = first..before + at.end;
            let keys = self.keys.try_index((.., .., visible.clone()))?;
            let values = self.values.try_index((.., .., visible))?;
            self.attend(part, &keys, &values, masks)
        })
    }

    fn attend(&self, queries: &Array, keys: &Array, values: &Array, masks: &mut Masks) -> Result<Array> {
        let (tokens, known) = (queries.dim(2), keys.dim(2));
        if !self.pads || tokens == 1 {
            return self.fused(queries, keys, values, masks);
        }
        // Each token attends to the same keys as without padding: added keys come after it.
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

    /// Deterministic pseudo-random values.
    fn array(shape: &[i32], seed: f32) -> Array {
        let number = |at: i32| ((at as f32 + seed) * 12.9898).sin();
        let count: i32 = shape.iter().product();
        Array::from_slice(&(0..count).map(number).collect::<Vec<f32>>(), shape)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The result depends neither on the number of tokens at a time nor on the padding, with
        /// and without windows and sinks.
        #[test]
        fn attention_in_parts_equals_attention_at_once(
            (tokens, before) in (1..24_i32, 0..24_i32),
            at_once in 1..24_i32,
            window in proptest::option::of(1..30_i32),
            with_sinks in any::<bool>(),
            pads in any::<bool>(),
        ) {
            let _mlx = mlx::exclusive();
            let known = tokens + before;
            let sinks = array(&[4], 5.0);
            let floats = |pads| FloatAttention {
                keys: array(&[1, 2, known, 8], 0.0),
                values: array(&[1, 2, known, 8], 1.0),
                scale: 0.35,
                window,
                sinks: with_sinks.then_some(&sinks),
                pads,
            };
            let queries = array(&[1, 4, tokens, 8], 2.0);
            let read = |at_once, pads| {
                floats(pads).apply(&queries, at_once, &mut Masks::default()).unwrap()
            };
            let (whole, parts) = (read(i32::MAX, false), read(at_once, pads));
            prop_assert_eq!(whole.shape(), parts.shape());
            let difference = whole.subtract(&parts).unwrap().abs().unwrap().max(None).unwrap();
            prop_assert!(difference.item_exact::<f32>() < 1e-5);
        }
    }

    proptest! {
        #[test]
        fn padding_uses_few_shapes((keys, tokens) in (2..200_000_i32).prop_flat_map(|keys| (Just(keys), 2..=keys))) {
            let Padding { before, after } = Padding::of(tokens, keys);
            prop_assert!(before >= 0 && after >= 0);
            let (all_tokens, all_keys) = (before + tokens + after, keys + after);
            prop_assert!(all_tokens <= all_keys);
            prop_assert!(all_tokens == all_keys || all_tokens.cast_unsigned().is_power_of_two());
            prop_assert!(all_keys % Padding::MIN_STEP == 0 && after < Padding::MIN_STEP.max(keys / 8 + 1));
            // A padded shape needs no further padding.
            prop_assert_eq!(Padding::of(all_tokens, all_keys), Padding { before: 0, after: 0 });
        }
    }

    #[test]
    fn prompts_of_similar_length_share_a_shape() {
        let shape = |tokens, keys| {
            let Padding { before, after } = Padding::of(tokens, keys);
            (before + tokens + after, keys + after)
        };
        assert_eq!(shape(999, 999), (1024, 1024));
        // The rest of a prompt, after another pass had room for its first 50 tokens.
        assert_eq!(shape(949, 999), (1024, 1024));
        assert_eq!(shape(2, 2), (256, 256));
        assert_eq!(shape(2048, 4096), (2048, 4096));
        assert_eq!(shape(2048, 4097), (4096, 4608));
    }

    #[test]
    fn score_limit_determines_the_size_of_parts() {
        // Gemma 3 12B: 16 heads with 256 elements. The scores of 2048 tokens against 128 K keys
        // would have 17 GB.
        assert!(!is_fused(Backend::Metal, 256));
        assert!(is_fused(Backend::Metal, 128));
        assert_eq!(tokens_at_once(16, 128 << 10), 32);
        assert_eq!(tokens_at_once(16, 1 << 10), 4096);
        assert_eq!(tokens_at_once(i32::MAX, i32::MAX), 1);
    }
}
