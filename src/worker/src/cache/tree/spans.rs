//! Spans: groups of blocks in memory that share their arrays. Tokens that were computed together
//! are copied together: a prefix in a few large arrays is joined with a few large copies, whereas
//! hundreds of small copies would take longer than a decode step. The memory of a span is freed,
//! and stops counting, when its last block is evicted.

use std::collections::HashMap;

use super::{BLOCK_TOKENS, MemoryBlock, Missing, ResumePoints, Tree};
use crate::cache::eviction::EvictionOrder;
use crate::cache::key::BlockKey;

/// Maximum number of blocks in a span: 2048 tokens, from positions that are multiples of 2048. A
/// chunk of a prompt that is prefilled alone has as many.
pub(super) const SPAN_BLOCKS: usize = 8;

/// Identifier of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SpanId(u64);

/// Spans of all blocks in memory.
#[derive(Debug, Default)]
pub(super) struct Spans {
    spans: HashMap<SpanId, Span>,
    order: EvictionOrder<SpanId>,
    bytes: u64,
    next: u64,
}

#[derive(Debug)]
struct Span {
    /// Blocks in the order of their tokens.
    blocks: Vec<BlockKey>,
    bytes: u64,
    /// Last use of any of the blocks.
    used: u64,
    /// Number of tokens before the first block.
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

    /// Appends a block to a span.
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

    /// Adds to the size of a span.
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

    /// Removes a block. With its last block, the span's memory is freed.
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

    /// Returns the span that is evicted next: its last use and its blocks.
    pub(super) fn first(&self) -> Option<(u64, Vec<BlockKey>)> {
        let (used, id) = self.order.first()?;
        Some((used, self.spans.get(&id)?.blocks.clone()))
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> impl Iterator<Item = (&[BlockKey], u64)> {
        self.spans.values().map(|span| (&span.blocks[..], span.bytes))
    }
}

/// Groups parts of a text into runs that may share a span: adjacent complete blocks that do not
/// cross the start of another possible span.
pub(in crate::cache) fn runs(parts: Vec<Missing>) -> Vec<Vec<Missing>> {
    let mut runs: Vec<Vec<Missing>> = Vec::new();
    for part in parts {
        let joins = |run: &Vec<Missing>| {
            let is_next = run.last().is_some_and(|last| last.range.end == part.range.start);
            is_next
                && !part.range.start.is_multiple_of(SPAN_BLOCKS * BLOCK_TOKENS)
                // A shorter block is replaced when it grows.
                && part.range.len() == BLOCK_TOKENS
        };
        match runs.last_mut().filter(|run| joins(run)) {
            Some(run) => run.push(part),
            None => runs.push(vec![part]),
        }
    }
    runs
}

impl<B: MemoryBlock> Tree<B> {
    /// Returns runs of `tokens` that are in memory in several spans, could share one span, and
    /// whose spans hold no other blocks. They are to be [inserted](Self::insert) again.
    pub(in crate::cache) fn fragmented(&self, root: BlockKey, tokens: &[u32]) -> Vec<Vec<Missing>> {
        if self.resume_points != ResumePoints::Anywhere {
            return Vec::new();
        }
        let (whole, _) = tokens.as_chunks::<BLOCK_TOKENS>();
        let mut fragmented = Vec::new();
        let (mut parent, mut start) = (root, 0);
        for blocks in whole.chunks_exact(SPAN_BLOCKS) {
            let mut parts = Vec::with_capacity(SPAN_BLOCKS);
            let mut in_memory = Vec::with_capacity(SPAN_BLOCKS);
            for block in blocks {
                let key = parent.child(block);
                let end = start + BLOCK_TOKENS;
                parts.push(Missing {
                    parent,
                    range: start..end,
                });
                let memory = self.nodes.get(&key).and_then(|node| node.memory.as_ref());
                in_memory.extend(memory.map(|memory| (key, memory.span)));
                (parent, start) = (key, end);
            }
            let alone = |(_, id): &(BlockKey, SpanId)| {
                let span = self.memory.spans.get(id);
                span.is_some_and(|span| {
                    span.blocks
                        .iter()
                        .all(|key| in_memory.iter().any(|(in_memory, _)| in_memory == key))
                })
            };
            let several = in_memory.iter().any(|(_, span)| *span != in_memory[0].1);
            if in_memory.len() == SPAN_BLOCKS && several && in_memory.iter().all(alone) {
                fragmented.push(parts);
            }
        }
        fragmented
    }
}
