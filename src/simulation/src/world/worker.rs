//! State of a worker process.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use crate::world::gateway_state::Request;
use rooflet_agent::models::ServableModel;
use rooflet_agent::sync::{ANSWER_GRACE, Start, StopCause};
use rooflet_agent::workers::GRACE;
use rooflet_api::wire::{
    EngineInfo, EngineMemory, MeasuredSpeed, ModelInfo, RequestCounts, WorkerPhase, WorkerStatus,
};
use rooflet_base::quantile::{nearest, sorted};
use rooflet_base::units::Bytes;
use rooflet_controller::FirstToken;

/// State of a worker process.
#[derive(Debug)]
pub(crate) struct Worker {
    /// Unique number of the process.
    pub(crate) process: u64,
    pub(crate) uid: String,
    pub(crate) phase: WorkerPhase,
    pub(crate) ready_since: Option<Timestamp>,
    pub(crate) stopping: Option<StopCause>,
    pub(crate) terminating: bool,
    pub(crate) reserved: Bytes,
    pub(crate) resident: Bytes,
    pub(crate) model: ServableModel,
    pub(crate) context_tokens: u32,
    /// Grace period for running requests when the replica is deleted.
    pub(crate) longest_answer: Duration,
    pub(crate) streams: usize,
    pub(crate) running: BTreeMap<u64, Request>,
    pub(crate) waiting: VecDeque<Request>,
    /// Number of answered requests.
    pub(crate) completed: u64,
    /// Seconds to the first token of the last requests.
    pub(crate) first_tokens: VecDeque<f64>,
}

impl Worker {
    pub(crate) fn new(process: u64, uid: &str, start: &Start, streams: u32, model: ServableModel) -> Self {
        Self {
            process,
            uid: uid.to_owned(),
            phase: WorkerPhase::Loading,
            ready_since: None,
            stopping: None,
            terminating: false,
            reserved: start.reservation.total(),
            resident: Bytes::ZERO,
            model,
            context_tokens: start.context_tokens,
            longest_answer: start.longest_answer().min(ANSWER_GRACE).max(GRACE),
            streams: streams as usize,
            running: BTreeMap::new(),
            waiting: VecDeque::new(),
            completed: 0,
            first_tokens: VecDeque::new(),
        }
    }

    /// Returns the median time to first token of the last requests.
    pub(crate) fn first_token(&self) -> Option<FirstToken> {
        let seconds = sorted(self.first_tokens.iter().copied());
        Some(FirstToken {
            seconds: nearest(&seconds, 0.5)?,
            requests: seconds.len() as u64,
        })
    }

    /// Returns the status as the response to `GET /status`, without measured figures.
    pub(crate) fn status(&self) -> WorkerStatus {
        let cost = &self.model.served.cost;
        WorkerStatus {
            phase: self.phase,
            engine: EngineInfo {
                name: "simulated".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                device: "metal".to_owned(),
            },
            model: Some(ModelInfo {
                architecture: self.model.architecture.to_owned(),
                parameters: 0,
                weights_bytes: cost.weights.resident().0,
                kv_bytes_per_token: 0,
                context_tokens: u64::from(self.context_tokens),
            }),
            memory: EngineMemory {
                active_bytes: self.resident.0,
                peak_bytes: self.resident.0,
                cache_bytes: 0,
            },
            requests: RequestCounts::default(),
            measured: MeasuredSpeed::default(),
            stalled: false,
        }
    }

    pub(crate) fn accepts(&self) -> bool {
        self.phase == WorkerPhase::Ready && !self.terminating
    }
}

/// Cause of a process's exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerExit {
    /// Requested stop; all requests were answered.
    Drained,
    /// Requested stop; the grace period expired.
    GraceOver,
    Crashed,
    PowerLost,
}
