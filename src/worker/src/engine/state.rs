//! State that the engine's thread publishes to the rest of the worker: phase, progress, counts and
//! speeds.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::engine::allowance::Allowance;
use crate::metrics::KvCacheUsage;
use rooflet_api::v1alpha1::Sample as Quantiles;
use rooflet_api::wire::{
    EngineInfo, EngineMemory, MeasuredPrefill, MeasuredSpeed, ModelInfo, RequestCounts, WorkerPhase,
};
use rooflet_base::clock::Clock;
use rooflet_base::latest::Latest;
use rooflet_base::mutex::lock;
use rooflet_base::quantile::median;

/// Number of requests whose speeds are stored.
const RECENT_REQUESTS: usize = 64;

/// Value of `step_end_millis` while the engine is idle.
const IDLE: u64 = u64::MAX;

/// Value of `row_free_millis` if the time is unknown.
const UNKNOWN: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct EngineState {
    clock: Clock,
    started: Instant,
    phase: watch::Sender<WorkerPhase>,
    info: OnceLock<(EngineInfo, ModelInfo)>,
    /// Time at which the current step has reached its limit, in milliseconds since `started`.
    step_end_millis: AtomicU64,
    running: AtomicU64,
    queued: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    /// Time until a row is free, in milliseconds, or [`UNKNOWN`].
    row_free_millis: AtomicU64,
    memory: Mutex<EngineMemory>,
    kv_cache_usage: Mutex<KvCacheUsage>,
    recent: Mutex<VecDeque<Sample>>,
    allowance: Allowance,
}

/// Speeds of one finished request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub time_to_first_token: Duration,
    /// Part of `time_to_first_token` after the request left the queue.
    pub prefill: Option<Duration>,
    /// `None` for a request with one token.
    pub decode_tokens_per_second: Option<f64>,
    /// Average number of sequences that were decoded together.
    pub streams: f64,
    pub prompt_tokens: f64,
    /// Number of prompt tokens that came from the prefix cache.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    /// Average number of tokens in the cache during decoding.
    pub context_tokens: f64,
}

