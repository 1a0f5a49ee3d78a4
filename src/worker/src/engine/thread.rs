//! Loop of the engine's thread. Each step removes cancelled requests, plans ([`StepPlan`]), admits
//! waiting requests, runs one forward pass for all decoding rows, and then one over the next chunks
//! of prompts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::chunk_limit::ChunkLimit;
use super::failures::Failures;
use super::step_limit::StepLimit;
use super::{Command, EngineConfig, EngineError, spans, start};
use crate::batch::event::{Done, Event};
use crate::batch::job::Queued;
use crate::batch::prefill::{Prefill, Prefilled};
use crate::batch::sequence::{Sequence, TokenTime};
use crate::batch::step_error::StepError;
use crate::batch::{Batch, StepToken};
use crate::cache::StoreStage;
use crate::cache::kv_memory::KvMemory;
use crate::engine::residency::{MAX_LOADING, Residency};
use crate::engine::schedule::{Chunk, Limits, Pace, RequestId, StepPlan, time_until_free_row};
use crate::engine::state::{EngineState, Sample};
use crate::metrics::{Outcome, StepPart};
use rooflet_api::wire::WorkerPhase;
use rooflet_base::units::Bytes;
use rooflet_decoder::Decoder;
use rooflet_inference_api::openai::response::FinishReason;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::device;

/// Number of steps between clearings of MLX's buffer cache. Each clearing causes new allocations;
/// without clearing, the cache grows to the memory limit.
const STEPS_PER_CACHE_CLEARING: u64 = 512;
/// Number of steps between readings of the allocator's counters.
const STEPS_PER_MEMORY_READING: u64 = 64;

/// Minimum chunk for measuring the prefill speed. A shorter chunk lasts as long as a decode step.
const MEASURED_CHUNK_TOKENS: usize = 256;

/// State of the engine's thread.
pub(super) struct EngineThread {
    config: EngineConfig,
    state: Arc<EngineState>,
    residency: Arc<Residency>,
    stop: Arc<AtomicBool>,
    commands: mpsc::Receiver<Command>,
    /// Requests that only load the model.
    loads: Vec<oneshot::Sender<()>>,
    /// Weak, so that the thread ends when all other senders are dropped.
    waker: mpsc::WeakSender<Command>,
    next_id: u64,
    waiting: VecDeque<Queued>,
    active: Vec<Sequence>,
    batch: Batch,
    pace: Pace,
    chunk_limit: ChunkLimit,
    step_limit: StepLimit,
    /// Tokens and start time of the prefill pass whose first tokens are not read yet.
    unread_prefill: Option<(usize, Instant)>,
    failures: Failures,
    /// Last chunk of a prompt that was submitted alone: its request, number of tokens and start
    /// time.
    last_chunk: Option<(RequestId, usize, Instant)>,
}

impl EngineThread {
    pub(super) fn new(
        config: EngineConfig,
        (state, residency): (Arc<EngineState>, Arc<Residency>),
        stop: Arc<AtomicBool>,
        commands: mpsc::Receiver<Command>,
        waker: mpsc::WeakSender<Command>,
    ) -> Self {
        Self {
            config,
            state,
            residency,
            stop,
            commands,
            loads: Vec::new(),
            waker,
            next_id: 0,
            waiting: VecDeque::new(),
            active: Vec::new(),
            batch: Batch::default(),
            pace: Pace::default(),
            chunk_limit: ChunkLimit::new(Backend::Cpu),
            step_limit: StepLimit::new(Backend::Cpu),
            unread_prefill: None,
            failures: Failures::default(),
            last_chunk: None,
        }
    }

