//! The worker's figures once more, under the names that vLLM gave them: the Gateway API inference
//! extension, llm-d and most dashboards read those.

use std::time::Duration;

use super::{KvUse, Outcome};
use rooflet_base::metrics::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, REQUEST_SECONDS, Registry,
    Result,
};

#[derive(Debug, Clone)]
pub(super) struct VllmMetrics {
    running: IntGauge,
    waiting: IntGauge,
    /// Under its newer and its older name.
    kv_cache_usage: [Gauge; 2],
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    prefix_cache_queries: IntCounter,
    prefix_cache_hits: IntCounter,
    success: IntCounterVec,
    time_to_first_token: Histogram,
    /// Under its newer and its older name.
    inter_token: [Histogram; 2],
    time_per_output_token: Histogram,
    e2e_latency: Histogram,
}

impl VllmMetrics {
    /// `model` is the name under which the model is served.
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
            let help = "Share of the memory for caches that running requests hold, from 0 to 1.";
            let gauge = Gauge::with_opts(options(name, help))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let success = IntCounterVec::new(
            options(
                "request_success_total",
                "Completions that ended well, by their finish reason.",
            ),
            &["finished_reason"],
        )?;
        registry.register(Box::new(success.clone()))?;
        let between = "Time between two tokens of one request.";
        Ok(Self {
            running: gauge("num_requests_running", "Completions being computed.")?,
            waiting: gauge("num_requests_waiting", "Completions waiting for the engine.")?,
            kv_cache_usage: [
                kv_cache_usage("kv_cache_usage_perc")?,
                kv_cache_usage("gpu_cache_usage_perc")?,
            ],
            prompt_tokens: counter("prompt_tokens_total", "Tokens of prompts.")?,
            generation_tokens: counter("generation_tokens_total", "Tokens that were generated.")?,
            prefix_cache_queries: counter(
                "prefix_cache_queries_total",
                "Tokens of prompts that were looked up in the prefix cache.",
            )?,
            prefix_cache_hits: counter(
                "prefix_cache_hits_total",
                "Tokens of prompts that were in the prefix cache.",
            )?,
            success,
            time_to_first_token: histogram(
                "time_to_first_token_seconds",
                "From a request's arrival to its first token.",
            )?,
            inter_token: [
                histogram("inter_token_latency_seconds", between)?,
                histogram("time_per_output_token_seconds", between)?,
            ],
            time_per_output_token: histogram(
                "request_time_per_output_token_seconds",
                "Mean time between two tokens of a request.",
            )?,
            e2e_latency: histogram(
                "e2e_request_latency_seconds",
                "From a request's arrival to its end.",
            )?,
        })
    }

    pub(super) fn ended(&self, outcome: Outcome) {
        let reason = match outcome {
            Outcome::Stop => "stop",
            Outcome::Length => "length",
            Outcome::Cancelled => "abort",
            Outcome::Failed | Outcome::Rejected => return,
        };
        self.success.with_label_values(&[reason]).inc();
    }

    pub(super) fn tokens(&self, prompt: u64, completion: u64) {
        self.prompt_tokens.inc_by(prompt);
        self.generation_tokens.inc_by(completion);
    }

    pub(super) fn prefix(&self, prompt: u64, known: u64) {
        self.prefix_cache_queries.inc_by(prompt);
        self.prefix_cache_hits.inc_by(known);
    }

    pub(super) fn first_token(&self, after: Duration) {
        self.time_to_first_token.observe(after.as_secs_f64());
    }

    pub(super) fn finished(&self, duration: Duration, between_tokens: Option<Duration>) {
        self.e2e_latency.observe(duration.as_secs_f64());
        if let Some(between) = between_tokens {
            self.time_per_output_token.observe(between.as_secs_f64());
        }
    }

    pub(super) fn between_tokens(&self, time: Duration) {
        for histogram in &self.inter_token {
            histogram.observe(time.as_secs_f64());
        }
    }

    pub(super) fn show(&self, running: i64, waiting: i64, kv: KvUse) {
        self.running.set(running);
        self.waiting.set(waiting);
        let share = if kv.limit == 0 {
            0.0
        } else {
            kv.held as f64 / kv.limit as f64
        };
        for gauge in &self.kv_cache_usage {
            gauge.set(share);
        }
    }
}
