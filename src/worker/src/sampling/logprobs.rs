//! Log probabilities of tokens according to the model: before temperature, penalties, bias and
//! sampling limits. Computed on the device together with sampling, for the rows that request them.

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::{ConversionError, Result};
use rooflet_mlx::mlx_rs::ops::argsort_axis;
use rooflet_mlx::mlx_rs::ops::indexing::{TryIndexOp, take_axis};

use crate::sampling::sampler::indices;

/// Log probability in place of minus infinity, which JSON cannot represent; the value of OpenAI's
/// API.
const MIN_LOGPROB: f32 = -9999.0;

/// Log probabilities at one position of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenLogprobs {
    /// Log probability of the token at this position.
    pub logprob: f32,
    /// Most probable tokens with their log probabilities, in descending order.
    pub top: Vec<(u32, f32)>,
}

/// Log probabilities of the rows that request them, not yet read from the device.
#[derive(Debug)]
pub(crate) struct Logprobs {
    /// Indices of the rows, with the requested number of most probable tokens.
    rows: Vec<(usize, usize)>,
    /// Log probabilities of the tokens passed to [`Self::new`], `[rows]`.
    selected: Array,
    /// Most probable tokens and their log probabilities in descending order, `[rows, k]` for the
    /// maximum requested number `k`. `None` if `k` is 0.
    top: Option<(Array, Array)>,
}

impl Logprobs {
    /// Computes log probabilities from `logits`, `[rows, vocabulary]` in float32, and `tokens`,
    /// `[rows]`. `requested` has the number of most probable tokens per row; `None`: no logprobs
    /// for this row. Lazy.
    pub(crate) fn new(logits: &Array, tokens: &Array, requested: &[Option<usize>]) -> Result<Option<Self>> {
        let rows: Vec<(usize, usize)> = requested
            .iter()
            .enumerate()
            .filter_map(|(row, top)| Some((row, (*top)?)))
            .collect();
        let Some(max_top) = rows.iter().map(|(_, top)| *top).max() else {
            return Ok(None);
        };
        let places: Vec<usize> = rows.iter().map(|(row, _)| *row).collect();
        let (logits, tokens) = if rows.len() == requested.len() {
            (logits.clone(), tokens.clone())
        } else {
            let places = indices(&places);
            (take_axis(logits, &places, 0)?, take_axis(tokens, &places, 0)?)
        };
        let logprobs = logits.subtract(logits.logsumexp_axis(-1, true)?)?;
        let selected = logprobs
            .take_along_axis(tokens.expand_dims(-1)?, -1)?
            .squeeze_axes(&[-1])?;
        let max_top = i32::try_from(max_top)
            .expect("the API limits the number of logprobs")
            .min(logprobs.dim(-1));
        let top = if max_top == 0 {
            None
        } else {
            // `read` needs contiguous arrays.
            let order = argsort_axis(logits.negative()?, -1)?
                .try_index((.., ..max_top))?
                .contiguous()?;
            let descending = logprobs.take_along_axis(&order, -1)?;
            Some((order, descending))
        };
        Ok(Some(Self { rows, selected, top }))
    }

    /// Returns the arrays that must be evaluated before [`Self::read`].
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let top = self.top.iter().flat_map(|(tokens, logprobs)| [tokens, logprobs]);
        std::iter::once(&self.selected).chain(top)
    }

    /// Waits for the device and returns the log probabilities by row.
    pub(crate) fn read(&self) -> std::result::Result<Vec<(usize, TokenLogprobs)>, ConversionError> {
        let floats = |array: &Array| array.to_vec_exact::<f32>();
        let selected = floats(&self.selected)?;
        let (tokens, logprobs) = match &self.top {
            None => (Vec::new(), Vec::new()),
            Some((tokens, logprobs)) => (tokens.to_vec_exact::<u32>()?, floats(logprobs)?),
        };
        let width = tokens.len() / self.rows.len();
        let entry = |(place, (row, requested)): (usize, &(usize, usize))| {
            let from = place * width;
            let range = from..from + width.min(*requested);
            let top = tokens[range.clone()].iter().copied();
            let logprobs = logprobs[range].iter().copied().map(bounded);
            let token = TokenLogprobs {
                logprob: bounded(selected[place]),
                top: top.zip(logprobs).collect(),
            };
            (*row, token)
        };
        Ok(self.rows.iter().enumerate().map(entry).collect())
    }
}

/// Replaces minus infinity. NaN stays, so that the request fails.
fn bounded(logprob: f32) -> f32 {
    match logprob.is_nan() {
        true => logprob,
        false => logprob.max(MIN_LOGPROB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_mlx as mlx;

    #[test]
    fn each_row_gets_requested_number_of_logprobs() {
        let _mlx = mlx::exclusive();
        // Rows 0 and 2 have the probabilities 1/4, 1/2, 1/8 and 1/8. In row 1, one token has
        // probability 1.
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
        let read = |requested: &[Option<usize>]| {
            Logprobs::new(&logits, &tokens, requested)
                .unwrap()
                .map(|all| all.read().unwrap())
        };
        assert_eq!(read(&[None, None, None]), None);

        let some = read(&[Some(2), None, Some(0)]).unwrap();
        assert_eq!(some.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [0, 2]);
        let near = |logprob: f32, probability: f32| (logprob - probability.ln()).abs() < 1e-6;
        let (_, first) = &some[0];
        assert!(near(first.logprob, 1.0 / 8.0), "{first:?}");
        assert!(first.top[0].0 == 1 && near(first.top[0].1, 0.5), "{first:?}");
        assert!(first.top[1].0 == 0 && near(first.top[1].1, 0.25), "{first:?}");
        assert_eq!(first.top.len(), 2);
        let (_, last) = &some[1];
        assert!(near(last.logprob, 0.5) && last.top.is_empty(), "{last:?}");

        let all = read(&[Some(20); 3]).unwrap();
        assert_eq!(all[0].1.top.len(), 4, "limited to the vocabulary");
        assert_eq!(all[0].1.top[2].0, 2, "lowest ID of equally probable tokens");
        assert_eq!(all[1].1.logprob, MIN_LOGPROB, "JSON has no infinity");
    }
}
