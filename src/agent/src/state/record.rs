//! What the state directory keeps of one replica and of its worker.

use camino::Utf8PathBuf;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::replica::{BadModel, DesiredReplica, Origin, ReplicaKey, ReplicaSpec, Terms};
use crate::workers::golden::Golden;
use rooflet_api::v1alpha1::Termination;
use rooflet_process::ProcessId;

/// What is kept of one replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub key: ReplicaKey,
    pub uid: String,
    pub generation: i64,
    pub origin: Origin,
    pub spec: ReplicaSpec,
    /// As they are now, also while the worker runs. Nothing in the record of an older agent.
    #[serde(default)]
    pub terms: Terms,
    #[serde(default)]
    pub restarts: i32,
    /// The worker ended by itself, so that its next start is a restart.
    #[serde(default)]
    pub ended_by_itself: bool,
    /// It was stopped because the machine's owner needs its memory, and has not started again.
    #[serde(default)]
    pub gave_way: bool,
    /// In a row.
    #[serde(default)]
    pub failures: u32,
    #[serde(default)]
    pub backoff_until: Option<Timestamp>,
    #[serde(default)]
    pub bad_model: Option<BadModel>,
    #[serde(default)]
    pub last_termination: Option<Termination>,
    /// Written before the process is started, with its identity added afterwards.
    #[serde(default)]
    pub worker: Option<WorkerRecord>,
}

impl Record {
    /// What was wanted when the agent last knew.
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

/// What is kept of a running worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerRecord {
    pub process: Option<ProcessId>,
    pub started: Timestamp,
    pub reserved_bytes: u64,
    /// The reservation's working, for the condition's message.
    pub reservation: String,
    pub model_path: Utf8PathBuf,
    pub fingerprint: u64,
    /// What it was started with; empty in the record of an older agent.
    #[serde(default)]
    pub engine: String,
    pub context_tokens: u32,
    /// What its longest answer may take.
    #[serde(default)]
    pub answer_seconds: u64,
    /// Where it stores prefixes, if it does.
    #[serde(default)]
    pub prefix_dir: Option<Utf8PathBuf>,
    /// How much of them.
    #[serde(default)]
    pub prefix_bytes: u64,
    /// What it has still to answer before it counts as ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub golden: Option<Golden>,
}
