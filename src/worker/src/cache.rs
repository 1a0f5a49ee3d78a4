//! The prefix cache: keys and values of prompts and answers that were computed, kept for requests
//! that begin with the same tokens. Such a request begins with copies, and is computed from there
//! on; at least its last token is, for its logits. The result is the same as without.
//!
//! Layers that do not keep all tokens are where it is not enough to copy: what they hold is only
//! known where it was kept, as a snapshot. Such models' prompts are read with stops
//! ([`PrefixCache::stops`]), and found up to one.
//!
//! Requests' caches are contiguous, as attention wants them; what is shared and kept are blocks
//! ([`tree`]), by the tokens that lead to them. Neighbouring blocks lie in one piece where they
//! can, and a text that has come together piece by piece is put into larger ones when a request
//! that had it ends. They use memory that running requests do not hold yet, and give way when those
//! grow. Where there is a directory, blocks are also written to files ([`files`]), and read into
//! memory for a request that waits.
//!
//! Where memory is left, the cache of a request that is over stays whole, too ([`idle_rows`]): the
//! same prompt, or the next turn of a conversation, goes on in it. It is the first to give way,
//! since blocks hold the same in most cases.

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
pub(crate) use self::tree::Cuts;
use self::tree::{BLOCK_TOKENS, InMemory, Missing, Stored, Tiers, Tree, runs};
use crate::models::{KvBlock, KvCache};
use rooflet_base::units::Bytes;

/// Reusing fewer tokens than this is not worth the copies; it is about what chat templates begin
/// every prompt with.
const MIN_TOKENS: usize = 8;

/// Waiting for fewer tokens than this, for files or for another prompt to be read, is not worth it:
/// the pass that computes them reads all weights anyway, and takes both prompts.
const MIN_AWAITED_TOKENS: usize = 16;

/// Snapshots are at least so far from one another, and from the beginning. Reading fewer tokens
/// again costs little more than one pass, which reads all weights.
const SNAPSHOT_SPACING: usize = BLOCK_TOKENS;

/// The longest stretch of a prompt without a snapshot, so that one who parts from it has no more to
/// read again; Ollama's distance, too. They are large: the state of Qwen3-Next is as large as keys
/// and values of 3000 of its tokens.
const SNAPSHOT_INTERVAL: usize = 8192;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    tree: Tree<KvBlock>,
    rows: IdleRows<KvCache>,
    /// The most it may hold in memory, whatever else is free.
    capacity: Bytes,
    /// Names the model, and what computes with it.
    model: String,
    files: Option<Files>,
    files_failed: bool,
}

/// Where blocks are written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixFiles {
    pub dir: Utf8PathBuf,
    /// The most that all files may have together.
    pub limit: Bytes,
}

/// What of a sequence is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// More of its prompt is to come.
    WholeBlocks,
    /// It is at one of its stops.
    Stop,
    /// Its prompt has been read: another request may have the same.
    Prompt,
    /// It is over.
    Everything,
}

/// A beginning for a request.
#[derive(Debug)]
pub(crate) struct Prefix {
    pub cache: KvCache,
    pub tokens: usize,
    /// Those of them that other requests find, too.
    pub in_blocks: usize,
}

impl PrefixCache {
    pub(crate) fn new(capacity: Bytes, cuts: Cuts) -> Self {
        Self {
            tree: Tree::new(cuts),
            rows: IdleRows::default(),
            capacity,
            model: String::new(),
            files: None,
            files_failed: false,
        }
    }

    /// With files of at most `limit` bytes, of the model that `model` names.
    pub(crate) fn with_files(mut self, model: String, disk: Disk, limit: Bytes) -> Self {
        self.model = model;
        self.files = Some(Files::new(disk, limit));
        self
    }

    pub(crate) fn has_files(&self) -> bool {
        self.files.is_some()
    }

    /// There were files until whoever wrote them failed.
    pub(crate) fn files_failed(&self) -> bool {
        self.files_failed
    }

    /// How many tokens two prompts must begin with, so that the second does well to wait until the
    /// first is read. `None`: it never finds anything then.
    pub(crate) fn least_awaited(&self) -> Option<usize> {
        let least = match self.tree.cuts() {
            Cuts::Anywhere => MIN_AWAITED_TOKENS,
            Cuts::AtSnapshots => SNAPSHOT_SPACING,
        };
        (self.capacity > Bytes::ZERO).then_some(least)
    }

