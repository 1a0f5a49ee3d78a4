//! Tree of cached prefixes: each block has up to [`BLOCK_TOKENS`] tokens that follow its parent's
//! tokens. Only complete blocks have children, so that a shared prefix is stored once. A block is
//! in memory, in a file, or both. The module is pure: the caller owns the contents of blocks and
//! the files.
//!
//! Eviction is least recently used first; among equals, the deepest first. Using a block uses all
//! its ancestors. A block in memory has all its ancestors in memory. A file whose ancestors are
//! lost is not found, and is evicted in its turn. In memory, adjacent blocks share spans
//! ([`spans`]), which are evicted as a whole.
//!
//! If the model keeps all tokens, a text can be resumed at any position
//! ([`ResumePoints::Anywhere`]). Other models can only be resumed where the state of their layers
//! was stored: at the end of a block with a snapshot ([`snapshots`]).

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

/// Number of tokens of a complete block, the step by which caches grow.
pub(super) const BLOCK_TOKENS: usize = CACHE_STEP_TOKENS as usize;

/// Positions at which a cached text can be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResumePoints {
    Anywhere,
    /// At the ends of blocks with a snapshot.
    AtSnapshots,
}

impl ResumePoints {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        if config.layers.iter().all(LayerConfig::keeps_all_tokens) {
            Self::Anywhere
        } else {
            Self::AtSnapshots
        }
    }
}

/// Tiers that a search covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiers {
    Memory,
    Both,
}

/// Tree of blocks; `B` is the content of a block in memory ([`MemoryBlock`]).
#[derive(Debug)]
pub(super) struct Tree<B> {
    resume_points: ResumePoints,
    nodes: HashMap<BlockKey, Node<B>>,
    /// Children of each block, and of the roots, which are not blocks themselves.
    children: HashMap<BlockKey, Vec<BlockKey>>,
    memory: Spans,
    files: Files,
    /// Logical time of the last use: number of uses so far.
    now: u64,
}

/// Blocks in files.
#[derive(Debug, Default)]
struct Files {
    order: EvictionOrder<BlockKey>,
    bytes: u64,
}

#[derive(Debug)]
struct Node<B> {
    parent: BlockKey,
    /// Number of tokens before the block.
    depth: usize,
    tokens: Box<[u32]>,
    used: u64,
    memory: Option<MemoryEntry<B>>,
    file: Option<Stored>,
}

#[derive(Debug)]
struct MemoryEntry<B> {
    content: B,
    size: Stored,
    span: SpanId,
}

/// Stored content of a block in one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) bytes: u64,
    /// Set if a snapshot is stored with the block.
    pub(super) snapshot: bool,
}

/// Longest cached prefix of a text.
#[derive(Debug)]
pub(super) struct Found<'a, B> {
    /// Blocks in memory, each with the number of its tokens that match.
    pub(super) in_memory: Vec<(&'a B, usize)>,
    /// The blocks after those, which are only in files.
    pub(super) in_files: Vec<FileBlock>,
}

impl<B> Found<'_, B> {
    /// Returns the number of matching tokens in memory.
    pub(super) fn memory_tokens(&self) -> usize {
        self.in_memory.iter().map(|(_, length)| length).sum()
    }
}

/// Block in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileBlock {
    pub(super) key: BlockKey,
    pub(super) bytes: u64,
    /// Number of its tokens that match.
    pub(super) tokens: usize,
}

/// Block in memory.
#[derive(Debug)]
pub(super) struct Block<'a, B> {
    pub(super) content: &'a B,
    pub(super) parent: BlockKey,
    /// Number of tokens before the block.
    pub(super) depth: usize,
    pub(super) tokens: &'a [u32],
}

/// Part of a text that is not in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) parent: BlockKey,
    /// Position of its tokens in the text.
    pub(super) range: Range<usize>,
}

/// Content of a block in memory.
pub(super) trait MemoryBlock {
    /// Adopts the snapshot of another block with the same tokens.
    fn take_snapshot(&mut self, other: Self);
}

