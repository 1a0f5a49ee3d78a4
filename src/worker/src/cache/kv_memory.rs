//! KV memory: the caches of running requests, with their reserved growth, and the prefix cache in
//! the memory that they leave free.

use std::time::{Duration, Instant};

use rooflet_mlx::mlx_rs::error::Result;

use crate::batch::sequence::Sequence;
use crate::cache::kv_budget::KvBudget;
use crate::cache::{Prefix, PrefixCache, StoreStage};
use crate::engine::schedule::{Chunk, Pace};
use crate::metrics::KvCacheUsage;
use rooflet_base::clock::Clock;
use rooflet_base::units::Bytes;

/// Divisor of a decode step's duration: copies for the disk last at most this part of a step, so
/// that they hardly delay clients.
const COPYING_SHARE: u32 = 10;
/// Time limit of copies before the first measured step.
const COPYING_TIME: Duration = Duration::from_millis(1);
/// Time limit of copies while no request runs. After it, the engine checks for requests again.
const IDLE_COPYING_TIME: Duration = Duration::from_millis(5);
/// Time limit for pending writes when the worker ends; the process waits slightly longer.
const FINISH_TIME: Duration = Duration::from_secs(5);

/// Memory of all KV caches.
#[derive(Debug)]
pub(crate) struct KvMemory {
    budget: KvBudget,
    prefixes: PrefixCache,
}

impl KvMemory {
    pub(crate) fn new(budget: KvBudget, prefixes: PrefixCache) -> Self {
        Self { budget, prefixes }
    }

    /// Returns the memory for the caches of all requests.
    pub(crate) fn limit(&self) -> Bytes {
        self.budget.bytes()
    }

    /// Returns the maximum size of the cache of a request whose prompt and answer have `tokens`
    /// tokens together.
    pub(crate) fn request_bytes(&self, tokens: usize) -> u64 {
        self.budget.request_bytes(tokens)
    }

    pub(crate) fn in_use(&self, active: &[Sequence]) -> KvCacheUsage {
        KvCacheUsage {
            held: active
                .iter()
                .map(|sequence| sequence.cache().bytes() as u64)
                .sum(),
            reserved: active.iter().map(|sequence| sequence.as_running().bytes).sum(),
            prefixes: self.prefixes.bytes().0,
            prefix_files: self.prefixes.file_bytes().0,
            prefix_files_failed: self.prefixes.files_failed(),
            limit: self.budget.bytes().0,
        }
    }

    /// Evicts prefixes to make room for the growth of the caches in the next step.
    pub(crate) fn evict_prefixes(&mut self, active: &[Sequence], chunks: &[Chunk]) {
        let reserved = active.iter().map(|sequence| sequence.as_running().bytes).sum();
        // Fast path for most steps: even the complete reservations leave enough room.
        if self.prefixes.bytes() > self.limit() - Bytes(reserved) {
            let after = |sequence: &Sequence| {
                let reads = chunks.iter().any(|chunk| chunk.id == sequence.id());
                let tokens = if reads {
                    // A cached prefix allocates capacity for the whole prompt at once.
                    sequence.prompt.len()
                } else {
                    1 + sequence.decoding.max_draft_tokens()
                        + usize::try_from(sequence.cache().offset()).unwrap_or(0)
                };
                self.held_bytes(sequence).max(self.request_bytes(tokens))
            };
            let growing = active.iter().map(after).sum();
            self.prefixes.evict(self.limit() - Bytes(growing));
        }
    }

