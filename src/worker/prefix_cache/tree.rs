//! Which prefixes are held: a tree of blocks, each with up to [`BLOCK_TOKENS`] tokens that follow its parent's. Only
//! whole blocks have children, so a shared beginning is held once. A block is in memory, in a file, or both. Pure: what
//! a block holds in memory is the caller's, and so are the files.
//!
//! The least recently used block goes first, the deepest first among equals. Whoever uses a block uses all before it:
//! a block in memory has all its ancestors in memory, too. A file whose ancestors are lost is not found, and goes in
//! its turn.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::key::BlockKey;
use crate::roofline::memory::CACHE_STEP_TOKENS;

/// Tokens of a whole block: the step by which caches grow.
pub(super) const BLOCK_TOKENS: usize = CACHE_STEP_TOKENS as usize;

/// Blocks by what leads to them; `B` is what a block holds in memory.
#[derive(Debug)]
pub(super) struct Tree<B> {
    nodes: HashMap<BlockKey, Node<B>>,
    /// Of each block, and of the roots, which are no blocks themselves.
    children: HashMap<BlockKey, Vec<BlockKey>>,
    memory: Tier,
    files: Tier,
    /// Counts uses.
    now: u64,
}

/// The blocks in one kind of place.
#[derive(Debug, Default)]
struct Tier {
    /// In the order in which they go: last use, depth in tokens, and who it is.
    order: BTreeSet<(u64, Reverse<usize>, BlockKey)>,
    bytes: u64,
}

#[derive(Debug)]
struct Node<B> {
    parent: BlockKey,
    /// Tokens before its own.
    depth: usize,
    tokens: Box<[u32]>,
    used: u64,
    memory: Option<Held<B>>,
    /// Bytes of its file.
    file: Option<u64>,
}

#[derive(Debug)]
struct Held<B> {
    held: B,
    bytes: u64,
}

/// The longest beginning of a text that is there.
#[derive(Debug)]
pub(super) struct Found<'a, B> {
    /// Its blocks in memory, each with how many of its tokens count.
    pub(super) held: Vec<(&'a B, usize)>,
    /// The blocks after those, which only have files.
    pub(super) filed: Vec<Filed>,
}

/// A block in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Filed {
    pub(super) key: BlockKey,
    pub(super) bytes: u64,
    /// Those of its tokens that count.
    pub(super) tokens: usize,
}

/// A block in memory.
#[derive(Debug)]
pub(super) struct Block<'a, B> {
    pub(super) held: &'a B,
    pub(super) parent: BlockKey,
    /// Tokens before its own.
    pub(super) depth: usize,
    pub(super) tokens: &'a [u32],
}

/// A part of a text that is not in memory.
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
            memory: Tier::default(),
            files: Tier::default(),
            now: 0,
        }
    }
}

