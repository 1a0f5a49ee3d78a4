//! Stored record of a replica and of its worker.

use camino::Utf8PathBuf;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::replica::{BadModel, DesiredReplica, Origin, ReplicaKey, ReplicaSpec, Terms};
use crate::workers::golden::Golden;
use rooflet_api::v1alpha1::Termination;
use rooflet_process::ProcessId;
use rooflet_roofline::admission::BEST_EFFORT_SHARE;

/// Stored record of one replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub key: ReplicaKey,
    pub uid: String,
    pub generation: i64,
    pub origin: Origin,
    pub spec: ReplicaSpec,
    /// Current terms, updated while the worker runs. Records of older agents have none.
    #[serde(default)]
    pub terms: Terms,
    #[serde(default)]
    pub restarts: i32,
    /// True if the worker exited on its own, so that its next start counts as a restart.
    #[serde(default)]
    pub ended_by_itself: bool,
    /// True if the replica was stopped because of memory pressure and has not started again.
    #[serde(rename = "gaveWay", default)]
    pub stopped_for_memory: bool,
    /// Number of consecutive failures.
    #[serde(default)]
    pub failures: u32,
    #[serde(default)]
    pub backoff_until: Option<Timestamp>,
    #[serde(default)]
    pub bad_model: Option<BadModel>,
    #[serde(default)]
    pub last_termination: Option<Termination>,
    /// Stored before the process is started. The process id is added afterwards.
    #[serde(default)]
    pub worker: Option<WorkerRecord>,
}

impl Record {
    /// Returns the share of the chip's time that the worker reserves.
    pub fn reserved_share(&self) -> f64 {
        let share = self.worker.as_ref().and_then(|worker| worker.reserved_share);
        share.unwrap_or(BEST_EFFORT_SHARE)
    }

    /// Returns the desired replica as the agent last saw it.
    pub fn desired(&self) -> DesiredReplica {
        DesiredReplica {
            uid: self.uid.clone(),
            generation: self.generation,
            origin: self.origin.clone(),
            spec: self.spec.clone(),
            terms: self.terms.clone(),
            next: None,
            deleting: false,
        }
    }
}

/// Stored record of a running worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerRecord {
    pub process: Option<ProcessId>,
    pub started: Timestamp,
    pub reserved_bytes: u64,
    /// Share of the chip's time that the worker reserves, 0 to 1. `None` in records of older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_share: Option<f64>,
    /// Formula of the reservation, for the message of the condition.
    pub reservation: String,
    pub model_path: Utf8PathBuf,
    pub fingerprint: u64,
    /// Program and engine version that the worker was started with. Empty in records of older
    /// agents.
    #[serde(default)]
    pub engine: String,
    pub context_tokens: u32,
    /// Duration of the longest possible answer, in seconds.
    #[serde(default)]
    pub answer_seconds: u64,
    /// Directory of the prefixes that the worker caches on disk, if any.
    #[serde(default)]
    pub prefix_dir: Option<Utf8PathBuf>,
    /// Maximum size of these prefixes, in bytes.
    #[serde(default)]
    pub prefix_bytes: u64,
    /// Golden prompts that the worker must still pass before it is Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub golden: Option<Golden>,
}
