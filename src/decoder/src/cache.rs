//! KV cache of one sequence, layer by layer. Layers that keep all tokens have buffers that grow in
//! steps, so that appending a token is a slice update and not a copy. Layers with a window drop
//! older tokens from time to time. Another sequence with the same tokens can start from copies
//! ([`KvBlock`]).

mod block;
mod quantised;
mod recurrent;

use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::{Exception, Result};
use rooflet_mlx::mlx_rs::ops::indexing::{Ellipsis, TryIndexOp, take_axis};
use rooflet_mlx::mlx_rs::ops::{concatenate, split_at_indices, zeros_dtype};

use rooflet_mlx::gated_delta::State;
use rooflet_mlx::put_tokens;
use rooflet_roofline::kv_quantisation::KvQuantisation;
use rooflet_roofline::memory::CACHE_STEP_TOKENS;

pub use self::block::KvBlock;
use self::block::{KvSpan, Stretch};
pub(crate) use self::quantised::QuantisedAttention;
pub(crate) use self::recurrent::RecurrentCache;

/// Number of tokens by which the buffers grow.
const STEP_TOKENS: i32 = CACHE_STEP_TOKENS as i32;

/// Sequences and caches of one pass through a layer.
#[derive(Debug)]
pub(crate) enum LayerRows<'a> {
    /// Tokens of several sequences, one after the other in one row.
    Prefill(Vec<Part<'a>>),
    /// Like `Prefill`, but only the output of each sequence's last token is needed.
    PrefillLast(Vec<Part<'a>>),
    /// One token of each of several sequences.
    Decode {
        caches: Vec<&'a mut LayerCache>,
        offsets: &'a [i32],
        /// `offsets` as an array on the device.
        positions: &'a Array,
    },
}

impl LayerRows<'_> {
    /// Selects the tokens whose output is needed from `[rows, tokens, …]`.
    pub(super) fn select_needed(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Prefill(_) | Self::Decode { .. } => Ok(x.clone()),
            Self::PrefillLast(parts) => {
                let last: Vec<i32> = ends(parts).map(|end| end - 1).collect();
                if last == [x.dim(1) - 1] {
                    return x.try_index((.., -1.., ..));
                }
                let last = Array::from_slice(&last, &[length(last.len())]);
                take_axis(x, last, 1)
            }
        }
    }
}

/// Next tokens of one sequence; the first one is at position `offset`.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub cache: &'a mut LayerCache,
    pub offset: i32,
    pub tokens: i32,
}

