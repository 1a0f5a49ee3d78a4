//! The tier on the disk: which blocks are written to files, and which are read into memory for a
//! prompt.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rooflet_mlx::mlx_rs::error::Result;

use super::block_file::BlockName;
use super::disk::{Disk, News, Report};
use super::files::FoundFile;
use super::raw::{BlockArrays, Copying};
use super::read_pace::ReadPace;
use super::tree::{BLOCK_TOKENS, Cuts, Filed, Stored, Tiers};
use super::{BlockKey, Keep, MIN_AWAITED_TOKENS, PrefixCache, but_the_last};
use crate::models::KvBlock;
use rooflet_base::units::Bytes;

/// Blocks on their way to the disk. Others stay in memory until there is room, or are not written.
const MAX_WRITING: usize = 4;

/// Of a block that is copied for the disk, between two looks at the time.
const SLICE_BYTES: usize = 1 << 20;

/// Blocks that wait for the disk to take them. It is far too slow if there are more.
const MAX_UNSAVED: usize = 1024;

/// How long nothing is written to a full disk on which nothing is ours.
const FULL_PAUSE: Duration = Duration::from_secs(60);

/// The files, as the engine's thread knows them.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) disk: Disk,
    /// The most that they may have together.
    limit: Bytes,
    /// Blocks in memory that are to be written, those before others first.
    unsaved: VecDeque<BlockKey>,
    /// The next one to be written.
    copying: Option<(BlockKey, Copying)>,
    writing: BTreeMap<BlockKey, Writing>,
    reading: BTreeSet<BlockKey>,
    read_pace: ReadPace,
    /// The disk is full, and there is nothing to give up: until then nothing is written.
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

/// A block that was handed to the disk.
#[derive(Debug)]
struct Writing {
    parent: BlockKey,
    tokens: Vec<u32>,
    bytes: u64,
    snapshot: bool,
}