    /// Starts reading the file blocks of a prompt of which nothing is computed. Returns true if the
    /// sequence of `active` has to wait for them.
    pub(crate) fn load(&mut self, active: &mut [Sequence], index: usize, pace: Pace, now: Instant) -> bool {
        if !active[index].prompt.may_load() {
            return false;
        }
        // The sequence holds nothing yet.
        let own = self.request_bytes(active[index].prompt.len());
        let room = self.room_beside(active) - Bytes(own);
        let sequence = &mut active[index];
        let (salt, prompt) = (sequence.cache_salt(), sequence.prompt.tokens());
        let blocks = self
            .prefixes
            .load(salt, prompt, room, pace.prefill_tokens_per_second, now);
        if blocks.is_empty() {
            sequence.prompt.stop_waiting();
        } else {
            sequence.prompt.wait_for(blocks);
        }
        sequence.prompt.is_loading()
    }

    /// Processes the results of the disk thread and passes it new work, without delaying decode
    /// steps or new requests (`has_requests`).
    pub(crate) fn poll_files(
        &mut self,
        active: &mut [Sequence],
        has_requests: impl Fn() -> bool,
        pace: Pace,
        clock: &Clock,
    ) {
        if !self.prefixes.has_files() {
            return;
        }
        let is_idle = active.is_empty();
        let (room, now) = (self.room_beside(active), || clock.instant());
        let begin = now();
        let time = || now() - begin < copying_time(pace.step, is_idle, is_idle && has_requests());
        let polled = self.prefixes.poll_files(room, now, time);
        self.recover(polled);
        for sequence in active {
            let over = |blocks| !self.prefixes.is_loading(blocks);
            if sequence.prompt.awaited().is_some_and(over) {
                sequence.prompt.stop_waiting();
            }
        }
    }

    /// Writes the pending blocks, within a time limit, when the engine ends.
    pub(crate) fn finish(mut self, clock: &Clock) {
        let end = clock.instant() + FINISH_TIME;
        let finished = self.prefixes.finish(|| clock.instant() < end);
        self.recover(finished);
    }

    /// Returns true if blocks are to be written while no request has anything to compute.
    pub(crate) fn has_work(&self) -> bool {
        self.prefixes.has_work()
    }

    /// Returns true if `later`, of which nothing is computed, should wait until the next tokens of
    /// `other` are computed, because `later` can start with them.
    pub(crate) fn should_wait_for(&self, later: &Sequence, other: &Sequence) -> bool {
        self.awaitable_tokens(later, other).is_some()
    }

    /// Returns the number of tokens that `later` can start with after it has waited for `other`.
    /// `None` if waiting does not save enough.
    fn awaitable_tokens(&self, later: &Sequence, other: &Sequence) -> Option<usize> {
        let least = self.prefixes.min_awaited_tokens()?;
        let prompts = other.prompt.tokens().iter().zip(later.prompt.tokens());
        let same = prompts.take_while(|(theirs, own)| theirs == own).count();
        let is_worth_it = other.prompt.shares_prefixes()
            && other.cache_salt() == later.cache_salt()
            && same >= other.prompt.shared_tokens() + least;
        is_worth_it.then_some(same)
    }

    /// Lets a sequence of `active` that has just joined continue in the cache of a finished
    /// request, unless blocks or other prompts hold or will hold a longer prefix. Returns true if
    /// the sequence continues in such a cache.
    pub(crate) fn resume(&mut self, active: &mut [Sequence], index: usize) -> bool {
        let sequence = &active[index];
        if !sequence.prompt.shares_prefixes() {
            return false;
        }
        let before = active[..index].iter().filter(|other| !other.is_decoding());
        let awaited = before
            .filter_map(|other| self.awaitable_tokens(sequence, other))
            .max();
        let (salt, prompt) = (sequence.cache_salt(), sequence.prompt.tokens());
        let most = prompt.len() + sequence.request().max_tokens;
        let row = self.prefixes.take_row(salt, prompt, awaited.unwrap_or(0), most);
        let row = self.recover(row).flatten();
        row.map(|row| active[index].begin_with(row)).is_some()
    }

    /// Returns the cached prefix of a sequence's prompt.
    pub(crate) fn find_prefix(&mut self, sequence: &Sequence) -> Option<Prefix> {
        let (salt, prompt) = (sequence.cache_salt(), sequence.prompt.tokens());
        let found = self.prefixes.find(salt, prompt, sequence.cache());
        self.recover(found).flatten()
    }