    pub(super) fn run(mut self) -> Result<(), EngineError> {
        let backend = Backend::current().map_err(EngineError::Device)?;
        let engine = device::engine_info().map_err(EngineError::Device)?;
        self.chunk_limit = ChunkLimit::new(backend);
        self.step_limit = StepLimit::new(backend);
        let mut kv = self.config.kv_memory(backend, self.waker.clone())?;
        self.state.set_info(engine, self.config.model_info(backend));
        let model = self.config.load(backend)?;
        self.state.set_phase(WorkerPhase::Warming);
        start::warm(&model, backend).map_err(EngineError::Warm)?;
        let mut resident = Some(model);
        self.state.set_memory(device::memory());
        self.state.set_phase(WorkerPhase::Ready);
        let mut steps = 0_u64;
        let mut idle = true;
        while self.receive(&kv, idle) {
            self.state.begin_step(self.step_limit.longest());
            self.drop_cancelled(&mut kv);
            let begin = self.config.clock.instant();
            let has_requests = || !self.waiting.is_empty() || !self.commands.is_empty();
            kv.poll_files(&mut self.active, has_requests, self.pace, &self.config.clock);
            self.update_residency(&mut resident, &mut kv, backend)?;
            let Some(model) = &resident else {
                idle = !kv.has_work();
                continue;
            };
            let plan = self.plan(kv.limit(), backend);
            self.join(&plan, model, &mut kv);
            let rows = self.active.len();
            kv.evict_prefixes(&self.active, &plan.prefill);
            self.publish_load(&kv);
            self.spent(StepPart::Schedule, begin);
            self.decode(model, &mut kv);
            if !plan.prefill.is_empty() {
                self.prefill(&plan.prefill, model, &mut kv);
            }
            self.failures.end_step()?;
            steps += 1;
            self.housekeep(steps);
            // A finished request may have left room for waiting ones.
            let stayed = self.active.len() == rows;
            idle = plan == StepPlan::default() && stayed && self.batch.is_empty() && !kv.has_work();
            self.rest_after_step(begin);
        }
        kv.finish(&self.config.clock);
        Ok(())
    }

    /// Loads the model if there is work for it, or frees the model of an idle engine whose keep-alive time is
    /// over, together with the prefix cache.
    fn update_residency(
        &mut self,
        resident: &mut Option<Decoder>,
        kv: &mut KvMemory,
        backend: Backend,
    ) -> Result<(), EngineError> {
        let has_work = !self.active.is_empty() || !self.waiting.is_empty() || !self.loads.is_empty();
        if has_work {
            self.residency.set_idle(false);
        }
        if has_work && resident.is_none() {
            let begin = self.config.clock.instant();
            self.state.begin_step(MAX_LOADING);
            let model = resident.insert(self.config.load(backend)?);
            start::warm(model, backend).map_err(EngineError::Warm)?;
            self.state.set_memory(device::memory());
            self.residency.set_loaded(true);
            let took = self.config.clock.instant() - begin;
            self.waiting.iter_mut().for_each(|queued| queued.loading = took);
            tracing::info!(seconds = took.as_secs_f64(), "model loaded again");
            self.state.begin_step(self.step_limit.longest());
        // A request may have arrived together with its keep-alive time.
        } else if !has_work && resident.is_some() && self.residency.is_over() && self.commands.is_empty() {
            *resident = None;
            kv.discard_prefixes();
            self.residency.set_loaded(false);
            tracing::info!("idle model unloaded");
        }
        for loaded in self.loads.drain(..) {
            // The client may have disconnected.
            let _ = loaded.send(());
        }
        Ok(())
    }

    /// Pauses after the step that began at `begin`, if the agent limits the engine's share of the
    /// chip's time.
    fn rest_after_step(&self, begin: Instant) {
        let allowance = self.state.allowance();
        if allowance.is_limited() {
            // Without this call, the device would work during the pause.
            self.batch.synchronize();
            let worked = self.config.clock.instant();
            self.state.begin_step(self.step_limit.longest());
            allowance.rest(worked - begin);
            self.spent(StepPart::Yield, worked);
        }
    }

