//! What a worker counts. Labels are fixed words, never anything from a request.

mod vllm;

use std::time::Duration;

use self::vllm::VllmMetrics;
use rooflet_api::wire::EngineMemory;
use rooflet_base::metrics::{
    BATCH_ROWS, Counter, CounterVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, REQUEST_SECONDS, Registry, Result,
};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Stop,
    Length,
    Cancelled,
    Failed,
    /// Refused because the queue was full.
    Rejected,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
        }
    }
}

/// What the engine's thread does in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepPart {
    /// Planning, and letting requests join.
    Schedule,
    /// Describing the forward pass and the sampling, and handing them to the device. MLX lets the
    /// device fall only so far behind: where it takes longer than describing, most of the
    /// computation is waited for in this.
    Build,
    /// Waiting for the tokens: forward pass and sampling, as far as they take longer than the rest.
    Compute,
    /// Turning tokens into text.
    Detokenize,
    /// All else that is done with a token: finding its request, sending the text, ending what has
    /// ended.
    Deliver,
    /// A chunk of a prompt, computation included.
    Prefill,
    /// Leaving the chip to replicas with objectives.
    Rest,
}

impl StepPart {
    const ALL: [Self; 7] = [
        Self::Schedule,
        Self::Build,
        Self::Compute,
        Self::Detokenize,
        Self::Deliver,
        Self::Prefill,
        Self::Rest,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Build => "build",
            Self::Compute => "compute",
            Self::Detokenize => "detokenize",
            Self::Deliver => "deliver",
            Self::Prefill => "prefill",
            Self::Rest => "rest",
        }
    }
}

/// Memory of the requests' caches at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KvUse {
    /// In buffers.
    pub held: u64,
    /// The most that those that run can come to.
    pub reserved: u64,
    /// Kept for requests that begin alike.
    pub prefixes: u64,
    /// Kept on disk, which is no memory.
    pub prefix_files: u64,
    /// They cannot be read and written any more.
    pub prefix_files_failed: bool,
    /// The most there may be.
    pub limit: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct WorkerMetrics {
    /// In the order of [`StepPart::ALL`], found once and not in every step.
    step_seconds: [Counter; 7],
    batch_rows: Histogram,
    kv_cache: IntGaugeVec,
    requests: IntCounterVec,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
    prefix_queries: IntCounter,
    prefix_hits: IntCounter,
    guessed: IntCounter,
    guessed_right: IntCounter,
    prefix_files: IntGauge,
    prefix_files_failed: IntGauge,
    running: IntGauge,
    queued: IntGauge,
    time_to_first_token: Histogram,
    inter_token: Histogram,
    duration: Histogram,
    memory: IntGaugeVec,
    vllm: VllmMetrics,
}

