//! Which prefixes are held: a tree of blocks, each with up to [`BLOCK_TOKENS`] tokens that follow
//! its parent's. Only whole blocks have children, so a shared beginning is held once. A block is in
//! memory, in a file, or both. Pure: what a block holds in memory is the caller's, and so are the
//! files.
//!
//! The least recently used goes first, the deepest first among equals. Whoever uses a block uses
//! all before it: a block in memory has all its ancestors in memory, too. A file whose ancestors
//! are lost is not found, and goes in its turn. In memory, neighbours share spans ([`spans`]),
//! which go as a whole.
//!
//! Of a model that keeps all tokens, any beginning of a block can be used ([`Cuts::Anywhere`]).
//! Others can only begin where what their layers hold besides was kept: at the end of a block with
//! a snapshot ([`snapshots`]).

mod snapshots;
mod spans;

use std::collections::HashMap;
use std::ops::Range;

pub(super) use self::spans::runs;
use self::spans::{SpanId, Spans};
use super::eviction::EvictionOrder;
use super::key::BlockKey;
use rooflet_model::config::{LayerConfig, ModelConfig};
use rooflet_roofline::memory::CACHE_STEP_TOKENS;

/// Tokens of a whole block: the step by which caches grow.
pub(super) const BLOCK_TOKENS: usize = CACHE_STEP_TOKENS as usize;

/// Where a text that is known can be cut for another to go on from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cuts {
    Anywhere,
    /// At the ends of blocks that hold a snapshot.
    AtSnapshots,
}

impl Cuts {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        if config.layers.iter().all(LayerConfig::keeps_all) {
            Self::Anywhere
        } else {
            Self::AtSnapshots
        }
    }
}

/// Places of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiers {
    Memory,
    Both,
}

/// Blocks by what leads to them; `B` is what a block holds in memory ([`InMemory`]).
#[derive(Debug)]
pub(super) struct Tree<B> {
    cuts: Cuts,
    nodes: HashMap<BlockKey, Node<B>>,
    /// Of each block, and of the roots, which are no blocks themselves.
    children: HashMap<BlockKey, Vec<BlockKey>>,
    memory: Spans,
    files: Files,
    /// Counts uses.
    now: u64,
}

/// The blocks in files.
#[derive(Debug, Default)]
struct Files {
    order: EvictionOrder<BlockKey>,
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
    file: Option<Stored>,
}

#[derive(Debug)]
struct Held<B> {
    held: B,
    size: Stored,
    span: SpanId,
}

/// What of a block is somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) bytes: u64,
    /// A snapshot is with it.
    pub(super) snapshot: bool,
}

/// The longest beginning of a text that is there.
#[derive(Debug)]
pub(super) struct Found<'a, B> {
    /// Its blocks in memory, each with how many of its tokens count.
    pub(super) held: Vec<(&'a B, usize)>,
    /// The blocks after those, which only have files.
    pub(super) filed: Vec<Filed>,
}

impl<B> Found<'_, B> {
    /// Of the text, in memory.
    pub(super) fn held_tokens(&self) -> usize {
        self.held.iter().map(|(_, length)| length).sum()
    }
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

/// What a block holds in memory.
pub(super) trait InMemory {
    /// Takes the snapshot of another of the same tokens.
    fn take_snapshot(&mut self, other: Self);
}

impl<B: InMemory> Tree<B> {
    pub(super) fn new(cuts: Cuts) -> Self {
        Self {
            cuts,
            nodes: HashMap::new(),
            children: HashMap::new(),
            memory: Spans::default(),
            files: Files::default(),
            now: 0,
        }
    }