impl PrefixCache {
    /// Begins to read what is known of `prompt` from files into memory, as far as there is `room`
    /// for it beside all that requests hold, and where that is not slower than to compute it at so
    /// many tokens per second. Returns what is being read.
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
        let cuts = self.tree.cuts();
        let prompt = but_the_last(prompt);
        let in_memory = self.tree.find(root, prompt, Tiers::Memory).held_tokens();
        let found = self.tree.find(root, prompt, Tiers::Both);
        let mut bytes: u64 = found.held.iter().map(|(block, _)| block.bytes()).sum();
        let limit = room.min(self.capacity).0;
        let fits = |filed: &&Filed| {
            bytes += filed.bytes;
            bytes <= limit
        };
        let wanted: Vec<&Filed> = found.filed.iter().take_while(fits).collect();
        // Without the last one there is no snapshot.
        let useless = cuts == Cuts::AtSnapshots && wanted.len() < found.filed.len();
        let held = found.held_tokens();
        let filed: usize = wanted.iter().map(|filed| filed.tokens).sum();
        let tokens = (held + filed).saturating_sub(in_memory);
        if useless || tokens < MIN_AWAITED_TOKENS {
            return BTreeSet::new();
        }
        let bytes = wanted.iter().map(|filed| filed.bytes).sum();
        let computing = prefill_tokens_per_second.map(|rate| tokens as f64 / rate);
        if !files.read_pace.is_worth(bytes, computing, now) {
            return BTreeSet::new();
        }
        files.read_pace.begins(now);
        for filed in &wanted {
            if files.reading.insert(filed.key) {
                files.disk.read(filed.key);
            }
        }
        wanted.iter().map(|filed| filed.key).collect()
    }

    /// Whether any of these is still being read.
    pub(crate) fn is_loading(&self, keys: &BTreeSet<BlockKey>) -> bool {
        let files = self.files.as_ref();
        files.is_some_and(|files| !files.reading.is_disjoint(keys))
    }

    /// Notes what of a text is to be written: whole blocks, and in the end what follows them. A
    /// text that is shorter than a block is not worth a file.
    pub(super) fn save_later(&mut self, root: BlockKey, tokens: &[u32], keep: Keep) {
        let Some(files) = &mut self.files else { return };
        if files.full_until.is_some() {
            return;
        }
        let count = match (self.tree.cuts(), keep) {
            (Cuts::Anywhere, Keep::WholeBlocks | Keep::Stop | Keep::Prompt) => tokens.len() / BLOCK_TOKENS,
            (Cuts::Anywhere | Cuts::AtSnapshots, _) if tokens.len() < BLOCK_TOKENS => 0,
            (Cuts::Anywhere, Keep::Everything) | (Cuts::AtSnapshots, _) => usize::MAX,
        };
        for key in self.tree.holders(root, tokens).into_iter().take(count) {
            let copying = files.copying.as_ref().is_some_and(|(copying, _)| *copying == key);
            let known = self.tree.has_file(key) || copying || files.writing.contains_key(&key);
            if !known && files.unsaved.len() < MAX_UNSAVED && !files.unsaved.contains(&key) {
                files.unsaved.push_back(key);
            }
        }
    }

    /// Whether [`tend`](Self::tend) has something to write.
    pub(crate) fn has_work(&self) -> bool {
        let files = self.files.as_ref();
        files.is_some_and(|files| {
            files.copying.is_some() || (!files.unsaved.is_empty() && files.writing.len() < MAX_WRITING)
        })
    }

    /// Takes note of what the disk has done, and gets one more block ready for it, as far as there
    /// is `time`. `room` is what all requests leave.
    pub(crate) fn tend(
        &mut self,
        room: Bytes,
        now: impl Fn() -> Instant,
        time: impl FnMut() -> bool,
    ) -> Result<()> {
        while let Some(files) = &self.files {
            match files.disk.news() {
                News::None => break,
                News::Failed => self.do_without_files(),
                News::Report(Report::Found(files)) => self.know(files),
                News::Report(Report::Read(key, block)) => {
                    self.take_over(key, block, room);
                    if let Some(files) = &mut self.files
                        && files.reading.is_empty()
                    {
                        files.read_pace.ends(now());
                    }
                }
                News::Report(Report::Written(key, bytes)) => self.note_written(key, bytes),
                News::Report(Report::Full(key)) => self.make_room(key, now()),
            }
        }
        self.save_some(time)
    }

    /// Hands what is to be written to the disk as long as there is `time`; the disk writes it
    /// before it ends.
    pub(crate) fn finish(&mut self, mut time: impl FnMut() -> bool) -> Result<()> {
        while self.has_work() && time() {
            self.save_some(|| true)?;
        }
        while time()
            && let Some(files) = self.files.as_ref().filter(|files| !files.writing.is_empty())
        {
            match files.disk.wait() {
                Some(Report::Written(key, bytes)) => self.note_written(key, bytes),
                Some(Report::Full(key)) => self.note_written(key, None),
                Some(Report::Found(_) | Report::Read(..)) => {}
                None => break,
            }
            self.save_some(|| true)?;
        }
        Ok(())
    }

    /// For a block that did not fit on the disk: others have taken what was free. The files that
    /// were used longest ago make room for the next one; where there are none, nothing is copied
    /// for the disk for a while.
    fn make_room(&mut self, key: BlockKey, now: Instant) {
        let Some(files) = &mut self.files else { return };
        let bytes = files.writing.remove(&key).map_or(0, |writing| writing.bytes);
        let others = self.tree.file_bytes().saturating_sub(bytes);
        let gone = self.tree.shrink_files(others);
        if gone.is_empty() {
            files.full_until = Some(now + FULL_PAUSE);
            files.unsaved.clear();
            files.copying = None;
        }
        gone.into_iter().for_each(|key| files.disk.remove(key));
    }

    /// Who reads and writes them is gone: nobody may wait for it, and nothing is known of files any
    /// more.
    fn do_without_files(&mut self) {
        tracing::error!("the thread for prefix files failed: prefixes are kept in memory only from now on");
        self.files = None;
        self.files_failed = true;
        self.tree.shrink_files(0);
    }

    fn know(&mut self, mut found: Vec<FoundFile>) {
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
        self.limit_files();
    }

    fn take_over(&mut self, key: BlockKey, block: Option<BlockArrays>, room: Bytes) {
        if let Some(files) = &mut self.files {
            files.reading.remove(&key);
        }
        let Some(block) = block else {
            self.tree.lose_file(key);
            return;
        };
        let block = KvBlock::from(block);
        let bytes = block.bytes();
        if let Some(files) = &mut self.files {
            files.read_pace.took(bytes);
        }
        let others = room.min(self.capacity).0.checked_sub(bytes);
        if let (Some(others), true) = (others, self.tree.continues_memory(key)) {
            self.tree.touch_path(key);
            if self.shrink(others, false) {
                let snapshot = block.snapshot().is_some();
                self.tree.hold(key, Stored { bytes, snapshot }, block);
            }
        }
    }

    fn note_written(&mut self, key: BlockKey, bytes: Option<u64>) {
        let Some(files) = &mut self.files else { return };
        if let (Some(written), Some(bytes)) = (files.writing.remove(&key), bytes) {
            let snapshot = written.snapshot;
            self.tree
                .add_file(written.parent, &written.tokens, Stored { bytes, snapshot });
            self.limit_files();
        }
    }

    fn limit_files(&mut self) {
        if let Some(files) = &self.files {
            let coming: u64 = files.writing.values().map(|writing| writing.bytes).sum();
            for key in self.tree.shrink_files(files.limit.0.saturating_sub(coming)) {
                files.disk.remove(key);
            }
        }
    }

    /// Copies the next block slice by slice as long as there is `time`, one slice at least, and
    /// hands it to the disk when that is done. Those that are not in memory any more are not
    /// written.
    fn save_some(&mut self, mut time: impl FnMut() -> bool) -> Result<()> {
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
                .map(|block| Copying::new(block.held).map(|copying| (key, copying)))
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
            // Of what was copied: the block may have got one meanwhile.
            snapshot: bytes.snapshot.is_some(),
        };
        files.writing.insert(key, writing);
        files.disk.write(name, bytes);
        self.limit_files();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