    /// Returns the snapshot points of the prompt, at which prefill pauses.
    pub(crate) fn snapshot_points(&self, sequence: &Sequence) -> Vec<usize> {
        let (salt, prompt) = (sequence.cache_salt(), sequence.prompt.tokens());
        self.prefixes
            .snapshot_points(salt, prompt, sequence.prompt.prefilled())
    }

    /// Stores the computed tokens of a sequence, which may be one of the `active` ones. Returns
    /// false if the sequence does not share prefixes or storing failed.
    pub(crate) fn store(&mut self, sequence: &Sequence, stage: StoreStage, active: &[Sequence]) -> bool {
        if !sequence.prompt.shares_prefixes() {
            return false;
        }
        let others = active.iter().filter(|other| other.id() != sequence.id());
        let held = others
            .chain([sequence])
            .map(|sequence| self.held_bytes(sequence))
            .sum();
        let room = self.limit() - Bytes(held);
        let (salt, cache) = (sequence.cache_salt(), sequence.cache());
        let stored = self.prefixes.store(salt, &sequence.tokens(), cache, stage, room);
        self.recover(stored).is_some()
    }

    /// Stores the cache of a finished request, which is not one of the `active` ones, as far as it
    /// fits.
    pub(crate) fn retire(&mut self, sequence: Sequence, active: &[Sequence]) {
        if self.store(&sequence, StoreStage::Finished, active) {
            let room = self.room_beside(active);
            let (salt, tokens) = (sequence.cache_salt().to_owned(), sequence.tokens());
            self.prefixes
                .store_row(&salt, tokens, sequence.into_cache(), room);
        }
    }

    /// Returns the memory that these requests leave free. Requests that wait for a prefix count
    /// with their whole prompts.
    fn room_beside(&self, active: &[Sequence]) -> Bytes {
        self.limit() - Bytes(active.iter().map(|sequence| self.held_bytes(sequence)).sum())
    }

    fn held_bytes(&self, sequence: &Sequence) -> u64 {
        if sequence.prompt.is_loading() {
            return self.request_bytes(sequence.prompt.len());
        }
        sequence.cache().bytes() as u64
    }

    /// Empties the prefix cache in memory, because the model is unloaded.
    pub(crate) fn discard_prefixes(&mut self) {
        self.prefixes.evict(Bytes::ZERO);
    }

    /// Empties the prefix cache in memory and removes the files of a sequence, because their values may not be finite.
    pub(crate) fn discard_faulty(&mut self, sequence: &Sequence) {
        self.prefixes.evict(Bytes::ZERO);
        self.prefixes
            .remove_files(sequence.cache_salt(), &sequence.tokens());
    }

    /// Logs an error and empties the prefix cache, which cannot be trusted afterwards. Requests
    /// compute their prefixes instead.
    fn recover<T>(&mut self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(err) => {
                tracing::warn!(error = %err, "prefix cache failed, emptying it");
                self.prefixes.evict(Bytes::ZERO);
                None
            }
        }
    }
}

/// Returns the time limit for copying blocks for the disk. At least one slice is copied in any
/// case.
fn copying_time(step: Option<Duration>, is_idle: bool, has_requests: bool) -> Duration {
    match step {
        _ if has_requests => Duration::ZERO,
        _ if is_idle => IDLE_COPYING_TIME,
        Some(step) => step / COPYING_SHARE,
        None => COPYING_TIME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_duration_of_copies_for_the_disk() {
        let step = Some(Duration::from_millis(20));
        assert_eq!(copying_time(step, false, false), Duration::from_millis(2));
        assert_eq!(copying_time(None, false, false), COPYING_TIME);
        assert_eq!(copying_time(step, true, false), IDLE_COPYING_TIME);
        assert_eq!(copying_time(step, true, true), Duration::ZERO);
    }
}
