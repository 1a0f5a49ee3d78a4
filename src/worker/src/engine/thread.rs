//! The thread's loop, once per step: drop what was cancelled, plan ([`StepPlan`]), let join who
//! may, one forward pass for all rows that decode, then one over the next parts of some prompts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::failures::Failures;
use super::{Command, EngineConfig, EngineError, spans, start};
use crate::batch::event::{Done, Event};
use crate::batch::job::Queued;
use crate::batch::prefill::{Prefill, Prefilled};
use crate::batch::sequence::{Sequence, TokenTime};
use crate::batch::step_error::StepError;
use crate::batch::{Batch, StepToken};
use crate::cache::Keep;
use crate::cache::kv_memory::KvMemory;
use crate::engine::schedule::{Chunk, Limits, Pace, RequestId, StepPlan, until_a_row_is_free};
use crate::engine::state::{EngineState, Sample};
use crate::metrics::{Outcome, StepPart};
use crate::models::Decoder;
use rooflet_api::wire::WorkerPhase;
use rooflet_base::units::Bytes;
use rooflet_inference_api::openai::response::FinishReason;
use rooflet_mlx::backend::Backend;
use rooflet_mlx::device;

/// Steps between two clearings of MLX's allocator cache. Each costs new allocations; none at all
/// lets it grow to all that the worker may use.
const STEPS_PER_CACHE_CLEARING: u64 = 512;
/// Steps between two readings of the allocator's counters.
const STEPS_PER_MEMORY_READING: u64 = 64;

/// A shorter chunk takes as long as a decode step, and says nothing about how fast prompts are
/// read.
const MEASURED_CHUNK_TOKENS: usize = 256;

/// See the module's text.
pub(super) struct EngineThread {
    config: EngineConfig,
    state: Arc<EngineState>,
    stop: Arc<AtomicBool>,
    commands: mpsc::Receiver<Command>,
    /// For whom this thread waits on; it ends when all others who hold the queue are gone.
    waker: mpsc::WeakSender<Command>,
    next_id: u64,
    waiting: VecDeque<Queued>,
    active: Vec<Sequence>,
    batch: Batch,
    pace: Pace,
    failures: Failures,
    /// The last chunk of a prompt, submitted with nothing beside it: whose, how many tokens, and
    /// when.
    last_chunk: Option<(RequestId, usize, Instant)>,
}

impl EngineThread {
    pub(super) fn new(
        config: EngineConfig,
        state: Arc<EngineState>,
        stop: Arc<AtomicBool>,
        commands: mpsc::Receiver<Command>,
        waker: mpsc::WeakSender<Command>,
    ) -> Self {
        Self {
            config,
            state,
            stop,
            commands,
            waker,
            next_id: 0,
            waiting: VecDeque::new(),
            active: Vec::new(),
            batch: Batch::default(),
            pace: Pace::default(),
            failures: Failures::default(),
            last_chunk: None,
        }
    }

    pub(super) fn run(mut self) -> Result<(), EngineError> {
        let backend = Backend::current().map_err(EngineError::Device)?;
        let engine = device::engine_info().map_err(EngineError::Device)?;
        let mut kv = self.config.kv_memory(backend, self.waker.clone())?;
        self.state.set_info(engine, self.config.model_info(backend));
        let model = self.config.load(backend)?;
        self.state.set_phase(WorkerPhase::Warming);
        start::warm(&model).map_err(EngineError::Warm)?;
        self.state.set_memory(device::memory());
        self.state.set_phase(WorkerPhase::Ready);
        let mut steps = 0_u64;
        let mut idle = true;
        while self.receive(&kv, idle) {
            self.state.set_progress();
            self.drop_cancelled(&mut kv);
            let begin = self.config.clock.instant();
            let comes = || !self.waiting.is_empty() || !self.commands.is_empty();
            kv.tend(&mut self.active, comes, self.pace, &self.config.clock);
            let plan = self.plan(kv.limit(), backend);
            self.join(&plan, &model, &mut kv);
            let rows = self.active.len();
            kv.give_way(&self.active, &plan.prefill);
            self.tell_load(&kv);
            self.spent(StepPart::Schedule, begin);
            self.decode(&model, &mut kv);
            if !plan.prefill.is_empty() {
                self.prefill(&plan.prefill, &model, &mut kv);
            }
            self.failures.end_step()?;
            steps += 1;
            self.housekeep(steps);
            // Who has ended may have left room for those that wait.
            let stayed = self.active.len() == rows;
            idle = plan == StepPlan::default() && stayed && self.batch.is_empty() && !kv.has_work();
            self.leave_to_others(begin);
        }
        kv.finish(&self.config.clock);
        Ok(())
    }

