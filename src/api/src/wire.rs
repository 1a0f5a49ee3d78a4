//! JSON documents that worker, agent and gateway exchange. Field names contain the unit. Data types
//! only.
//!
//! Readers accept unknown fields, so that an agent may be one release older than its workers.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::{Deserialize, Serialize};

use crate::v1alpha1::{Chip, Measurements, Plausibility, Sample};

/// Response of a worker to `GET /status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    pub phase: WorkerPhase,
    pub engine: EngineInfo,
    /// Unset until the worker has inspected the model directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelInfo>,
    pub memory: EngineMemory,
    pub requests: RequestCounts,
    pub measured: MeasuredSpeed,
    /// True if the engine makes no progress: its thread has ended, or its current step takes several
    /// times as long as the previous steps predict.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stalled: bool,
}

/// Phase of a worker's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerPhase {
    /// The worker loads the weights.
    Loading,
    /// The worker runs one forward pass, so that the first request is not delayed.
    Warming,
    /// The worker serves requests.
    Ready,
}

/// Inference engine that runs the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineInfo {
    /// Name of the engine: `mlx`.
    pub name: String,
    pub version: String,
    /// Device: `cpu`, `metal` or `cuda`.
    pub device: String,
}

/// Loaded model, with exact sizes from its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelInfo {
    pub architecture: String,
    /// Number of weights. Packed quantised weights count individually.
    pub parameters: u64,
    pub weights_bytes: u64,
    pub kv_bytes_per_token: u64,
    /// Maximum tokens of prompt and completion together.
    pub context_tokens: u64,
}

/// Memory of the engine's allocator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineMemory {
    pub active_bytes: u64,
    pub peak_bytes: u64,
    pub cache_bytes: u64,
}

/// Requests of a worker since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestCounts {
    pub running: u64,
    pub queued: u64,
    pub completed: u64,
    /// Requests that failed with an engine error. Rejected and cancelled requests are not failures.
    pub failed: u64,
}

/// Measured speed of recent requests. Unset before the first request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredSpeed {
    /// Median of recent requests, per stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tokens_per_second: Option<f64>,
    /// Median of recent requests, including queueing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_seconds: Option<f64>,
    /// Mean number of sequences in the engine during such a request, including itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<f64>,
    /// Median prompt length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<f64>,
    /// Median number of tokens in the KV cache during generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<f64>,
    /// Number of requests in the medians.
    pub samples: u64,
    /// Prefill speed of uncached requests that used the engine alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<MeasuredPrefill>,
    /// Distribution of `decode_tokens_per_second`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tokens_per_second_sample: Option<Sample>,
    /// Distribution of `time_to_first_token_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_seconds_sample: Option<Sample>,
}

/// Measured prefill of requests that used the engine alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredPrefill {
    /// Median time from the start of the prefill to the first token.
    pub seconds: f64,
    /// Median prompt length.
    pub prompt_tokens: f64,
    /// Number of requests.
    pub samples: u64,
}

/// Path of an agent: log of the gateway on its machine.
pub const GATEWAY_LOG_PATH: &str = "/gateway/logs";

/// Response header of an agent for a replica: number of in-flight requests of all gateways,
/// including the requesting one. Gateways use it to consider each other's requests.
pub const RUNNING_HEADER: &str = "x-rooflet-running";

/// Request header of an agent's `GET /status` to a worker: maximum share of the chip's time,
/// greater than 0 and at most 1. It is valid for some seconds.
pub const CHIP_SHARE_HEADER: &str = "x-rooflet-chip-share";

/// Request header of a gateway to an agent: another replica can serve the request. If the worker
/// makes no progress, the agent ends the request before its first token.
pub const RETRYABLE_HEADER: &str = "x-rooflet-retryable";

/// Request header of a gateway for `/v1/responses`: replica id, 16 hexadecimal digits. The worker
/// includes it in the response's id, so that every gateway finds the replica that stores the
/// response. The name is part of the protocol between versions.
pub const REPLICA_ID_HEADER: &str = "x-rooflet-keeper";

/// Returns the id by which gateways identify a replica. It is equal in all gateways and agents of a
/// build.
pub fn replica_id(namespace: &str, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, name).hash(&mut hasher);
    hasher.finish()
}