impl EngineState {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            started: clock.instant(),
            allowance: Allowance::new(clock.clone()),
            clock,
            phase: watch::Sender::new(WorkerPhase::Loading),
            info: OnceLock::new(),
            step_end_millis: AtomicU64::new(IDLE),
            running: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            row_free_millis: AtomicU64::new(UNKNOWN),
            memory: Mutex::default(),
            kv_cache_usage: Mutex::default(),
            recent: Mutex::default(),
        }
    }

    /// Returns the limit of the engine's share of the chip's time.
    pub(crate) fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    pub(crate) fn phase(&self) -> WorkerPhase {
        self.phase.latest()
    }

    pub(crate) fn watch_phase(&self) -> watch::Receiver<WorkerPhase> {
        self.phase.subscribe()
    }

    pub(crate) fn set_phase(&self, phase: WorkerPhase) {
        self.phase.send_replace(phase);
    }

    /// Sets the facts about engine and model. The engine's thread calls this once, after it has
    /// opened its device.
    pub(crate) fn set_info(&self, engine: EngineInfo, model: ModelInfo) {
        self.info.get_or_init(|| (engine, model));
    }

    pub(crate) fn engine(&self) -> EngineInfo {
        let unknown = || "unknown".to_owned();
        self.info
            .get()
            .map(|(engine, _)| engine.clone())
            .unwrap_or_else(|| EngineInfo {
                name: "mlx".to_owned(),
                version: unknown(),
                device: unknown(),
            })
    }

    pub(crate) fn model(&self) -> Option<ModelInfo> {
        self.info.get().map(|(_, model)| model.clone())
    }

    /// Records the start of a step, or of a part of it, that takes at most `limit`.
    pub(crate) fn begin_step(&self, limit: Duration) {
        self.step_end_millis
            .store(self.millis_after(limit), Ordering::Relaxed);
    }

    /// Records that an idle engine must begin a step within `limit`, because it received work.
    pub(crate) fn expect_step(&self, limit: Duration) {
        let end = self.millis_after(limit);
        // An engine that is not idle has a limit already.
        let _ = self
            .step_end_millis
            .compare_exchange(IDLE, end, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns the time after `limit`, relative to the start of the engine.
    fn millis_after(&self, limit: Duration) -> u64 {
        let end = self.clock.instant().duration_since(self.started) + limit;
        u64::try_from(end.as_millis()).unwrap_or(IDLE - 1)
    }

    pub(crate) fn set_idle(&self) {
        self.step_end_millis.store(IDLE, Ordering::Relaxed);
    }

    /// Returns true if the engine is stalled: its current step takes longer than its limit, or it did not begin
    /// one although it received work.
    pub(crate) fn is_stalled(&self) -> bool {
        let end = self.step_end_millis.load(Ordering::Relaxed);
        let now = self.clock.instant().duration_since(self.started);
        end != IDLE && now > Duration::from_millis(end)
    }

    pub(crate) fn set_load(&self, running: usize, queued: usize) {
        self.running.store(running as u64, Ordering::Relaxed);
        self.queued.store(queued as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_row_free(&self, after: Option<Duration>) {
        let millis = after.and_then(|after| u64::try_from(after.as_millis()).ok());
        self.row_free_millis
            .store(millis.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// Returns the time until a row is free, as of the last step.
    pub(crate) fn row_free(&self) -> Option<Duration> {
        let millis = self.row_free_millis.load(Ordering::Relaxed);
        (millis != UNKNOWN).then(|| Duration::from_millis(millis))
    }

    pub(crate) fn set_memory(&self, memory: EngineMemory) {
        *lock(&self.memory) = memory;
    }

    pub(crate) fn memory(&self) -> EngineMemory {
        *lock(&self.memory)
    }

    pub(crate) fn set_kv_cache_usage(&self, kv_cache_usage: KvCacheUsage) {
        *lock(&self.kv_cache_usage) = kv_cache_usage;
    }

    pub(crate) fn kv_cache_usage(&self) -> KvCacheUsage {
        *lock(&self.kv_cache_usage)
    }

    /// Counts a completed request. `sample` is `None` if the request has no answer.
    pub(crate) fn add_completed(&self, sample: Option<Sample>) {
        self.completed.fetch_add(1, Ordering::Relaxed);
        let Some(sample) = sample else { return };
        let mut recent = lock(&self.recent);
        if recent.len() == RECENT_REQUESTS {
            recent.pop_front();
        }
        recent.push_back(sample);
    }

    pub(crate) fn add_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> RequestCounts {
        RequestCounts {
            running: self.running.load(Ordering::Relaxed),
            queued: self.queued.load(Ordering::Relaxed),
            completed: self.completed.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn measured(&self) -> MeasuredSpeed {
        let recent = lock(&self.recent);
        // Prompts that were partly cached do not measure the prefill speed.
        let computed = || recent.iter().filter(|sample| sample.cached_tokens == 0);
        // The prefill time of a request in a batch includes other work.
        let alone = || computed().filter(|sample| sample.streams <= 1.0 && sample.prefill.is_some());
        MeasuredSpeed {
            decode_tokens_per_second: median(recent.iter().filter_map(|s| s.decode_tokens_per_second)),
            time_to_first_token_seconds: median(computed().map(|s| s.time_to_first_token.as_secs_f64())),
            streams: median(recent.iter().map(|s| s.streams)),
            prompt_tokens: median(computed().map(|s| s.prompt_tokens)),
            context_tokens: median(recent.iter().map(|s| s.context_tokens)),
            samples: recent.len() as u64,
            prefill: median(
                alone()
                    .filter_map(|s| s.prefill)
                    .map(|prefill| prefill.as_secs_f64()),
            )
            .zip(median(alone().map(|s| s.prompt_tokens)))
            .map(|(seconds, prompt_tokens)| MeasuredPrefill {
                seconds,
                prompt_tokens,
                samples: alone().count() as u64,
            }),
            decode_tokens_per_second_sample: Quantiles::of(
                recent.iter().filter_map(|s| s.decode_tokens_per_second),
            ),
            time_to_first_token_seconds_sample: Quantiles::of(
                computed().map(|s| s.time_to_first_token.as_secs_f64()),
            ),
        }
    }

    /// Returns the decode speed of the last request.
    pub(crate) fn last_decode_tokens_per_second(&self) -> Option<f64> {
        lock(&self.recent).back()?.decode_tokens_per_second
    }

    /// Returns the median number of tokens of recent answers.
    pub(crate) fn typical_completion_tokens(&self) -> Option<usize> {
        let tokens = median(lock(&self.recent).iter().map(|s| s.completion_tokens as f64));
        tokens.map(|tokens| tokens.ceil() as usize)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use rooflet_base::clock::ManualClock;

    #[test]
    fn engine_is_stalled_while_a_step_exceeds_its_limit() {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let state = EngineState::new(Clock::Manual(manual.clone()));
        let limit = Duration::from_secs(5);
        manual.advance(limit * 100);
        assert!(!state.is_stalled(), "an idle engine is not stalled");
        state.begin_step(limit);
        manual.advance(limit);
        assert!(!state.is_stalled());
        manual.advance(Duration::from_millis(1));
        assert!(state.is_stalled());
        state.begin_step(limit * 2);
        manual.advance(limit * 2);
        assert!(!state.is_stalled(), "each step has its own limit");
        manual.advance(limit);
        state.set_idle();
        assert!(!state.is_stalled());
        state.expect_step(limit);
        manual.advance(limit);
        state.expect_step(limit);
        assert!(!state.is_stalled());
        manual.advance(Duration::from_millis(1));
        assert!(state.is_stalled(), "more work does not extend the limit");
        state.begin_step(limit);
        assert!(!state.is_stalled());
    }

    #[test]
    fn speeds_are_medians_of_the_last_requests() {
        let state = EngineState::new(Clock::System);
        assert_eq!(state.measured(), MeasuredSpeed::default());
        for index in 1..=100_u32 {
            state.add_completed(Some(Sample {
                time_to_first_token: Duration::from_secs(u64::from(index)),
                prefill: (index != 60).then(|| Duration::from_secs(u64::from(index) / 2)),
                decode_tokens_per_second: (index > 98).then_some(f64::from(index)),
                streams: if index < 90 { 1.0 } else { 2.0 },
                prompt_tokens: f64::from(index),
                cached_tokens: usize::from(index == 50),
                completion_tokens: 7,
                context_tokens: f64::from(index),
            }));
        }
        let measured = state.measured();
        assert_eq!(measured.samples, 64);
        // Requests 37 to 100 without the partly cached one.
        assert_eq!(measured.time_to_first_token_seconds, Some(69.0));
        assert_eq!(measured.prompt_tokens, Some(69.0));
        assert_eq!(measured.decode_tokens_per_second, Some(99.5));
        assert_eq!(
            (measured.streams, measured.context_tokens),
            (Some(1.0), Some(68.5))
        );
        // Requests 37 to 89 without the partly cached one and the one without a prefill time.
        let prefill = measured.prefill.unwrap();
        assert_eq!((prefill.prompt_tokens, prefill.samples), (64.0, 51));
        assert_eq!(prefill.seconds, 32.0);
        assert_eq!(state.typical_completion_tokens(), Some(7));
        assert_eq!(state.requests().completed, 100);
    }
}
