//! The memory of all caches: what running requests hold and may still come to, and the prefixes
//! that are kept in what they leave free.

use std::time::{Duration, Instant};

use rooflet_mlx::mlx_rs::error::Result;

use crate::batch::sequence::Sequence;
use crate::cache::kv_budget::KvBudget;
use crate::cache::{Keep, Prefix, PrefixCache};
use crate::engine::schedule::{Chunk, Pace};
use crate::metrics::KvUse;
use rooflet_base::clock::Clock;
use rooflet_base::units::Bytes;

/// The share of a decode step that may go into copies for the disk, one in so many: those who wait
/// for their next token should not notice.
const COPYING_SHARE: u32 = 10;
/// Where no step has been seen yet.
const COPYING_TIME: Duration = Duration::from_millis(1);
/// While nothing is computed and nobody comes; then the rest is looked after again.
const IDLE_COPYING_TIME: Duration = Duration::from_millis(5);
/// For writing what is not written yet when the worker ends; the process waits a little longer.
const FINISH_TIME: Duration = Duration::from_secs(5);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct KvMemory {
    budget: KvBudget,
    prefixes: PrefixCache,
}

impl KvMemory {
    pub(crate) fn new(budget: KvBudget, prefixes: PrefixCache) -> Self {
        Self { budget, prefixes }
    }

    /// For the caches of all requests.
    pub(crate) fn limit(&self) -> Bytes {
        self.budget.bytes()
    }

    /// The most that the cache of a request takes whose prompt and answer have `tokens` together.
    pub(crate) fn request_bytes(&self, tokens: usize) -> u64 {
        self.budget.request_bytes(tokens)
    }