/// Returns the first token of each part except the first part.
pub(super) fn split_points(parts: &[Part<'_>]) -> Vec<i32> {
    ends(parts).take(parts.len() - 1).collect()
}

fn ends(parts: &[Part<'_>]) -> impl Iterator<Item = i32> {
    parts.iter().scan(0, |end, part| {
        *end += part.tokens;
        Some(*end)
    })
}

/// Caches of all layers of one sequence.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    /// Number of tokens held.
    offset: i32,
}

impl KvCache {
    pub(crate) fn new(layers: impl IntoIterator<Item = LayerCache>) -> Self {
        Self {
            layers: layers.into_iter().collect(),
            offset: 0,
        }
    }

    /// Returns a cache like this empty one that holds the first tokens of each block, in order,
    /// with capacity for `capacity` tokens. If some layers do not keep all tokens, all tokens of
    /// the last block must be used. Lazy.
    pub fn filled_from(&self, blocks: &[(&KvBlock, usize)], capacity: usize) -> Result<Self> {
        let offset = length(blocks.iter().map(|(_, tokens)| tokens).sum());
        let stretches = Stretch::of(blocks);
        let (mut full, mut others) = (0, 0);
        let mut room = block::Room::new(capacity);
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            layers.push(if layer.keeps_all_tokens() {
                let pairs = full..full + layer.pairs();
                full = pairs.end;
                layer.filled(&stretches, pairs, &mut room)?
            } else {
                others += 1;
                let snapshot = blocks.last().and_then(|(block, _)| block.snapshot());
                let held = snapshot.and_then(|layers| layers.get(others - 1));
                let held = held.ok_or_else(|| Exception::custom("the block has no snapshot"))?;
                layer.resumed(offset, held)?
            });
        }
        Ok(Self { layers, offset })
    }

    /// Truncates the cache to its first `tokens` tokens, for a sequence with the same beginning.
    /// Copies the buffers only if their capacity is outside of `capacity`. All layers must keep all
    /// tokens.
    pub fn truncated_with_capacity(mut self, tokens: usize, capacity: RangeInclusive<usize>) -> Result<Self> {
        self.truncate(length(tokens));
        let (least, most) = (length(*capacity.start()), rounded(length(*capacity.end())));
        for layer in &mut self.layers {
            layer.resize(self.offset, least..=most)?;
        }
        Ok(self)
    }

    /// Copies the keys and values of adjacent ranges of tokens; later updates of the cache do not
    /// change them. If `snapshot`, the last block includes the current state of layers that do not
    /// keep all tokens. Lazy.
    pub fn blocks(&self, ranges: &[Range<usize>], snapshot: bool) -> Result<Vec<KvBlock>> {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
            return Ok(Vec::new());
        };
        let (start, end) = (length(first.start), length(last.end));
        let full = self.layers.iter().filter(|layer| layer.keeps_all_tokens());
        let layer =
            |(keys, values): &(Array, Array)| Ok((copied(keys, start, end)?, copied(values, start, end)?));
        let span = full
            .flat_map(|layer| &layer.buffers)
            .map(layer)
            .collect::<Result<_>>()?;
        let span = Rc::new(KvSpan::new(span));
        let others = self.layers.iter().filter(|layer| !layer.keeps_all_tokens());
        let others = others.map(|layer| layer.snapshot(self.offset));
        let mut snapshot = if snapshot {
            Some(others.collect::<Result<_>>()?)
        } else {
            None
        };
        let block = |range: &Range<usize>| {
            let tokens = length(range.start) - start..length(range.end) - start;
            let snapshot = if range.end == last.end {
                snapshot.take()
            } else {
                None
            };
            KvBlock::part(Rc::clone(&span), tokens, snapshot)
        };
        Ok(ranges.iter().map(block).collect())
    }

    /// Returns the number of tokens held.
    pub fn offset(&self) -> i32 {
        self.offset
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }

    /// Counts `tokens` tokens that all layers have appended.
    pub(crate) fn advance(&mut self, tokens: i32) {
        self.offset += tokens;
    }

    /// Returns the size of all buffers, used or not.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerCache::bytes).sum()
    }

    /// Truncates the cache to its first `tokens` tokens. Layers that do not keep all tokens support
    /// only the removal of the last pass, and only if it had a single token.
    pub fn truncate(&mut self, tokens: i32) {
        self.offset = self.offset.min(tokens);
    }

    /// Arrays that must be evaluated for the cache to be final.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(LayerCache::arrays)
    }
}

/// Keys and values that new tokens attend to.
#[derive(Debug)]
pub(crate) enum KeysValues {
    Floats(Array, Array),
    /// Three pairs: packed elements, scales and biases.
    Quantised(KvQuantisation, Vec<(Array, Array)>),
}

/// Cache of one layer.
#[derive(Debug)]
pub(crate) struct LayerCache {
    /// Number of last tokens that are kept, including the newest; `None` keeps all.
    window: Option<i32>,
    /// Position of the first token in the buffers.
    first: i32,
    /// Keys and values, `[1, kv_heads, capacity, head_dim]` each: one pair, or three if quantised.
    /// Empty before the first token.
    buffers: Vec<(Array, Array)>,
    quantised: Option<KvQuantisation>,
    /// State of a layer that keeps no tokens.
    recurrent: Option<RecurrentCache>,
}

