//! KV blocks: copies of keys and values, from which another sequence with the same tokens can
//! start.

use std::ops::Range;
use std::rc::Rc;

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::{Exception, Result};
use rooflet_mlx::mlx_rs::ops::{concatenate, zeros_dtype};

use super::{length, tokens};
use rooflet_roofline::memory::CACHE_STEP_TOKENS;

/// Keys and values of adjacent tokens in each layer that keeps all tokens: one pair, or three if
/// quantised. Several blocks share a span, because copying them together costs one copy per layer
/// and not one per block and layer.
#[derive(Debug)]
pub(super) struct KvSpan {
    layers: Vec<(Array, Array)>,
}

impl KvSpan {
    pub(super) fn new(layers: Vec<(Array, Array)>) -> Self {
        Self { layers }
    }

    fn tokens(&self) -> i32 {
        self.layers.first().map_or(0, |(keys, _)| keys.dim(2))
    }
}

/// Copy of some tokens of a KV cache.
#[derive(Debug, Clone)]
pub struct KvBlock {
    span: Rc<KvSpan>,
    /// Range of its tokens in the span.
    tokens: Range<i32>,
    /// State of each layer that does not keep all tokens, after the last token of the block: keys
    /// and values of its window, or its recurrent state. A sequence can start after the block if it
    /// has a snapshot or if there are no such layers.
    snapshot: Option<Vec<(Array, Array)>>,
}

impl KvBlock {
    /// Creates a block with its own span.
    pub fn alone(layers: Vec<(Array, Array)>, snapshot: Option<Vec<(Array, Array)>>) -> Self {
        let span = KvSpan::new(layers);
        Self {
            tokens: 0..span.tokens(),
            span: Rc::new(span),
            snapshot,
        }
    }

    pub(super) fn part(span: Rc<KvSpan>, tokens: Range<i32>, snapshot: Option<Vec<(Array, Array)>>) -> Self {
        Self {
            span,
            tokens,
            snapshot,
        }
    }

    /// Returns the size of the block's part of the span, and of the snapshot.
    pub fn bytes(&self) -> u64 {
        let all: usize = pairs(&self.span.layers).map(Array::nbytes).sum();
        let own = all * self.tokens.len() / self.span.tokens().max(1).unsigned_abs() as usize;
        let snapshot: usize = self.snapshot_arrays().map(Array::nbytes).sum();
        (own + snapshot) as u64
    }

    /// Pairs of keys and values of the span, of which only the block's [tokens](Self::tokens)
    /// count.
    pub fn layers(&self) -> &[(Array, Array)] {
        &self.span.layers
    }

    /// Returns the range of the block's tokens in [`layers`](Self::layers).
    pub fn tokens(&self) -> Range<i32> {
        self.tokens.clone()
    }

    pub fn snapshot(&self) -> Option<&[(Array, Array)]> {
        self.snapshot.as_deref()
    }

    /// Adopts the snapshot of another block with the same tokens.
    pub fn take_snapshot(&mut self, other: Self) {
        self.snapshot = other.snapshot.or(self.snapshot.take());
    }

    pub fn snapshot_arrays(&self) -> impl Iterator<Item = &Array> {
        pairs(self.snapshot.as_deref().unwrap_or_default())
    }

    /// Arrays that must be evaluated for the block to be final.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        pairs(&self.span.layers).chain(self.snapshot_arrays())
    }
}

fn pairs(pairs: &[(Array, Array)]) -> impl Iterator<Item = &Array> {
    pairs.iter().flat_map(|(one, other)| [one, other])
}

/// Adjacent tokens of consecutive blocks in one span.
#[derive(Debug)]
pub(super) struct Stretch<'a> {
    span: &'a Rc<KvSpan>,
    tokens: Range<i32>,
}

impl<'a> Stretch<'a> {
    /// Returns the stretches of the first tokens of each block, in order.
    pub(super) fn of(blocks: &[(&'a KvBlock, usize)]) -> Vec<Self> {
        let mut stretches: Vec<Self> = Vec::new();
        for (block, used) in blocks {
            let tokens = block.tokens.start..block.tokens.start + length(*used);
            match stretches.last_mut() {
                Some(last) if Rc::ptr_eq(last.span, &block.span) && last.tokens.end == tokens.start => {
                    last.tokens.end = tokens.end;
                }
                Some(_) | None => stretches.push(Self {
                    span: &block.span,
                    tokens,
                }),
            }
        }
        stretches
    }
}

/// Builder of buffers from stretches, with capacity for more tokens.
#[derive(Debug)]
pub(super) struct Room {
    capacity: i32,
    /// Zeros of earlier buffers, because most layers need the same shape.
    zeros: Vec<Array>,
}

impl Room {
    /// Creates a builder for `capacity` tokens, rounded up to a whole step.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: length(capacity.next_multiple_of(CACHE_STEP_TOKENS as usize)),
            zeros: Vec::new(),
        }
    }

    /// Joins a layer's pair of all stretches.
    pub(super) fn joined(&mut self, stretches: &[Stretch<'_>], pair: usize) -> Result<(Array, Array)> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for Stretch {
            span,
            tokens: Range { start, end },
        } in stretches
        {
            let layer = span.layers.get(pair);
            let (key, value) = layer.ok_or_else(|| Exception::custom("the block has too few layers"))?;
            keys.push(tokens(key, *start, *end)?);
            values.push(tokens(value, *start, *end)?);
        }
        Ok((self.filled_up(keys)?, self.filled_up(values)?))
    }

    fn filled_up(&mut self, mut parts: Vec<Array>) -> Result<Array> {
        let held: i32 = parts.iter().map(|part| part.dim(2)).sum();
        if let (true, Some(like)) = (held < self.capacity, parts.first()) {
            let shape = [like.dim(0), like.dim(1), self.capacity - held, like.dim(3)];
            let known = self
                .zeros
                .iter()
                .find(|zeros| zeros.shape() == shape && zeros.dtype() == like.dtype());
            let zeros = match known {
                Some(zeros) => zeros.clone(),
                None => {
                    let zeros = zeros_dtype(&shape, like.dtype())?;
                    self.zeros.push(zeros.clone());
                    zeros
                }
            };
            parts.push(zeros);
        }
        concatenate(&parts, 2)
    }
}