/// Returns the path after `/replicas/NAMESPACE/NAME/proxy` in a URL of an agent, with its original
/// percent-encoding.
pub fn behind_proxy(path: &str) -> Option<&str> {
    let replica = path.strip_prefix("/replicas/")?;
    let behind = replica.splitn(3, '/').nth(2)?.strip_prefix("proxy")?;
    behind.starts_with('/').then_some(behind)
}

/// Returns the id of the replica that stores a response or an item; 0 if the request did not come
/// through a gateway. `None` for ids of another format.
pub fn replica_id_of(id: &str) -> Option<u64> {
    let (_, digits) = id.split_once('_')?;
    let digits = digits.get(..16)?;
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| plain)
}

/// Queued requests of a gateway, reported in an annotation of its Lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Demand {
    /// Maximum number of queued requests since the last report, by namespace and served name, for
    /// autoscaled models.
    pub waiting: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Reason of a worker's exit, written to `--termination-message-path` and to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminationMessage {
    /// Reason in CamelCase, as in conditions.
    pub reason: String,
    pub message: String,
}

/// Output of `rooflet probe -o json`: measurements of this machine with the engine's own kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReport {
    pub engine: EngineInfo,
    pub machine: ProbedMachine,
    #[serde(flatten)]
    pub measurements: Measurements,
    pub plausibility: Plausibility,
    /// Time of the measurement, in RFC 3339.
    pub measured_at: String,
    /// Time after which the figures are outdated, in RFC 3339.
    pub expires_at: String,
}

/// Machine and system of a probe. The figures are not valid on others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbedMachine {
    pub chip: Chip,
    pub memory_bytes: u64,
    pub operating_system: String,
    pub os_build: String,
    /// Bandwidth of the chip's data sheet. Unset for unknown chips and virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_bytes_per_second: Option<f64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn proxied_path_keeps_its_encoding_for_any_replica_name() {
        for (path, expect) in [
            (
                "/replicas/default/guide/proxy/v1/models/a%2Fb",
                Some("/v1/models/a%2Fb"),
            ),
            (
                "/replicas/proxy/guide/proxy/v1/completions",
                Some("/v1/completions"),
            ),
            (
                "/replicas/default/proxy/proxy/v1/completions",
                Some("/v1/completions"),
            ),
            ("/replicas/proxy/proxy/proxy/proxy/v1", Some("/proxy/v1")),
            ("/replicas/default/guide/logs", None),
            ("/replicas/default/guide/proxyx/v1", None),
            ("/v1/messages", None),
        ] {
            assert_eq!(behind_proxy(path), expect, "{path}");
        }
    }

    #[test]
    fn response_id_contains_the_replica_id() {
        assert_eq!(replica_id_of("resp_00000000000000ffabc"), Some(255));
        assert_eq!(replica_id_of("resp_ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(replica_id_of("msg_00000000000000ffabc"), Some(255));
        for id in [
            "resp_1",
            "resp_+000000000000000",
            "00000000000000ff",
            "resp_00000000000000é",
            "",
        ] {
            assert_eq!(replica_id_of(id), None, "{id}");
        }
    }

    #[test]
    fn parses_the_documented_status() {
        let text = json!({
            "phase": "Ready",
            "engine": {"name": "mlx", "version": "0.32.2", "device": "cpu"},
            "model": {"architecture": "llama", "parameters": 10, "weightsBytes": 40, "kvBytesPerToken": 8, "contextTokens": 64},
            "memory": {"activeBytes": 1, "peakBytes": 2, "cacheBytes": 3},
            "requests": {"running": 1, "queued": 0, "completed": 5, "failed": 0},
            "measured": {"decodeTokensPerSecond": 20.5, "samples": 5},
            "addedLater": true
        });
        let status: WorkerStatus = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(status.measured.time_to_first_token_seconds, None);
        let mut back = serde_json::to_value(&status).unwrap();
        back["addedLater"] = json!(true);
        assert_eq!(back, text);
    }

    #[test]
    fn status_of_a_loading_worker_has_no_model() {
        let status: WorkerStatus = serde_json::from_value(json!({
            "phase": "Loading",
            "engine": {"name": "mlx", "version": "0.32.2", "device": "cpu"},
            "memory": {"activeBytes": 0, "peakBytes": 0, "cacheBytes": 0},
            "requests": {"running": 0, "queued": 0, "completed": 0, "failed": 0},
            "measured": {"samples": 0}
        }))
        .unwrap();
        assert_eq!(status.phase, WorkerPhase::Loading);
        assert_eq!(status.model, None);
    }
}
