//! Attention masks for passes over several tokens of one sequence.

use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::fast::ScaledDotProductAttentionMask;
use rooflet_mlx::mlx_rs::{Array, ops};

/// Masks of one pass: layers with the same window share one.
#[derive(Debug, Default)]
pub(super) struct Masks {
    /// `(tokens, keys, window)` and the mask, `[tokens, keys]`.
    windows: Vec<((i32, i32, i32), Array)>,
}

impl Masks {
    /// Returns the mask for `tokens` queries over `keys` keys, of which the last `tokens` belong to
    /// the queries.
    pub(super) fn mask(
        &mut self,
        tokens: i32,
        keys: i32,
        window: Option<i32>,
    ) -> Result<Option<ScaledDotProductAttentionMask<'_>>> {
        match window {
            // For a single token, the caller passes only the keys in its window.
            _ if tokens == 1 => Ok(None),
            Some(window) if keys > window => {
                let key = (tokens, keys, window);
                let found = self.windows.iter().position(|(known, _)| *known == key);
                let index = match found {
                    Some(index) => index,
                    None => {
                        self.windows.push((key, window_mask(tokens, keys, window)?));
                        self.windows.len() - 1
                    }
                };
                Ok(Some(ScaledDotProductAttentionMask::Array(&self.windows[index].1)))
            }
            Some(_) | None => Ok(Some(ScaledDotProductAttentionMask::Causal)),
        }
    }
}

fn window_mask(tokens: i32, keys: i32, window: i32) -> Result<Array> {
    let queries = ops::arange::<i32, i32>(keys - tokens, keys, 1)?.expand_dims(1)?;
    let positions = ops::arange::<i32, i32>(0, keys, 1)?.expand_dims(0)?;
    let reach = positions.add(Array::from_int(window))?;
    queries.ge(&positions)?.logical_and(queries.lt(&reach)?)
}
