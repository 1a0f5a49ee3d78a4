//! Process and record of a replica.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Endpoint, Progress};
use crate::replica::{BadModel, rfc3339};
use crate::state::{Record, ReplicaDir, read_json};
use crate::sync::{ObservedReplica, StopCause, WorkerState};
use crate::workers::liveness::Liveness;
use crate::workers::monitor::MonitorState;
use rooflet_api::conditions::OUT_OF_MEMORY;
use rooflet_api::engine_failure::EngineFailure;
use rooflet_api::v1alpha1::Termination;
use rooflet_api::wire::{TerminationMessage, WorkerPhase};
use rooflet_base::clock::since;
use rooflet_base::error::{Chain, ExitStatus};
use rooflet_base::latest::Latest;
use rooflet_base::units::Bytes;
use rooflet_process::logs::{From, Log};
use rooflet_process::{Exit, KILL_PATIENCE, Process};
use rooflet_proxy::Upstream;
use rooflet_roofline::memory::Held;

/// Maximum length of the log excerpt in a termination message, in bytes.
const MAX_LOG_EXCERPT_BYTES: usize = 500;

/// Maximum time until the agent observes that the system refused to run a worker.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

const REFUSED: &str = "the system killed the worker (SIGKILL) before it wrote to its log; macOS does so if the \
                       rooflet binary was overwritten in place: copy the new binary beside it and replace it with mv";

pub(super) struct Slot {
    pub(super) record: Record,
    pub(super) dir: ReplicaDir,
    pub(super) worker: Option<Worker>,
}

pub(super) struct Worker {
    pub(super) process: Process,
    pub(super) monitor_rx: watch::Receiver<MonitorState>,
    pub(super) ready_since: Option<Timestamp>,
    /// Size of the log before the start. `None` for an adopted worker.
    pub(super) log_bytes_before: Option<u64>,
    pub(super) stopping: Option<Stopping>,
}

/// Stop in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopping {
    pub(super) cause: StopCause,
    /// Time at which the process is killed if it has not exited.
    pub(super) killed_at: Instant,
}

impl Worker {
    fn cause(&self) -> Option<StopCause> {
        self.stopping.map(|stopping| stopping.cause)
    }
}

impl Slot {
    pub(super) fn save(&self) {
        if let Err(err) = self.dir.save(&self.record) {
            // The next agent process finds the worker by its command line and replaces it.
            warn!(replica = %self.record.key, error = %Chain(&err), "failed to write replica record");
        }
    }

    /// Records that the worker became ready or exited. Returns its reserved memory if it was killed
    /// or crashed.
    pub(super) fn update(&mut self, now: Timestamp, instant: Instant) -> Option<Bytes> {
        let worker = self.worker.as_mut()?;
        let is_ready = worker.monitor_rx.latest().phase() == Some(WorkerPhase::Ready);
        if is_ready && worker.ready_since.is_none() {
            worker.ready_since = Some(now);
            // The golden prompts have passed and are not repeated after an agent restart.
            if let Some(record) = &mut self.record.worker
                && record.golden.take().is_some()
            {
                self.save();
            }
        }
        let worker = self.worker.as_mut()?;
        let exit = worker.process.exit()?;
        let ended_in_order = match exit {
            Exit::Code(_) => true,
            Exit::Signal(_) => false,
            // The worker was asked to stop and exited before the kill.
            Exit::Unknown => worker
                .stopping
                .is_some_and(|stopping| instant < stopping.killed_at),
        };
        let wrote_log = worker.log_bytes_before != Some(self.dir.log().bytes());
        let ran_for = self
            .record
            .worker
            .as_ref()
            .map(|record| since(now, record.started));
        let is_refused = worker.stopping.is_none() && is_refused(exit, ran_for, wrote_log);
        let ready_for = worker.ready_since.map(|then| since(now, then));
        let stopping = worker.cause();
        self.worker = None;
        let record = self.record.worker.take();
        let held = record.as_ref().map(|worker| Bytes(worker.reserved_bytes));
        // A program that the system refuses to run has never held memory.
        let lost = held.filter(|_| !ended_in_order && !is_refused);
        let fingerprint = record.map(|worker| worker.fingerprint);
        if let Some(
            StopCause::Deleted | StopCause::Replaced | StopCause::AgentStopping | StopCause::MemoryPressure,
        ) = stopping
        {
            info!(replica = %self.record.key, "worker stopped");
            self.save();
            return lost;
        }
        let mut end = self.termination(exit, now);
        if stopping == Some(StopCause::Unresponsive) {
            end.reason = "Unresponsive".to_owned();
            end.message = "worker did not respond".to_owned();
        }
        if is_refused {
            end.message = REFUSED.to_owned();
        }
        warn!(replica = %self.record.key, reason = end.reason, "worker exited: {}", end.message);
        if stopping.is_none() && exit == Exit::Code(i32::from(ExitStatus::Config as u8)) {
            self.record.bad_model = fingerprint.map(|fingerprint| BadModel {
                fingerprint,
                at: now,
                reason: end.reason.clone(),
                message: end.message.clone(),
            });
            self.record.ended_by_itself = true;
            self.record.last_termination = Some(end);
        } else {
            self.record.fail(end, ready_for, now);
        }
        self.save();
        lost
    }

