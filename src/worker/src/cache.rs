//! Prefix cache: KV blocks of earlier prompts and answers, for requests that begin with the same
//! tokens. Such a request starts with copies of the blocks and computes the remaining tokens, at
//! least the last one, whose logits it needs. The result equals that of a computation from the
//! first token.
//!
//! Layers that do not keep all tokens (windows, recurrent states) cannot be copied at any position:
//! their content is known only where it was stored as a snapshot. For such models, prefill pauses
//! at snapshot points ([`PrefixCache::snapshot_points`]), and a request can start only at one of
//! them.
//!
//! The caches of requests are contiguous, as attention requires. The prefix cache stores blocks
//! ([`tree`]), identified by all tokens up to their end. Adjacent blocks share memory where
//! possible; a text that was stored in fragments is stored in larger spans when a request with this
//! text ends. Blocks use the memory that running requests do not hold yet, and are evicted when the
//! requests grow. With a directory, blocks are also written to files ([`files`]), and read back for
//! a waiting request.
//!
//! If memory is left, the complete cache of a finished request is stored as well ([`idle_rows`]): a
//! request with the same prompt, or with the next turn of a conversation, continues in it without
//! copies. Idle rows are evicted first, because blocks usually hold the same tokens.

mod block_file;
mod disk;
mod disk_tier;
mod eviction;
mod files;
mod fingerprint;
mod idle_rows;
mod key;
pub(crate) mod kv_budget;
pub(crate) mod kv_memory;
mod raw;
mod read_pace;
mod tree;

use camino::Utf8PathBuf;
use rooflet_mlx::mlx_rs::error::Result;
use rooflet_mlx::mlx_rs::{Array, transforms};

pub(crate) use self::disk::Disk;
use self::disk_tier::Files;
pub(crate) use self::files::{BlockFiles, OpenFilesError};
pub(crate) use self::fingerprint::fingerprint;
use self::idle_rows::{IdleRow, IdleRows};
pub(crate) use self::key::BlockKey;
pub(crate) use self::tree::ResumePoints;
use self::tree::{BLOCK_TOKENS, MemoryBlock, Missing, Stored, Tiers, Tree, runs};
use rooflet_base::units::Bytes;
use rooflet_decoder::{KvBlock, KvCache};

/// Minimum number of reused tokens: fewer are not worth the copies. Chat templates begin every
/// prompt with about this many tokens.
const MIN_TOKENS: usize = 8;

/// Minimum number of prefix tokens for which a request waits until files are read or another prompt
/// is prefilled. For fewer tokens, waiting saves nothing: the pass that computes them reads all
/// weights anyway, and can cover both prompts.
const MIN_AWAITED_TOKENS: usize = 16;

/// Minimum distance of snapshots from one another and from the first token. Computing fewer tokens
/// again costs little more than one pass, which reads all weights.
const SNAPSHOT_SPACING: usize = BLOCK_TOKENS;

/// Maximum distance between snapshots in a prompt, which limits the tokens that a diverging prompt
/// computes again. Ollama uses the same distance. Snapshots are large: the state of Qwen3-Next has
/// the size of the keys and values of 3000 tokens.
const SNAPSHOT_INTERVAL: usize = 8192;

/// Cached prefixes of one model, in memory and in files.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    tree: Tree<KvBlock>,
    rows: IdleRows<KvCache>,
    /// Maximum size in memory, however much memory is free.
    capacity: Bytes,
    /// Fingerprint of the model and of the engine.
    model: String,
    files: Option<Files>,
    files_failed: bool,
}

/// Directory for the files of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixFiles {
    pub dir: Utf8PathBuf,
    /// Maximum size of all files together.
    pub limit: Bytes,
}

/// Stage of a sequence whose computed tokens are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreStage {
    /// A part of the prompt is computed.
    PartialPrompt,
    /// The sequence is at a snapshot point.
    SnapshotPoint,
    /// The prompt is prefilled: another request may have the same prompt.
    Prompt,
    /// The request has ended.
    Finished,
}