impl<B: MemoryBlock> Tree<B> {
    pub(super) fn new(resume_points: ResumePoints) -> Self {
        Self {
            resume_points,
            nodes: HashMap::new(),
            children: HashMap::new(),
            memory: Spans::default(),
            files: Files::default(),
            now: 0,
        }
    }

    /// Returns the size of all blocks in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Returns the size of all files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.files.bytes
    }

    pub(super) fn resume_points(&self) -> ResumePoints {
        self.resume_points
    }

    /// Returns the longest cached prefix of `tokens` that can be resumed, in memory only or in both
    /// tiers. Marks its blocks as used.
    pub(super) fn find(&mut self, root: BlockKey, tokens: &[u32], tiers: Tiers) -> Found<'_, B> {
        self.now += 1;
        let path = match self.resume_points {
            ResumePoints::Anywhere => match tiers {
                Tiers::Memory => self.path(root, tokens, |node| node.memory.is_some()),
                Tiers::Both => self.path(root, tokens, |_| true),
            },
            ResumePoints::AtSnapshots => self.resumable(root, tokens, tiers),
        };
        for (key, _) in &path {
            self.touch(*key);
        }
        let last = path.last().map(|(key, _)| *key);
        let (mut in_memory, mut in_files) = (Vec::new(), Vec::new());
        for (key, length) in path {
            let Some(node) = self.nodes.get(&key) else { break };
            let needs_snapshot = self.resume_points == ResumePoints::AtSnapshots && last == Some(key);
            let enough = |size: Stored| size.snapshot || !needs_snapshot;
            match (&node.memory, node.file) {
                (Some(block), _) if in_files.is_empty() && enough(block.size) => {
                    in_memory.push((&block.content, length));
                }
                (_, Some(size)) if tiers == Tiers::Both && enough(size) => in_files.push(FileBlock {
                    key,
                    bytes: size.bytes,
                    tokens: length,
                }),
                _ => break,
            }
        }
        Found { in_memory, in_files }
    }

    /// Returns the blocks of the longest cached prefix of `tokens`, each with the number of its
    /// tokens that match. Considers only blocks for which `filter` is true.
    fn path(
        &self,
        root: BlockKey,
        tokens: &[u32],
        filter: impl Fn(&Node<B>) -> bool,
    ) -> Vec<(BlockKey, usize)> {
        let mut path = Vec::new();
        let (mut parent, mut rest) = (root, tokens);
        while let Some((key, length)) = self.longest_child(parent, rest, &filter) {
            path.push((key, length));
            if length < BLOCK_TOKENS {
                break;
            }
            (parent, rest) = (key, &rest[length..]);
        }
        path
    }

    /// Returns the blocks that hold `tokens`, as far as they are cached.
    pub(super) fn blocks_of(&self, root: BlockKey, tokens: &[u32]) -> Vec<BlockKey> {
        match self.resume_points {
            ResumePoints::Anywhere => self
                .path(root, tokens, |_| true)
                .into_iter()
                .map(|(key, _)| key)
                .collect(),
            ResumePoints::AtSnapshots => self.whole_path(root, tokens),
        }
    }

    /// Returns the blocks of [`blocks_of`](Self::blocks_of), and all other blocks that end within `tokens`: shorter
    /// versions of a block, and blocks whose ancestors are not cached.
    pub(super) fn all_blocks_of(&self, root: BlockKey, tokens: &[u32]) -> Vec<BlockKey> {
        let mut blocks = self.blocks_of(root, tokens);
        let mut parent = root;
        for block in tokens.chunks(BLOCK_TOKENS) {
            let children = self.children.get(&parent).into_iter().flatten().copied();
            let within = |key: &BlockKey| {
                let node = self.nodes.get(key);
                node.is_some_and(|node| block.starts_with(&node.tokens))
            };
            blocks.extend(children.filter(within));
            parent = parent.child(block);
        }
        blocks
    }

    /// Returns the number of leading tokens that are cached in any tier, whether or not they can be
    /// resumed.
    pub(super) fn known_tokens(&self, root: BlockKey, tokens: &[u32]) -> usize {
        self.path(root, tokens, |_| true)
            .iter()
            .map(|(_, length)| length)
            .sum()
    }

    /// Returns the parts of `tokens` that are not in memory, in order. Marks the other blocks as
    /// used.
    pub(super) fn missing(&mut self, root: BlockKey, tokens: &[u32]) -> Vec<Missing> {
        self.now += 1;
        if self.resume_points == ResumePoints::AtSnapshots {
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

    /// Inserts blocks that were [`missing`](Self::missing) or [`fragmented`](Self::fragmented),
    /// each the parent of the next, with the last use of `parent`. They share one span. Returns
    /// blocks whose files became useless, because they hold a shorter beginning of an inserted
    /// block.
    pub(super) fn insert<'a>(
        &mut self,
        mut parent: BlockKey,
        blocks: impl IntoIterator<Item = (&'a [u32], Stored, B)>,
    ) -> Vec<BlockKey> {
        let mut obsolete = Vec::new();
        let span = self.memory.new_span();
        for (tokens, size, content) in blocks {
            let key = self.add(parent, tokens);
            self.put(key, size, content, span);
            if self.resume_points == ResumePoints::Anywhere {
                obsolete.extend(self.evict_shorter(parent, tokens));
            }
            parent = key;
        }
        obsolete
    }

    /// Evicts children that hold a beginning of `tokens`, if a text can be resumed at any position.
    /// Returns those that had files.
    fn evict_shorter(&mut self, parent: BlockKey, tokens: &[u32]) -> Vec<BlockKey> {
        let siblings = self.children.get(&parent).cloned().unwrap_or_default();
        let shorter = |node: &Node<B>| node.tokens.len() < tokens.len() && tokens.starts_with(&node.tokens);
        let mut obsolete = Vec::new();
        for sibling in siblings {
            if self.nodes.get(&sibling).is_some_and(shorter) {
                self.evict(sibling);
                obsolete.extend(self.remove_file_of(sibling).then_some(sibling));
            }
        }
        obsolete
    }

    /// Inserts a block into memory that was read from its file. Does nothing if the block is
    /// unknown by now, or if it is in memory with at least the same content.
    pub(super) fn insert_loaded(&mut self, key: BlockKey, size: Stored, content: B) {
        let there = self.nodes.get(&key).and_then(|node| node.memory.as_ref());
        if there.is_some_and(|there| there.size.snapshot || !size.snapshot) {
            return;
        }
        let span = self.memory.new_span();
        self.put(key, size, content, span);
    }

    /// Stores the content of a block in memory. If the block is in memory and texts resume only at
    /// snapshots, the block adopts the snapshot of `content`.
    fn put(&mut self, key: BlockKey, size: Stored, content: B, span: SpanId) {
        if self.resume_points == ResumePoints::Anywhere {
            self.clear_memory(key);
        }
        let Some(node) = self.nodes.get_mut(&key) else {
            return;
        };
        match &mut node.memory {
            None => {
                node.memory = Some(MemoryEntry { content, size, span });
                self.memory.add(span, key, node.depth, node.used, size.bytes);
            }
            Some(there) => {
                there.content.take_snapshot(content);
                self.memory
                    .grow(there.span, size.bytes.saturating_sub(there.size.bytes));
                there.size = size;
            }
        }
    }

    /// Returns a block in memory.
    pub(super) fn get(&self, key: BlockKey) -> Option<Block<'_, B>> {
        let node = self.nodes.get(&key)?;
        let memory = node.memory.as_ref()?;
        Some(Block {
            content: &memory.content,
            parent: node.parent,
            depth: node.depth,
            tokens: &node.tokens,
        })
    }

    /// Returns true if the file holds everything that memory holds of a block.
    pub(super) fn has_file(&self, key: BlockKey) -> bool {
        self.nodes.get(&key).is_some_and(|node| {
            let snapshot = node.memory.as_ref().is_some_and(|entry| entry.size.snapshot);
            node.file.is_some_and(|file| file.snapshot || !snapshot)
        })
    }

    /// Returns true if a block may be inserted into memory: it is known, and its ancestors are in
    /// memory.
    pub(super) fn can_enter_memory(&self, key: BlockKey) -> bool {
        self.nodes.get(&key).is_some_and(|node| {
            let parent = self.nodes.get(&node.parent);
            // The parent of a first block is a root, which is not a block.
            parent.is_none_or(|parent| parent.memory.is_some())
        })
    }

    /// Records the file of a block, in place of an earlier one.
    pub(super) fn add_file(&mut self, parent: BlockKey, tokens: &[u32], size: Stored) {
        let key = self.add(parent, tokens);
        if let Some(node) = self.nodes.get_mut(&key) {
            if let Some(before) = node.file.replace(size) {
                self.files.remove(node.used, node.depth, key, before.bytes);
            }
            self.files.add(node.used, node.depth, key, size.bytes);
        }
    }

    /// Marks a block and all its ancestors as used.
    pub(super) fn touch_path(&mut self, key: BlockKey) {
        self.now += 1;
        let mut next = Some(key);
        while let Some(key) = next {
            self.touch(key);
            next = self.nodes.get(&key).map(|node| node.parent);
        }
    }

    /// Marks blocks and all their ancestors as used, in order: the last block has the latest use.
    pub(super) fn touch_paths(&mut self, keys: &[BlockKey]) {
        let before = self.now;
        let last = before + keys.len() as u64;
        for (later, key) in (0..).zip(keys.iter().rev()) {
            self.now = last - later;
            let mut next = Some(*key);
            // Ancestors shared with later blocks are already marked.
            while let Some(key) = next
                && let Some(node) = self.nodes.get(&key).filter(|node| node.used <= before)
            {
                next = Some(node.parent);
                self.touch(key);
            }
        }
        self.now = last;
    }

    /// Removes the file of a block. Returns true if there was one.
    pub(super) fn remove_file_of(&mut self, key: BlockKey) -> bool {
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

    /// Evicts the least recently used spans from memory until at most `limit` bytes remain. Unless
    /// `all`, spares the blocks of the tree's latest use.
    pub(super) fn shrink(&mut self, limit: u64, all: bool) {
        while self.memory.bytes() > limit {
            match self.memory.first() {
                // In reverse order: ancestors must stay in memory as long as their descendants.
                Some((used, blocks)) if all || used < self.now => {
                    blocks.into_iter().rev().for_each(|key| self.evict(key));
                }
                Some(_) | None => return,
            }
        }
    }

    /// Removes the least recently used files until at most `limit` bytes remain. Returns their
    /// blocks.
    pub(super) fn shrink_files(&mut self, limit: u64) -> Vec<BlockKey> {
        let mut removed = Vec::new();
        while self.files.bytes > limit
            && let Some((_, key)) = self.files.order.first()
        {
            self.remove_file_of(key);
            removed.push(key);
        }
        removed
    }

    /// Returns the child that shares the most leading tokens with `tokens`, and their number. Among
    /// equals, prefers a block in memory.
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

    /// Adds a block without contents, unless it exists.
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
            if let Some(MemoryEntry { span, .. }) = &node.memory {
                self.memory.touch(*span, self.now);
            }
            if let Some(file) = node.file {
                self.files.remove(before, node.depth, key, file.bytes);
                self.files.add(node.used, node.depth, key, file.bytes);
            }
        }
    }

    /// Evicts a block from memory.
    fn evict(&mut self, key: BlockKey) {
        self.clear_memory(key);
        self.prune(key);
    }

    fn clear_memory(&mut self, key: BlockKey) {
        if let Some(node) = self.nodes.get_mut(&key)
            && let Some(MemoryEntry { span, .. }) = node.memory.take()
        {
            self.memory.remove(span, key);
        }
    }

    /// Removes a block without contents and without children, and likewise its ancestors.
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
