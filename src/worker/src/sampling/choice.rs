//! The next tokens of all rows of a pass, chosen on the device, with what is computed beside them.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::ops::select;
use rooflet_mlx::mlx_rs::{Array, transforms};

use crate::sampling::adjustment::{Adjusted, Adjustment};
use crate::sampling::logprobs::Logprobs;
use crate::sampling::sampler::{Draw, sample};

/// Submitted, not read.
#[derive(Debug)]
pub(crate) struct Choice {
    /// `[rows]`.
    pub tokens: Array,
    /// Of the rows that ask for them.
    pub logprobs: Option<Logprobs>,
    /// State of the rows whose state changed.
    pub adjustments: Vec<(usize, Adjustment)>,
}

impl Choice {
    /// From `logits`, `[rows, vocabulary]` in float32; `draws` has an entry per row.
    pub(crate) fn submit(logits: &Array, draws: &[Draw<'_>]) -> Result<Self> {
        let adjusted = Adjusted::new(logits, draws.iter().map(|draw| draw.adjustment))?;
        let tokens = match masked(&adjusted.logits, draws)? {
            None => sample(&adjusted.logits, draws)?,
            Some(masked) => sample(&masked, draws)?,
        };
        let asked: Vec<_> = draws.iter().map(|draw| draw.logprobs).collect();
        let logprobs = Logprobs::new(logits, &tokens, &asked)?;
        let adjustments = adjusted.after(&tokens)?;
        let beside = logprobs.iter().flat_map(Logprobs::arrays);
        transforms::async_eval(std::iter::once(&tokens).chain(beside))?;
        Ok(Self {
            tokens,
            logprobs,
            adjustments,
        })
    }
}

/// Logits without the tokens that must not be; `None` where all will do.
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