impl WorkerMetrics {
    /// `model` is the name under which the model is served.
    pub(crate) fn register(registry: &Registry, model: &str) -> Result<Self> {
        let counter = |name: &str, help: &str| -> Result<IntCounter> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let gauge = |name: &str, help: &str| -> Result<IntGauge> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let histogram = |name: &str, help: &str| -> Result<Histogram> {
            let options = HistogramOpts::new(name, help).buckets(REQUEST_SECONDS.to_vec());
            let histogram = Histogram::with_opts(options)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let requests = IntCounterVec::new(
            Opts::new("rooflet_worker_requests_total", "Completions by how they ended."),
            &["outcome"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        let memory = IntGaugeVec::new(
            Opts::new("rooflet_worker_memory_bytes", "Memory of the engine's allocator."),
            &["kind"],
        )?;
        registry.register(Box::new(memory.clone()))?;
        let step_seconds = CounterVec::new(
            Opts::new(
                "rooflet_worker_step_seconds_total",
                "Time of the engine's thread by what it did. Compute is waiting for tokens, sampling included; build describes a pass and waits when the device lags far behind.",
            ),
            &["part"],
        )?;
        registry.register(Box::new(step_seconds.clone()))?;
        let batch_rows = Histogram::with_opts(
            HistogramOpts::new(
                "rooflet_worker_batch_rows",
                "Requests that were computed together, of each token.",
            )
            .buckets(BATCH_ROWS.to_vec()),
        )?;
        registry.register(Box::new(batch_rows.clone()))?;
        let kv_cache = IntGaugeVec::new(
            Opts::new(
                "rooflet_worker_kv_cache_bytes",
                "Memory of the requests' caches: held, reserved for those that run, prefixes kept for others, and the limit.",
            ),
            &["kind"],
        )?;
        registry.register(Box::new(kv_cache.clone()))?;
        Ok(Self {
            vllm: VllmMetrics::register(registry, model)?,
            step_seconds: StepPart::ALL.map(|part| step_seconds.with_label_values(&[part.as_str()])),
            batch_rows,
            kv_cache,
            requests,
            memory,
            prompt_tokens: counter(
                "rooflet_worker_prompt_tokens_total",
                "Tokens of prompts, those among them that were cached, too.",
            )?,
            completion_tokens: counter(
                "rooflet_worker_completion_tokens_total",
                "Tokens that were generated.",
            )?,
            prefix_queries: counter(
                "rooflet_worker_prefix_cache_queried_tokens_total",
                "Tokens of prompts that were looked up in the prefix cache.",
            )?,
            prefix_hits: counter(
                "rooflet_worker_prefix_cache_hit_tokens_total",
                "Tokens of prompts that were in the prefix cache and did not have to be computed.",
            )?,
            guessed: counter(
                "rooflet_worker_lookup_guessed_tokens_total",
                "Tokens that were guessed ahead by prompt lookup.",
            )?,
            guessed_right: counter(
                "rooflet_worker_lookup_right_tokens_total",
                "Of these, tokens that the model chose, too.",
            )?,
            prefix_files: gauge(
                "rooflet_worker_prefix_cache_disk_bytes",
                "Files of the prefix cache.",
            )?,
            prefix_files_failed: gauge(
                "rooflet_worker_prefix_cache_disk_failed",
                "1 when the thread for the files of the prefix cache has failed, and prefixes are kept in memory only.",
            )?,
            running: gauge("rooflet_worker_running_requests", "Completions being computed.")?,
            queued: gauge(
                "rooflet_worker_queued_requests",
                "Completions waiting for the engine.",
            )?,
            time_to_first_token: histogram(
                "rooflet_worker_time_to_first_token_seconds",
                "From a request's arrival to its first token.",
            )?,
            inter_token: histogram(
                "rooflet_worker_inter_token_latency_seconds",
                "Time between two tokens of one request.",
            )?,
            duration: histogram(
                "rooflet_worker_request_duration_seconds",
                "From a request's arrival to its end.",
            )?,
        })
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        self.requests.with_label_values(&[outcome.as_str()]).inc();
        self.vllm.ended(outcome);
    }

    /// So many tokens of a prompt were read, so many of an answer written, just now.
    pub(crate) fn tokens(&self, prompt: usize, completion: usize) {
        self.prompt_tokens.inc_by(prompt as u64);
        self.completion_tokens.inc_by(completion as u64);
        self.vllm.tokens(prompt as u64, completion as u64);
    }

    /// Of a prompt, so many tokens were known.
    pub(crate) fn prefix(&self, prompt: usize, known: usize) {
        self.prefix_queries.inc_by(prompt as u64);
        self.prefix_hits.inc_by(known as u64);
        self.vllm.prefix(prompt as u64, known as u64);
    }

    /// Of so many tokens that were guessed, so many were right.
    pub(crate) fn guessed(&self, tokens: usize, right: usize) {
        self.guessed.inc_by(tokens as u64);
        self.guessed_right.inc_by(right as u64);
    }

    pub(crate) fn spent(&self, part: StepPart, time: Duration) {
        self.step_seconds[part as usize].inc_by(time.as_secs_f64());
    }

    /// A token was chosen by a pass of so many rows.
    pub(crate) fn batched(&self, rows: usize) {
        self.batch_rows.observe(rows as f64);
    }

    pub(crate) fn first_token(&self, after: Duration) {
        self.time_to_first_token.observe(after.as_secs_f64());
        self.vllm.first_token(after);
    }

    /// A request took so long, and so long between two of its tokens on average.
    pub(crate) fn finished(&self, duration: Duration, between_tokens: Option<Duration>) {
        self.duration.observe(duration.as_secs_f64());
        self.vllm.finished(duration, between_tokens);
    }

    /// A token came so long after the one before.
    pub(crate) fn between_tokens(&self, time: Duration) {
        self.inter_token.observe(time.as_secs_f64());
        self.vllm.between_tokens(time);
    }

    /// Sets the gauges; called when they are about to be shown.
    pub(crate) fn show(&self, running: u64, queued: u64, memory: EngineMemory, kv: KvUse) {
        let count = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.running.set(count(running));
        self.queued.set(count(queued));
        self.prefix_files.set(count(kv.prefix_files));
        self.prefix_files_failed.set(i64::from(kv.prefix_files_failed));
        self.vllm.show(count(running), count(queued), kv);
        for (kind, bytes) in [
            ("held", kv.held),
            ("reserved", kv.reserved),
            ("prefixes", kv.prefixes),
            ("limit", kv.limit),
        ] {
            self.kv_cache.with_label_values(&[kind]).set(count(bytes));
        }
        for (kind, bytes) in [
            ("active", memory.active_bytes),
            ("peak", memory.peak_bytes),
            ("cache", memory.cache_bytes),
        ] {
            self.memory.with_label_values(&[kind]).set(count(bytes));
        }
    }
}
