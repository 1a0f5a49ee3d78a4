//! Prometheus metrics of a worker. Label values are constants, never data of a request.

mod vllm;

use std::time::Duration;

use jiff::Timestamp;

use self::vllm::VllmMetrics;
use rooflet_api::wire::EngineMemory;
use rooflet_base::metrics::{
    BATCH_ROWS, Counter, CounterVec, Exemplars, Histogram, HistogramOpts, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, REQUEST_SECONDS, Registry, Result,
};

const FIRST_TOKEN: &str = "rooflet_worker_time_to_first_token_seconds";
const DURATION: &str = "rooflet_worker_request_duration_seconds";

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Stop,
    Length,
    Cancelled,
    Failed,
    /// Rejected because the queue was full.
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

/// Activity of the engine thread during a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepPart {
    /// Scheduling, including admission of requests to the batch.
    Schedule,
    /// Building the graph of forward pass and sampling, and submitting it to the device. MLX limits
    /// the number of submitted operations. If the device is slower than graph construction, most of
    /// the wait for the device occurs in this part.
    Build,
    /// Waiting for the sampled tokens.
    Compute,
    /// Conversion of tokens to text.
    Detokenize,
    /// Delivery of tokens: lookup of the request, sending of text, completion of finished requests.
    Deliver,
    /// Prefill of a chunk of a prompt, including the wait for the device.
    Prefill,
    /// Idle time that leaves the chip to replicas with objectives.
    Yield,
}

impl StepPart {
    const ALL: [Self; 7] = [
        Self::Schedule,
        Self::Build,
        Self::Compute,
        Self::Detokenize,
        Self::Deliver,
        Self::Prefill,
        Self::Yield,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Build => "build",
            Self::Compute => "compute",
            Self::Detokenize => "detokenize",
            Self::Deliver => "deliver",
            Self::Prefill => "prefill",
            Self::Yield => "rest",
        }
    }
}

/// Usage of KV cache and prefix cache, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KvCacheUsage {
    /// KV cache memory that running requests occupy.
    pub held: u64,
    /// KV cache memory that running requests occupy at their maximum length.
    pub reserved: u64,
    /// Memory of the prefix cache.
    pub prefixes: u64,
    /// Size of the prefix cache files on disk.
    pub prefix_files: u64,
    /// True after the thread for prefix cache files failed.
    pub prefix_files_failed: bool,
    /// Memory limit of KV cache and prefix cache together.
    pub limit: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct WorkerMetrics {
    /// Counters in the order of [`StepPart::ALL`], resolved once to avoid a label lookup per step.
    step_seconds: [Counter; 7],
    batch_rows: Histogram,
    kv_cache: IntGaugeVec,
    requests: IntCounterVec,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
    prefix_queries: IntCounter,
    prefix_hits: IntCounter,
    drafted_tokens: IntCounter,
    accepted_tokens: IntCounter,
    non_finite: IntCounter,
    prefix_files: IntGauge,
    prefix_files_failed: IntGauge,
    running: IntGauge,
    queued: IntGauge,
    time_to_first_token: Histogram,
    inter_token: Histogram,
    duration: Histogram,
    memory: IntGaugeVec,
    vllm: VllmMetrics,
    exemplars: Exemplars,
}

impl WorkerMetrics {
    /// Registers all metrics. `model` is the served name.
    ///
    /// # Errors
    /// Returns an error if the registry already has one of the metrics.
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
            Opts::new(
                "rooflet_worker_requests_total",
                "Number of finished completions by outcome.",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        let memory = IntGaugeVec::new(
            Opts::new(
                "rooflet_worker_memory_bytes",
                "Memory of the MLX allocator in bytes: active, peak and cached for reuse.",
            ),
            &["kind"],
        )?;
        registry.register(Box::new(memory.clone()))?;
        let step_seconds = CounterVec::new(
            Opts::new(
                "rooflet_worker_step_seconds_total",
                "Time of the engine thread in seconds, by activity.",
            ),
            &["part"],
        )?;
        registry.register(Box::new(step_seconds.clone()))?;
        let batch_rows = Histogram::with_opts(
            HistogramOpts::new(
                "rooflet_worker_batch_rows",
                "Number of requests that share a decode step, observed once per token.",
            )
            .buckets(BATCH_ROWS.to_vec()),
        )?;
        registry.register(Box::new(batch_rows.clone()))?;
        let kv_cache = IntGaugeVec::new(
            Opts::new(
                "rooflet_worker_kv_cache_bytes",
                "Memory of the KV cache in bytes: held, reserved, used by cached prefixes, limit.",
            ),
            &["kind"],
        )?;
        registry.register(Box::new(kv_cache.clone()))?;
        Ok(Self {
            vllm: VllmMetrics::register(registry, model)?,
            exemplars: registry.exemplars(),
            step_seconds: StepPart::ALL.map(|part| step_seconds.with_label_values(&[part.as_str()])),
            batch_rows,
            kv_cache,
            requests,
            memory,
            prompt_tokens: counter(
                "rooflet_worker_prompt_tokens_total",
                "Number of prompt tokens, including cached tokens.",
            )?,
            completion_tokens: counter(
                "rooflet_worker_completion_tokens_total",
                "Number of generated tokens.",
            )?,
            prefix_queries: counter(
                "rooflet_worker_prefix_cache_queried_tokens_total",
                "Number of prompt tokens looked up in the prefix cache.",
            )?,
            prefix_hits: counter(
                "rooflet_worker_prefix_cache_hit_tokens_total",
                "Number of prompt tokens found in the prefix cache.",
            )?,
            drafted_tokens: counter(
                "rooflet_worker_lookup_guessed_tokens_total",
                "Number of draft tokens proposed by prompt lookup.",
            )?,
            accepted_tokens: counter(
                "rooflet_worker_lookup_right_tokens_total",
                "Number of draft tokens accepted by the model.",
            )?,
            non_finite: counter(
                "rooflet_worker_non_finite_requests_total",
                "Number of completions that failed because the model computed values that are not finite.",
            )?,
            prefix_files: gauge(
                "rooflet_worker_prefix_cache_disk_bytes",
                "Size of the prefix cache files in bytes.",
            )?,
            prefix_files_failed: gauge(
                "rooflet_worker_prefix_cache_disk_failed",
                "1 if access to prefix cache files failed permanently, otherwise 0.",
            )?,
            running: gauge(
                "rooflet_worker_running_requests",
                "Number of running completions.",
            )?,
            queued: gauge(
                "rooflet_worker_queued_requests",
                "Number of completions waiting for the engine.",
            )?,
            time_to_first_token: histogram(
                FIRST_TOKEN,
                "Duration from the arrival of a request to its first token in seconds.",
            )?,
            inter_token: histogram(
                "rooflet_worker_inter_token_latency_seconds",
                "Duration between two tokens of a request in seconds.",
            )?,
            duration: histogram(
                DURATION,
                "Duration from the arrival of a request to its end in seconds.",
            )?,
        })
    }

