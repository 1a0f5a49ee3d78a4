//! Schedule: the plan of the engine's next step, with the waiting requests that join and the
//! prompts to prefill. The module is pure: it uses neither a clock nor MLX. The caller stores the
//! state between steps.
//!
//! All decoding rows are part of every step. Requests join in the order of priority, then of
//! arrival, as soon as a row and the memory for the complete request are free. No request overtakes
//! one that waits for memory. A request that was overtaken too often comes first, so that none
//! starves.

use std::time::Duration;

use rooflet_roofline::memory::PREFILL_STEP_TOKENS;

/// Id of a request, ascending in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub u64);

/// Maximum number of prompt tokens per step while no row decodes. Cancellation is checked between
/// chunks.
pub(super) const MAX_CHUNK_TOKENS: usize = PREFILL_STEP_TOKENS as usize;
/// Maximum number of prompt tokens per step while rows decode. Larger chunks would hardly be faster
/// per token.
const SHARED_CHUNK_TOKENS: usize = 512;
/// Minimum chunk. Smaller ones would leave the device's matrix units idle.
pub(super) const MIN_CHUNK_TOKENS: usize = 32;
/// Minimum chunk of a prompt that shares a pass with another prompt.
const MIN_SHARED_PASS_TOKENS: usize = 256;
/// Maximum delay of decoding rows by a chunk.
const MAX_STALL: Duration = Duration::from_millis(250);

/// Number of steps in which later requests may join before a request.
const MAX_OVERTAKEN_JOINS: u32 = 16;
/// Number of chunks that later prompts may receive before an earlier prompt.
const MAX_OVERTAKEN_CHUNKS: u32 = 4;

/// Request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub id: RequestId,
    /// Lower values come first.
    pub priority: i32,
    /// Number of plans that preferred a later request.
    pub overtaken: u32,
    /// Maximum size of its KV cache.
    pub bytes: u64,
    pub prompt_tokens: usize,
}

/// Request that has a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Running {
    pub id: RequestId,
    pub priority: i32,
    /// Number of plans since its last chunk that preferred a later request.
    pub overtaken: u32,
    pub bytes: u64,
    /// Number of prompt tokens that are not in the cache yet. The row decodes if it is 0.
    pub prompt_left: usize,
}

/// Limits of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub rows: usize,
    /// Memory for the caches of all rows.
    pub bytes: u64,
    /// Maximum total number of tokens of several prompts in one pass. Up to this number, a pass
    /// takes hardly longer than with one prompt.
    pub pass_tokens: usize,
    /// Maximum tokens of a chunk.
    pub chunk_tokens: usize,
}

/// Measured speed of the engine; `None` before the first measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pace {
    pub prefill_tokens_per_second: Option<f64>,
    /// Duration of one decode step of all rows.
    pub step: Option<Duration>,
}

/// Weight of the newest observation in the moving average.
const NEWEST_WEIGHT: f64 = 0.2;

impl Pace {
    /// Records a chunk of `tokens` tokens that took `duration`.
    pub(crate) fn record_chunk(&mut self, tokens: usize, duration: Duration) {
        if !duration.is_zero() {
            let rate = tokens as f64 / duration.as_secs_f64();
            let before = self.prefill_tokens_per_second.unwrap_or(rate);
            self.prefill_tokens_per_second = Some(before + NEWEST_WEIGHT * (rate - before));
        }
    }

    pub(crate) fn record_step(&mut self, duration: Duration) {
        let before = self.step.unwrap_or(duration);
        self.step = Some(before.mul_f64(1.0 - NEWEST_WEIGHT) + duration.mul_f64(NEWEST_WEIGHT));
    }
}

/// Plan of the next step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepPlan {
    /// Requests that join, in order.
    pub join: Vec<RequestId>,
    /// Chunks of running or joining requests, computed in one pass.
    pub prefill: Vec<Chunk>,
    /// Requests that a later request overtakes in this step.
    pub overtaken: Vec<RequestId>,
}

/// Next tokens of one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub id: RequestId,
    pub tokens: usize,
}

impl StepPlan {
    pub(crate) fn new(waiting: &[Waiting], running: &[Running], limits: Limits, pace: Pace) -> Self {
        let joining = joining(waiting, running, limits);
        let mut overtaken = Vec::new();
        if let Some(last) = joining.iter().map(|request| request.id).max() {
            let stay = waiting
                .iter()
                .filter(|request| !joining.iter().any(|joined| joined.id == request.id));
            overtaken.extend(stay.map(|request| request.id).filter(|id| *id < last));
        }
        let prompts: Vec<Running> = running
            .iter()
            .copied()
            .chain(joining.iter().map(joined))
            .collect();
        let prefill = chunks(&prompts, limits, pace);
        if let Some(last) = prefill.iter().map(|chunk| chunk.id).max() {
            let stay = prompts
                .iter()
                .filter(|row| row.prompt_left > 0 && !prefill.iter().any(|chunk| chunk.id == row.id));
            overtaken.extend(stay.map(|row| row.id).filter(|id| *id < last));
        }
        Self {
            join: joining.iter().map(|request| request.id).collect(),
            prefill,
            overtaken,
        }
    }
}

