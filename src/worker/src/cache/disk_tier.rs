//! Disk tier of the prefix cache: selects the blocks to write to files, and the blocks to read into
//! memory for a prompt.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rooflet_mlx::mlx_rs::error::Result;

use super::block_file::BlockName;
use super::disk::{Disk, PollResult, Report};
use super::files::FoundFile;
use super::raw::{BlockArrays, BlockCopy};
use super::read_pace::ReadPace;
use super::tree::{BLOCK_TOKENS, FileBlock, ResumePoints, Stored, Tiers};
use super::{BlockKey, MIN_AWAITED_TOKENS, PrefixCache, StoreStage, without_last_token};
use rooflet_base::units::Bytes;
use rooflet_decoder::KvBlock;

/// Maximum number of blocks with a pending write. Further blocks wait in memory, or are evicted
/// without being written.
const MAX_WRITING: usize = 4;

/// Number of bytes that are copied for the disk between two checks of the time limit.
const SLICE_BYTES: usize = 1 << 20;

/// Maximum number of blocks that wait to be written. If more wait, the disk is far too slow.
const MAX_UNSAVED: usize = 1024;

/// Time without writes after the disk was full and no file could be removed.
const FULL_PAUSE: Duration = Duration::from_secs(60);

/// State of the files, as known to the engine's thread.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) disk: Disk,
    /// Maximum size of all files together.
    limit: Bytes,
    /// Blocks in memory that are to be written, in order; parents precede children.
    unsaved: VecDeque<BlockKey>,
    /// Block that is being copied for the disk.
    copying: Option<(BlockKey, BlockCopy)>,
    writing: BTreeMap<BlockKey, Writing>,
    reading: BTreeSet<BlockKey>,
    read_pace: ReadPace,
    /// End of the pause after the disk was full and no file could be removed.
    full_until: Option<Instant>,
}

impl Files {
    pub(super) fn new(disk: Disk, limit: Bytes) -> Self {
        Self {
            disk,
            limit,
            unsaved: VecDeque::new(),
            copying: None,
            writing: BTreeMap::new(),
            reading: BTreeSet::new(),
            read_pace: ReadPace::default(),
            full_until: None,
        }
    }
}

/// Block with a pending write.
#[derive(Debug)]
struct Writing {
    parent: BlockKey,
    tokens: Vec<u32>,
    bytes: u64,
    snapshot: bool,
}

impl PrefixCache {
    /// Starts reading the blocks of `prompt` that are only in files, as far as they fit into `room`
    /// beside the caches of all requests. Reads nothing if computing the blocks, at this many
    /// tokens per second, is faster. Returns the blocks that are being read.
    pub(crate) fn load(
        &mut self,
        salt: &str,
        prompt: &[u32],
        room: Bytes,
        prefill_tokens_per_second: Option<f64>,
        now: Instant,
    ) -> BTreeSet<BlockKey> {
        let Some(files) = &mut self.files else {
            return BTreeSet::new();
        };
        if files.full_until.is_some_and(|until| until <= now) {
            files.full_until = None;
        }
        let root = BlockKey::root(&self.model, salt);
        let resume_points = self.tree.resume_points();
        let prompt = without_last_token(prompt);
        let in_memory = self.tree.find(root, prompt, Tiers::Memory).memory_tokens();
        let found = self.tree.find(root, prompt, Tiers::Both);
        let mut bytes: u64 = found.in_memory.iter().map(|(block, _)| block.bytes()).sum();
        let limit = room.min(self.capacity).0;
        let fits = |block: &&FileBlock| {
            bytes += block.bytes;
            bytes <= limit
        };
        let wanted: Vec<&FileBlock> = found.in_files.iter().take_while(fits).collect();
        // Without the last block there is no snapshot.
        let useless = resume_points == ResumePoints::AtSnapshots && wanted.len() < found.in_files.len();
        let memory_tokens = found.memory_tokens();
        let file_tokens: usize = wanted.iter().map(|block| block.tokens).sum();
        let tokens = (memory_tokens + file_tokens).saturating_sub(in_memory);
        if useless || tokens < MIN_AWAITED_TOKENS {
            return BTreeSet::new();
        }
        let bytes = wanted.iter().map(|block| block.bytes).sum();
        let computing = prefill_tokens_per_second.map(|rate| tokens as f64 / rate);
        if !files.read_pace.should_read(bytes, computing, now) {
            return BTreeSet::new();
        }
        files.read_pace.begin(now);
        for block in &wanted {
            if files.reading.insert(block.key) {
                files.disk.read(block.key);
            }
        }
        wanted.iter().map(|block| block.key).collect()
    }

