//! The keys and values of one sequence in one layer, grown in steps so that a token costs a slice update, not a copy.

use mlx_rs::Array;
use mlx_rs::error::Result;
use mlx_rs::ops::indexing::{Ellipsis, TryIndexOp};
use mlx_rs::ops::{concatenate, zeros_dtype};

use crate::mlx::put_tokens;
use crate::roofline::memory::CACHE_STEP_TOKENS;

/// Tokens by which the buffers grow.
const STEP_TOKENS: i32 = CACHE_STEP_TOKENS as i32;

/// One layer's cache, `[1, kv_heads, capacity, head_dim]` twice.
#[derive(Debug, Default)]
pub(crate) struct LayerCache {
    buffers: Option<(Array, Array)>,
}

/// What one pass through a layer reads and extends.
#[derive(Debug)]
pub(crate) enum LayerRows<'a> {
    /// Some tokens of one sequence, the first at position `offset`.
    One { cache: &'a mut LayerCache, offset: i32 },
    /// One token for each of several sequences.
    Many {
        caches: Vec<&'a mut LayerCache>,
        offsets: &'a [i32],
        /// `offsets` on the device.
        positions: &'a Array,
    },
}

/// All layers' caches of one sequence.
#[derive(Debug)]
pub(crate) struct KvCache {
    layers: Vec<LayerCache>,
    /// Tokens held.
    offset: i32,
}

impl KvCache {
    pub(crate) fn new(layers: usize) -> Self {
        Self {
            layers: std::iter::repeat_with(LayerCache::default).take(layers).collect(),
            offset: 0,
        }
    }

    /// Tokens held.
    pub(crate) fn offset(&self) -> i32 {
        self.offset
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }

    /// All layers have taken `tokens` more.
    pub(crate) fn advance(&mut self, tokens: i32) {
        self.offset += tokens;
    }

    /// Of all buffers, used or not.
    pub(crate) fn bytes(&self) -> usize {
        // All layers are alike.
        let layer = self.layers.first().and_then(|layer| layer.buffers.as_ref());
        layer.map_or(0, |(keys, values)| keys.nbytes() + values.nbytes()) * self.layers.len()
    }

    /// Forgets what came after the first `tokens`.
    pub(crate) fn truncate(&mut self, tokens: i32) {
        self.offset = self.offset.min(tokens);
    }

    /// Everything that must be evaluated for the cache to be final.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers
            .iter()
            .filter_map(|layer| layer.buffers.as_ref())
            .flat_map(|(keys, values)| [keys, values])
    }
}

impl LayerCache {
    /// Appends after `offset` tokens and returns all keys and values.
    pub(crate) fn update(&mut self, offset: i32, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let end = offset + keys.dim(2);
        // Taken out, so that the old handles are gone when the update runs and it can work in place.
        let (all_keys, all_values) = match self.buffers.take() {
            Some((old_keys, old_values)) if end <= old_keys.dim(2) => (old_keys, old_values),
            Some((old_keys, old_values)) => {
                (grown(old_keys, offset, keys)?, grown(old_values, offset, values)?)
            }
            None => (empty(keys)?, empty(values)?),
        };
        let all_keys = put_tokens(all_keys, keys, offset)?;
        let all_values = put_tokens(all_values, values, offset)?;
        let (all_keys, all_values) = self.buffers.insert((all_keys, all_values));
        if end == all_keys.dim(2) {
            return Ok((all_keys.clone(), all_values.clone()));
        }
        Ok((
            all_keys.try_index((Ellipsis, ..end, ..))?,
            all_values.try_index((Ellipsis, ..end, ..))?,
        ))
    }
}

/// Zeros for the new tokens, rounded up to whole steps.
fn empty(new: &Array) -> Result<Array> {
    let steps = (new.dim(2) + STEP_TOKENS - 1) / STEP_TOKENS;
    zeros_dtype(
        &[new.dim(0), new.dim(1), steps * STEP_TOKENS, new.dim(3)],
        new.dtype(),
    )
}

fn grown(old: Array, offset: i32, new: &Array) -> Result<Array> {
    let more = empty(new)?;
    if offset == old.dim(2) {
        return concatenate(&[old, more], 2);
    }
    concatenate(&[old.try_index((Ellipsis, ..offset, ..))?, more], 2)
}