    /// In memory.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.tree.bytes() + self.rows.bytes())
    }

    /// In files.
    pub(crate) fn file_bytes(&self) -> Bytes {
        Bytes(self.tree.file_bytes())
    }

    /// The longest beginning of `prompt` that is in memory, without its last token, put into a
    /// cache such as `empty`. `None` where there is none worth it.
    pub(crate) fn find(&mut self, salt: &str, prompt: &[u32], empty: &KvCache) -> Result<Option<Prefix>> {
        let root = BlockKey::root(&self.model, salt);
        let blocks = self.tree.find(root, but_the_last(prompt), Tiers::Memory).held;
        let tokens = blocks.iter().map(|(_, length)| length).sum();
        if tokens < MIN_TOKENS {
            return Ok(None);
        }
        let cache = empty.begun(&blocks, prompt.len())?;
        Ok(Some(Prefix {
            cache,
            tokens,
            in_blocks: tokens,
        }))
    }

    /// The cache of a request that is over for a prompt to go on in, with room for `most` tokens at
    /// most: one that holds no less of its beginning than there is elsewhere, `awaited` tokens
    /// included. `None` where there is none worth it.
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
        let beginning = but_the_last(prompt);
        let found = self.tree.find(root, beginning, Tiers::Both);
        let in_blocks = found.held_tokens();
        let filed: usize = found.filed.iter().map(|filed| filed.tokens).sum();
        let least = MIN_TOKENS.max(in_blocks + filed).max(awaited);
        let Some((cache, tokens)) = self.rows.take(root, beginning, least) else {
            return Ok(None);
        };
        let cache = cache.continued(tokens, prompt.len()..=most)?;
        Ok(Some(Prefix {
            cache,
            tokens,
            in_blocks,
        }))
    }

    /// Keeps the cache of a request that is over, which holds these tokens and maybe more, as it
    /// is; as far as there is `room` beside what all requests hold.
    pub(crate) fn keep_row(&mut self, salt: &str, mut tokens: Vec<u32>, cache: KvCache, room: Bytes) {
        tokens.truncate(usize::try_from(cache.offset()).unwrap_or(0));
        let bytes = cache.bytes() as u64;
        // No block goes for it: to compute what was in one costs far more than the copy that a row
        // saves.
        let most = (room.min(self.capacity) - Bytes(self.tree.bytes())).0;
        if self.tree.cuts() == Cuts::AtSnapshots || tokens.len() < BLOCK_TOKENS || bytes > most {
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

    /// How many tokens of `prompt`, of which the first `from` are known, are to be in a cache when
    /// it is kept, in ascending order. Before the last token, so that the same prompt is found
    /// whole; where it parts from an earlier one, since others may do so, too; and from time to
    /// time. None where a cache can be cut anywhere.
    pub(crate) fn stops(&self, salt: &str, prompt: &[u32], from: usize) -> Vec<usize> {
        if self.tree.cuts() == Cuts::Anywhere || self.capacity == Bytes::ZERO {
            return Vec::new();
        }
        let root = BlockKey::root(&self.model, salt);
        let known = self.tree.known(root, prompt) / BLOCK_TOKENS * BLOCK_TOKENS;
        stops(from, known, prompt.len().saturating_sub(1))
    }

    /// Keeps what `cache` holds of `tokens`, as far as there is `room` beside what all requests
    /// hold.
    pub(crate) fn keep(
        &mut self,
        salt: &str,
        tokens: &[u32],
        cache: &KvCache,
        keep: Keep,
        room: Bytes,
    ) -> Result<()> {
        let root = BlockKey::root(&self.model, salt);
        let computed = usize::try_from(cache.offset()).unwrap_or(0).min(tokens.len());
        let Some(end) = self.end_to_keep(root, &tokens[..computed], keep) else {
            return Ok(());
        };
        let limit = room.min(self.capacity).0;
        let mut kept = Vec::new();
        for run in runs(self.tree.missing(root, &tokens[..end])) {
            let whole = run.len();
            if self.keep_run(run, tokens, end, cache, limit, &mut kept)? < whole {
                // What follows would be of no use.
                break;
            }
        }
        if keep == Keep::Everything {
            for run in self.tree.scattered(root, &tokens[..end]) {
                let ranges: Vec<_> = run.iter().map(|part| part.range.clone()).collect();
                let blocks = cache.blocks(&ranges, false)?;
                // No other block gives way for it.
                let bytes = self.tree.bytes() + blocks.iter().map(KvBlock::bytes).sum::<u64>();
                if bytes <= limit {
                    self.rows.shrink(limit - bytes);
                    self.insert(&run, tokens, blocks, &mut kept);
                }
            }
        }
        self.save_later(root, &tokens[..end], keep);
        // Now, while the sequence's cache is what it is: it goes on in place once nothing refers to
        // it any more.
        transforms::async_eval(&kept)
    }

    /// Keeps a run of blocks, or as many of its first as there is room for, and returns how many.
    fn keep_run(
        &mut self,
        mut run: Vec<Missing>,
        tokens: &[u32],
        end: usize,
        cache: &KvCache,
        limit: u64,
        kept: &mut Vec<Array>,
    ) -> Result<usize> {
        let snapshots = self.tree.cuts() == Cuts::AtSnapshots;
        while let Some(last) = run.last() {
            let snapshot = snapshots && last.range.end == end;
            let ranges: Vec<_> = run.iter().map(|part| part.range.clone()).collect();
            let blocks = cache.blocks(&ranges, snapshot)?;
            let others = limit.checked_sub(blocks.iter().map(KvBlock::bytes).sum());
            if others.is_some_and(|others| self.shrink(others, false)) {
                self.insert(&run, tokens, blocks, kept);
                break;
            }
            run.pop();
        }
        Ok(run.len())
    }

    /// Puts what was copied of these parts of a text into memory.
    fn insert(&mut self, run: &[Missing], tokens: &[u32], blocks: Vec<KvBlock>, kept: &mut Vec<Array>) {
        let (Some(first), Some(copied), Some(last)) = (run.first(), blocks.first(), blocks.last()) else {
            return;
        };
        kept.extend(copied.arrays().cloned());
        if blocks.len() > 1 {
            kept.extend(last.snapshot_arrays().cloned());
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

    /// How many of these tokens, which have been computed, are to be kept.
    fn end_to_keep(&self, root: BlockKey, tokens: &[u32], keep: Keep) -> Option<usize> {
        let computed = tokens.len();
        match (self.tree.cuts(), keep) {
            (Cuts::Anywhere, Keep::WholeBlocks | Keep::Stop) => Some(computed / BLOCK_TOKENS * BLOCK_TOKENS),
            (Cuts::Anywhere, Keep::Prompt | Keep::Everything) => (computed >= MIN_TOKENS).then_some(computed),
            (Cuts::AtSnapshots, Keep::WholeBlocks | Keep::Prompt) => None,
            (Cuts::AtSnapshots, Keep::Stop | Keep::Everything) => {
                let last = self.tree.last_snapshot(root, tokens);
                (computed >= last + SNAPSHOT_SPACING).then_some(computed)
            }
        }
    }

    /// Lets go of rows and blocks in memory until they have no more than `room`.
    pub(crate) fn give_way(&mut self, room: Bytes) {
        self.shrink(room.0, true);
    }

    /// The same; whether it is so in the end. See [`Tree::shrink`].
    fn shrink(&mut self, bytes: u64, all: bool) -> bool {
        self.rows.shrink(bytes.saturating_sub(self.tree.bytes()));
        self.tree.shrink(bytes - self.rows.bytes(), all);
        self.bytes().0 <= bytes
    }
}

impl InMemory for KvBlock {
    fn take_snapshot(&mut self, other: Self) {
        self.take_snapshot(other);
    }
}

/// See [`PrefixCache::stops`]; `last` is the last that may be one.
fn stops(from: usize, known: usize, last: usize) -> Vec<usize> {
    let regular = (from / SNAPSHOT_INTERVAL + 1..).map(|at| at * SNAPSHOT_INTERVAL);
    let mut wanted: Vec<usize> = regular.take_while(|at| *at < last).chain([known, last]).collect();
    wanted.sort_unstable();
    let mut stops: Vec<usize> = Vec::new();
    for at in wanted.into_iter().filter(|at| *at <= last) {
        if at >= stops.last().copied().unwrap_or(from) + SNAPSHOT_SPACING {
            stops.push(at);
        }
    }
    stops
}

/// The last token is computed in any case.
fn but_the_last(prompt: &[u32]) -> &[u32] {
    prompt.split_last().map_or(&[], |(_, first)| first)
}

#[cfg(test)]
mod tests;