    pub(crate) fn in_use(&self, active: &[Sequence]) -> KvUse {
        KvUse {
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

    /// Makes room for what the caches grow by in the next step.
    pub(crate) fn give_way(&mut self, active: &[Sequence], chunks: &[Chunk]) {
        let reserved = active.iter().map(|sequence| sequence.as_running().bytes).sum();
        // Most steps: whatever the requests come to, there is room.
        if self.prefixes.bytes() > self.limit() - Bytes(reserved) {
            let after = |sequence: &Sequence| {
                let reads = chunks.iter().any(|chunk| chunk.id == sequence.id());
                let tokens = if reads {
                    // A prefix that is found gives room for the whole prompt at once.
                    sequence.prompt.len()
                } else {
                    1 + sequence.decoding.max_draft_tokens()
                        + usize::try_from(sequence.cache().offset()).unwrap_or(0)
                };
                self.held(sequence).max(self.request_bytes(tokens))
            };
            let growing = active.iter().map(after).sum();
            self.prefixes.give_way(self.limit() - Bytes(growing));
        }
    }

    /// Begins to read what files have of the prompt of one of `active` that nothing has been
    /// computed of. True: it has to wait for that.
    pub(crate) fn load(&mut self, active: &mut [Sequence], index: usize, pace: Pace, now: Instant) -> bool {
        if !active[index].prompt.may_load() {
            return false;
        }
        // It holds nothing yet.
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

    /// Takes over what the disk has done, and gives it more to do; without holding up those that
    /// decode, nor who `comes`.
    pub(crate) fn tend(
        &mut self,
        active: &mut [Sequence],
        comes: impl Fn() -> bool,
        pace: Pace,
        clock: &Clock,
    ) {
        if !self.prefixes.has_files() {
            return;
        }
        let is_idle = active.is_empty();
        let (room, now) = (self.room_beside(active), || clock.instant());
        let begin = now();
        let time = || now() - begin < copying_time(pace.step, is_idle, is_idle && comes());
        let tended = self.prefixes.tend(room, now, time);
        self.sound(tended);
        for sequence in active {
            let over = |blocks| !self.prefixes.is_loading(blocks);
            if sequence.prompt.awaited().is_some_and(over) {
                sequence.prompt.stop_waiting();
            }
        }
    }

    /// Nothing more is computed: what is still to be written is, as far as there is time before the
    /// process ends.
    pub(crate) fn finish(mut self, clock: &Clock) {
        let end = clock.instant() + FINISH_TIME;
        let finished = self.prefixes.finish(|| clock.instant() < end);
        self.sound(finished);
    }

    /// There is something to do while no request has anything to compute.
    pub(crate) fn has_work(&self) -> bool {
        self.prefixes.has_work()
    }

    /// Whether `later`, of which nothing has been computed, does better to wait for what is about
    /// to be computed of `other`: it can begin with that.
    pub(crate) fn is_worth_waiting(&self, later: &Sequence, other: &Sequence) -> bool {
        self.worth_waiting_for(later, other).is_some()
    }

    /// With how many tokens it begins then.
    fn worth_waiting_for(&self, later: &Sequence, other: &Sequence) -> Option<usize> {
        let least = self.prefixes.least_awaited()?;
        let prompts = other.prompt.tokens().iter().zip(later.prompt.tokens());
        let same = prompts.take_while(|(theirs, own)| theirs == own).count();
        let is_worth_it = other.prompt.shares_prefixes()
            && other.cache_salt() == later.cache_salt()
            && same >= other.prompt.shared_tokens() + least;
        is_worth_it.then_some(same)
    }

    /// Lets one of `active` that has just joined go on in the cache of a request that is over,
    /// where one has as much of its prompt as there is anywhere, or will be. True: it does.
    pub(crate) fn resume(&mut self, active: &mut [Sequence], index: usize) -> bool {
        let sequence = &active[index];
        if !sequence.prompt.shares_prefixes() {
            return false;
        }
        let before = active[..index].iter().filter(|other| !other.is_decoding());
        let awaited = before
            .filter_map(|other| self.worth_waiting_for(sequence, other))
            .max();
        let (salt, prompt) = (sequence.cache_salt(), sequence.prompt.tokens());
        let most = prompt.len() + sequence.request().max_tokens;
        let row = self.prefixes.take_row(salt, prompt, awaited.unwrap_or(0), most);
        let row = self.sound(row).flatten();
        row.map(|row| active[index].begin_with(row)).is_some()
    }

    /// The beginning of a prompt, where it is kept.
    pub(crate) fn prefix(&mut self, sequence: &Sequence) -> Option<Prefix> {
        let (salt, prompt) = (sequence.cache_salt(), sequence.prompt.tokens());
        let found = self.prefixes.find(salt, prompt, sequence.cache());
        self.sound(found).flatten()
    }

    /// Where reading the prompt has to pause, after so many tokens, for a snapshot to be kept.
    pub(crate) fn stops(&self, sequence: &Sequence) -> Vec<usize> {
        let (salt, prompt) = (sequence.cache_salt(), sequence.prompt.tokens());
        self.prefixes.stops(salt, prompt, sequence.prompt.prefilled())
    }

    /// Keeps what has been computed of a sequence, which may be one of the `active` ones. False:
    /// nothing of it, nor for it.
    pub(crate) fn keep(&mut self, sequence: &Sequence, keep: Keep, active: &[Sequence]) -> bool {
        if !sequence.prompt.shares_prefixes() {
            return false;
        }
        let others = active.iter().filter(|other| other.id() != sequence.id());
        let held = others.chain([sequence]).map(|sequence| self.held(sequence)).sum();
        let room = self.limit() - Bytes(held);
        let (salt, cache) = (sequence.cache_salt(), sequence.cache());
        let kept = self.prefixes.keep(salt, &sequence.tokens(), cache, keep, room);
        self.sound(kept).is_some()
    }

    /// Keeps a request that is over, and none of the `active` ones, as far as there is room.
    pub(crate) fn retire(&mut self, sequence: Sequence, active: &[Sequence]) {
        if self.keep(&sequence, Keep::Everything, active) {
            let room = self.room_beside(active);
            let (salt, tokens) = (sequence.cache_salt().to_owned(), sequence.tokens());
            self.prefixes.keep_row(&salt, tokens, sequence.into_cache(), room);
        }
    }

    /// What these requests leave, of which those that wait for their prefix are about to hold their
    /// prompts.
    fn room_beside(&self, active: &[Sequence]) -> Bytes {
        self.limit() - Bytes(active.iter().map(|sequence| self.held(sequence)).sum())
    }

    fn held(&self, sequence: &Sequence) -> u64 {
        if sequence.prompt.is_loading() {
            return self.request_bytes(sequence.prompt.len());
        }
        sequence.cache().bytes() as u64
    }

    /// A prefix that cannot be had is computed, and what failed once is not trusted again.
    fn sound<T>(&mut self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(err) => {
                tracing::warn!(error = %err, "the prefix cache failed and is emptied");
                self.prefixes.give_way(Bytes::ZERO);
                None
            }
        }
    }
}

/// How long slices of blocks may be copied for the disk at a time; it takes one in any case.
fn copying_time(step: Option<Duration>, is_idle: bool, somebody_comes: bool) -> Duration {
    match step {
        _ if somebody_comes => Duration::ZERO,
        _ if is_idle => IDLE_COPYING_TIME,
        Some(step) => step / COPYING_SHARE,
        None => COPYING_TIME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_for_the_disk_hold_nobody_up() {
        let step = Some(Duration::from_millis(20));
        assert_eq!(copying_time(step, false, false), Duration::from_millis(2));
        assert_eq!(copying_time(None, false, false), COPYING_TIME);
        assert_eq!(copying_time(step, true, false), IDLE_COPYING_TIME);
        assert_eq!(copying_time(step, true, true), Duration::ZERO);
    }
}