    /// Processes submitted commands; waits for one if the engine is idle. Returns false if the
    /// engine is to end.
    fn receive(&mut self, kv: &KvMemory, idle: bool) -> bool {
        if idle {
            if self.active.is_empty() && self.waiting.is_empty() {
                self.enter_idle(kv);
            } else {
                self.state.begin_step(self.step_limit.longest());
            }
            match self.commands.blocking_recv() {
                Some(command) => self.handle(command, kv),
                None => return false,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.handle(command, kv);
        }
        !self.stop.load(Ordering::Relaxed)
    }

    fn handle(&mut self, command: Command, kv: &KvMemory) {
        match command {
            Command::Run(job) => {
                let tokens = job.request.prompt.len() + job.request.max_tokens;
                self.waiting.push_back(Queued {
                    id: RequestId(self.next_id),
                    bytes: kv.request_bytes(tokens),
                    overtaken: 0,
                    loading: Duration::ZERO,
                    job: *job,
                });
                self.next_id += 1;
            }
            Command::Load(loaded) => self.loads.push(loaded),
            Command::Wake => {}
            #[cfg(test)]
            Command::Panic => panic!("on purpose"),
        }
    }

    fn enter_idle(&self, kv: &KvMemory) {
        // The sizes of cached buffers rarely fit the next requests.
        drop(rooflet_mlx::mlx_rs::memory::clear_cache());
        self.state.set_memory(device::memory());
        self.publish_load(kv);
        self.residency.set_idle(true);
        self.state.set_idle();
    }

    fn publish_load(&self, kv: &KvMemory) {
        self.state.set_load(self.active.len(), self.waiting.len());
        self.state.set_kv_cache_usage(kv.in_use(&self.active));
        if !self.waiting.is_empty() {
            let typical = self.state.typical_completion_tokens().unwrap_or(usize::MAX);
            let running = self.active.iter().map(|sequence| sequence.remaining(typical));
            self.state.set_row_free(time_until_free_row(running, self.pace));
        }
    }

    /// Removes cancelled requests. Their computed tokens are stored, because users often continue a
    /// cancelled answer.
    fn drop_cancelled(&mut self, kv: &mut KvMemory) {
        let metrics = &self.config.metrics;
        self.waiting.retain(|queued| {
            let keep = !queued.job.events.is_closed();
            if !keep {
                metrics.record_outcome(Outcome::Cancelled);
                spans::record_cancelled(queued.job.span.as_deref());
            }
            keep
        });
        let cancelled: Vec<_> = self
            .active
            .extract_if(.., |sequence| sequence.is_cancelled())
            .collect();
        for sequence in cancelled {
            metrics.record_outcome(Outcome::Cancelled);
            spans::record_cancelled(sequence.span());
            kv.retire(sequence, &self.active);
        }
    }

    fn plan(&self, kv_bytes: Bytes, backend: Backend) -> StepPlan {
        // Fast path for most steps: all rows decode and the queue is empty.
        if self.waiting.is_empty() && self.active.iter().all(Sequence::is_decoding) {
            return StepPlan::default();
        }
        let waiting: Vec<_> = self.waiting.iter().map(Queued::as_waiting).collect();
        let running: Vec<_> = self.active.iter().map(Sequence::as_running).collect();
        let limits = Limits {
            rows: self.config.max_concurrency,
            bytes: kv_bytes.0,
            pass_tokens: pass_tokens(backend),
            chunk_tokens: self.chunk_limit.tokens(self.pace),
        };
        StepPlan::new(&waiting, &running, limits, self.pace)
    }

    fn join(&mut self, plan: &StepPlan, model: &Decoder, kv: &mut KvMemory) {
        let before = self.active.len();
        for queued in &mut self.waiting {
            queued.overtaken += u32::from(plan.overtaken.contains(&queued.id));
        }
        for sequence in &mut self.active {
            if plan.overtaken.contains(&sequence.id()) {
                sequence.count_overtaken();
            }
        }
        for id in &plan.join {
            let place = self.waiting.iter().position(|queued| queued.id == *id);
            if let Some(queued) = place.and_then(|place| self.waiting.remove(place)) {
                let tokenizer = self.config.prompter.tokenizer();
                let mut sequence = Sequence::new(queued, model, tokenizer);
                sequence.timing.joined = Some(self.config.clock.instant());
                if let Some(tokens) = self.config.prompt_lookup_tokens {
                    sequence.enable_lookup(tokens);
                }
                self.active.push(sequence);
            }
        }
        // After all joining requests are active, because each reduces the memory for idle rows.
        for index in before..self.active.len() {
            if kv.resume(&mut self.active, index) {
                self.count_prefix(index);
            }
        }
    }

    fn count_prefix(&self, index: usize) {
        let sequence = &self.active[index];
        let metrics = &self.config.metrics;
        metrics.record_prefix_lookup(sequence.prompt.len(), sequence.prompt.cached_tokens());
    }

    /// Runs one decode step for all decoding sequences.
    fn decode(&mut self, model: &Decoder, kv: &mut KvMemory) {
        if self.batch.is_empty() {
            return;
        }
        let begin = self.config.clock.instant();
        let unread = self.unread_prefill.take();
        let unread_tokens = unread.map_or(0, |(tokens, _)| tokens);
        self.state
            .begin_step(self.step_limit.of_step(unread_tokens, true, self.pace));
        let pending = self.batch.launch(model, &mut self.active);
        self.spent(StepPart::Build, begin);
        let launched = self.config.clock.instant();
        let tokens_read = pending.read();
        self.spent(StepPart::Compute, launched);
        let computed = self.config.clock.instant();
        if let Some((tokens, begin)) = unread {
            self.step_limit.record_prefill(tokens, computed - begin);
        }
        match self.last_chunk.take() {
            // The first token after the chunk has just been read.
            Some((id, tokens, begin)) if tokens_read.iter().any(|token| token.id == id) => {
                self.pace.record_chunk(tokens, computed - begin);
            }
            // The device was synchronised before the pause, so the wait does not measure the step.
            Some(_) | None if self.state.allowance().is_limited() => {}
            Some(_) | None => self.pace.record_step(computed - begin),
        }
        let detokenizing = self.process_tokens(tokens_read, kv);
        let metrics = &self.config.metrics;
        metrics.record_step_part(StepPart::Detokenize, detokenizing);
        let text = self.config.clock.instant() - computed;
        metrics.record_step_part(StepPart::Deliver, text.saturating_sub(detokenizing));
        let begin = self.config.clock.instant();
        let failed = self.batch.launch_after_read(model, &mut self.active);
        self.process_tokens(failed, kv);
        self.spent(StepPart::Build, begin);
    }

    /// Processes tokens that were read and ends requests that are done. Returns the time spent in
    /// the detokenizer.
    fn process_tokens(&mut self, tokens_read: Vec<StepToken>, kv: &mut KvMemory) -> Duration {
        let mut detokenizing = Duration::ZERO;
        for StepToken {
            id,
            token,
            logprobs,
            rows,
            verified,
        } in tokens_read
        {
            self.failures.record(token.as_ref().map(drop));
            // The row has ended or was cancelled while its token was pending.
            let Some(index) = self.active.iter().position(|sequence| sequence.id() == id) else {
                continue;
            };
            let tokenizer = self.config.prompter.tokenizer();
            let clock = &self.config.clock;
            self.config.metrics.record_batch(rows);
            if let Some(verified) = verified {
                self.config
                    .metrics
                    .record_draft(verified.drafted, verified.accepted);
                self.active[index].drafts_verified(verified);
            }
            let before = self.active[index].completion_tokens();
            let pushed = token.and_then(|token| {
                self.active[index].push_token(token, logprobs, rows, tokenizer, || clock.instant())
            });
            let metrics = &self.config.metrics;
            metrics.record_tokens(0, self.active[index].completion_tokens() - before);
            let TokenTime {
                since_last,
                detokenizing: of_this,
            } = self.active[index].timing.token;
            detokenizing += of_this;
            if let Some(time) = since_last.filter(|_| pushed.is_ok()) {
                self.config.metrics.record_inter_token(time);
            }
            if let Some(outcome) = pushed.transpose() {
                let sequence = self.active.remove(index);
                let computed = outcome.is_ok();
                if matches!(outcome, Err(StepError::NotFinite)) {
                    kv.discard_faulty(&sequence);
                }
                self.end(&sequence, outcome);
                if computed {
                    kv.retire(sequence, &self.active);
                }
            }
        }
        detokenizing
    }

    /// Runs a prefill pass over the next chunks of some prompts.
    fn prefill(&mut self, chunks: &[Chunk], model: &Decoder, kv: &mut KvMemory) {
        let begin = self.config.clock.instant();
        let parts = self.start_chunks(chunks, kv, begin);
        if parts.is_empty() {
            return;
        }
        let beside_answers = !self.batch.is_empty();
        let pass_tokens = parts.iter().map(|part| part.tokens).sum();
        self.state
            .begin_step(self.step_limit.of_step(pass_tokens, beside_answers, self.pace));
        let computed = |active: &[Sequence]| {
            active
                .iter()
                .map(|sequence| sequence.prompt.prefilled())
                .sum::<usize>()
        };
        let before = computed(&self.active);
        let part = |sequence: &Sequence| parts.iter().find(|part| part.id == sequence.id());
        let rows = self.active.iter_mut();
        let rows = rows.filter_map(|row| part(row).map(|part| (row, part.tokens)));
        let Prefill {
            outcomes,
            first_tokens,
            interrupted,
        } = Prefill::new(model, rows.collect(), self.chunk_limit.may_stop(pass_tokens));
        if interrupted {
            self.chunk_limit.reduce();
        }
        let tokens = computed(&self.active).saturating_sub(before);
        if outcomes
            .iter()
            .any(|(_, outcome)| matches!(outcome, Ok(Prefilled::Partial)))
        {
            self.pace
                .record_chunk(tokens, self.config.clock.instant() - begin);
        } else if let Some((ids, _)) = first_tokens.last() {
            let is_alone = !beside_answers && tokens >= MEASURED_CHUNK_TOKENS;
            self.last_chunk = is_alone.then_some((ids[0], tokens, begin));
        }
        if !first_tokens.is_empty() {
            self.unread_prefill = Some((tokens, begin));
        }
        for (ids, first) in first_tokens {
            self.batch.join(ids, first);
        }
        for (id, outcome) in outcomes {
            self.prefilled(id, outcome, kv);
        }
        self.spent(StepPart::Prefill, begin);
    }

    /// Prepares the chunks and returns those to compute now. A new prompt starts with its cached
    /// prefix, or waits for tokens that another prompt or a file is about to provide.
    fn start_chunks(&mut self, chunks: &[Chunk], kv: &mut KvMemory, now: Instant) -> Vec<Chunk> {
        let mut parts: Vec<Chunk> = Vec::with_capacity(chunks.len());
        for Chunk { id, tokens } in chunks.iter().copied() {
            // The request may have failed in this step.
            let Some(index) = self.active.iter().position(|sequence| sequence.id() == id) else {
                continue;
            };
            let sequence = &self.active[index];
            if sequence.prompt.prefilled() == 0 && sequence.prompt.shares_prefixes() {
                let is_computed = |other: &Sequence| parts.iter().any(|part| part.id == other.id());
                let mut computed = self.active.iter().filter(|other| is_computed(other));
                // Checked here and not when the request joins, because an equal prompt may have
                // been computed since.
                if computed.any(|other| kv.should_wait_for(sequence, other))
                    || kv.load(&mut self.active, index, self.pace, now)
                {
                    continue;
                }
                let sequence = &mut self.active[index];
                if let Some(prefix) = kv.find_prefix(sequence) {
                    sequence.begin_with(prefix);
                }
                let snapshot_points = kv.snapshot_points(sequence);
                sequence.prompt.set_snapshot_points(snapshot_points);
                if !sequence.prompt.is_isolated() {
                    self.count_prefix(index);
                }
            }
            let tokens = self.active[index].prompt.until_snapshot_point(tokens);
            parts.push(Chunk { id, tokens });
        }
        parts
    }

    /// Handles the outcome of a prompt's chunk.
    fn prefilled(&mut self, id: RequestId, outcome: Result<Prefilled, StepError>, kv: &mut KvMemory) {
        let Some(index) = self.active.iter().position(|sequence| sequence.id() == id) else {
            return;
        };
        match &outcome {
            Ok(Prefilled::Partial | Prefilled::Done(_)) => self.failures.record(Ok(())),
            // The result is pending, or the prompt is prefilled again.
            Ok(Prefilled::FirstToken | Prefilled::Retry) => {}
            Err(err) => self.failures.record(Err(err)),
        }
        let sequence = &self.active[index];
        if matches!(outcome, Ok(Prefilled::FirstToken | Prefilled::Done(_))) {
            self.config.metrics.record_tokens(sequence.prompt.len(), 0);
        }
        match outcome {
            Ok(Prefilled::Partial) => {
                let stage = match sequence.prompt.is_at_snapshot_point() {
                    true => StoreStage::SnapshotPoint,
                    false => StoreStage::PartialPrompt,
                };
                kv.store(sequence, stage, &self.active);
            }
            Ok(Prefilled::FirstToken) => {
                kv.store(sequence, StoreStage::Prompt, &self.active);
            }
            Ok(Prefilled::Done(done)) => {
                let sequence = self.active.swap_remove(index);
                self.end(&sequence, Ok(done));
                kv.retire(sequence, &self.active);
            }
            Ok(Prefilled::Retry) => {}
            Err(err) => {
                let sequence = self.active.swap_remove(index);
                self.end(&sequence, Err(err));
            }
        }
    }

    fn spent(&self, part: StepPart, since: Instant) {
        self.config
            .metrics
            .record_step_part(part, self.config.clock.instant() - since);
    }

    /// Counts an ended request before it sends the last event, so that the counts include the
    /// request when the client has the complete answer.
    fn end(&self, sequence: &Sequence, outcome: Result<Done, StepError>) {
        self.state.set_load(self.active.len(), self.waiting.len());
        if let Some(span) = sequence.span() {
            spans::record_sequence(span, sequence, outcome.as_ref(), self.config.clock.instant());
        }
        match outcome {
            Ok(done) => {
                self.record(sequence, &done);
                let durations = sequence.timing.durations(self.config.clock.instant());
                sequence.send(Event::Done(Done { durations, ..done }));
            }
            Err(err) => {
                tracing::error!(error = %err, "request failed");
                self.config.metrics.record_outcome(Outcome::Failed);
                if matches!(err, StepError::NotFinite) {
                    self.config.metrics.record_non_finite();
                }
                self.state.add_failed();
                sequence.send(Event::Failed(err.to_string()));
            }
        }
    }

    fn record(&self, sequence: &Sequence, done: &Done) {
        let metrics = &self.config.metrics;
        let timing = sequence.timing;
        metrics.record_outcome(match done.reason {
            FinishReason::Stop | FinishReason::ToolCalls => Outcome::Stop,
            FinishReason::Length => Outcome::Length,
        });
        let now = self.config.clock.instant();
        // Without an answer, the end of the prompt stands for the first token.
        let first_token = timing.first_token.unwrap_or(now);
        let time_to_first_token = first_token.duration_since(timing.submitted);
        let loading = timing.loading;
        let duration = now.duration_since(timing.submitted);
        let decoding = now.duration_since(first_token);
        let later_tokens = u32::try_from(done.completion_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        let between = (later_tokens > 0).then(|| decoding / later_tokens);
        if done.completion_tokens > 0 {
            metrics.record_first_token(time_to_first_token);
        }
        metrics.record_duration(duration, between);
        if let Some(trace) = sequence.span().and_then(|span| span.sampled_trace()) {
            let first = (done.completion_tokens > 0).then_some(time_to_first_token);
            metrics.link(&trace, first, duration, self.config.clock.now());
        }
        let rate = |between: Duration| (!between.is_zero()).then(|| 1.0 / between.as_secs_f64());
        // Only requests with answers have speeds.
        let sample = (done.completion_tokens > 0).then(|| Sample {
            time_to_first_token: time_to_first_token.saturating_sub(loading),
            prefill: timing.joined.map(|joined| first_token.duration_since(joined)),
            decode_tokens_per_second: between.and_then(rate),
            streams: sequence.decoding.streams(),
            prompt_tokens: sequence.prompt.len() as f64,
            cached_tokens: sequence.prompt.cached_tokens(),
            completion_tokens: done.completion_tokens,
            context_tokens: sequence.prompt.len() as f64 + done.completion_tokens as f64 / 2.0,
        });
        self.state.add_completed(sample);
    }

    fn housekeep(&self, steps: u64) {
        if steps.is_multiple_of(STEPS_PER_CACHE_CLEARING) {
            drop(rooflet_mlx::mlx_rs::memory::clear_cache());
        }
        if steps.is_multiple_of(STEPS_PER_MEMORY_READING) {
            self.state.set_memory(device::memory());
        }
    }
}

/// Returns the number of tokens up to which a pass is hardly slower than with fewer tokens. Beyond
/// it, a pass is limited by compute, and the first prompts finish sooner if prompts are prefilled
/// one after the other. The number is larger for CUDA, where MLX's kernels dequantise all weights
/// in every pass.
fn pass_tokens(backend: Backend) -> usize {
    match backend {
        Backend::Cpu | Backend::Metal => 256,
        Backend::Cuda => 2048,
    }
}