impl LayerCache {
    /// Creates a cache that keeps all tokens.
    pub(crate) fn full() -> Self {
        Self {
            window: None,
            first: 0,
            buffers: Vec::new(),
            quantised: None,
            recurrent: None,
        }
    }

    /// Creates a cache that keeps all tokens, quantised.
    pub(crate) fn quantised(quantisation: KvQuantisation) -> Self {
        Self {
            quantised: Some(quantisation),
            ..Self::full()
        }
    }

    /// Creates a cache that keeps the last `window` tokens.
    pub(crate) fn window(window: i32) -> Self {
        Self {
            window: Some(window),
            ..Self::full()
        }
    }

    /// Creates a cache that keeps a state and no tokens.
    pub(crate) fn state() -> Self {
        Self {
            recurrent: Some(RecurrentCache::default()),
            ..Self::full()
        }
    }

    fn keeps_all_tokens(&self) -> bool {
        self.window.is_none() && self.recurrent.is_none()
    }

    /// Returns the number of pairs of buffers.
    fn pairs(&self) -> usize {
        if self.quantised.is_some() { 3 } else { 1 }
    }

    /// Returns a layer like this one, which must keep all tokens, filled with these pairs of each
    /// stretch.
    fn filled(&self, stretches: &[Stretch<'_>], pairs: Range<usize>, room: &mut block::Room) -> Result<Self> {
        let pair = |index: usize| room.joined(stretches, index);
        Ok(Self {
            buffers: pairs.map(pair).collect::<Result<_>>()?,
            quantised: self.quantised,
            ..Self::full()
        })
    }

    /// Changes the capacity of a layer that keeps all tokens and holds `used` tokens.
    fn resize(&mut self, used: i32, capacity: RangeInclusive<i32>) -> Result<()> {
        let resized = |(keys, values): (Array, Array)| {
            if capacity.contains(&keys.dim(2)) {
                return Ok((keys, values));
            }
            let resized = |old| grown(old, used, *capacity.start());
            Ok((resized(keys)?, resized(values)?))
        };
        let buffers = std::mem::take(&mut self.buffers).into_iter();
        self.buffers = buffers.map(resized).collect::<Result<_>>()?;
        Ok(())
    }

    /// Returns the state after `offset` tokens, for a layer that does not keep all tokens.
    fn snapshot(&self, offset: i32) -> Result<(Array, Array)> {
        if let Some(recurrent) = &self.recurrent {
            let State { convolution, memory } = recurrent.at(offset)?;
            return Ok((duplicate(&convolution)?, duplicate(&memory)?));
        }
        match self.last(offset, self.window_tokens(offset))? {
            (Some(keys), Some(values)) => Ok((duplicate(&keys)?, duplicate(&values)?)),
            (None, _) | (_, None) => Err(Exception::custom("a window of one token has no snapshot")),
        }
    }

    /// Returns the same layer with a [`snapshot`](Self::snapshot) after `offset` tokens.
    fn resumed(&self, offset: i32, (one, other): &(Array, Array)) -> Result<Self> {
        if self.recurrent.is_some() {
            let state = State {
                convolution: one.clone(),
                memory: other.clone(),
            };
            return Ok(Self {
                recurrent: Some(RecurrentCache::resumed(offset, state)),
                ..Self::full()
            });
        }
        let held = self.window_tokens(offset);
        if one.dim(2) != held || other.dim(2) != held {
            return Err(Exception::custom("the snapshot does not match the window"));
        }
        let store = |held: &Array| put_tokens(empty(held, held.dim(2) + 1)?, held, 0);
        Ok(Self {
            window: self.window,
            first: offset - held,
            buffers: vec![(store(one)?, store(other)?)],
            ..Self::full()
        })
    }

    /// Returns the number of tokens before `offset` that are in the window of a token at `offset`.
    fn window_tokens(&self, offset: i32) -> i32 {
        self.window.map_or(offset, |window| (window - 1).min(offset))
    }

    /// Returns the state of a layer that keeps one.
    pub(crate) fn recurrent(&mut self) -> Result<&mut RecurrentCache> {
        self.recurrent
            .as_mut()
            .ok_or_else(|| Exception::custom("the layer keeps tokens and no state"))
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let buffers = self.buffers.iter().flat_map(|(keys, values)| [keys, values]);
        buffers.chain(self.recurrent.iter().flat_map(RecurrentCache::arrays))
    }

    fn bytes(&self) -> usize {
        match &self.recurrent {
            Some(recurrent) => recurrent.bytes(),
            None => self.arrays().map(Array::nbytes).sum(),
        }
    }

    /// Appends keys and values after `offset` tokens. Returns all keys and values that the new
    /// tokens attend to, oldest first. A layer with a window returns those in the window of any new
    /// token.
    pub(crate) fn update(&mut self, offset: i32, keys: &Array, values: &Array) -> Result<KeysValues> {
        if let Some(quantisation) = self.quantised {
            let held = self.append(offset, &quantisation.pack(keys, values)?)?;
            return Ok(KeysValues::Quantised(quantisation, held));
        }
        let held = match self.window {
            Some(window) => self.update_window(window, offset, keys, values)?,
            None => self.append_pair(offset, keys, values)?,
        };
        Ok(KeysValues::Floats(held.0, held.1))
    }

    fn update_window(
        &mut self,
        window: i32,
        offset: i32,
        keys: &Array,
        values: &Array,
    ) -> Result<(Array, Array)> {
        let new = keys.dim(2);
        let window_tokens = self.window_tokens(offset);
        if new == 1 {
            self.make_room(offset, window_tokens, keys)?;
            let (keys, values) = self.append_pair(offset, keys, values)?;
            let from = keys.dim(2) - 1 - window_tokens;
            return Ok((
                tokens(&keys, from, keys.dim(2))?,
                tokens(&values, from, values.dim(2))?,
            ));
        }
        // A prompt chunk attends to itself and to the tokens before it, and only its end is kept:
        // the buffers never hold more than the window.
        let (old_keys, old_values) = self.last(offset, window_tokens)?;
        let join = |old: Option<Array>, new: &Array| match old {
            Some(old) => concatenate(&[&old, new], 2),
            None => Ok(new.clone()),
        };
        let (all_keys, all_values) = (join(old_keys, keys)?, join(old_values, values)?);
        let kept = (window - 1).min(offset + new);
        let from = all_keys.dim(2) - kept;
        let store = |all: &Array| {
            // A copy, because a slice would keep the whole array in memory.
            put_tokens(empty(all, kept + 1)?, &tokens(all, from, all.dim(2))?, 0)
        };
        self.buffers = vec![(store(&all_keys)?, store(&all_values)?)];
        self.first = offset + new - kept;
        Ok((all_keys, all_values))
    }

    /// Moves the last `window_tokens` tokens to the front of new buffers if the buffers have no
    /// space for another token.
    fn make_room(&mut self, offset: i32, window_tokens: i32, new: &Array) -> Result<()> {
        let Some((keys, _)) = self.buffers.first() else {
            return Ok(());
        };
        if offset - self.first < keys.dim(2) || window_tokens == offset - self.first {
            return Ok(());
        }
        if let (Some(keys), Some(values)) = self.last(offset, window_tokens)? {
            let moved = |old: &Array| put_tokens(empty(new, window_tokens + STEP_TOKENS)?, old, 0);
            self.buffers = vec![(moved(&keys)?, moved(&values)?)];
        }
        self.first = offset - window_tokens;
        Ok(())
    }

    /// Returns the `count` tokens before `offset`; `None` if `count` is 0.
    fn last(&self, offset: i32, count: i32) -> Result<(Option<Array>, Option<Array>)> {
        if count == 0 {
            return Ok((None, None));
        }
        let from = offset - count - self.first;
        match self.buffers.first() {
            Some((keys, values)) if from >= 0 => {
                let of = |all: &Array| tokens(all, from, from + count).map(Some);
                Ok((of(keys)?, of(values)?))
            }
            Some(_) | None => Err(Exception::custom("the cache no longer holds these tokens")),
        }
    }

    fn append_pair(&mut self, offset: i32, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let mut held = self.append(offset, &[(keys.clone(), values.clone())])?;
        held.pop()
            .ok_or_else(|| Exception::custom("the cache has no buffers"))
    }

    /// Appends pairs after `offset` tokens and returns everything held.
    fn append(&mut self, offset: i32, new: &[(Array, Array)]) -> Result<Vec<(Array, Array)>> {
        let at = offset - self.first;
        // The old handles must be dropped before the update, so that it can run in place.
        let mut old = std::mem::take(&mut self.buffers).into_iter();
        let mut held = Vec::with_capacity(new.len());
        for (keys, values) in new {
            let end = at + keys.dim(2);
            let (all_keys, all_values) = match old.next() {
                Some((old_keys, old_values)) if end <= old_keys.dim(2) => (old_keys, old_values),
                Some((old_keys, old_values)) => (grown(old_keys, at, end)?, grown(old_values, at, end)?),
                None => (empty(keys, keys.dim(2))?, empty(values, values.dim(2))?),
            };
            let (all_keys, all_values) = (
                put_tokens(all_keys, keys, at)?,
                put_tokens(all_values, values, at)?,
            );
            held.push((tokens(&all_keys, 0, end)?, tokens(&all_values, 0, end)?));
            self.buffers.push((all_keys, all_values));
        }
        Ok(held)
    }
}

/// Returns the tokens `from..to`.
fn tokens(all: &Array, from: i32, to: i32) -> Result<Array> {
    if (from, to) == (0, all.dim(2)) {
        return Ok(all.clone());
    }
    all.try_index((Ellipsis, from..to, ..))
}

/// Rounds up to a whole step.
fn rounded(count: i32) -> i32 {
    (count + STEP_TOKENS - 1) / STEP_TOKENS * STEP_TOKENS
}

/// Returns zeros for `count` tokens, shaped like `like`.
fn zeros(like: &Array, count: i32) -> Result<Array> {
    zeros_dtype(&[like.dim(0), like.dim(1), count, like.dim(3)], like.dtype())
}

/// Returns zeros for `count` tokens, rounded up to a whole step.
fn empty(like: &Array, count: i32) -> Result<Array> {
    zeros(like, rounded(count))
}

/// Copies the first `used` tokens into buffers for `capacity` tokens, rounded up to a whole step.
fn grown(old: Array, used: i32, capacity: i32) -> Result<Array> {
    let more = zeros(&old, rounded(capacity) - used)?;
    concatenate(&[tokens(&old, 0, used)?, more], 2)
}

fn length(tokens: usize) -> i32 {
    i32::try_from(tokens).expect("caches are far shorter than i32::MAX")
}

/// Copies a range of tokens into separate memory.
fn copied(buffer: &Array, start: i32, end: i32) -> Result<Array> {
    let part = buffer.try_index((Ellipsis, start..end, ..))?;
    if part.dim(1) > 1 {
        return part.contiguous();
    }
    // A slice of one head is contiguous and shares the memory of the buffer, which it would keep
    // from being freed.
    duplicate(&part)
}

/// Copies an array into separate memory, because a slice would keep the whole array in memory.
fn duplicate(array: &Array) -> Result<Array> {
    let Some(axis) = array.shape().iter().position(|size| *size > 1) else {
        return Ok(array.clone());
    };
    let axis = i32::try_from(axis).expect("arrays have few dimensions");
    // Concatenating two parts copies; concatenating a single array would not.
    concatenate(&split_at_indices(array, &[1], axis)?, axis)
}
