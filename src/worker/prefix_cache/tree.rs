//! Which prefixes are held: a tree of blocks, each with up to [`BLOCK_TOKENS`] tokens that follow its parent's. Only
//! whole blocks have children, so a shared beginning is held once. Pure: what a block holds is the caller's.
//!
//! The least recently used block goes first, the deepest first among equals. Whoever uses a block uses all before it:
//! a block that is held has all its ancestors held, too.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::key::BlockKey;
use crate::roofline::memory::CACHE_STEP_TOKENS;

/// Tokens of a whole block: the step by which caches grow.
pub(super) const BLOCK_TOKENS: usize = CACHE_STEP_TOKENS as usize;

/// Blocks by what leads to them; `B` is what a block holds.
#[derive(Debug)]
pub(super) struct Tree<B> {
    nodes: HashMap<BlockKey, Node<B>>,
    /// Of each block, and of the roots, which are no blocks themselves.
    children: HashMap<BlockKey, Vec<BlockKey>>,
    /// In the order in which they go.
    order: BTreeSet<Place>,
    bytes: u64,
    /// Counts uses.
    now: u64,
}

/// Last use, depth in tokens, and who it is.
type Place = (u64, Reverse<usize>, BlockKey);

#[derive(Debug)]
struct Node<B> {
    parent: BlockKey,
    /// Tokens before its own.
    depth: usize,
    tokens: Box<[u32]>,
    used: u64,
    bytes: u64,
    held: B,
}

/// A part of a text that is not held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) parent: BlockKey,
    /// Its tokens' places in the text.
    pub(super) range: Range<usize>,
}

impl<B> Default for Tree<B> {
    fn default() -> Self {
        Self {
            nodes: HashMap::new(),
            children: HashMap::new(),
            order: BTreeSet::new(),
            bytes: 0,
            now: 0,
        }
    }
}

impl<B> Tree<B> {
    /// Of everything that is held.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The longest beginning of `tokens` that is held: its blocks, each with how many of its tokens count. They are
    /// used by this.
    pub(super) fn find(&mut self, root: BlockKey, tokens: &[u32]) -> Vec<(&B, usize)> {
        self.now += 1;
        let mut path = Vec::new();
        let (mut parent, mut rest) = (root, tokens);
        while let Some((key, length)) = self.longest_child(parent, rest) {
            path.push((key, length));
            if length < BLOCK_TOKENS {
                break;
            }
            (parent, rest) = (key, &rest[length..]);
        }
        for (key, _) in &path {
            self.touch(*key);
        }
        let held = |(key, length)| Some((&self.nodes.get(&key)?.held, length));
        path.into_iter().filter_map(held).collect()
    }

    /// The parts of `tokens` that are not held, in order. The others are used by this.
    pub(super) fn missing(&mut self, root: BlockKey, tokens: &[u32]) -> Vec<Missing> {
        self.now += 1;
        let mut missing = Vec::new();
        let (mut parent, mut start) = (root, 0);
        for block in tokens.chunks(BLOCK_TOKENS) {
            let end = start + block.len();
            match self.longest_child(parent, block) {
                Some((key, length)) if length == block.len() => self.touch(key),
                Some(_) | None => missing.push(Missing {
                    parent,
                    range: start..end,
                }),
            }
            parent = parent.child(block);
            start = end;
        }
        missing
    }

    /// Adds a block that was [`missing`](Self::missing), used as recently as its parent. A shorter beginning of it goes.
    pub(super) fn insert(&mut self, parent: BlockKey, tokens: &[u32], bytes: u64, held: B) {
        let (depth, used) = match self.nodes.get(&parent) {
            Some(parent) => (parent.depth + parent.tokens.len(), parent.used),
            None => (0, self.now),
        };
        let key = parent.child(tokens);
        self.remove(key);
        let siblings = self.children.get(&parent).into_iter().flatten();
        let shorter = |sibling: &&BlockKey| {
            let node = self.nodes.get(sibling);
            node.is_some_and(|node| tokens.starts_with(&node.tokens))
        };
        let shorter: Vec<BlockKey> = siblings.filter(shorter).copied().collect();
        for sibling in shorter {
            self.remove(sibling);
        }
        self.children.entry(parent).or_default().push(key);
        self.order.insert((used, Reverse(depth), key));
        self.bytes += bytes;
        let node = Node {
            parent,
            depth,
            tokens: tokens.into(),
            used,
            bytes,
            held,
        };
        self.nodes.insert(key, node);
    }

    /// Lets go of what was used longest ago until no more than `limit` bytes are held; of what the last use of the tree
    /// was about only where `all`.
    pub(super) fn shrink(&mut self, limit: u64, all: bool) {
        while self.bytes > limit {
            match self.order.first() {
                Some((used, _, key)) if all || *used < self.now => {
                    let key = *key;
                    self.remove(key);
                }
                Some(_) | None => return,
            }
        }
    }

    /// The child that has most of the beginning of `tokens`, and how much.
    fn longest_child(&self, parent: BlockKey, tokens: &[u32]) -> Option<(BlockKey, usize)> {
        let children = self.children.get(&parent)?.iter();
        let common = children.filter_map(|key| {
            let node = self.nodes.get(key)?;
            let same = node.tokens.iter().zip(tokens).take_while(|(a, b)| a == b);
            Some((*key, same.count()))
        });
        common
            .max_by_key(|(_, length)| *length)
            .filter(|(_, length)| *length > 0)
    }

    fn touch(&mut self, key: BlockKey) {
        if let Some(node) = self.nodes.get_mut(&key) {
            self.order.remove(&(node.used, Reverse(node.depth), key));
            node.used = self.now;
            self.order.insert((node.used, Reverse(node.depth), key));
        }
    }

    fn remove(&mut self, key: BlockKey) {
        let Some(node) = self.nodes.remove(&key) else {
            return;
        };
        self.order.remove(&(node.used, Reverse(node.depth), key));
        self.bytes -= node.bytes;
        if let Some(siblings) = self.children.get_mut(&node.parent) {
            siblings.retain(|sibling| *sibling != key);
            if siblings.is_empty() {
                self.children.remove(&node.parent);
            }
        }
    }
}

#[cfg(test)]
mod tests;