    /// Of everything in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Of all files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.files.bytes
    }

    pub(super) fn cuts(&self) -> Cuts {
        self.cuts
    }

    /// The longest beginning of `tokens` that is there and can be gone on from; of what is in
    /// memory, or in either place. Its blocks are used by this.
    pub(super) fn find(&mut self, root: BlockKey, tokens: &[u32], tiers: Tiers) -> Found<'_, B> {
        self.now += 1;
        let path = match self.cuts {
            Cuts::Anywhere => match tiers {
                Tiers::Memory => self.path(root, tokens, |node| node.memory.is_some()),
                Tiers::Both => self.path(root, tokens, |_| true),
            },
            Cuts::AtSnapshots => self.resumable(root, tokens, tiers),
        };
        for (key, _) in &path {
            self.touch(*key);
        }
        let last = path.last().map(|(key, _)| *key);
        let (mut held, mut filed) = (Vec::new(), Vec::new());
        for (key, length) in path {
            let Some(node) = self.nodes.get(&key) else { break };
            let needs_snapshot = self.cuts == Cuts::AtSnapshots && last == Some(key);
            let enough = |size: Stored| size.snapshot || !needs_snapshot;
            match (&node.memory, node.file) {
                (Some(block), _) if filed.is_empty() && enough(block.size) => {
                    held.push((&block.held, length));
                }
                (_, Some(size)) if tiers == Tiers::Both && enough(size) => filed.push(Filed {
                    key,
                    bytes: size.bytes,
                    tokens: length,
                }),
                _ => break,
            }
        }
        Found { held, filed }
    }

    /// The blocks of the longest beginning of `tokens` that is known, each with how many of its
    /// tokens count; of those that `count`.
    fn path(
        &self,
        root: BlockKey,
        tokens: &[u32],
        count: impl Fn(&Node<B>) -> bool,
    ) -> Vec<(BlockKey, usize)> {
        let mut path = Vec::new();
        let (mut parent, mut rest) = (root, tokens);
        while let Some((key, length)) = self.longest_child(parent, rest, &count) {
            path.push((key, length));
            if length < BLOCK_TOKENS {
                break;
            }
            (parent, rest) = (key, &rest[length..]);
        }
        path
    }

    /// The blocks that hold `tokens`, as far as they are known.
    pub(super) fn holders(&self, root: BlockKey, tokens: &[u32]) -> Vec<BlockKey> {
        match self.cuts {
            Cuts::Anywhere => self
                .path(root, tokens, |_| true)
                .into_iter()
                .map(|(key, _)| key)
                .collect(),
            Cuts::AtSnapshots => self.whole_path(root, tokens),
        }
    }

    /// How much of `tokens` is known, wherever it is, and whether or not it can be gone on from.
    pub(super) fn known(&self, root: BlockKey, tokens: &[u32]) -> usize {
        self.path(root, tokens, |_| true)
            .iter()
            .map(|(_, length)| length)
            .sum()
    }

    /// The parts of `tokens` that are not in memory, in order. The others are used by this.
    pub(super) fn missing(&mut self, root: BlockKey, tokens: &[u32]) -> Vec<Missing> {
        self.now += 1;
        if self.cuts == Cuts::AtSnapshots {
            return self.missing_to_snapshot(root, tokens);
        }
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

    /// Puts blocks into memory that were [`missing`](Self::missing) or
    /// [scattered](Self::scattered), each the parent of the next, used as recently as `parent`.
    /// They are in memory of their own together. Returns the files that are of no use any more: of
    /// a shorter beginning of one of them.
    pub(super) fn insert<'a>(
        &mut self,
        mut parent: BlockKey,
        blocks: impl IntoIterator<Item = (&'a [u32], Stored, B)>,
    ) -> Vec<BlockKey> {
        let mut obsolete = Vec::new();
        let span = self.memory.new_span();
        for (tokens, size, held) in blocks {
            let key = self.add(parent, tokens);
            self.put(key, size, held, span);
            if self.cuts == Cuts::Anywhere {
                obsolete.extend(self.forget_shorter(parent, tokens));
            }
            parent = key;
        }
        obsolete
    }

    /// Lets go of the children that have a beginning of `tokens`, where any beginning of those will
    /// do. Returns those that had files.
    fn forget_shorter(&mut self, parent: BlockKey, tokens: &[u32]) -> Vec<BlockKey> {
        let siblings = self.children.get(&parent).cloned().unwrap_or_default();
        let shorter = |node: &Node<B>| node.tokens.len() < tokens.len() && tokens.starts_with(&node.tokens);
        let mut obsolete = Vec::new();
        for sibling in siblings {
            if self.nodes.get(&sibling).is_some_and(shorter) {
                self.forget(sibling);
                obsolete.extend(self.lose_file(sibling).then_some(sibling));
            }
        }
        obsolete
    }

    /// Puts a block into memory that is in a file. Nothing happens if it is not any more, or if it
    /// is in memory already with no less to it.
    pub(super) fn hold(&mut self, key: BlockKey, size: Stored, held: B) {
        let there = self.nodes.get(&key).and_then(|node| node.memory.as_ref());
        if there.is_some_and(|there| there.size.snapshot || !size.snapshot) {
            return;
        }
        let span = self.memory.new_span();
        self.put(key, size, held, span);
    }

    /// In place of what was in memory of it; where it can only be a snapshot that is new, that is
    /// all that is taken.
    fn put(&mut self, key: BlockKey, size: Stored, held: B, span: SpanId) {
        if self.cuts == Cuts::Anywhere {
            self.forget_only(key);
        }
        let Some(node) = self.nodes.get_mut(&key) else {
            return;
        };
        match &mut node.memory {
            None => {
                node.memory = Some(Held { held, size, span });
                self.memory.add(span, key, node.depth, node.used, size.bytes);
            }
            Some(there) => {
                there.held.take_snapshot(held);
                self.memory
                    .grow(there.span, size.bytes.saturating_sub(there.size.bytes));
                there.size = size;
            }
        }
    }

    /// A block in memory.
    pub(super) fn get(&self, key: BlockKey) -> Option<Block<'_, B>> {
        let node = self.nodes.get(&key)?;
        let memory = node.memory.as_ref()?;
        Some(Block {
            held: &memory.held,
            parent: node.parent,
            depth: node.depth,
            tokens: &node.tokens,
        })
    }

    /// Whether a file has all that memory has of a block.
    pub(super) fn has_file(&self, key: BlockKey) -> bool {
        self.nodes.get(&key).is_some_and(|node| {
            let snapshot = node.memory.as_ref().is_some_and(|held| held.size.snapshot);
            node.file.is_some_and(|file| file.snapshot || !snapshot)
        })
    }

    /// Whether a block may come into memory: one that is known, all of whose ancestors are there.
    pub(super) fn continues_memory(&self, key: BlockKey) -> bool {
        self.nodes.get(&key).is_some_and(|node| {
            let parent = self.nodes.get(&node.parent);
            // What is first has a root for a parent, which is no block.
            parent.is_none_or(|parent| parent.memory.is_some())
        })
    }

    /// A block has a file, in place of another it may have had.
    pub(super) fn add_file(&mut self, parent: BlockKey, tokens: &[u32], size: Stored) {
        let key = self.add(parent, tokens);
        if let Some(node) = self.nodes.get_mut(&key) {
            if let Some(before) = node.file.replace(size) {
                self.files.remove(node.used, node.depth, key, before.bytes);
            }
            self.files.add(node.used, node.depth, key, size.bytes);
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

    /// Blocks and all before them are used, the last one of them last.
    pub(super) fn touch_paths(&mut self, keys: &[BlockKey]) {
        let before = self.now;
        let last = before + keys.len() as u64;
        for (later, key) in (0..).zip(keys.iter().rev()) {
            self.now = last - later;
            let mut next = Some(*key);
            // What later ones have in common with it is touched already.
            while let Some(key) = next
                && let Some(node) = self.nodes.get(&key).filter(|node| node.used <= before)
            {
                next = Some(node.parent);
                self.touch(key);
            }
        }
        self.now = last;
    }

    /// A block's file is gone, or about to; whether there was one.
    pub(super) fn lose_file(&mut self, key: BlockKey) -> bool {
        let Some(node) = self.nodes.get_mut(&key) else {
            return false;
        };
        let file = node.file.take();
        if let Some(file) = file {
            self.files.remove(node.used, node.depth, key, file.bytes);
        }
        self.prune(key);
        file.is_some()
    }

    /// Lets go of what is in memory and was used longest ago until that is no more than `limit`
    /// bytes; not of what the last use of the tree was about, unless `all`.
    pub(super) fn shrink(&mut self, limit: u64, all: bool) {
        while self.memory.bytes() > limit {
            match self.memory.first() {
                // From its end: what is before has to be there as long as this is.
                Some((used, blocks)) if all || used < self.now => {
                    blocks.into_iter().rev().for_each(|key| self.forget(key));
                }
                Some(_) | None => return,
            }
        }
    }

    /// Gives up files used longest ago until they have no more than `limit` bytes, and returns
    /// whose.
    pub(super) fn shrink_files(&mut self, limit: u64) -> Vec<BlockKey> {
        let mut gone = Vec::new();
        while self.files.bytes > limit
            && let Some((_, key)) = self.files.order.first()
        {
            self.lose_file(key);
            gone.push(key);
        }
        gone
    }

    /// The child that has most of the beginning of `tokens`, and how much; of equals, one in
    /// memory.
    fn longest_child(
        &self,
        parent: BlockKey,
        tokens: &[u32],
        wanted: impl Fn(&Node<B>) -> bool,
    ) -> Option<(BlockKey, usize)> {
        let children = self.children.get(&parent)?.iter();
        let common = children.filter_map(|key| {
            let node = self.nodes.get(key).filter(|node| wanted(node))?;
            let same = if tokens.starts_with(&node.tokens) {
                node.tokens.len()
            } else {
                node.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
            };
            Some((same, node.memory.is_some(), *key))
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
            if let Some(Held { span, .. }) = &node.memory {
                self.memory.touch(*span, self.now);
            }
            if let Some(file) = node.file {
                self.files.remove(before, node.depth, key, file.bytes);
                self.files.add(node.used, node.depth, key, file.bytes);
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
            && let Some(Held { span, .. }) = node.memory.take()
        {
            self.memory.remove(span, key);
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

impl Files {
    fn add(&mut self, used: u64, depth: usize, key: BlockKey, bytes: u64) {
        self.order.insert(used, depth, key);
        self.bytes += bytes;
    }

    fn remove(&mut self, used: u64, depth: usize, key: BlockKey, bytes: u64) {
        self.order.remove(used, depth, key);
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests;
