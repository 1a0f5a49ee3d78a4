//! Gated delta rule (Gated DeltaNet, arXiv:2412.06464): a memory `S`, `[value_dim, key_dim]` for
//! each head, that every token decays, corrects and reads: `S ← αS + β(v − αSk)kᵀ`, then `o = Sq`.
//! Computed token by token, or in chunks of tokens.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::indexing::{Ellipsis, TryIndexOp};
use rooflet_mlx::mlx_rs::ops::{
    add, arange, concatenate, cumsum, exp, matmul, multiply, pad, select, stack, subtract, sum_axis,
};
use rooflet_mlx::mlx_rs::{Array, Dtype};

/// Number of tokens that are solved for together.
const CHUNK_TOKENS: i32 = 64;

/// Inputs of the rule for each token.
#[derive(Debug)]
pub(super) struct Tokens {
    /// `[rows, tokens, heads, key_dim]`, unit vectors; queries are scaled.
    pub(super) queries: Array,
    pub(super) keys: Array,
    /// `[rows, tokens, heads, value_dim]`.
    pub(super) values: Array,
    /// Logarithm of α, `[rows, tokens, heads]`; at most 0.
    pub(super) log_decay: Array,
    /// β, `[rows, tokens, heads]`.
    pub(super) strength: Array,
}

/// Computes the outputs, `[rows, tokens, heads, value_dim]` in the queries' type, and the memory
/// after the tokens. `memory` is `[rows, heads, value_dim, key_dim]` in float32. The order of
/// operations is mlx-lm's, so that the result is bit-identical on a CPU, and does not depend on how
/// the tokens are divided into calls. Each token needs about ten small operations.
pub(super) fn token_by_token(tokens: &Tokens, mut memory: Array) -> Result<(Array, Array)> {
    let decay = exp(&tokens.log_decay)?;
    let count = tokens.queries.dim(1);
    let mut outputs = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    for token in 0..count {
        let of = |array: &Array| array.try_index((.., token, Ellipsis));
        let row = |array: &Array| array.expand_dims(-2);
        let (query, key, value) = (of(&tokens.queries)?, of(&tokens.keys)?, of(&tokens.values)?);
        let (decay, strength) = (of(&decay)?, of(&tokens.strength)?);
        let faded = multiply(memory, decay.expand_dims(-1)?.expand_dims(-1)?)?;
        let recalled = sum_axis(multiply(&faded, row(&key)?)?, -1, false)?;
        let change = multiply(subtract(value, recalled)?, strength.expand_dims(-1)?)?;
        memory = add(faded, multiply(row(&key)?, change.expand_dims(-1)?)?)?;
        let read = sum_axis(multiply(&memory, row(&query)?)?, -1, false)?;
        outputs.push(read.as_dtype(tokens.queries.dtype())?);
    }
    Ok((stack(&outputs, 1)?, memory))
}