    fn termination(&self, exit: Exit, now: Timestamp) -> Termination {
        let reported = read_json::<TerminationMessage>(&self.dir.termination_message())
            .ok()
            .flatten();
        let (exit_code, signal) = match exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
            Exit::Unknown => (None, None),
        };
        let (reason, message) = match reported {
            Some(reported) => (reported.reason, reported.message),
            None => {
                let last_line = last_log_line(&self.dir.log());
                let reason = unreported_reason(exit, &last_line);
                let excerpt = if last_line.is_empty() {
                    String::new()
                } else {
                    format!("; last line of its log: {last_line}")
                };
                (reason.to_owned(), format!("worker exited with {exit}{excerpt}"))
            }
        };
        Termination {
            exit_code,
            signal,
            reason,
            message,
            finished_at: rfc3339(now),
        }
    }

    fn state(&self, now: Instant) -> WorkerState {
        let Some(worker) = &self.worker else {
            return WorkerState::None;
        };
        match worker.stopping {
            Some(stopping) if now > stopping.killed_at + KILL_PATIENCE => WorkerState::Stuck,
            Some(_) => WorkerState::Stopping,
            None if worker.monitor_rx.latest().liveness == Liveness::Unresponsive => {
                WorkerState::Unresponsive
            }
            None => WorkerState::Running,
        }
    }

    /// Returns the last observed state of the worker. Empty without a worker.
    fn monitored(&self) -> MonitorState {
        let worker = self.worker.as_ref();
        worker.map_or_else(MonitorState::default, |worker| worker.monitor_rx.latest())
    }

    pub(super) fn observe(&self, now: Instant) -> ObservedReplica {
        let record = &self.record;
        let reserved = Bytes(record.worker.as_ref().map_or(0, |worker| worker.reserved_bytes));
        let monitored = self.monitored();
        let status = monitored.status.as_ref();
        let requests = status.map_or(0, |status| status.requests.running + status.requests.queued);
        ObservedReplica {
            uid: record.uid.clone(),
            generation: record.generation,
            spec: record.spec.clone(),
            worker: self.state(now),
            held: Held {
                reserved,
                resident: monitored.resident().min(reserved),
            },
            reserved_share: record.reserved_share(),
            has_objectives: record.terms.has_objectives(),
            requests,
            stopped_for_memory: record.stopped_for_memory,
            backoff_until: record.backoff_until,
            bad_model: record.bad_model.clone(),
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let record = self.record.worker.as_ref();
        let monitored = self.monitored();
        Progress {
            restarts: self.record.restarts,
            failures: self.record.failures,
            last_termination: self.record.last_termination.clone(),
            reservation: record.map(|worker| (Bytes(worker.reserved_bytes), worker.reservation.clone())),
            model_path: record.map(|worker| worker.model_path.clone()),
            is_stalled: monitored.is_stalled(),
            status: monitored.status,
            stopping: self.worker.as_ref().and_then(Worker::cause),
            golden_failure: monitored.golden.failure(),
        }
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        let worker = self.worker.as_ref();
        let monitored = self.monitored();
        let is_serving = monitored.phase() == Some(WorkerPhase::Ready) && !monitored.is_stalled();
        Endpoint {
            serving_name: self.record.spec.serving_name.clone(),
            log: self.dir.log(),
            upstream: worker.map(|_| Upstream::unix(self.dir.socket())),
            ready: is_serving && worker.is_some_and(|worker| worker.stopping.is_none()),
            stalled: monitored.is_stalled(),
            unloads: self.record.spec.keep_alive.is_some(),
            context_tokens: self.record.worker.as_ref().map(|worker| worker.context_tokens),
            started: self.record.worker.as_ref().map(|worker| worker.started),
        }
    }
}