    /// Returns true if any of these blocks is being read.
    pub(crate) fn is_loading(&self, keys: &BTreeSet<BlockKey>) -> bool {
        let files = self.files.as_ref();
        files.is_some_and(|files| !files.reading.is_disjoint(keys))
    }

    /// Queues blocks of a text for writing: complete blocks, and at the end of a request also the
    /// last, incomplete one. A text shorter than a block is not worth a file.
    pub(super) fn queue_writes(&mut self, root: BlockKey, tokens: &[u32], stage: StoreStage) {
        let Some(files) = &mut self.files else { return };
        if files.full_until.is_some() {
            return;
        }
        let count = match (self.tree.resume_points(), stage) {
            (
                ResumePoints::Anywhere,
                StoreStage::PartialPrompt | StoreStage::SnapshotPoint | StoreStage::Prompt,
            ) => tokens.len() / BLOCK_TOKENS,
            (ResumePoints::Anywhere | ResumePoints::AtSnapshots, _) if tokens.len() < BLOCK_TOKENS => 0,
            (ResumePoints::Anywhere, StoreStage::Finished) | (ResumePoints::AtSnapshots, _) => usize::MAX,
        };
        for key in self.tree.blocks_of(root, tokens).into_iter().take(count) {
            let copying = files.copying.as_ref().is_some_and(|(copying, _)| *copying == key);
            let known = self.tree.has_file(key) || copying || files.writing.contains_key(&key);
            if !known && files.unsaved.len() < MAX_UNSAVED && !files.unsaved.contains(&key) {
                files.unsaved.push_back(key);
            }
        }
    }

    /// Returns true if [`poll_files`](Self::poll_files) has something to write.
    pub(crate) fn has_work(&self) -> bool {
        let files = self.files.as_ref();
        files.is_some_and(|files| {
            files.copying.is_some() || (!files.unsaved.is_empty() && files.writing.len() < MAX_WRITING)
        })
    }

    /// Processes the reports of the disk thread, and copies at most one more block for it while
    /// `time` returns true. `room` is the memory that all requests leave free.
    pub(crate) fn poll_files(
        &mut self,
        room: Bytes,
        now: impl Fn() -> Instant,
        time: impl FnMut() -> bool,
    ) -> Result<()> {
        while let Some(files) = &self.files {
            match files.disk.poll() {
                PollResult::Empty => break,
                PollResult::Failed => self.disable_files(),
                PollResult::Report(Report::Found(files)) => self.add_found(files),
                PollResult::Report(Report::Read(key, block)) => {
                    self.insert_read(key, block, room);
                    if let Some(files) = &mut self.files
                        && files.reading.is_empty()
                    {
                        files.read_pace.end(now());
                    }
                }
                PollResult::Report(Report::Written(key, bytes)) => self.record_written(key, bytes),
                PollResult::Report(Report::Full(key)) => self.free_disk_space(key, now()),
            }
        }
        self.advance_write(time)
    }

    /// Passes the queued blocks to the disk thread while `time` returns true. The thread writes
    /// them before it ends.
    pub(crate) fn finish(&mut self, mut time: impl FnMut() -> bool) -> Result<()> {
        while self.has_work() && time() {
            self.advance_write(|| true)?;
        }
        while time()
            && let Some(files) = self.files.as_ref().filter(|files| !files.writing.is_empty())
        {
            match files.disk.wait() {
                Some(Report::Written(key, bytes)) => self.record_written(key, bytes),
                Some(Report::Full(key)) => self.record_written(key, None),
                Some(Report::Found(_) | Report::Read(..)) => {}
                None => break,
            }
            self.advance_write(|| true)?;
        }
        Ok(())
    }

    /// Handles a full disk after a failed write of block `key`. Removes the least recently used
    /// files to make space for the next block. If there are no files, pauses all writes for a
    /// while.
    fn free_disk_space(&mut self, key: BlockKey, now: Instant) {
        let Some(files) = &mut self.files else { return };
        let bytes = files.writing.remove(&key).map_or(0, |writing| writing.bytes);
        let others = self.tree.file_bytes().saturating_sub(bytes);
        let removed = self.tree.shrink_files(others);
        if removed.is_empty() {
            files.full_until = Some(now + FULL_PAUSE);
            files.unsaved.clear();
            files.copying = None;
        }
        removed.into_iter().for_each(|key| files.disk.remove(key));
    }