fn joined(request: &Waiting) -> Running {
    Running {
        id: request.id,
        priority: request.priority,
        overtaken: 0,
        bytes: request.bytes,
        prompt_left: request.prompt_tokens,
    }
}

/// Returns the first requests of the sorted queue that fit into the limits.
fn joining(waiting: &[Waiting], running: &[Running], limits: Limits) -> Vec<Waiting> {
    let mut queue = waiting.to_vec();
    queue.sort_unstable_by_key(|request| {
        let order = order(request.priority, request.overtaken, MAX_OVERTAKEN_JOINS);
        (order, request.id)
    });
    let mut bytes: u64 = running.iter().map(|row| row.bytes).sum();
    let room = limits.rows.saturating_sub(running.len());
    let fits = |request: &Waiting| {
        bytes = bytes.saturating_add(request.bytes);
        bytes <= limits.bytes
    };
    queue.into_iter().take(room).take_while(fits).collect()
}

/// Returns a sort key: requests that were overtaken too often come first, then lower priority
/// values.
fn order(priority: i32, overtaken: u32, patience: u32) -> (bool, i32) {
    let patient = overtaken < patience;
    (patient, if patient { priority } else { 0 })
}

/// Returns the chunks of the next prefill pass, in order. While no row decodes, chunks are large.
/// Otherwise they last at most as long as decoding rows may be delayed.
fn chunks(rows: &[Running], limits: Limits, pace: Pace) -> Vec<Chunk> {
    let alone = rows.iter().all(|row| row.prompt_left > 0);
    let most = match pace.prefill_tokens_per_second {
        Some(rate) if !alone => (rate * MAX_STALL.as_secs_f64()) as usize,
        Some(_) | None => limits.chunk_tokens,
    };
    let most = (most / MIN_CHUNK_TOKENS * MIN_CHUNK_TOKENS).clamp(MIN_CHUNK_TOKENS, limits.chunk_tokens);
    let each = match alone {
        true => most,
        false => most.min(SHARED_CHUNK_TOKENS.max(limits.pass_tokens)),
    };
    let mut prompts: Vec<&Running> = rows.iter().filter(|row| row.prompt_left > 0).collect();
    prompts.sort_unstable_by_key(|row| prompt_order(row, each));
    let mut chunks = Vec::new();
    let mut room = most.min(limits.pass_tokens);
    for row in prompts {
        let tokens = match &chunks[..] {
            [] => row.prompt_left.min(each),
            _ => row.prompt_left.min(each).min(room),
        };
        if !chunks.is_empty() && tokens < row.prompt_left.min(MIN_SHARED_PASS_TOKENS) {
            break;
        }
        chunks.push(Chunk { id: row.id, tokens });
        room = room.saturating_sub(tokens);
    }
    chunks
}

/// Returns the sort key of a prompt. Among equal priorities, prompts that this step can finish come
/// first, shortest first, because they delay the others least; then the oldest prompt.
fn prompt_order(row: &Running, chunk_tokens: usize) -> impl Ord + use<> {
    let order = order(row.priority, row.overtaken, MAX_OVERTAKEN_CHUNKS);
    let (patient, _) = order;
    let long = !patient || row.prompt_left > chunk_tokens;
    (
        order,
        long && patient,
        if long { 0 } else { row.prompt_left },
        row.id,
    )
}

/// Remaining work of a running request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remaining {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

impl Remaining {
    /// Estimates the remaining work of a request with `produced` tokens. An answer is expected to
    /// have a typical length. An answer that is longer already is expected to double, because
    /// longer answers tend to continue longer. `max_tokens` limits both.
    pub(crate) fn new(prompt_tokens: usize, produced: usize, max_tokens: usize, typical: usize) -> Self {
        let expected = if produced < typical {
            typical - produced
        } else {
            produced
        };
        Self {
            prompt_tokens,
            completion_tokens: expected.min(max_tokens - produced),
        }
    }
}

/// Returns the time until the first running request ends and its row is free, at the measured
/// speed. `None` if no request runs, or before the first measured step.
pub(crate) fn time_until_free_row(
    running: impl IntoIterator<Item = Remaining>,
    pace: Pace,
) -> Option<Duration> {
    let step = pace.step?;
    let seconds = |left: Remaining| {
        let prompt = pace
            .prefill_tokens_per_second
            .map_or(0.0, |rate| left.prompt_tokens as f64 / rate);
        prompt + left.completion_tokens as f64 * step.as_secs_f64()
    };
    let least = running.into_iter().map(seconds).min_by(f64::total_cmp)?;
    Duration::try_from_secs_f64(least).ok()
}

#[cfg(test)]
mod tests;
