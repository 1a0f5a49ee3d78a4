//! Sampling of the next tokens of all rows on the device, with logprobs and penalty states.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::select;
use rooflet_mlx::mlx_rs::{Array, transforms};

use crate::sampling::adjustment::{Adjusted, Adjustment};
use crate::sampling::logprobs::Logprobs;
use crate::sampling::sampler::{Draw, sample};

/// Sampled tokens, submitted to the device but not yet read.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Token IDs, `[rows]`.
    pub tokens: Array,
    /// True for rows whose logits are all finite, `[rows]`. Other rows have no valid token.
    pub finite: Array,
    /// Logprobs of the rows that request them.
    pub logprobs: Option<Logprobs>,
    /// New penalty states by row.
    pub adjustments: Vec<(usize, Adjustment)>,
}

impl Choice {
    /// Samples from `logits`, `[rows, vocabulary]` in float32. `draws` has one entry per row.
    pub(crate) fn submit(logits: &Array, draws: &[Draw<'_>]) -> Result<Self> {
        // The sum is finite only if every logit is finite.
        let finite = logits.sum_axis(-1, false)?.is_finite()?;
        let adjusted = Adjusted::new(logits, draws.iter().map(|draw| draw.adjustment))?;
        let tokens = match masked(&adjusted.logits, draws)? {
            None => sample(&adjusted.logits, draws)?,
            Some(masked) => sample(&masked, draws)?,
        };
        let requested: Vec<_> = draws.iter().map(|draw| draw.logprobs).collect();
        let logprobs = Logprobs::new(logits, &tokens, &requested)?;
        let adjustments = adjusted.after(&tokens)?;
        let logprob_arrays = logprobs.iter().flat_map(Logprobs::arrays);
        transforms::async_eval([&tokens, &finite].into_iter().chain(logprob_arrays))?;
        Ok(Self {
            tokens,
            finite,
            logprobs,
            adjustments,
        })
    }
}

/// Returns logits with minus infinity for tokens that a mask excludes. `None`: no row has a mask.
fn masked(logits: &Array, draws: &[Draw<'_>]) -> Result<Option<Array>> {
    if draws.iter().all(|draw| draw.mask.is_none()) {
        return Ok(None);
    }
    let vocabulary = logits.dim(-1).unsigned_abs() as usize;
    let mut allowed = Vec::with_capacity(draws.len() * vocabulary);
    for draw in draws {
        match draw.mask {
            Some(mask) => mask.append_to(&mut allowed),
            None => allowed.resize(allowed.len() + vocabulary, true),
        }
    }
    let allowed = Array::from_slice(&allowed, logits.shape());
    select(allowed, logits, Array::from_f32(f32::NEG_INFINITY)).map(Some)
}
