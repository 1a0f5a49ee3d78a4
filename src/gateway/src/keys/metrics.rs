//! Metrics of API keys.

use rooflet_api::v1alpha1::KeyUsage;
use rooflet_base::metrics::{IntCounterVec, Opts, Registry, Result};

#[derive(Debug, Clone)]
pub(crate) struct KeyMetrics {
    requests: IntCounterVec,
    tokens: IntCounterVec,
    denials: IntCounterVec,
}

impl KeyMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self> {
        let counter =
            |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let metrics = Self {
            requests: counter(
                "rooflet_gateway_key_requests_total",
                "Admitted requests by API key and model.",
                &["namespace", "key", "model"],
            )?,
            tokens: counter(
                "rooflet_gateway_key_tokens_total",
                "Tokens by API key, model and `kind`: `prompt` (including cached tokens) or `completion`.",
                &["namespace", "key", "model", "kind"],
            )?,
            denials: counter(
                "rooflet_gateway_key_denials_total",
                "Requests rejected because of their API key, by reason.",
                &["reason"],
            )?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.tokens.clone()))?;
        registry.register(Box::new(metrics.denials.clone()))?;
        Ok(metrics)
    }

    /// Records one request of a key.
    pub(super) fn record_use(&self, namespace: &str, key: &str, model: &str, used: KeyUsage) {
        let labels = [namespace, key, model];
        self.requests.with_label_values(&labels).inc_by(used.requests);
        let tokens = |kind, count| {
            let labels = [namespace, key, model, kind];
            self.tokens.with_label_values(&labels).inc_by(count);
        };
        tokens("prompt", used.prompt_tokens);
        tokens("completion", used.completion_tokens);
    }

    /// Records a request rejected because of its key.
    pub(super) fn record_denial(&self, reason: &str) {
        self.denials.with_label_values(&[reason]).inc();
    }
}
