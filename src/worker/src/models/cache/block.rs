//! Copies of some tokens' keys and values, from which another sequence with the same tokens can
//! begin.

use std::ops::Range;
use std::rc::Rc;

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::{Exception, Result};
use rooflet_mlx::mlx_rs::ops::{concatenate, zeros_dtype};

use super::{length, tokens};
use rooflet_roofline::memory::CACHE_STEP_TOKENS;

/// Keys and values of tokens that follow one another, in each layer that keeps all tokens: one
/// pair, or three where they are quantised. Blocks share one, since what lies together is copied
/// together: a copy for each layer, and not for each block and layer.
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

/// A copy of what a cache holds of some tokens.
#[derive(Debug, Clone)]
pub(crate) struct KvBlock {
    span: Rc<KvSpan>,
    /// Its tokens in the span.
    tokens: Range<i32>,
    /// What each layer that does not keep all tokens holds after the last of these: keys and values
    /// of its window, or its state. A sequence can begin at that token where this is there, or
    /// where there are no such layers.
    snapshot: Option<Vec<(Array, Array)>>,
}

impl KvBlock {
    /// Which shares nothing.
    pub(crate) fn alone(layers: Vec<(Array, Array)>, snapshot: Option<Vec<(Array, Array)>>) -> Self {
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

    /// Its part of what it shares, and the snapshot.
    pub(crate) fn bytes(&self) -> u64 {
        let all: usize = pairs(&self.span.layers).map(Array::nbytes).sum();
        let own = all * self.tokens.len() / self.span.tokens().max(1).unsigned_abs() as usize;
        let snapshot: usize = self.snapshot_arrays().map(Array::nbytes).sum();
        (own + snapshot) as u64
    }

    /// Keys and values, of which only its own [tokens](Self::tokens) count, in pairs.
    pub(crate) fn layers(&self) -> &[(Array, Array)] {
        &self.span.layers
    }

    /// Its own in [`layers`](Self::layers).
    pub(crate) fn tokens(&self) -> Range<i32> {
        self.tokens.clone()
    }

    pub(crate) fn snapshot(&self) -> Option<&[(Array, Array)]> {
        self.snapshot.as_deref()
    }

    /// Takes what another of the same tokens has beside keys and values.
    pub(crate) fn take_snapshot(&mut self, other: Self) {
        self.snapshot = other.snapshot.or(self.snapshot.take());
    }

    pub(crate) fn snapshot_arrays(&self) -> impl Iterator<Item = &Array> {
        pairs(self.snapshot.as_deref().unwrap_or_default())
    }

    /// Everything that must be evaluated for the block to be final.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        pairs(&self.span.layers).chain(self.snapshot_arrays())
    }
}

fn pairs(pairs: &[(Array, Array)]) -> impl Iterator<Item = &Array> {
    pairs.iter().flat_map(|(one, other)| [one, other])
}

/// Tokens of neighbouring blocks that lie side by side.
#[derive(Debug)]
pub(super) struct Stretch<'a> {
    span: &'a Rc<KvSpan>,
    tokens: Range<i32>,
}

impl<'a> Stretch<'a> {
    /// Of the first tokens of each block, in order.
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

/// Makes buffers out of stretches, with room for more tokens behind.
#[derive(Debug)]
pub(super) struct Room {
    capacity: i32,
    /// Zeros that were needed before: most layers need the same.
    zeros: Vec<Array>,
}

impl Room {
    /// For so many tokens in all, in whole steps.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: length(capacity.next_multiple_of(CACHE_STEP_TOKENS as usize)),
            zeros: Vec::new(),
        }
    }

    /// A layer's pair of all stretches, one after the other.
    pub(super) fn joined(&mut self, stretches: &[Stretch<'_>], pair: usize) -> Result<(Array, Array)> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for Stretch {
            span,
            tokens: Range { start, end },
        } in stretches
        {
            let layer = span.layers.get(pair);
            let (key, value) = layer.ok_or_else(|| Exception::custom("a block of too few layers"))?;
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
