//! Which blocks in memory share it. What was computed together is copied together: a prefix that
//! lies in a few large pieces is joined with a few large copies, where hundreds of small ones would
//! take longer than a decode step. Such a piece is only free when the last of its blocks is gone,
//! and counts as a whole until then.

use std::collections::HashMap;

use super::{BLOCK_TOKENS, Cuts, InMemory, Missing, Tree};
use crate::cache::eviction::EvictionOrder;
use crate::cache::key::BlockKey;

/// Blocks of a text that may share memory: those of 2048 tokens, from places that are whole
/// multiples of that on. As many as a chunk of a prompt has that is read with nobody beside.
pub(super) const SPAN_BLOCKS: usize = 8;

/// Names a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SpanId(u64);

/// All spans.
#[derive(Debug, Default)]
pub(super) struct Spans {
    spans: HashMap<SpanId, Span>,
    order: EvictionOrder<SpanId>,
    bytes: u64,
    next: u64,
}

#[derive(Debug)]
struct Span {
    /// In the order of their tokens.
    blocks: Vec<BlockKey>,
    bytes: u64,
    /// The last use of any of them.
    used: u64,
    /// Tokens before the first.
    depth: usize,
}

impl Spans {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn new_span(&mut self) -> SpanId {
        self.next += 1;
        SpanId(self.next)
    }

    /// One more block, behind those that the span has.
    pub(super) fn add(&mut self, id: SpanId, key: BlockKey, depth: usize, used: u64, bytes: u64) {
        let span = self.spans.entry(id).or_insert(Span {
            blocks: Vec::new(),
            bytes: 0,
            used,
            depth,
        });
        self.order.remove(span.used, span.depth, id);
        span.blocks.push(key);
        span.bytes += bytes;
        span.used = span.used.max(used);
        self.order.insert(span.used, span.depth, id);
        self.bytes += bytes;
    }

    /// A block of it has so many bytes more.
    pub(super) fn grow(&mut self, id: SpanId, bytes: u64) {
        if let Some(span) = self.spans.get_mut(&id) {
            span.bytes += bytes;
            self.bytes += bytes;
        }
    }

    pub(super) fn touch(&mut self, id: SpanId, now: u64) {
        if let Some(span) = self.spans.get_mut(&id) {
            self.order.remove(span.used, span.depth, id);
            span.used = now;
            self.order.insert(span.used, span.depth, id);
        }
    }

    /// The block is gone; with the last of a span, so is its memory.
    pub(super) fn remove(&mut self, id: SpanId, key: BlockKey) {
        let Some(span) = self.spans.get_mut(&id) else {
            return;
        };
        span.blocks.retain(|block| *block != key);
        if span.blocks.is_empty() {
            self.order.remove(span.used, span.depth, id);
            self.bytes -= span.bytes;
            self.spans.remove(&id);
        }
    }

    /// The span that goes first: its last use, and its blocks.
    pub(super) fn first(&self) -> Option<(u64, Vec<BlockKey>)> {
        let (used, id) = self.order.first()?;
        Some((used, self.spans.get(&id)?.blocks.clone()))
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> impl Iterator<Item = (&[BlockKey], u64)> {
        self.spans.values().map(|span| (&span.blocks[..], span.bytes))
    }
}

/// These parts of a text in runs that may share a span: neighbours, whole blocks, not across a
/// span's possible beginnings.
pub(in crate::cache) fn runs(parts: Vec<Missing>) -> Vec<Vec<Missing>> {
    let mut runs: Vec<Vec<Missing>> = Vec::new();
    for part in parts {
        let joins = |run: &Vec<Missing>| {
            let is_next = run.last().is_some_and(|last| last.range.end == part.range.start);
            is_next
                && !part.range.start.is_multiple_of(SPAN_BLOCKS * BLOCK_TOKENS)
                // What is shorter gives its place to what it becomes.
                && part.range.len() == BLOCK_TOKENS
        };
        match runs.last_mut().filter(|run| joins(run)) {
            Some(run) => run.push(part),
            None => runs.push(vec![part]),
        }
    }
    runs
}

impl<B: InMemory> Tree<B> {
    /// Parts of `tokens` that are in memory in several spans and could be in one each, which
    /// nothing else is in. To be [inserted](Self::insert) anew.
    pub(in crate::cache) fn scattered(&self, root: BlockKey, tokens: &[u32]) -> Vec<Vec<Missing>> {
        if self.cuts != Cuts::Anywhere {
            return Vec::new();
        }
        let (whole, _) = tokens.as_chunks::<BLOCK_TOKENS>();
        let mut scattered = Vec::new();
        let (mut parent, mut start) = (root, 0);
        for blocks in whole.chunks_exact(SPAN_BLOCKS) {
            let mut parts = Vec::with_capacity(SPAN_BLOCKS);
            let mut held = Vec::with_capacity(SPAN_BLOCKS);
            for block in blocks {
                let key = parent.child(block);
                let end = start + BLOCK_TOKENS;
                parts.push(Missing {
                    parent,
                    range: start..end,
                });
                let memory = self.nodes.get(&key).and_then(|node| node.memory.as_ref());
                held.extend(memory.map(|memory| (key, memory.span)));
                (parent, start) = (key, end);
            }
            let alone = |(_, id): &(BlockKey, SpanId)| {
                let span = self.memory.spans.get(id);
                span.is_some_and(|span| {
                    span.blocks
                        .iter()
                        .all(|key| held.iter().any(|(held, _)| held == key))
                })
            };
            let several = held.iter().any(|(_, span)| *span != held[0].1);
            if held.len() == SPAN_BLOCKS && several && held.iter().all(alone) {
                scattered.push(parts);
            }
        }
        scattered
    }
}