impl<B> Tree<B> {
    /// Of everything in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// Of all files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.files.bytes
    }

    /// The longest beginning of `tokens` that is there. Its blocks are used by this.
    pub(super) fn find(&mut self, root: BlockKey, tokens: &[u32]) -> Found<'_, B> {
        self.now += 1;
        let path = self.path(root, tokens);
        for (key, _) in &path {
            self.touch(*key);
        }
        let (mut held, mut filed) = (Vec::new(), Vec::new());
        for (key, length) in path {
            match self.nodes.get(&key) {
                Some(Node {
                    memory: Some(block), ..
                }) if filed.is_empty() => held.push((&block.held, length)),
                Some(Node {
                    file: Some(bytes), ..
                }) => filed.push(Filed {
                    key,
                    bytes: *bytes,
                    tokens: length,
                }),
                Some(_) | None => break,
            }
        }
        Found { held, filed }
    }

    /// The blocks of the longest beginning of `tokens` that is known, each with how many of its tokens count.
    pub(super) fn path(&self, root: BlockKey, tokens: &[u32]) -> Vec<(BlockKey, usize)> {
        let mut path = Vec::new();
        let (mut parent, mut rest) = (root, tokens);
        while let Some((key, length)) = self.longest_child(parent, rest, |_| true) {
            path.push((key, length));
            if length < BLOCK_TOKENS {
                break;
            }
            (parent, rest) = (key, &rest[length..]);
        }
        path
    }

    /// The parts of `tokens` that are not in memory, in order. The others are used by this.
    pub(super) fn missing(&mut self, root: BlockKey, tokens: &[u32]) -> Vec<Missing> {
        self.now += 1;
        let mut missing = Vec::new();
        let (mut parent, mut start) = (root, 0);
        for block in tokens.chunks(BLOCK_TOKENS) {
            let end = start + block.len();
            match self.longest_child(parent, block, |node| node.memory.is_some()) {
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

    /// Puts a block into memory that was [`missing`](Self::missing), used as recently as its parent. Returns the files
    /// that are of no use any more: of a shorter beginning of it.
    pub(super) fn insert(&mut self, parent: BlockKey, tokens: &[u32], bytes: u64, held: B) -> Vec<BlockKey> {
        let key = self.add(parent, tokens);
        let mut obsolete = Vec::new();
        for sibling in self.children.get(&parent).cloned().unwrap_or_default() {
            let shorter =
                |node: &Node<B>| node.tokens.len() < tokens.len() && tokens.starts_with(&node.tokens);
            if self.nodes.get(&sibling).is_some_and(shorter) {
                self.forget(sibling);
                obsolete.extend(self.lose_file(sibling).then_some(sibling));
            }
        }
        self.hold(key, bytes, held);
        obsolete
    }

    /// Puts a block into memory that is in a file. Nothing happens if it is not any more.
    pub(super) fn hold(&mut self, key: BlockKey, bytes: u64, held: B) {
        self.forget_only(key);
        if let Some(node) = self.nodes.get_mut(&key) {
            node.memory = Some(Held { held, bytes });
            self.memory.add(node.used, node.depth, key, bytes);
        }
    }

    /// A block in memory.
    pub(super) fn get(&self, key: BlockKey) -> Option<Block<'_, B>> {
        let node = self.nodes.get(&key)?;
        Some(Block {
            held: &node.memory.as_ref()?.held,
            parent: node.parent,
            depth: node.depth,
            tokens: &node.tokens,
        })
    }

    pub(super) fn has_file(&self, key: BlockKey) -> bool {
        self.nodes.get(&key).is_some_and(|node| node.file.is_some())
    }

    /// Whether a block may come into memory: one that is known, all of whose ancestors are there.
    pub(super) fn continues_memory(&self, key: BlockKey) -> bool {
        self.nodes.get(&key).is_some_and(|node| {
            let parent = self.nodes.get(&node.parent);
            // What is first has a root for a parent, which is no block.
            parent.is_none_or(|parent| parent.memory.is_some())
        })
    }

    /// A block has a file.
    pub(super) fn add_file(&mut self, parent: BlockKey, tokens: &[u32], bytes: u64) {
        let key = self.add(parent, tokens);
        if let Some(node) = self.nodes.get_mut(&key)
            && node.file.is_none()
        {
            node.file = Some(bytes);
            self.files.add(node.used, node.depth, key, bytes);
        }
    }

    /// A block and all before it are used.
    pub(super) fn touch_path(&mut self, key: BlockKey) {
        self.now += 1;
        let mut next = Some(key);
        while let Some(key) = next {
            self.touch(key);
            next = self.nodes.get(&key).map(|node| node.parent);
        }
    }

    /// A block's file is gone, or about to; whether there was one.
    pub(super) fn lose_file(&mut self, key: BlockKey) -> bool {
        let Some(node) = self.nodes.get_mut(&key) else {
            return false;
        };
        let bytes = node.file.take();
        if let Some(bytes) = bytes {
            self.files.remove(node.used, node.depth, key, bytes);
        }
        self.prune(key);
        bytes.is_some()
    }

    /// Lets go of what is in memory and was used longest ago until that is no more than `limit` bytes; not of what the
    /// last use of the tree was about, unless `all`.
    pub(super) fn shrink(&mut self, limit: u64, all: bool) {
        while self.memory.bytes > limit {
            match self.memory.order.first() {
                Some((used, _, key)) if all || *used < self.now => {
                    let key = *key;
                    self.forget(key);
                }
                Some(_) | None => return,
            }
        }
    }

    /// Gives up files used longest ago until they have no more than `limit` bytes, and returns whose.
    pub(super) fn shrink_files(&mut self, limit: u64) -> Vec<BlockKey> {
        let mut gone = Vec::new();
        while self.files.bytes > limit
            && let Some((_, _, key)) = self.files.order.first().copied()
        {
            self.lose_file(key);
            gone.push(key);
        }
        gone
    }

    /// The child that has most of the beginning of `tokens`, and how much; of equals, one in memory.
    fn longest_child(
        &self,
        parent: BlockKey,
        tokens: &[u32],
        wanted: impl Fn(&Node<B>) -> bool,
    ) -> Option<(BlockKey, usize)> {
        let children = self.children.get(&parent)?.iter();
        let common = children.filter_map(|key| {
            let node = self.nodes.get(key).filter(|node| wanted(node))?;
            let same = node.tokens.iter().zip(tokens).take_while(|(a, b)| a == b);
            Some((same.count(), node.memory.is_some(), *key))
        });
        let (length, _, key) = common.max()?;
        (length > 0).then_some((key, length))
    }

    /// A block that is nowhere yet, if there is none of these tokens.
    fn add(&mut self, parent: BlockKey, tokens: &[u32]) -> BlockKey {
        let key = parent.child(tokens);
        if !self.nodes.contains_key(&key) {
            let (depth, used) = match self.nodes.get(&parent) {
                Some(parent) => (parent.depth + parent.tokens.len(), parent.used),
                None => (0, self.now),
            };
            self.children.entry(parent).or_default().push(key);
            let node = Node {
                parent,
                depth,
                tokens: tokens.into(),
                used,
                memory: None,
                file: None,
            };
            self.nodes.insert(key, node);
        }
        key
    }

    fn touch(&mut self, key: BlockKey) {
        if let Some(node) = self.nodes.get_mut(&key) {
            let before = std::mem::replace(&mut node.used, self.now);
            if let Some(Held { bytes, .. }) = &node.memory {
                self.memory.remove(before, node.depth, key, *bytes);
                self.memory.add(node.used, node.depth, key, *bytes);
            }
            if let Some(bytes) = node.file {
                self.files.remove(before, node.depth, key, bytes);
                self.files.add(node.used, node.depth, key, bytes);
            }
        }
    }

    /// Takes a block out of memory.
    fn forget(&mut self, key: BlockKey) {
        self.forget_only(key);
        self.prune(key);
    }

    fn forget_only(&mut self, key: BlockKey) {
        if let Some(node) = self.nodes.get_mut(&key)
            && let Some(Held { bytes, .. }) = node.memory.take()
        {
            self.memory.remove(node.used, node.depth, key, bytes);
        }
    }

    /// Removes a block that is nowhere, as far up as there are such and nothing comes after them.
    fn prune(&mut self, mut key: BlockKey) {
        while let Some(node) = self.nodes.get(&key)
            && node.memory.is_none()
            && node.file.is_none()
            && !self.children.contains_key(&key)
        {
            let parent = node.parent;
            self.nodes.remove(&key);
            if let Some(siblings) = self.children.get_mut(&parent) {
                siblings.retain(|sibling| *sibling != key);
                if siblings.is_empty() {
                    self.children.remove(&parent);
                }
            }
            key = parent;
        }
    }
}

impl Tier {
    fn add(&mut self, used: u64, depth: usize, key: BlockKey, bytes: u64) {
        self.order.insert((used, Reverse(depth), key));
        self.bytes += bytes;
    }

    fn remove(&mut self, used: u64, depth: usize, key: BlockKey, bytes: u64) {
        self.order.remove(&(used, Reverse(depth), key));
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests;