/// Cached prefix with which a request starts.
#[derive(Debug)]
pub(crate) struct Prefix {
    pub cache: KvCache,
    pub tokens: usize,
    /// Number of these tokens that other requests can use as well.
    pub in_blocks: usize,
}

impl PrefixCache {
    pub(crate) fn new(capacity: Bytes, resume_points: ResumePoints) -> Self {
        Self {
            tree: Tree::new(resume_points),
            rows: IdleRows::default(),
            capacity,
            model: String::new(),
            files: None,
            files_failed: false,
        }
    }

    /// Adds files of at most `limit` bytes in total. `model` is the fingerprint of the model.
    pub(crate) fn with_files(mut self, model: String, disk: Disk, limit: Bytes) -> Self {
        self.model = model;
        self.files = Some(Files::new(disk, limit));
        self
    }

    pub(crate) fn has_files(&self) -> bool {
        self.files.is_some()
    }

    /// Returns true if the files were disabled after a failure of their thread.
    pub(crate) fn files_failed(&self) -> bool {
        self.files_failed
    }

    /// Returns the number of tokens that two prompts must share so that the second waits until the
    /// first is prefilled. `None` if the cache stores nothing.
    pub(crate) fn min_awaited_tokens(&self) -> Option<usize> {
        let least = match self.tree.resume_points() {
            ResumePoints::Anywhere => MIN_AWAITED_TOKENS,
            ResumePoints::AtSnapshots => SNAPSHOT_SPACING,
        };
        (self.capacity > Bytes::ZERO).then_some(least)
    }