    pub(crate) fn record_outcome(&self, outcome: Outcome) {
        self.requests.with_label_values(&[outcome.as_str()]).inc();
        self.vllm.record_outcome(outcome);
    }

    /// Counts a completion that failed because of values that are not finite.
    pub(crate) fn record_non_finite(&self) {
        self.non_finite.inc();
    }

    /// Counts processed prompt tokens and generated completion tokens.
    pub(crate) fn record_tokens(&self, prompt: usize, completion: usize) {
        self.prompt_tokens.inc_by(prompt as u64);
        self.completion_tokens.inc_by(completion as u64);
        self.vllm.record_tokens(prompt as u64, completion as u64);
    }

    /// Counts a lookup of `prompt` tokens in the prefix cache that found `cached` tokens.
    pub(crate) fn record_prefix_lookup(&self, prompt: usize, cached: usize) {
        self.prefix_queries.inc_by(prompt as u64);
        self.prefix_hits.inc_by(cached as u64);
        self.vllm.record_prefix_lookup(prompt as u64, cached as u64);
    }

    /// Counts draft tokens and those of them that the model accepted.
    pub(crate) fn record_draft(&self, drafted: usize, accepted: usize) {
        self.drafted_tokens.inc_by(drafted as u64);
        self.accepted_tokens.inc_by(accepted as u64);
    }

    pub(crate) fn record_step_part(&self, part: StepPart, time: Duration) {
        self.step_seconds[part as usize].inc_by(time.as_secs_f64());
    }

    /// Observes the batch size of the decode step that generated a token.
    pub(crate) fn record_batch(&self, rows: usize) {
        self.batch_rows.observe(rows as f64);
    }

    pub(crate) fn record_first_token(&self, after: Duration) {
        self.time_to_first_token.observe(after.as_secs_f64());
        self.vllm.record_first_token(after);
    }

    /// Links the buckets of a request to its trace.
    pub(crate) fn link(&self, trace: &str, first_token: Option<Duration>, duration: Duration, at: Timestamp) {
        for (histogram, time) in [(FIRST_TOKEN, first_token), (DURATION, Some(duration))] {
            if let Some(time) = time {
                let (seconds, trace) = (time.as_secs_f64(), trace.to_owned());
                self.exemplars
                    .record(histogram, None, REQUEST_SECONDS, seconds, trace, at);
            }
        }
    }

    /// Observes the total duration of a request and its mean time between two tokens.
    pub(crate) fn record_duration(&self, duration: Duration, inter_token: Option<Duration>) {
        self.duration.observe(duration.as_secs_f64());
        self.vllm.record_duration(duration, inter_token);
    }

    /// Observes the time between two consecutive tokens of a request.
    pub(crate) fn record_inter_token(&self, time: Duration) {
        self.inter_token.observe(time.as_secs_f64());
        self.vllm.record_inter_token(time);
    }

    /// Sets the gauges. The caller does so before each scrape.
    pub(crate) fn update_gauges(&self, running: u64, queued: u64, memory: EngineMemory, kv: KvCacheUsage) {
        let count = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.running.set(count(running));
        self.queued.set(count(queued));
        self.prefix_files.set(count(kv.prefix_files));
        self.prefix_files_failed.set(i64::from(kv.prefix_files_failed));
        self.vllm.update_gauges(count(running), count(queued), kv);
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
