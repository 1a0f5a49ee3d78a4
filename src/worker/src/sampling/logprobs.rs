//! How probable tokens were, as the model has it: before temperature, penalties, bias and limits.
//! Computed on the device beside the tokens themselves, for the rows that ask for it.

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::{ConversionError, Result};
use rooflet_mlx::mlx_rs::ops::argsort_axis;
use rooflet_mlx::mlx_rs::ops::indexing::{TryIndexOp, take_axis};

use crate::sampling::sampler::indices;

/// Stands for a probability of nothing, as JSON has no infinity; OpenAI's value.
const NEVER: f32 = -9999.0;

/// Of one token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenLogprobs {
    /// The token's own.
    pub chosen: f32,
    /// The most probable tokens and theirs, falling.
    pub top: Vec<(u32, f32)>,
}

/// Of some rows' tokens, not read yet.
#[derive(Debug)]
pub(crate) struct Logprobs {
    /// Rows of the pass, and how many of the most probable tokens each asks for.
    rows: Vec<(usize, usize)>,
    /// `[rows]`.
    chosen: Array,
    /// Tokens and their logprobs, falling, `[rows, the most that any asks for]`; `None` where that
    /// is nothing.
    top: Option<(Array, Array)>,
}

impl Logprobs {
    /// `logits` are `[rows, vocabulary]` in float32, `tokens` are `[rows]`; `asked` says of each
    /// row how many of the most probable tokens it asks for, `None` where it asks for nothing.
    /// Lazy.
    pub(crate) fn new(logits: &Array, tokens: &Array, asked: &[Option<usize>]) -> Result<Option<Self>> {
        let rows: Vec<(usize, usize)> = asked
            .iter()
            .enumerate()
            .filter_map(|(row, top)| Some((row, (*top)?)))
            .collect();
        let Some(most) = rows.iter().map(|(_, top)| *top).max() else {
            return Ok(None);
        };
        let places: Vec<usize> = rows.iter().map(|(row, _)| *row).collect();
        let (logits, tokens) = if rows.len() == asked.len() {
            (logits.clone(), tokens.clone())
        } else {
            let places = indices(&places);
            (take_axis(logits, &places, 0)?, take_axis(tokens, &places, 0)?)
        };
        let logprobs = logits.subtract(logits.logsumexp_axis(-1, true)?)?;
        let chosen = logprobs
            .take_along_axis(tokens.expand_dims(-1)?, -1)?
            .squeeze_axes(&[-1])?;
        let most = i32::try_from(most)
            .expect("few are asked for")
            .min(logprobs.dim(-1));
        let top = if most == 0 {
            None
        } else {
            // A part of it is no array that can be read.
            let order = argsort_axis(logits.negative()?, -1)?
                .try_index((.., ..most))?
                .contiguous()?;
            let falling = logprobs.take_along_axis(&order, -1)?;
            Some((order, falling))
        };
        Ok(Some(Self { rows, chosen, top }))
    }

    /// What must be evaluated before it can be read.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let top = self.top.iter().flat_map(|(tokens, logprobs)| [tokens, logprobs]);
        std::iter::once(&self.chosen).chain(top)
    }

    /// Waits for them. Each with its row.
    pub(crate) fn read(&self) -> std::result::Result<Vec<(usize, TokenLogprobs)>, ConversionError> {
        let floats = |array: &Array| array.to_vec_exact::<f32>();
        let chosen = floats(&self.chosen)?;
        let (tokens, logprobs) = match &self.top {
            None => (Vec::new(), Vec::new()),
            Some((tokens, logprobs)) => (tokens.to_vec_exact::<u32>()?, floats(logprobs)?),
        };
        let width = tokens.len() / self.rows.len();
        let of_row = |(place, (row, asked)): (usize, &(usize, usize))| {
            let from = place * width;
            let shown = from..from + width.min(*asked);
            let top = tokens[shown.clone()].iter().copied();
            let logprobs = logprobs[shown].iter().copied().map(finite);
            let token = TokenLogprobs {
                chosen: finite(chosen[place]),
                top: top.zip(logprobs).collect(),
            };
            (*row, token)
        };
        Ok(self.rows.iter().enumerate().map(of_row).collect())
    }
}

fn finite(logprob: f32) -> f32 {
    // What is no number is not greater either.
    logprob.max(NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_mlx as mlx;

    #[test]
    fn rows_get_what_they_ask_for() {
        let _mlx = mlx::exclusive();
        // Probabilities 1/2, 1/4, 1/8 and 1/8; then all on one token.
        let logits = [
            2.0_f32.ln(),
            4.0_f32.ln(),
            1.0_f32.ln(),
            1.0_f32.ln(),
            0.0,
            0.0,
            f32::INFINITY.min(1e9),
            0.0,
            2.0_f32.ln(),
            4.0_f32.ln(),
            1.0_f32.ln(),
            1.0_f32.ln(),
        ];
        let logits = Array::from_slice(&logits, &[3, 4]);
        let tokens = Array::from_slice(&[3_u32, 0, 1], &[3]);
        let read = |asked: &[Option<usize>]| {
            Logprobs::new(&logits, &tokens, asked)
                .unwrap()
                .map(|all| all.read().unwrap())
        };
        assert_eq!(read(&[None, None, None]), None);

        let some = read(&[Some(2), None, Some(0)]).unwrap();
        assert_eq!(some.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [0, 2]);
        let near = |logprob: f32, probability: f32| (logprob - probability.ln()).abs() < 1e-6;
        let (_, first) = &some[0];
        assert!(near(first.chosen, 1.0 / 8.0), "{first:?}");
        assert!(first.top[0].0 == 1 && near(first.top[0].1, 0.5), "{first:?}");
        assert!(first.top[1].0 == 0 && near(first.top[1].1, 0.25), "{first:?}");
        assert_eq!(first.top.len(), 2);
        let (_, last) = &some[1];
        assert!(near(last.chosen, 0.5) && last.top.is_empty(), "{last:?}");

        let all = read(&[Some(20); 3]).unwrap();
        assert_eq!(all[0].1.top.len(), 4, "no more than there are");
        assert_eq!(all[0].1.top[2].0, 2, "of equal ones the first");
        assert_eq!(all[1].1.chosen, NEVER, "JSON has no infinity");
    }
}