/// Computes the same up to rounding, with matrix products over [`CHUNK_TOKENS`] tokens each, which
/// suit a GPU.
///
/// Within a chunk, γ is the product of all α so far. Token i changes the memory by δᵢkᵢᵀ, where
/// `δᵢ + βᵢ Σ_{j<i} (γᵢ/γⱼ)(kᵢ·kⱼ) δⱼ = βᵢ (vᵢ − γᵢ S₀kᵢ)`. This unit lower triangular system is
/// linear in `S₀`, so it is solved for all chunks together before `S₀` is known (section 3.3 of the
/// paper, after arXiv:2406.06484).
pub(super) fn chunked(tokens: &Tokens, memory: Array) -> Result<(Array, Array)> {
    let count = tokens.queries.dim(1);
    let chunks = (count + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    // Shape [rows, heads, chunks, CHUNK_TOKENS, …]. Padding with zeros changes nothing: no decay
    // and no write strength.
    let by_chunk = |array: &Array| -> Result<Array> {
        let array = array.as_dtype(Dtype::Float32)?;
        let (rows, heads) = (array.dim(0), array.dim(2));
        let mut widths = vec![(0, 0); array.ndim()];
        widths[1].1 = chunks * CHUNK_TOKENS - count;
        let array = pad(&array, &widths[..], None, None)?.swap_axes(1, 2)?;
        match array.shape().get(3).copied() {
            Some(width) => array.reshape(&[rows, heads, chunks, CHUNK_TOKENS, width]),
            None => array.reshape(&[rows, heads, chunks, CHUNK_TOKENS]),
        }
    };
    let (queries, keys, values) = (
        by_chunk(&tokens.queries)?,
        by_chunk(&tokens.keys)?,
        by_chunk(&tokens.values)?,
    );
    let column = |array: Array| array.expand_dims(-1);
    let strength = column(by_chunk(&tokens.strength)?)?;
    let log_faded = cumsum(by_chunk(&tokens.log_decay)?, -1, false, true)?;
    let faded = column(exp(&log_faded)?)?;

    let masks = Masks::new()?;
    // γᵢ/γⱼ is at most 1 for j ≤ i. Elsewhere it may overflow and is masked.
    let since = subtract(log_faded.expand_dims(-1)?, log_faded.expand_dims(-2)?)?;
    let since = exp(select(
        &masks.until_itself,
        since,
        Array::from_f32(f32::NEG_INFINITY),
    )?)?;
    let transposed = |array: &Array| array.swap_axes(-1, -2);
    let similarity = multiply(matmul(&keys, transposed(&keys)?)?, &since)?;
    let system = multiply(multiply(similarity, &masks.before)?, &strength)?;
    let solution = masks.inverse(&system)?;
    let own = matmul(&solution, multiply(&values, &strength)?)?;
    let of_memory = matmul(&solution, multiply(multiply(&keys, &strength)?, &faded)?)?;
    let read_own = multiply(matmul(&queries, transposed(&keys)?)?, &since)?;
    let read_memory = multiply(queries, &faded)?;
    // γ at the end of the chunk divided by γ of the token.
    let whole = log_faded.try_index((Ellipsis, -1..))?;
    let kept = multiply(&keys, column(exp(subtract(&whole, &log_faded)?)?)?)?;
    let whole = column(exp(whole)?)?;

    let mut memory = memory;
    let mut outputs = Vec::with_capacity(usize::try_from(chunks).unwrap_or(0));
    for chunk in 0..chunks {
        let of = |array: &Array| array.try_index((.., .., chunk, Ellipsis));
        let before = transposed(&memory)?;
        let changes = subtract(of(&own)?, matmul(of(&of_memory)?, &before)?)?;
        outputs.push(add(
            matmul(of(&read_memory)?, &before)?,
            matmul(of(&read_own)?, &changes)?,
        )?);
        memory = add(
            multiply(&memory, of(&whole)?)?,
            matmul(transposed(&changes)?, of(&kept)?)?,
        )?;
    }
    let outputs = concatenate(&outputs, 2)?.try_index((.., .., ..count, ..))?;
    Ok((outputs.swap_axes(1, 2)?.as_dtype(tokens.queries.dtype())?, memory))
}

/// Masks over the tokens of a chunk.
struct Masks {
    /// Row i, column j: j ≤ i.
    until_itself: Array,
    /// j < i, in float32.
    before: Array,
    /// For blocks of 1, 2, 4 … tokens: the lower left quarter of each pair of blocks, in float32.
    quarters: Vec<Array>,
    /// Identity matrix.
    identity: Array,
}

impl Masks {
    fn new() -> Result<Self> {
        let places = arange::<i32, i32>(0, CHUNK_TOKENS, 1)?;
        let (rows, columns) = (places.expand_dims(1)?, places.expand_dims(0)?);
        let float = |mask: Array| mask.as_dtype(Dtype::Float32);
        let mut quarters = Vec::new();
        let mut block = 1;
        while block < CHUNK_TOKENS {
            let block_of = |places: &Array, tokens: i32| places.floor_divide(Array::from_int(tokens));
            let same_pair = block_of(&rows, 2 * block)?.eq(block_of(&columns, 2 * block)?)?;
            let later = block_of(&rows, block)?.gt(block_of(&columns, block)?)?;
            quarters.push(float(same_pair.logical_and(later)?)?);
            block *= 2;
        }
        Ok(Self {
            until_itself: rows.ge(&columns)?,
            before: float(rows.gt(&columns)?)?,
            quarters,
            identity: float(rows.eq(&columns)?)?,
        })
    }

    /// Returns the inverse of `1 + system`, where the diagonal and the upper triangle of `system`
    /// are zero: `[[A,0],[C,B]]⁻¹ = [[A⁻¹,0],[−B⁻¹CA⁻¹,B⁻¹]]`, starting with blocks of one token.
    /// The method is as stable as substitution; a power series would suffer from cancellation.
    fn inverse(&self, system: &Array) -> Result<Array> {
        let mut inverse = self.identity.clone();
        for quarter in &self.quarters {
            let joining = matmul(matmul(&inverse, multiply(system, quarter)?)?, &inverse)?;
            inverse = subtract(&inverse, joining)?;
        }
        Ok(inverse)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rooflet_mlx::mlx_rs::fast::rms_norm;

    use super::*;

    /// Values between -1 and 1, determined by the seed.
    fn numbers(seed: u64, shape: &[i32]) -> Array {
        let key = rooflet_mlx::mlx_rs::random::key(seed).expect("keys can be created");
        rooflet_mlx::mlx_rs::random::uniform::<_, f32>(-1.0, 1.0, shape, &key)
            .expect("shape and bounds are valid")
    }

    fn largest_difference(a: &Array, b: &Array) -> f32 {
        assert_eq!(a.shape(), b.shape());
        let difference = subtract(a, b).and_then(|difference| difference.abs()?.max(None));
        difference
            .expect("the arrays have the same shape")
            .item_exact::<f32>()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// `sameness` makes the keys similar, which is the worst case for the system. `fading` is
        /// up to e⁻³⁰ per token.
        #[test]
        fn chunks_equal_token_by_token(
            seed in 0..1_000_000_u64,
            count in 1..200_i32,
            sameness in 0.0..50_f32,
            fading in prop_oneof![Just(0.0_f32), 0.0..0.1_f32, 0.0..30_f32],
        ) {
            let (rows, heads, key_dim, value_dim) = (2, 3, 8, 5);
            let at = |place: u64| seed * 10 + place;
            let keys = numbers(at(0), &[rows, count, heads, key_dim]).add(Array::from_f32(sameness)).unwrap();
            let scale = Array::from_f32((key_dim as f32).powf(-0.5));
            let tokens = Tokens {
                queries: numbers(at(1), &[rows, count, heads, key_dim]),
                keys: multiply(rms_norm(&keys, None, 1e-6).unwrap(), &scale).unwrap(),
                values: numbers(at(2), &[rows, count, heads, value_dim]),
                log_decay: multiply(
                    numbers(at(3), &[rows, count, heads]).abs().unwrap(),
                    Array::from_f32(-fading),
                ).unwrap(),
                strength: numbers(at(4), &[rows, count, heads]).abs().unwrap(),
            };
            let memory = numbers(at(5), &[rows, heads, value_dim, key_dim]);
            let (outputs, after) = token_by_token(&tokens, memory.clone()).unwrap();
            let (chunked_outputs, chunked_after) = chunked(&tokens, memory).unwrap();
            prop_assert!(largest_difference(&outputs, &chunked_outputs) < 1e-4);
            prop_assert!(largest_difference(&after, &chunked_after) < 1e-4);
        }
    }
}
