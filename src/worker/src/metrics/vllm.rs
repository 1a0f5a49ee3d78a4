//! Metrics under the names that vLLM uses. The Gateway API inference extension, llm-d and many
//! dashboards read these names.

use std::time::Duration;

use super::{KvCacheUsage, Outcome};
use rooflet_base::metrics::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, REQUEST_SECONDS, Registry,
    Result,
};

#[derive(Debug, Clone)]
pub(super) struct VllmMetrics {
    running: IntGauge,
    waiting: IntGauge,
    /// Metric under vLLM's current and its deprecated name.
    kv_cache_usage: [Gauge; 2],
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    prefix_cache_queries: IntCounter,
    prefix_cache_hits: IntCounter,
    success: IntCounterVec,
    time_to_first_token: Histogram,
    /// Metric under vLLM's current and its deprecated name.
    inter_token: [Histogram; 2],
    time_per_output_token: Histogram,
    e2e_latency: Histogram,
}

impl VllmMetrics {
    /// Registers all metrics with `model`, the served name, as label `model_name`.
    pub(super) fn register(registry: &Registry, model: &str) -> Result<Self> {
        let options =
            |name: &str, help: &str| Opts::new(format!("vllm:{name}"), help).const_label("model_name", model);
        let gauge = |name: &str, help: &str| -> Result<IntGauge> {
            let gauge = IntGauge::with_opts(options(name, help))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter> {
            let counter = IntCounter::with_opts(options(name, help))?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let histogram = |name: &str, help: &str| -> Result<Histogram> {
            let options = HistogramOpts::from(options(name, help)).buckets(REQUEST_SECONDS.to_vec());
            let histogram = Histogram::with_opts(options)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let kv_cache_usage = |name: &str| -> Result<Gauge> {
            let help = "Fraction of the KV cache memory that running requests use, from 0 to 1.";
            let gauge = Gauge::with_opts(options(name, help))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let success = IntCounterVec::new(
            options(
                "request_success_total",
                "Number of successful completions by finish reason.",
            ),
            &["finished_reason"],
        )?;
        registry.register(Box::new(success.clone()))?;
        let inter_token_help = "Duration between two tokens of a request in seconds.";
        Ok(Self {
            running: gauge("num_requests_running", "Number of running completions.")?,
            waiting: gauge(
                "num_requests_waiting",
                "Number of completions waiting for the engine.",
            )?,
            kv_cache_usage: [
                kv_cache_usage("kv_cache_usage_perc")?,
                kv_cache_usage("gpu_cache_usage_perc")?,
            ],
            prompt_tokens: counter("prompt_tokens_total", "Number of prompt tokens.")?,
            generation_tokens: counter("generation_tokens_total", "Number of generated tokens.")?,
            prefix_cache_queries: counter(
                "prefix_cache_queries_total",
                "Number of prompt tokens looked up in the prefix cache.",
            )?,
            prefix_cache_hits: counter(
                "prefix_cache_hits_total",
                "Number of prompt tokens found in the prefix cache.",
            )?,
            success,
            time_to_first_token: histogram(
                "time_to_first_token_seconds",
                "Duration from the arrival of a request to its first token in seconds.",
            )?,
            inter_token: [
                histogram("inter_token_latency_seconds", inter_token_help)?,
                histogram("time_per_output_token_seconds", inter_token_help)?,
            ],
            time_per_output_token: histogram(
                "request_time_per_output_token_seconds",
                "Mean duration between two tokens of a request in seconds.",
            )?,
            e2e_latency: histogram(
                "e2e_request_latency_seconds",
                "Duration from the arrival of a request to its end in seconds.",
            )?,
        })
    }

    pub(super) fn record_outcome(&self, outcome: Outcome) {
        let reason = match outcome {
            Outcome::Stop => "stop",
            Outcome::Length => "length",
            Outcome::Cancelled => "abort",
            Outcome::Failed | Outcome::Rejected => return,
        };
        self.success.with_label_values(&[reason]).inc();
    }

    pub(super) fn record_tokens(&self, prompt: u64, completion: u64) {
        self.prompt_tokens.inc_by(prompt);
        self.generation_tokens.inc_by(completion);
    }

    pub(super) fn record_prefix_lookup(&self, prompt: u64, cached: u64) {
        self.prefix_cache_queries.inc_by(prompt);
        self.prefix_cache_hits.inc_by(cached);
    }

    pub(super) fn record_first_token(&self, after: Duration) {
        self.time_to_first_token.observe(after.as_secs_f64());
    }

    pub(super) fn record_duration(&self, duration: Duration, inter_token: Option<Duration>) {
        self.e2e_latency.observe(duration.as_secs_f64());
        if let Some(inter_token) = inter_token {
            self.time_per_output_token.observe(inter_token.as_secs_f64());
        }
    }

    pub(super) fn record_inter_token(&self, time: Duration) {
        for histogram in &self.inter_token {
            histogram.observe(time.as_secs_f64());
        }
    }

    pub(super) fn update_gauges(&self, running: i64, waiting: i64, kv: KvCacheUsage) {
        self.running.set(running);
        self.waiting.set(waiting);
        let usage = if kv.limit == 0 {
            0.0
        } else {
            kv.held as f64 / kv.limit as f64
        };
        for gauge in &self.kv_cache_usage {
            gauge.set(usage);
        }
    }
}
