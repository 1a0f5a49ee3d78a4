//! The keys and values of one sequence in one layer, grown in steps so that a token costs a slice update, not a copy;
//! and copies of some tokens' keys and values, from which another sequence with the same tokens can begin.

use std::ops::Range;

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

/// A copy of some tokens' keys and values in all layers.
#[derive(Debug)]
pub(crate) struct KvBlock {
    layers: Vec<(Array, Array)>,
}

impl KvBlock {
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |(keys, values): &(Array, Array)| (keys.nbytes() + values.nbytes()) as u64;
        self.layers.iter().map(bytes).sum()
    }

    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(|(keys, values)| [keys, values])
    }
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

    /// What the first tokens of each block, in order, have left, with room for `capacity` tokens. Lazy.
    pub(crate) fn from_blocks(blocks: &[(&KvBlock, usize)], capacity: usize) -> Result<Self> {
        let layers = blocks.first().map_or(0, |(block, _)| block.layers.len());
        let layer = |layer: usize| {
            let parts = blocks
                .iter()
                .map(|(block, tokens)| (&block.layers[layer], *tokens));
            let (keys, values): (Vec<_>, Vec<_>) = parts
                .map(|((keys, values), tokens)| ((keys, tokens), (values, tokens)))
                .unzip();
            Ok(LayerCache {
                buffers: Some((joined(&keys, capacity)?, joined(&values, capacity)?)),
            })
        };
        Ok(Self {
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
            offset: blocks.iter().map(|(_, tokens)| length(*tokens)).sum(),
        })
    }

    /// A copy of these tokens' keys and values, which stays what it is when this goes on. Lazy.
    pub(crate) fn block(&self, tokens: &Range<usize>) -> Result<KvBlock> {
        let (start, end) = (length(tokens.start), length(tokens.end));
        let buffers = self.layers.iter().filter_map(|layer| layer.buffers.as_ref());
        let layer =
            |(keys, values): &(Array, Array)| Ok((copied(keys, start, end)?, copied(values, start, end)?));
        Ok(KvBlock {
            layers: buffers.map(layer).collect::<Result<_>>()?,
        })
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

fn length(tokens: usize) -> i32 {
    i32::try_from(tokens).expect("a cache is far shorter than i32::MAX")
}

/// The first tokens of each array, one after the other, and zeros up to whole steps.
fn joined(parts: &[(&Array, usize)], capacity: usize) -> Result<Array> {
    let mut arrays = Vec::with_capacity(parts.len() + 1);
    let mut tokens = 0;
    for (array, count) in parts {
        let count = length(*count);
        tokens += count;
        arrays.push(if count == array.dim(2) {
            (*array).clone()
        } else {
            array.try_index((Ellipsis, ..count, ..))?
        });
    }
    let capacity = length(capacity.next_multiple_of(CACHE_STEP_TOKENS as usize));
    if let (true, Some((like, _))) = (tokens < capacity, parts.first()) {
        let shape = [like.dim(0), like.dim(1), capacity - tokens, like.dim(3)];
        arrays.push(zeros_dtype(&shape, like.dtype())?);
    }
    concatenate(&arrays, 2)
}

/// An array of its own: a part of one head would otherwise be the same memory, which it would keep from being freed.
fn copied(buffer: &Array, start: i32, end: i32) -> Result<Array> {
    let part = buffer.try_index((Ellipsis, start..end, ..))?;
    let zeros = zeros_dtype(part.shape(), part.dtype())?;
    put_tokens(zeros, &part, 0)
}

fn grown(old: Array, offset: i32, new: &Array) -> Result<Array> {
    let more = empty(new)?;
    if offset == old.dim(2) {
        return concatenate(&[old, more], 2);
    }
    concatenate(&[old.try_index((Ellipsis, ..offset, ..))?, more], 2)
}