/// Returns whether the system probably refused to run the program. macOS kills a process whose
/// program file was changed in place, because the cached code signature no longer matches.
fn is_refused(exit: Exit, ran_for: Option<Duration>, wrote_log: bool) -> bool {
    exit == Exit::Signal(9) && !wrote_log && ran_for.is_some_and(|time| time < REFUSED_WITHIN)
}

/// Returns the reason of an exit that the worker did not report.
fn unreported_reason(exit: Exit, last_line: &str) -> &'static str {
    match exit {
        Exit::Code(0) => "Completed",
        _ if EngineFailure::of(last_line) == EngineFailure::OutOfMemory => OUT_OF_MEMORY,
        Exit::Code(_) | Exit::Unknown => "Error",
        Exit::Signal(9) => "Killed",
        Exit::Signal(_) => "Crashed",
    }
}

/// Returns the last line of a log.
fn last_log_line(log: &Log) -> String {
    let chunk = log
        .read(From::LastLines(1))
        .and_then(|mut reader| reader.next_chunk())
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&chunk);
    let line = text.trim();
    match line.char_indices().find(|(at, _)| *at >= MAX_LOG_EXCERPT_BYTES) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Last lines of processes that MLX ended, from the issues mlx#479 and mlx-omni-server#59.
    #[test]
    fn exhausted_memory_in_the_last_line_is_the_reason_of_a_crash() {
        let line = "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command \
                    buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)";
        for (exit, last_line, expect) in [
            (Exit::Signal(6), line, "OutOfMemory"),
            (Exit::Unknown, line, "OutOfMemory"),
            (Exit::Code(0), line, "Completed"),
            (Exit::Signal(6), "worker started", "Crashed"),
            (Exit::Signal(9), "", "Killed"),
            (Exit::Code(1), "", "Error"),
        ] {
            assert_eq!(unreported_reason(exit, last_line), expect, "{exit}: {last_line}");
        }
    }

    #[test]
    fn program_is_refused_if_killed_at_once_and_silently() {
        let early = Some(Duration::from_millis(100));
        for (exit, ran_for, wrote_log, expect) in [
            (Exit::Signal(9), early, false, true),
            (Exit::Signal(9), early, true, false),
            (Exit::Signal(9), Some(REFUSED_WITHIN), false, false),
            (Exit::Signal(9), None, false, false),
            (Exit::Signal(6), early, false, false),
            (Exit::Code(1), early, false, false),
            (Exit::Unknown, early, false, false),
        ] {
            assert_eq!(
                is_refused(exit, ran_for, wrote_log),
                expect,
                "{exit:?} {ran_for:?} {wrote_log}"
            );
        }
    }
}