    /// Returns the size in memory.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.tree.bytes() + self.rows.bytes())
    }

    /// Returns the size of the files.
    pub(crate) fn file_bytes(&self) -> Bytes {
        Bytes(self.tree.file_bytes())
    }

    /// Returns the longest cached prefix of `prompt` in memory, without its last token, as a cache
    /// like `empty`. `None` if no cached prefix has at least [`MIN_TOKENS`] tokens.
    pub(crate) fn find(&mut self, salt: &str, prompt: &[u32], empty: &KvCache) -> Result<Option<Prefix>> {
        let root = BlockKey::root(&self.model, salt);
        let blocks = self
            .tree
            .find(root, without_last_token(prompt), Tiers::Memory)
            .in_memory;
        let tokens = blocks.iter().map(|(_, length)| length).sum();
        if tokens < MIN_TOKENS {
            return Ok(None);
        }
        let cache = empty.filled_from(&blocks, prompt.len())?;
        Ok(Some(Prefix {
            cache,
            tokens,
            in_blocks: tokens,
        }))
    }

    /// Removes and returns the cache of a finished request in which `prompt` can continue, with
    /// capacity for at most `most` tokens. The row must share at least as many tokens with the
    /// prompt as the blocks hold or will hold, including `awaited` tokens. `None` if no row shares
    /// enough tokens.
    pub(crate) fn take_row(
        &mut self,
        salt: &str,
        prompt: &[u32],
        awaited: usize,
        most: usize,
    ) -> Result<Option<Prefix>> {
        if self.rows.bytes() == 0 {
            return Ok(None);
        }
        let root = BlockKey::root(&self.model, salt);
        let beginning = without_last_token(prompt);
        let found = self.tree.find(root, beginning, Tiers::Both);
        let in_blocks = found.memory_tokens();
        let in_files: usize = found.in_files.iter().map(|block| block.tokens).sum();
        let least = MIN_TOKENS.max(in_blocks + in_files).max(awaited);
        let Some((cache, tokens)) = self.rows.take(root, beginning, least) else {
            return Ok(None);
        };
        let cache = cache.truncated_with_capacity(tokens, prompt.len()..=most)?;
        Ok(Some(Prefix {
            cache,
            tokens,
            in_blocks,
        }))
    }

    /// Stores the cache of a finished request, which holds at least `tokens`, if it fits into
    /// `room` beside the caches of all requests.
    pub(crate) fn store_row(&mut self, salt: &str, mut tokens: Vec<u32>, cache: KvCache, room: Bytes) {
        tokens.truncate(usize::try_from(cache.offset()).unwrap_or(0));
        let bytes = cache.bytes() as u64;
        // No block is evicted for a row: computing the tokens of a block again costs far more than
        // the copy that a row avoids.
        let most = (room.min(self.capacity) - Bytes(self.tree.bytes())).0;
        if self.tree.resume_points() == ResumePoints::AtSnapshots
            || tokens.len() < BLOCK_TOKENS
            || bytes > most
        {
            return;
        }
        self.rows.shrink(most - bytes);
        self.rows.put(IdleRow {
            root: BlockKey::root(&self.model, salt),
            tokens,
            cache,
            bytes,
        });
    }

    /// Returns the snapshot points of `prompt`, of which the first `from` tokens are cached:
    /// numbers of tokens in ascending order. One position is before the last token, so that the
    /// same prompt is found completely. Another position is where the prompt diverges from an
    /// earlier prompt, since further prompts may also diverge there. The remaining positions are at
    /// regular intervals. The list is empty if a text can be resumed at any position.
    pub(crate) fn snapshot_points(&self, salt: &str, prompt: &[u32], from: usize) -> Vec<usize> {
        if self.tree.resume_points() == ResumePoints::Anywhere || self.capacity == Bytes::ZERO {
            return Vec::new();
        }
        let root = BlockKey::root(&self.model, salt);
        let known = self.tree.known_tokens(root, prompt) / BLOCK_TOKENS * BLOCK_TOKENS;
        snapshot_points(from, known, prompt.len().saturating_sub(1))
    }

    /// Stores the blocks of `tokens` that `cache` holds, as far as they fit into `room` beside the
    /// caches of all requests.
    pub(crate) fn store(
        &mut self,
        salt: &str,
        tokens: &[u32],
        cache: &KvCache,
        stage: StoreStage,
        room: Bytes,
    ) -> Result<()> {
        let root = BlockKey::root(&self.model, salt);
        let computed = usize::try_from(cache.offset()).unwrap_or(0).min(tokens.len());
        let Some(end) = self.storable_tokens(root, &tokens[..computed], stage) else {
            return Ok(());
        };
        let limit = room.min(self.capacity).0;
        let mut stored = Vec::new();
        for run in runs(self.tree.missing(root, &tokens[..end])) {
            let whole = run.len();
            if self.store_run(run, tokens, end, cache, limit, &mut stored)? < whole {
                // Blocks after a missing one are useless.
                break;
            }
        }
        if stage == StoreStage::Finished {
            for run in self.tree.fragmented(root, &tokens[..end]) {
                let ranges: Vec<_> = run.iter().map(|part| part.range.clone()).collect();
                let blocks = cache.blocks(&ranges, false)?;
                // Merging evicts no blocks, because it only saves later copies.
                let bytes = self.tree.bytes() + blocks.iter().map(KvBlock::bytes).sum::<u64>();
                if bytes <= limit {
                    self.rows.shrink(limit - bytes);
                    self.insert(&run, tokens, blocks, &mut stored);
                }
            }
        }
        self.queue_writes(root, &tokens[..end], stage);
        // Submits the copies now. The sequence's cache can be updated in place only when no pending
        // copy refers to it.
        transforms::async_eval(&stored)
    }

    /// Stores a run of blocks, or as many of its first blocks as fit. Returns the number of stored
    /// blocks.
    fn store_run(
        &mut self,
        mut run: Vec<Missing>,
        tokens: &[u32],
        end: usize,
        cache: &KvCache,
        limit: u64,
        stored: &mut Vec<Array>,
    ) -> Result<usize> {
        let snapshots = self.tree.resume_points() == ResumePoints::AtSnapshots;
        while let Some(last) = run.last() {
            let snapshot = snapshots && last.range.end == end;
            let ranges: Vec<_> = run.iter().map(|part| part.range.clone()).collect();
            let blocks = cache.blocks(&ranges, snapshot)?;
            let others = limit.checked_sub(blocks.iter().map(KvBlock::bytes).sum());
            if others.is_some_and(|others| self.shrink(others, false)) {
                self.insert(&run, tokens, blocks, stored);
                break;
            }
            run.pop();
        }
        Ok(run.len())
    }

    /// Inserts copied blocks of these parts of a text into the tree.
    fn insert(&mut self, run: &[Missing], tokens: &[u32], blocks: Vec<KvBlock>, stored: &mut Vec<Array>) {
        let (Some(first), Some(copied), Some(last)) = (run.first(), blocks.first(), blocks.last()) else {
            return;
        };
        stored.extend(copied.arrays().cloned());
        if blocks.len() > 1 {
            stored.extend(last.snapshot_arrays().cloned());
        }
        let parts = run.iter().zip(blocks).map(|(part, block)| {
            let size = Stored {
                bytes: block.bytes(),
                snapshot: block.snapshot().is_some(),
            };
            (&tokens[part.range.clone()], size, block)
        });
        let obsolete = self.tree.insert(first.parent, parts);
        if let Some(files) = &self.files {
            obsolete.into_iter().for_each(|key| files.disk.remove(key));
        }
    }

    /// Returns the number of these computed tokens that are stored at this stage. `None` if nothing
    /// is stored.
    fn storable_tokens(&self, root: BlockKey, tokens: &[u32], stage: StoreStage) -> Option<usize> {
        let computed = tokens.len();
        match (self.tree.resume_points(), stage) {
            (ResumePoints::Anywhere, StoreStage::PartialPrompt | StoreStage::SnapshotPoint) => {
                Some(computed / BLOCK_TOKENS * BLOCK_TOKENS)
            }
            (ResumePoints::Anywhere, StoreStage::Prompt | StoreStage::Finished) => {
                (computed >= MIN_TOKENS).then_some(computed)
            }
            (ResumePoints::AtSnapshots, StoreStage::PartialPrompt | StoreStage::Prompt) => None,
            (ResumePoints::AtSnapshots, StoreStage::SnapshotPoint | StoreStage::Finished) => {
                let last = self.tree.last_snapshot(root, tokens);
                (computed >= last + SNAPSHOT_SPACING).then_some(computed)
            }
        }
    }

    /// Evicts rows and blocks from memory until they fit into `room`.
    pub(crate) fn evict(&mut self, room: Bytes) {
        self.shrink(room.0, true);
    }

    /// Evicts like [`Tree::shrink`], after the rows. Returns true if the rest fits into `bytes`.
    fn shrink(&mut self, bytes: u64, all: bool) -> bool {
        self.rows.shrink(bytes.saturating_sub(self.tree.bytes()));
        self.tree.shrink(bytes - self.rows.bytes(), all);
        self.bytes().0 <= bytes
    }
}

impl MemoryBlock for KvBlock {
    fn take_snapshot(&mut self, other: Self) {
        self.take_snapshot(other);
    }
}

/// Implements [`PrefixCache::snapshot_points`]; `last` is the last permitted point.
fn snapshot_points(from: usize, known: usize, last: usize) -> Vec<usize> {
    let regular = (from / SNAPSHOT_INTERVAL + 1..).map(|at| at * SNAPSHOT_INTERVAL);
    let mut wanted: Vec<usize> = regular.take_while(|at| *at < last).chain([known, last]).collect();
    wanted.sort_unstable();
    let mut snapshot_points: Vec<usize> = Vec::new();
    for at in wanted.into_iter().filter(|at| *at <= last) {
        if at >= snapshot_points.last().copied().unwrap_or(from) + SNAPSHOT_SPACING {
            snapshot_points.push(at);
        }
    }
    snapshot_points
}

/// Returns the prompt without its last token, which is computed in any case.
fn without_last_token(prompt: &[u32]) -> &[u32] {
    prompt.split_last().map_or(&[], |(_, first)| first)
}

#[cfg(test)]
mod tests;
