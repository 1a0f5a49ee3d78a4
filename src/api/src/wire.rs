//! What worker, agent and gateway say to each other: JSON documents in camelCase, each field's unit in its
//! name. Owns the shapes only: no I/O, no policy.
//!
//! Readers accept unknown fields, so that an agent may be one release behind its workers.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::{Deserialize, Serialize};

use crate::v1alpha1::{Chip, Measurements, Plausibility, Sample};

/// `GET /status` of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    pub phase: WorkerPhase,
    pub engine: EngineInfo,
    /// Absent until the model directory has been inspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelInfo>,
    pub memory: EngineMemory,
    pub requests: RequestCounts,
    pub measured: MeasuredSpeed,
}

/// How far a worker has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerPhase {
    /// Reading and evaluating weights.
    Loading,
    /// Running one forward pass, so that the first request does not pay for it.
    Warming,
    /// Serving.
    Ready,
}

/// The engine that runs the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineInfo {
    /// `mlx`.
    pub name: String,
    pub version: String,
    /// `cpu`, `metal` or `cuda`.
    pub device: String,
}

/// The loaded model, with exact sizes from its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelInfo {
    pub architecture: String,
    /// Weights counted one by one; packed quantised weights are counted unpacked.
    pub parameters: u64,
    pub weights_bytes: u64,
    pub kv_bytes_per_token: u64,
    /// Longest prompt plus completion that this worker accepts.
    pub context_tokens: u64,
}

/// The engine's allocator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineMemory {
    pub active_bytes: u64,
    pub peak_bytes: u64,
    pub cache_bytes: u64,
}

/// Requests seen by a worker since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestCounts {
    pub running: u64,
    pub queued: u64,
    pub completed: u64,
    /// Ended by an engine error. Refused and cancelled requests are not failures.
    pub failed: u64,
}

/// Speeds seen by recent requests; absent until there was one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredSpeed {
    /// Per stream, median over recent requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tokens_per_second: Option<f64>,
    /// Median over recent requests, queueing included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_seconds: Option<f64>,
    /// Sequences that shared the engine with such a request, itself included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<f64>,
    /// Median length of the prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<f64>,
    /// Median number of tokens in the cache while they were answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<f64>,
    /// How many requests the medians rest on.
    pub samples: u64,
    /// How fast prompts are read: of requests that had the engine to themselves, and of whose prompts nothing was cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<MeasuredPrefill>,
    /// How `decode_tokens_per_second` is spread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tokens_per_second_sample: Option<Sample>,
    /// How `time_to_first_token_seconds` is spread, and on how many requests that rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_first_token_seconds_sample: Option<Sample>,
}

/// Prompts that an engine read with nothing else to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredPrefill {
    /// Median over these requests, from a request's turn to its first token.
    pub seconds: f64,
    /// Median length of their prompts.
    pub prompt_tokens: f64,
    /// How many there are.
    pub samples: u64,
}

/// On an agent's answer for a replica: how many requests that replica has from all gateways, this one included. A
/// gateway learns from it of the requests that others have sent.
pub const RUNNING_HEADER: &str = "x-rooflet-running";

/// On an agent's `GET /status` of a worker: the share of the chip's time that it may take from now on, above 0 and up to 1. It holds for some
/// seconds.
pub const CHIP_SHARE_HEADER: &str = "x-rooflet-chip-share";

/// On a gateway's request for a response: by what the gateway knows the replica, 16 hexadecimal digits. They become a
/// part of the response's id, by which any gateway finds the replica that keeps it.
pub const KEEPER_HEADER: &str = "x-rooflet-keeper";

/// By what gateways know a replica: the same in every gateway and agent of one build.
pub fn replica_id(namespace: &str, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, name).hash(&mut hasher);
    hasher.finish()
}

/// What follows `/replicas/NAMESPACE/NAME/proxy` in a URL of an agent, as it was written: what an extractor gives is decoded.
pub fn behind_proxy(path: &str) -> Option<&str> {
    let replica = path.strip_prefix("/replicas/")?;
    let behind = replica.splitn(3, '/').nth(2)?.strip_prefix("proxy")?;
    behind.starts_with('/').then_some(behind)
}

/// The replica that keeps a response, or an item of one, as a gateway knows it; 0 where no gateway was asked. `None`: no id
/// of ours.
pub fn keeper_of(id: &str) -> Option<u64> {
    let (_, digits) = id.split_once('_')?;
    let digits = digits.get(..16)?;
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| plain)
}

/// What waits in a gateway, in an annotation of its Lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Demand {
    /// The most requests that waited since the last report, by namespace and served name; only models that are autoscaled.
    pub waiting: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Why a worker ended, written to `--termination-message-path` and to stderr before it exits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminationMessage {
    /// CamelCase, fit for a condition's reason.
    pub reason: String,
    pub message: String,
}

/// What `rooflet probe -o json` prints: measured figures of this machine, made by the engine's own kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReport {
    pub engine: EngineInfo,
    pub machine: ProbedMachine,
    #[serde(flatten)]
    pub measurements: Measurements,
    pub plausibility: Plausibility,
    /// RFC 3339.
    pub measured_at: String,
    /// RFC 3339. The driver, the system or the cooling may have changed by then.
    pub expires_at: String,
}

/// What a probe's figures belong to; on another machine or system they are worth nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbedMachine {
    pub chip: Chip,
    pub memory_bytes: u64,
    pub operating_system: String,
    pub os_build: String,
    /// From the chip's data sheet, where the chip is a known one and this is no virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_bytes_per_second: Option<f64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_worker_gets_the_path_behind_its_own_whatever_it_is_called() {
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
    fn an_id_tells_who_keeps_it() {
        assert_eq!(keeper_of("resp_00000000000000ffabc"), Some(255));
        assert_eq!(keeper_of("resp_ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(keeper_of("msg_00000000000000ffabc"), Some(255));
        for id in [
            "resp_1",
            "resp_+000000000000000",
            "00000000000000ff",
            "resp_00000000000000é",
            "",
        ] {
            assert_eq!(keeper_of(id), None, "{id}");
        }
    }

    #[test]
    fn a_status_reads_as_documented() {
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
    fn a_loading_worker_needs_no_model() {
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