    /// Rests after the step that began then, where the agent allows a part of the chip's time only.
    fn leave_to_others(&self, begin: Instant) {
        let allowance = self.state.allowance();
        if allowance.is_limited() {
            // Else the device would work meanwhile.
            self.batch.settle();
            let worked = self.config.clock.instant();
            allowance.rest(worked - begin);
            self.spent(StepPart::Rest, worked);
        }
    }

    /// Takes what has been submitted; waits for it where there is nothing to do. False when the
    /// engine is to end.
    fn receive(&mut self, kv: &KvMemory, idle: bool) -> bool {
        if idle {
            if self.active.is_empty() && self.waiting.is_empty() {
                self.rest(kv);
            }
            match self.commands.blocking_recv() {
                Some(command) => self.take(command, kv),
                None => return false,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.take(command, kv);
        }
        !self.stop.load(Ordering::Relaxed)
    }

    fn take(&mut self, command: Command, kv: &KvMemory) {
        match command {
            Command::Run(job) => {
                let tokens = job.request.prompt.len() + job.request.max_tokens;
                self.waiting.push_back(Queued {
                    id: RequestId(self.next_id),
                    bytes: kv.request_bytes(tokens),
                    overtaken: 0,
                    job: *job,
                });
                self.next_id += 1;
            }
            Command::Wake => {}
            #[cfg(test)]
            Command::Panic => panic!("on purpose"),
        }
    }

    fn rest(&self, kv: &KvMemory) {
        // What the last requests used is of no use to the next ones, whose sizes differ.
        drop(rooflet_mlx::mlx_rs::memory::clear_cache());
        self.state.set_memory(device::memory());
        self.tell_load(kv);
        self.state.set_idle();
    }

    fn tell_load(&self, kv: &KvMemory) {
        self.state.set_load(self.active.len(), self.waiting.len());
        self.state.set_kv_use(kv.in_use(&self.active));
        if !self.waiting.is_empty() {
            let typical = self.state.typical_completion_tokens().unwrap_or(usize::MAX);
            let running = self.active.iter().map(|sequence| sequence.remaining(typical));
            self.state.set_row_free(until_a_row_is_free(running, self.pace));
        }
    }

    /// What was computed for them is kept: who stops an answer goes on from there.
    fn drop_cancelled(&mut self, kv: &mut KvMemory) {
        let metrics = &self.config.metrics;
        self.waiting.retain(|queued| {
            let keep = !queued.job.events.is_closed();
            if !keep {
                metrics.ended(Outcome::Cancelled);
                spans::tell_cancelled(queued.job.span.as_deref());
            }
            keep
        });
        let cancelled: Vec<_> = self
            .active
            .extract_if(.., |sequence| sequence.is_cancelled())
            .collect();
        for sequence in cancelled {
            metrics.ended(Outcome::Cancelled);
            spans::tell_cancelled(sequence.span());
            kv.retire(sequence, &self.active);
        }
    }

    fn plan(&self, kv_bytes: Bytes, backend: Backend) -> StepPlan {
        // Most steps: all rows decode and nobody waits.
        if self.waiting.is_empty() && self.active.iter().all(Sequence::is_decoding) {
            return StepPlan::default();
        }
        let waiting: Vec<_> = self.waiting.iter().map(Queued::as_waiting).collect();
        let running: Vec<_> = self.active.iter().map(Sequence::as_running).collect();
        let limits = Limits {
            rows: self.config.max_concurrency,
            bytes: kv_bytes.0,
            pass_tokens: pass_tokens(backend),
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
                sequence.was_overtaken();
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
        // Behind all who join: none may take what another was promised.
        for index in before..self.active.len() {
            if kv.resume(&mut self.active, index) {
                self.count_prefix(index);
            }
        }
    }

    fn count_prefix(&self, index: usize) {
        let sequence = &self.active[index];
        let metrics = &self.config.metrics;
        metrics.prefix(sequence.prompt.len(), sequence.prompt.cached_tokens());
    }

    /// One token for every sequence that decodes.
    fn decode(&mut self, model: &Decoder, kv: &mut KvMemory) {
        if self.batch.is_empty() {
            return;
        }
        let begin = self.config.clock.instant();
        let pending = self.batch.launch(model, &mut self.active);
        self.spent(StepPart::Build, begin);
        let launched = self.config.clock.instant();
        let tokens_read = pending.read();
        self.spent(StepPart::Compute, launched);
        let computed = self.config.clock.instant();
        match self.last_chunk.take() {
            // What it led to has been read just now.
            Some((id, tokens, begin)) if tokens_read.iter().any(|token| token.id == id) => {
                self.pace.saw_chunk(tokens, computed - begin);
            }
            // The step was waited for before, with a rest after it.
            Some(_) | None if self.state.allowance().is_limited() => {}
            Some(_) | None => self.pace.saw_step(computed - begin),
        }
        let detokenizing = self.take_tokens(tokens_read, kv);
        let metrics = &self.config.metrics;
        metrics.spent(StepPart::Detokenize, detokenizing);
        let text = self.config.clock.instant() - computed;
        metrics.spent(StepPart::Deliver, text.saturating_sub(detokenizing));
        let begin = self.config.clock.instant();
        let failed = self.batch.launch_read(model, &mut self.active);
        self.take_tokens(failed, kv);
        self.spent(StepPart::Build, begin);
    }

    /// Takes tokens that were read; requests that have their last one end. Returns how long the
    /// tokens took to be made text.
    fn take_tokens(&mut self, tokens_read: Vec<StepToken>, kv: &mut KvMemory) -> Duration {
        let mut detokenizing = Duration::ZERO;
        for StepToken {
            id,
            token,
            logprobs,
            rows,
            verified,
        } in tokens_read
        {
            self.failures.saw(token.as_ref().map(drop));
            // A row that ended or was cancelled while its token was on the way.
            let Some(index) = self.active.iter().position(|sequence| sequence.id() == id) else {
                continue;
            };
            let tokenizer = self.config.prompter.tokenizer();
            let clock = &self.config.clock;
            self.config.metrics.batched(rows);
            if let Some(verified) = verified {
                self.config.metrics.guessed(verified.drafted, verified.accepted);
                self.active[index].drafts_verified(verified);
            }
            let before = self.active[index].completion_tokens();
            let taken = token.and_then(|token| {
                self.active[index].take(token, logprobs, rows, tokenizer, || clock.instant())
            });
            let metrics = &self.config.metrics;
            metrics.tokens(0, self.active[index].completion_tokens() - before);
            let TokenTime {
                since_last,
                detokenizing: of_this,
            } = self.active[index].timing.token;
            detokenizing += of_this;
            if let Some(time) = since_last.filter(|_| taken.is_ok()) {
                self.config.metrics.between_tokens(time);
            }
            if let Some(outcome) = taken.transpose() {
                let sequence = self.active.remove(index);
                let computed = outcome.is_ok();
                self.end(&sequence, outcome);
                if computed {
                    kv.retire(sequence, &self.active);
                }
            }
        }
        detokenizing
    }

    /// The next parts of some prompts; after the last one a row decodes.
    fn prefill(&mut self, chunks: &[Chunk], model: &Decoder, kv: &mut KvMemory) {
        let begin = self.config.clock.instant();
        let parts = self.begin(chunks, kv, begin);
        if parts.is_empty() {
            return;
        }
        let beside_answers = !self.batch.is_empty();
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
        let Prefill { outcomes, chosen } = Prefill::new(model, rows.collect());
        let tokens = computed(&self.active).saturating_sub(before);
        if outcomes
            .iter()
            .any(|(_, outcome)| matches!(outcome, Ok(Prefilled::Partly)))
        {
            self.pace.saw_chunk(tokens, self.config.clock.instant() - begin);
        } else if let Some((ids, _)) = chosen.last() {
            let is_alone = !beside_answers && tokens >= MEASURED_CHUNK_TOKENS;
            self.last_chunk = is_alone.then_some((ids[0], tokens, begin));
        }
        for (ids, first) in chosen {
            self.batch.join(ids, first);
        }
        for (id, outcome) in outcomes {
            self.prefilled(id, outcome, kv);
        }
        self.spent(StepPart::Prefill, begin);
    }

    /// Those of the chunks that are read now. A prompt begins with what is known of it, and waits
    /// for what is about to be.
    fn begin(&mut self, chunks: &[Chunk], kv: &mut KvMemory, now: Instant) -> Vec<Chunk> {
        let mut parts: Vec<Chunk> = Vec::with_capacity(chunks.len());
        for Chunk { id, tokens } in chunks.iter().copied() {
            // It may have failed in the step.
            let Some(index) = self.active.iter().position(|sequence| sequence.id() == id) else {
                continue;
            };
            let sequence = &self.active[index];
            if sequence.prompt.prefilled() == 0 && sequence.prompt.shares_prefixes() {
                let goes = |other: &Sequence| parts.iter().any(|part| part.id == other.id());
                let mut going = self.active.iter().filter(|other| goes(other));
                // Not before now: an equal prompt may have been computed since it joined.
                if going.any(|other| kv.is_worth_waiting(sequence, other))
                    || kv.load(&mut self.active, index, self.pace, now)
                {
                    continue;
                }
                let sequence = &mut self.active[index];
                if let Some(prefix) = kv.prefix(sequence) {
                    sequence.begin_with(prefix);
                }
                let stops = kv.stops(sequence);
                sequence.prompt.stop_at(stops);
                if !sequence.prompt.is_isolated() {
                    self.count_prefix(index);
                }
            }
            let tokens = self.active[index].prompt.until_stop(tokens);
            parts.push(Chunk { id, tokens });
        }
        parts
    }

    /// What became of a part of a prompt.
    fn prefilled(&mut self, id: RequestId, outcome: Result<Prefilled, StepError>, kv: &mut KvMemory) {
        let Some(index) = self.active.iter().position(|sequence| sequence.id() == id) else {
            return;
        };
        match &outcome {
            Ok(Prefilled::Partly | Prefilled::Done(_)) => self.failures.saw(Ok(())),
            // It was only submitted, or is read again.
            Ok(Prefilled::Chose | Prefilled::Again) => {}
            Err(err) => self.failures.saw(Err(err)),
        }
        let sequence = &self.active[index];
        if matches!(outcome, Ok(Prefilled::Chose | Prefilled::Done(_))) {
            self.config.metrics.tokens(sequence.prompt.len(), 0);
        }
        match outcome {
            Ok(Prefilled::Partly) => {
                let keep = match sequence.prompt.is_at_stop() {
                    true => Keep::Stop,
                    false => Keep::WholeBlocks,
                };
                kv.keep(sequence, keep, &self.active);
            }
            Ok(Prefilled::Chose) => {
                kv.keep(sequence, Keep::Prompt, &self.active);
            }
            Ok(Prefilled::Done(done)) => {
                let sequence = self.active.swap_remove(index);
                self.end(&sequence, Ok(done));
                kv.retire(sequence, &self.active);
            }
            Ok(Prefilled::Again) => {}
            Err(err) => {
                let sequence = self.active.swap_remove(index);
                self.end(&sequence, Err(err));
            }
        }
    }

    fn spent(&self, part: StepPart, since: Instant) {
        self.config
            .metrics
            .spent(part, self.config.clock.instant() - since);
    }

    /// Counts a request that is over, then tells its owner: who has the answer finds it in the
    /// counts.
    fn end(&self, sequence: &Sequence, outcome: Result<Done, StepError>) {
        self.state.set_load(self.active.len(), self.waiting.len());
        if let Some(span) = sequence.span() {
            spans::tell_sequence(span, sequence, outcome.as_ref(), self.config.clock.instant());
        }
        match outcome {
            Ok(done) => {
                self.record(sequence, &done);
                sequence.send(Event::Done(done));
            }
            Err(err) => {
                tracing::error!(error = %err, "a request failed");
                self.config.metrics.ended(Outcome::Failed);
                self.state.add_failed();
                sequence.send(Event::Failed(err.to_string()));
            }
        }
    }

    fn record(&self, sequence: &Sequence, done: &Done) {
        let metrics = &self.config.metrics;
        let timing = sequence.timing;
        metrics.ended(match done.reason {
            FinishReason::Stop | FinishReason::ToolCalls => Outcome::Stop,
            FinishReason::Length => Outcome::Length,
        });
        let now = self.config.clock.instant();
        // Where only the prompt was read, its end stands for the first token.
        let first_token = timing.first_token.unwrap_or(now);
        let time_to_first_token = first_token.duration_since(timing.submitted);
        let duration = now.duration_since(timing.submitted);
        let decoding = now.duration_since(first_token);
        let later_tokens = u32::try_from(done.completion_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        let between = (later_tokens > 0).then(|| decoding / later_tokens);
        if done.completion_tokens > 0 {
            metrics.first_token(time_to_first_token);
        }
        metrics.finished(duration, between);
        let rate = |between: Duration| (!between.is_zero()).then(|| 1.0 / between.as_secs_f64());
        // Speeds are those of answers.
        let sample = (done.completion_tokens > 0).then(|| Sample {
            time_to_first_token,
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

/// Up to how many tokens a pass takes hardly longer than with fewer. Beyond a few, arithmetic is
/// the limit, and to read prompts one after another gives the first of them their answers sooner;
/// but MLX's CUDA kernels unpack all weights for every pass.
fn pass_tokens(backend: Backend) -> usize {
    match backend {
        Backend::Cpu | Backend::Metal => 256,
        Backend::Cuda => 2048,
    }
}