    /// Removes the files of the blocks of `tokens`, and cancels all pending writes, which may have the same faulty
    /// values.
    pub(crate) fn remove_files(&mut self, salt: &str, tokens: &[u32]) {
        let Some(files) = &mut self.files else { return };
        files.unsaved.clear();
        files.copying = None;
        for key in std::mem::take(&mut files.writing).into_keys() {
            // The thread executes changes in order, so that the file is removed after its write.
            files.disk.remove(key);
        }
        let root = BlockKey::root(&self.model, salt);
        for key in self.tree.all_blocks_of(root, tokens) {
            files.reading.remove(&key);
            if self.tree.remove_file_of(key) {
                files.disk.remove(key);
            }
        }
    }

    /// Discards all files after the disk thread failed, so that no request waits for them.
    fn disable_files(&mut self) {
        tracing::error!("prefix file thread failed, caching prefixes in memory only");
        self.files = None;
        self.files_failed = true;
        self.tree.shrink_files(0);
    }

    fn add_found(&mut self, mut found: Vec<FoundFile>) {
        let used = found.iter().map(|file| file.name.key()).collect::<Vec<_>>();
        found.sort_by_key(|file| file.name.depth);
        for FoundFile {
            name,
            bytes,
            snapshot,
            ..
        } in found
        {
            let size = Stored { bytes, snapshot };
            self.tree.add_file(name.parent, &name.tokens, size);
        }
        self.tree.touch_paths(&used);
        self.enforce_file_limit();
    }

    fn insert_read(&mut self, key: BlockKey, block: Option<BlockArrays>, room: Bytes) {
        let is_expected = self
            .files
            .as_mut()
            .is_some_and(|files| files.reading.remove(&key));
        if !is_expected {
            return;
        }
        let Some(block) = block else {
            self.tree.remove_file_of(key);
            return;
        };
        let block = KvBlock::from(block);
        let bytes = block.bytes();
        if let Some(files) = &mut self.files {
            files.read_pace.add(bytes);
        }
        let others = room.min(self.capacity).0.checked_sub(bytes);
        if let (Some(others), true) = (others, self.tree.can_enter_memory(key)) {
            self.tree.touch_path(key);
            if self.shrink(others, false) {
                let snapshot = block.snapshot().is_some();
                self.tree.insert_loaded(key, Stored { bytes, snapshot }, block);
            }
        }
    }

    fn record_written(&mut self, key: BlockKey, bytes: Option<u64>) {
        let Some(files) = &mut self.files else { return };
        if let (Some(written), Some(bytes)) = (files.writing.remove(&key), bytes) {
            let snapshot = written.snapshot;
            self.tree
                .add_file(written.parent, &written.tokens, Stored { bytes, snapshot });
            self.enforce_file_limit();
        }
    }

    fn enforce_file_limit(&mut self) {
        if let Some(files) = &self.files {
            let pending: u64 = files.writing.values().map(|writing| writing.bytes).sum();
            for key in self.tree.shrink_files(files.limit.0.saturating_sub(pending)) {
                files.disk.remove(key);
            }
        }
    }

    /// Copies the next block slice by slice while `time` returns true, at least one slice, and
    /// passes it to the disk thread when it is complete. Blocks that were evicted meanwhile are not
    /// written.
    fn advance_write(&mut self, mut time: impl FnMut() -> bool) -> Result<()> {
        let Some(files) = &mut self.files else {
            return Ok(());
        };
        let mut next = files.copying.take();
        while next.is_none()
            && files.writing.len() < MAX_WRITING
            && let Some(key) = files.unsaved.pop_front()
        {
            let block = self.tree.get(key);
            next = block
                .map(|block| BlockCopy::new(block.content).map(|copying| (key, copying)))
                .transpose()?;
        }
        let Some((key, mut copying)) = next else {
            return Ok(());
        };
        let Some(block) = self.tree.get(key) else {
            return Ok(());
        };
        while !copying.copy(SLICE_BYTES)? {
            if !time() {
                files.copying = Some((key, copying));
                return Ok(());
            }
        }
        let name = BlockName {
            model: self.model.clone(),
            parent: block.parent,
            depth: block.depth,
            tokens: block.tokens.to_vec(),
        };
        let bytes = copying.into_block();
        let writing = Writing {
            parent: name.parent,
            tokens: name.tokens.clone(),
            bytes: bytes.data.len() as u64,
            // State at the time of the copy: the block may have received a snapshot since.
            snapshot: bytes.snapshot.is_some(),
        };
        files.writing.insert(key, writing);
        files.disk.write(name, bytes);
        self.enforce_file_limit();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
