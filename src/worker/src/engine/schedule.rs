//! What the engine does in its next step, as a value: which waiting requests join, and which
//! prompts are read on, by how many tokens. Pure: no clock, no MLX; what it must remember from step
//! to step it hands back in the plan.
//!
//! Every row that decodes takes part in every step, so there is nothing to decide about those.
//! Requests join in the order of priority, then of arrival, as soon as a row and the memory for the
//! whole request are free. Nothing overtakes a request that waits for memory, and who has been
//! overtaken often enough goes first: none starves.

use std::time::Duration;

use rooflet_roofline::memory::PREFILL_STEP_TOKENS;

/// Requests in the order of their arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub u64);

/// Tokens of a prompt per step while nothing decodes. Cancellation is noticed between chunks.
const ALONE_CHUNK_TOKENS: usize = PREFILL_STEP_TOKENS as usize;
/// Most tokens of a prompt per step while others decode, where more would hardly be computed
/// faster.
const SHARED_CHUNK_TOKENS: usize = 512;
/// Fewer would leave the device's matrix units idle.
const MIN_CHUNK_TOKENS: usize = 32;
/// A prompt that goes beside another is not cut into less than this.
const MIN_BESIDE_TOKENS: usize = 256;
/// How long chunks should hold up those that decode: a stutter, not a pause.
const MAX_STALL: Duration = Duration::from_millis(250);

/// Steps in which a request may see later ones join before it.
const MAX_OVERTAKEN_JOINS: u32 = 16;
/// Chunks that go to later prompts before an earlier one gets the next.
const MAX_OVERTAKEN_CHUNKS: u32 = 4;

/// A request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub id: RequestId,
    /// Lower goes first.
    pub priority: i32,
    /// Plans that named it overtaken.
    pub overtaken: u32,
    /// The most its cache can take.
    pub bytes: u64,
    pub prompt_tokens: usize,
}

/// A request that has a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Running {
    pub id: RequestId,
    pub priority: i32,
    /// Plans that named it overtaken since its last chunk.
    pub overtaken: u32,
    pub bytes: u64,
    /// Tokens of the prompt that are not in the cache yet; 0: it decodes.
    pub prompt_left: usize,
}

/// What may be used at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub rows: usize,
    /// For the caches of all rows.
    pub bytes: u64,
    /// Prompts that have fewer tokens together are read in one pass: it takes hardly longer than
    /// one of them would.
    pub pass_tokens: usize,
}

/// How fast the engine has been; `None` until it has been seen.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pace {
    pub prefill_tokens_per_second: Option<f64>,
    /// One decode step of all rows.
    pub step: Option<Duration>,
}

/// The share of the newest observation in a pace.
const NEWEST: f64 = 0.2;

impl Pace {
    /// A chunk of so many tokens took so long.
    pub(crate) fn saw_chunk(&mut self, tokens: usize, took: Duration) {
        if !took.is_zero() {
            let rate = tokens as f64 / took.as_secs_f64();
            let before = self.prefill_tokens_per_second.unwrap_or(rate);
            self.prefill_tokens_per_second = Some(before + NEWEST * (rate - before));
        }
    }

    pub(crate) fn saw_step(&mut self, took: Duration) {
        let before = self.step.unwrap_or(took);
        self.step = Some(before.mul_f64(1.0 - NEWEST) + took.mul_f64(NEWEST));
    }
}

/// The next step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepPlan {
    /// They join in this order.
    pub join: Vec<RequestId>,
    /// Of those that run or join, read in one pass.
    pub prefill: Vec<Chunk>,
    /// An earlier request than one that was preferred.
    pub overtaken: Vec<RequestId>,
}

/// The next tokens of one prompt.
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

/// The longest beginning of the queue for which there is room.
fn joining(waiting: &[Waiting], running: &[Running], limits: Limits) -> Vec<Waiting> {
    let mut queue = waiting.to_vec();
    queue.sort_unstable_by_key(|request| {
        let turn = turn(request.priority, request.overtaken, MAX_OVERTAKEN_JOINS);
        (turn, request.id)
    });
    let mut bytes: u64 = running.iter().map(|row| row.bytes).sum();
    let room = limits.rows.saturating_sub(running.len());
    let fits = |request: &Waiting| {
        bytes = bytes.saturating_add(request.bytes);
        bytes <= limits.bytes
    };
    queue.into_iter().take(room).take_while(fits).collect()
}

/// Lower goes first: who has been overtaken too often, then by priority.
fn turn(priority: i32, overtaken: u32, patience: u32) -> (bool, i32) {
    let patient = overtaken < patience;
    (patient, if patient { priority } else { 0 })
}

/// What of the prompts is read next, in order of their turn. Alone, a prompt is read in large
/// parts; beside rows that decode, in parts that take as long as those may be held up.
fn chunks(rows: &[Running], limits: Limits, pace: Pace) -> Vec<Chunk> {
    let alone = rows.iter().all(|row| row.prompt_left > 0);
    let most = match pace.prefill_tokens_per_second {
        Some(rate) if !alone => (rate * MAX_STALL.as_secs_f64()) as usize,
        Some(_) | None => ALONE_CHUNK_TOKENS,
    };
    let most = (most / MIN_CHUNK_TOKENS * MIN_CHUNK_TOKENS).clamp(MIN_CHUNK_TOKENS, ALONE_CHUNK_TOKENS);
    let each = match alone {
        true => most,
        false => most.min(SHARED_CHUNK_TOKENS.max(limits.pass_tokens)),
    };
    let mut prompts: Vec<&Running> = rows.iter().filter(|row| row.prompt_left > 0).collect();
    prompts.sort_unstable_by_key(|row| place(row, each));
    let mut chunks = Vec::new();
    let mut room = most.min(limits.pass_tokens);
    for row in prompts {
        let tokens = match &chunks[..] {
            [] => row.prompt_left.min(each),
            _ => row.prompt_left.min(each).min(room),
        };
        if !chunks.is_empty() && tokens < row.prompt_left.min(MIN_BESIDE_TOKENS) {
            break;
        }
        chunks.push(Chunk { id: row.id, tokens });
        room = room.saturating_sub(tokens);
    }
    chunks
}

/// Of equal priority, the prompt that this step would finish, the shortest first, since it costs
/// the others least; where there is none, the oldest.
fn place(row: &Running, chunk_tokens: usize) -> impl Ord + use<> {
    let turn = turn(row.priority, row.overtaken, MAX_OVERTAKEN_CHUNKS);
    let (patient, _) = turn;
    let long = !patient || row.prompt_left > chunk_tokens;
    (
        turn,
        long && patient,
        if long { 0 } else { row.prompt_left },
        row.id,
    )
}

/// What a running request has still to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remaining {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

impl Remaining {
    /// A text ends where it is cut at the latest, and otherwise after as many tokens as others have
    /// had; one that has more already is expected to be as long again, since the longer a text is,
    /// the longer it tends to go on.
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

/// When the first of the running requests will have ended and its row is free, by the pace seen so
/// far.
pub(crate) fn until_a_row_is_free(
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
