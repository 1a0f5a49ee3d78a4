//! The keys and values of one sequence, layer by layer. Where all tokens are kept, buffers grow in
//! steps, so that a token costs a slice update, not a copy; where a window of them is, what has
//! left it is dropped from time to time. Another sequence with the same tokens can begin from
//! copies ([`KvBlock`]).

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

pub(crate) use self::block::KvBlock;
use self::block::{KvSpan, Stretch};
pub(crate) use self::quantised::QuantisedAttention;
pub(crate) use self::recurrent::RecurrentCache;

/// Tokens by which the buffers grow.
const STEP_TOKENS: i32 = CACHE_STEP_TOKENS as i32;

/// What one pass through a layer reads and extends.
#[derive(Debug)]
pub(crate) enum LayerRows<'a> {
    /// Some tokens of each of several sequences, one after the other in one row.
    Parts(Vec<Part<'a>>),
    /// The same, where only what the last token of each sequence reads is asked for.
    Ends(Vec<Part<'a>>),
    /// One token for each of several sequences.
    Many {
        caches: Vec<&'a mut LayerCache>,
        offsets: &'a [i32],
        /// `offsets` on the device.
        positions: &'a Array,
    },
}

impl LayerRows<'_> {
    /// Of what each token has, `[rows, tokens, …]`, that of those that something is asked for.
    pub(super) fn asked(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Parts(_) | Self::Many { .. } => Ok(x.clone()),
            Self::Ends(parts) => {
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

/// The next tokens of one sequence, the first of them at position `offset`.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub cache: &'a mut LayerCache,
    pub offset: i32,
    pub tokens: i32,
}

/// Where all but the first of them begin.
pub(super) fn cuts(parts: &[Part<'_>]) -> Vec<i32> {
    ends(parts).take(parts.len() - 1).collect()
}

fn ends(parts: &[Part<'_>]) -> impl Iterator<Item = i32> {
    parts.iter().scan(0, |end, part| {
        *end += part.tokens;
        Some(*end)
    })
}

/// All layers' caches of one sequence.
#[derive(Debug)]
pub(crate) struct KvCache {
    layers: Vec<LayerCache>,
    /// Tokens held.
    offset: i32,
}

impl KvCache {
    pub(crate) fn new(layers: impl IntoIterator<Item = LayerCache>) -> Self {
        Self {
            layers: layers.into_iter().collect(),
            offset: 0,
        }
    }

    /// What this, being empty, holds after the first tokens of each block, in order, with room for
    /// `capacity` tokens. Of the last block, all tokens count where not all layers keep everything.
    /// Lazy.
    pub(crate) fn begun(&self, blocks: &[(&KvBlock, usize)], capacity: usize) -> Result<Self> {
        let offset = length(blocks.iter().map(|(_, tokens)| tokens).sum());
        let stretches = Stretch::of(blocks);
        let (mut full, mut others) = (0, 0);
        let mut room = block::Room::new(capacity);
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            layers.push(if layer.keeps_all() {
                let pairs = full..full + layer.pairs();
                full = pairs.end;
                layer.filled(&stretches, pairs, &mut room)?
            } else {
                others += 1;
                let snapshot = blocks.last().and_then(|(block, _)| block.snapshot());
                let held = snapshot.and_then(|layers| layers.get(others - 1));
                let held = held.ok_or_else(|| Exception::custom("a block without a snapshot"))?;
                layer.resumed(offset, held)?
            });
        }
        Ok(Self { layers, offset })
    }

    /// This with its first `tokens` only, which another sequence has, too, and room for so many in
    /// all: a copy only where it has less or more. Where all layers keep everything.
    pub(crate) fn continued(mut self, tokens: usize, capacity: RangeInclusive<usize>) -> Result<Self> {
        self.truncate(length(tokens));
        let (least, most) = (length(*capacity.start()), rounded(length(*capacity.end())));
        for layer in &mut self.layers {
            layer.resize(self.offset, least..=most)?;
        }
        Ok(self)
    }

    /// Copies of these tokens' keys and values, each range right behind the one before, which stay
    /// what they are when this goes on; the last one with what the layers that do not keep all
    /// tokens hold now, if `snapshot`. Lazy.
    pub(crate) fn blocks(&self, ranges: &[Range<usize>], snapshot: bool) -> Result<Vec<KvBlock>> {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
            return Ok(Vec::new());
        };
        let (start, end) = (length(first.start), length(last.end));
        let full = self.layers.iter().filter(|layer| layer.keeps_all());
        let layer =
            |(keys, values): &(Array, Array)| Ok((copied(keys, start, end)?, copied(values, start, end)?));
        let span = full
            .flat_map(|layer| &layer.buffers)
            .map(layer)
            .collect::<Result<_>>()?;
        let span = Rc::new(KvSpan::new(span));
        let others = self.layers.iter().filter(|layer| !layer.keeps_all());
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
        self.layers.iter().map(LayerCache::bytes).sum()
    }

    /// Forgets what came after the first `tokens`: the tokens of the last pass, if it was over one
    /// of them; of a longer one, only where all layers keep everything.
    pub(crate) fn truncate(&mut self, tokens: i32) {
        self.offset = self.offset.min(tokens);
    }

    /// Everything that must be evaluated for the cache to be final.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(LayerCache::arrays)
    }
}

/// The keys and values that new tokens may attend to.
#[derive(Debug)]
pub(crate) enum Held {
    Floats(Array, Array),
    /// Three pairs.
    Quantised(KvQuantisation, Vec<(Array, Array)>),
}

/// One layer's cache.
#[derive(Debug)]
pub(crate) struct LayerCache {
    /// So many of the last tokens are kept, the newest included; `None` is all.
    window: Option<i32>,
    /// Position of the first token in the buffers.
    first: i32,
    /// Keys and values, `[1, kv_heads, capacity, head_dim]` each, in one pair; quantised, in three.
    /// None before the first token.
    buffers: Vec<(Array, Array)>,
    quantised: Option<KvQuantisation>,
    /// A state instead of all that.
    recurrent: Option<RecurrentCache>,
}

impl LayerCache {
    /// Keeps all tokens.
    pub(crate) fn full() -> Self {
        Self {
            window: None,
            first: 0,
            buffers: Vec::new(),
            quantised: None,
            recurrent: None,
        }
    }

    /// Keeps all tokens, in few bits.
    pub(crate) fn quantised(quantisation: KvQuantisation) -> Self {
        Self {
            quantised: Some(quantisation),
            ..Self::full()
        }
    }

    /// Keeps the last `window` tokens.
    pub(crate) fn window(window: i32) -> Self {
        Self {
            window: Some(window),
            ..Self::full()
        }
    }

    /// Keeps a state and no tokens.
    pub(crate) fn state() -> Self {
        Self {
            recurrent: Some(RecurrentCache::default()),
            ..Self::full()
        }
    }

    fn keeps_all(&self) -> bool {
        self.window.is_none() && self.recurrent.is_none()
    }

    /// Of buffers.
    fn pairs(&self) -> usize {
        if self.quantised.is_some() { 3 } else { 1 }
    }

    /// A layer such as this, which keeps all tokens, with these pairs of each stretch.
    fn filled(&self, stretches: &[Stretch<'_>], pairs: Range<usize>, room: &mut block::Room) -> Result<Self> {
        let pair = |index: usize| room.joined(stretches, index);
        Ok(Self {
            buffers: pairs.map(pair).collect::<Result<_>>()?,
            quantised: self.quantised,
            ..Self::full()
        })
    }

    /// Of a layer that keeps all tokens and holds `used` of them.
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

    /// What a layer that does not keep all tokens holds after `offset` of them.
    fn snapshot(&self, offset: i32) -> Result<(Array, Array)> {
        if let Some(recurrent) = &self.recurrent {
            let State { convolution, memory } = recurrent.at(offset)?;
            return Ok((duplicate(&convolution)?, duplicate(&memory)?));
        }
        match self.last(offset, self.reached(offset))? {
            (Some(keys), Some(values)) => Ok((duplicate(&keys)?, duplicate(&values)?)),
            (None, _) | (_, None) => Err(Exception::custom("a window of one token")),
        }
    }

    /// The same layer with what [`snapshot`](Self::snapshot) gave after `offset` tokens.
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
        let held = self.reached(offset);
        if one.dim(2) != held || other.dim(2) != held {
            return Err(Exception::custom("a snapshot of another window"));
        }
        let store = |held: &Array| put_tokens(empty(held, held.dim(2) + 1)?, held, 0);
        Ok(Self {
            window: self.window,
            first: offset - held,
            buffers: vec![(store(one)?, store(other)?)],
            ..Self::full()
        })
    }

    /// Before a token at `offset`, so many are in its window.
    fn reached(&self, offset: i32) -> i32 {
        self.window.map_or(offset, |window| (window - 1).min(offset))
    }

    /// The state of a layer that keeps one.
    pub(crate) fn recurrent(&mut self) -> Result<&mut RecurrentCache> {
        self.recurrent
            .as_mut()
            .ok_or_else(|| Exception::custom("this layer's cache keeps tokens"))
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

    /// Appends after `offset` tokens and returns the keys and values that the new tokens may attend
    /// to, oldest first: of a window, those that any of them reaches.
    pub(crate) fn update(&mut self, offset: i32, keys: &Array, values: &Array) -> Result<Held> {
        if let Some(quantisation) = self.quantised {
            let held = self.append(offset, &quantisation.pack(keys, values)?)?;
            return Ok(Held::Quantised(quantisation, held));
        }
        let held = match self.window {
            Some(window) => self.update_window(window, offset, keys, values)?,
            None => self.append_pair(offset, keys, values)?,
        };
        Ok(Held::Floats(held.0, held.1))
    }

    fn update_window(
        &mut self,
        window: i32,
        offset: i32,
        keys: &Array,
        values: &Array,
    ) -> Result<(Array, Array)> {
        let new = keys.dim(2);
        let reached = self.reached(offset);
        if new == 1 {
            self.make_room(offset, reached, keys)?;
            let (keys, values) = self.append_pair(offset, keys, values)?;
            let from = keys.dim(2) - 1 - reached;
            return Ok((
                tokens(&keys, from, keys.dim(2))?,
                tokens(&values, from, values.dim(2))?,
            ));
        }
        // A chunk of a prompt attends to itself and what is before it, and only its end is kept: of
        // a long chunk the buffers never hold more than the window.
        let (old_keys, old_values) = self.last(offset, reached)?;
        let join = |old: Option<Array>, new: &Array| match old {
            Some(old) => concatenate(&[&old, new], 2),
            None => Ok(new.clone()),
        };
        let (all_keys, all_values) = (join(old_keys, keys)?, join(old_values, values)?);
        let kept = (window - 1).min(offset + new);
        let from = all_keys.dim(2) - kept;
        let store = |all: &Array| {
            // A copy: a slice would hold on to all of it.
            put_tokens(empty(all, kept + 1)?, &tokens(all, from, all.dim(2))?, 0)
        };
        self.buffers = vec![(store(&all_keys)?, store(&all_values)?)];
        self.first = offset + new - kept;
        Ok((all_keys, all_values))
    }

    /// Moves the last `reached` tokens to the front of new buffers if there is no room for one
    /// more.
    fn make_room(&mut self, offset: i32, reached: i32, new: &Array) -> Result<()> {
        let Some((keys, _)) = self.buffers.first() else {
            return Ok(());
        };
        if offset - self.first < keys.dim(2) || reached == offset - self.first {
            return Ok(());
        }
        if let (Some(keys), Some(values)) = self.last(offset, reached)? {
            let moved = |old: &Array| put_tokens(empty(new, reached + STEP_TOKENS)?, old, 0);
            self.buffers = vec![(moved(&keys)?, moved(&values)?)];
        }
        self.first = offset - reached;
        Ok(())
    }

    /// The `count` tokens before `offset`; `None` where there are none.
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
            Some(_) | None => Err(Exception::custom("the cache does not reach back so far")),
        }
    }

    fn append_pair(&mut self, offset: i32, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let mut held = self.append(offset, &[(keys.clone(), values.clone())])?;
        held.pop()
            .ok_or_else(|| Exception::custom("a cache without buffers"))
    }

    /// All that is held with these behind `offset` tokens.
    fn append(&mut self, offset: i32, new: &[(Array, Array)]) -> Result<Vec<(Array, Array)>> {
        let at = offset - self.first;
        // Taken out, so that the old handles are gone when the update runs and it can work in
        // place.
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

/// Those from `from` to `to`.
fn tokens(all: &Array, from: i32, to: i32) -> Result<Array> {
    if (from, to) == (0, all.dim(2)) {
        return Ok(all.clone());
    }
    all.try_index((Ellipsis, from..to, ..))
}

/// `count` in whole steps.
fn rounded(count: i32) -> i32 {
    (count + STEP_TOKENS - 1) / STEP_TOKENS * STEP_TOKENS
}

/// Zeros for `count` tokens of the shape of `like`.
fn zeros(like: &Array, count: i32) -> Result<Array> {
    zeros_dtype(&[like.dim(0), like.dim(1), count, like.dim(3)], like.dtype())
}

/// The same in whole steps.
fn empty(like: &Array, count: i32) -> Result<Array> {
    zeros(like, rounded(count))
}

/// The first `used` tokens with room for `capacity`, in whole steps.
fn grown(old: Array, used: i32, capacity: i32) -> Result<Array> {
    let more = zeros(&old, rounded(capacity) - used)?;
    concatenate(&[tokens(&old, 0, used)?, more], 2)
}

fn length(tokens: usize) -> i32 {
    i32::try_from(tokens).expect("a cache is far shorter than i32::MAX")
}

/// An array of its own.
fn copied(buffer: &Array, start: i32, end: i32) -> Result<Array> {
    let part = buffer.try_index((Ellipsis, start..end, ..))?;
    if part.dim(1) > 1 {
        return part.contiguous();
    }
    // A part of one head is contiguous as it is: the same memory, which it would keep from being
    // freed.
    duplicate(&part)
}

/// The same in memory of its own: a part of something larger would hold on to all of it.
fn duplicate(array: &Array) -> Result<Array> {
    let Some(axis) = array.shape().iter().position(|size| *size > 1) else {
        return Ok(array.clone());
    };
    let axis = i32::try_from(axis).expect("arrays have few dimensions");
    // Two parts joined are a copy; of the whole, MLX would make none.
    concatenate(&split_at_indices(array, &[1], axis)?, axis)
}
