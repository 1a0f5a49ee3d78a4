//! Status of a replica and the events of its changes: pure functions of the planned step and the
//! worker's state.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::step::{Refusal, RefusalKind, Start, Step, StopCause, Wait};
use crate::models::{ASKING_HUB, PendingPull};
use crate::workers::Progress;
use crate::workers::backoff;
use rooflet_api::conditions::{
    ADMISSION_OVERRIDDEN, GOLDEN_PROMPT_FAILED, OVERCOMMITTED, Truth, condition_type, is_true, set_condition,
    whole_seconds,
};
use rooflet_api::meta::{ADMISSION_ANNOTATION, ADMISSION_WARN};
use rooflet_api::v1alpha1::{
    AdmissionStatus, DownloadStatus, LoadedModel, MeasuredPrefill, MeasuredSpeed, ModelReplicaStatus,
    ReplicaPhase, RequestsStatus,
};
use rooflet_api::wire::{WorkerPhase, WorkerStatus};
use rooflet_base::clock::since;
use rooflet_base::quantity::format_bytes;
use rooflet_base::units::Bytes;
use rooflet_client::EventType;
use rooflet_roofline::memory::ServedModel;
use rooflet_roofline::predict::Hardware;
use rooflet_roofline::predict::calibration::Calibration;
use rooflet_roofline::published::{Load, predicted_prefill, predicted_speed, speed_under_load};

/// Reason of [`rooflet_roofline::memory::MemoryRefusal::NotFreeNow`].
const MEMORY_IN_USE: &str = "MemoryInUse";
const FITS: &str = "Fits";
/// Reason while the worker runs and makes no progress.
const WORKER_STALLED: &str = "WorkerStalled";
/// Reason while the model's files are downloaded.
const PULLING: &str = "Pulling";

/// Minimum interval between updates of the download progress, and number of steps that update it
/// earlier.
const DOWNLOAD_PERIOD: Duration = Duration::from_secs(10);
const DOWNLOAD_STEPS: u64 = 20;

/// Inputs of a replica's status.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    pub node: &'a str,
    pub serving_name: &'a str,
    pub generation: Option<i64>,
    pub step: &'a Step,
    /// Download that the replica's model still needs.
    pub pull: Option<&'a PendingPull>,
    /// Memory that the replica reserves, or will reserve when it starts.
    pub reservation: Option<Bytes>,
    /// `None` if the replica never had a worker on this node.
    pub progress: Option<Progress>,
    /// Current admission status, if the replica runs.
    pub running_admission: Option<&'a AdmissionStatus>,
    /// If true, admission problems are reported but not enforced.
    pub overridden: bool,
    /// Hardware and model for predictions. `None` also if requests shared the chip with another
    /// worker.
    pub prediction: Option<(Hardware, &'a ServedModel)>,
    pub calibrations: &'a [Calibration],
}

/// Status, reason and message of one condition.
#[derive(Debug, Clone)]
struct ConditionValue {
    truth: Truth,
    reason: String,
    message: String,
}

fn condition(truth: Truth, reason: &str, message: impl Into<String>) -> ConditionValue {
    ConditionValue {
        truth,
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// Phase and conditions of a replica, except Scheduled.
struct ReplicaConditions {
    phase: ReplicaPhase,
    admitted: ConditionValue,
    artifacts: ConditionValue,
    loaded: ConditionValue,
    ready: ConditionValue,
}

/// Returns the next status. Keeps conditions of other writers.
pub fn replica_status(
    facts: &Facts<'_>,
    previous: &ModelReplicaStatus,
    now: Timestamp,
) -> ModelReplicaStatus {
    let mut next = previous.clone();
    next.observed_generation = facts.generation;
    let worker = facts
        .progress
        .as_ref()
        .filter(|progress| progress.reservation.is_some());
    let status = worker.and_then(|progress| progress.status.as_ref());
    let before = previous.download.as_ref();
    next.download = facts.pull.map(|pull| download(pull, before, now));
    next.model = status.and_then(loaded_model);
    next.measured = status.and_then(|status| measured(status, facts));
    next.requests = status.map(|status| requests(status, previous.requests.as_ref(), now));
    let reserved = worker.and_then(|progress| progress.reservation.as_ref().map(|(bytes, _)| *bytes));
    next.reserved_memory = reserved
        .or(facts.reservation)
        .map(|bytes| format_bytes(whole_mebibytes(bytes)));
    if let Some(progress) = &facts.progress {
        next.restarts = progress.restarts;
        next.last_termination = progress.last_termination.clone();
    }
    match facts.step {
        Step::Start(start) | Step::Pull(start) => next.admission = Some(start.admission.as_ref().clone()),
        Step::Refuse(refusal) if is_still_in_use(refusal, previous) => {}
        Step::Refuse(refusal) => next.admission = refusal.admission.as_deref().cloned(),
        Step::Keep => {
            let current = facts
                .running_admission
                .map(|current| settled(current, previous.admission.as_ref()));
            next.admission = current.or(next.admission);
        }
        Step::Stop(_) | Step::AwaitStop | Step::Wait(_) | Step::Release => {}
    }
    let mut conditions = match facts.step {
        Step::Keep | Step::Start(_) | Step::Stop(_) | Step::AwaitStop => {
            running(facts, next.admission.as_ref())
        }
        Step::Pull(start) => pulling(facts, start, next.download.as_ref()),
        Step::Wait(wait) => waiting(wait, facts.progress.as_ref()),
        Step::Refuse(refusal) => refused(refusal, facts.pull),
        Step::Release => released(),
    };
    keep_volatile_message(
        &mut conditions.admitted,
        &previous.conditions,
        condition_type::ADMITTED,
    );
    keep_volatile_message(&mut conditions.ready, &previous.conditions, condition_type::READY);
    next.phase = conditions.phase;
    let mut set = |kind, value: ConditionValue| {
        let ConditionValue {
            truth,
            reason,
            message,
        } = value;
        set_condition(
            &mut next.conditions,
            kind,
            truth,
            &reason,
            message,
            facts.generation,
            now,
        );
    };
    if !is_true(&previous.conditions, condition_type::SCHEDULED) {
        let message = format!("placed on node {}", facts.node);
        set(
            condition_type::SCHEDULED,
            condition(Truth::True, "Scheduled", message),
        );
    }
    set(condition_type::ADMITTED, conditions.admitted);
    set(condition_type::ARTIFACTS_READY, conditions.artifacts);
    set(condition_type::LOADED, conditions.loaded);
    set(condition_type::READY, conditions.ready);
    next
}

/// Returns the admission status to report for a running replica. The resources that are free change
/// with every other replica of the node, so these figures change only together with another one.
/// Otherwise each start would write the statuses of all replicas on the node.
fn settled(current: &AdmissionStatus, previous: Option<&AdmissionStatus>) -> AdmissionStatus {
    let mut settled = current.clone();
    let Some(previous) = previous else {
        return settled;
    };
    settled.memory.free_bytes = previous.memory.free_bytes;
    settled.free_chip_time_percent = previous.free_chip_time_percent;
    if let (Some(context), Some(before)) = (&mut settled.context, &previous.context) {
        context.fits_tokens = before.fits_tokens;
    }
    if let (Some(disk), Some(before)) = (&mut settled.disk, &previous.disk) {
        (disk.limit_bytes, disk.free_bytes) = (before.limit_bytes, before.free_bytes);
    }
    if settled == *previous {
        settled
    } else {
        current.clone()
    }
}

fn running(facts: &Facts<'_>, admission: Option<&AdmissionStatus>) -> ReplicaConditions {
    let progress = facts.progress.as_ref();
    let reservation = progress.and_then(|progress| progress.reservation.as_ref());
    let path = progress.and_then(|progress| progress.model_path.as_ref());
    let status = progress.and_then(|progress| progress.status.as_ref());
    let (phase, starting) = match status.map(|status| status.phase) {
        None => (
            ReplicaPhase::Loading,
            condition(Truth::False, "Starting", "worker is starting"),
        ),
        Some(WorkerPhase::Loading) => (
            ReplicaPhase::Loading,
            condition(Truth::False, "Loading", "worker is loading the weights"),
        ),
        Some(WorkerPhase::Warming) => (
            ReplicaPhase::Warming,
            match progress.and_then(|progress| progress.golden_failure.as_deref()) {
                Some(failure) => condition(Truth::False, GOLDEN_PROMPT_FAILED, failure),
                None => condition(
                    Truth::False,
                    "Warming",
                    "worker is running its first forward pass",
                ),
            },
        ),
        Some(WorkerPhase::Ready) if progress.is_some_and(|progress| progress.is_stalled) => {
            let message = "worker makes no progress; the agent replaces it after 60 s";
            (
                ReplicaPhase::Ready,
                condition(Truth::False, WORKER_STALLED, message),
            )
        }
        Some(WorkerPhase::Ready) => {
            let message = format!("worker serves model `{}`", facts.serving_name);
            (ReplicaPhase::Ready, condition(Truth::True, "Serving", message))
        }
    };
    let has_weights = matches!(phase, ReplicaPhase::Warming | ReplicaPhase::Ready);
    let loaded = match status.and_then(|status| status.model.as_ref()) {
        Some(model) if has_weights => {
            let weights = Bytes(model.weights_bytes);
            let message = format!("loaded {} with {weights} of weights", model.architecture);
            condition(Truth::True, "WeightsLoaded", message)
        }
        None if has_weights => condition(Truth::True, "WeightsLoaded", "weights are loaded"),
        Some(_) | None => starting.clone(),
    };
    let (phase, ready) = match progress.and_then(|progress| progress.stopping) {
        Some(cause) => (
            ReplicaPhase::Draining,
            condition(Truth::False, "Draining", draining(cause)),
        ),
        None => (phase, starting),
    };
    ReplicaConditions {
        phase,
        admitted: admitted(
            admission,
            facts.overridden,
            reservation.map_or("", |(_, text)| text.as_str()),
        ),
        artifacts: condition(
            Truth::True,
            "Found",
            path.map_or_else(String::new, |path| format!("model found in {path}")),
        ),
        loaded,
        ready,
    }
}

/// Returns the condition Admitted of a running replica. Its reason shows whether the replica still
/// fits.
fn admitted(admission: Option<&AdmissionStatus>, overridden: bool, reserves: &str) -> ConditionValue {
    let refusals = admission.map_or_else(String::new, |admission| admission.refusals.join("; "));
    let (reason, message) = match (refusals.as_str(), overridden) {
        ("", _) => (FITS, format!("reserves {reserves}")),
        (_, true) => (
            ADMISSION_OVERRIDDEN,
            format!("{ADMISSION_ANNOTATION}: {ADMISSION_WARN} overrides: {refusals}"),
        ),
        (_, false) => (
            OVERCOMMITTED,
            format!("the replica runs, but its reservation no longer fits the node: {refusals}"),
        ),
    };
    condition(Truth::True, reason, message)
}

fn draining(cause: StopCause) -> &'static str {
    match cause {
        StopCause::Deleted => "replica is being deleted: in-flight requests finish, then the worker stops",
        StopCause::Replaced => {
            "specification has changed: in-flight requests finish, then the agent replaces the worker"
        }
        StopCause::Unresponsive => "worker does not respond and is being replaced",
        StopCause::MemoryPressure => {
            "available memory is low: in-flight requests finish, then the worker stops"
        }
        StopCause::AgentStopping => "agent is stopping: in-flight requests finish, then the worker stops",
    }
}

fn waiting(wait: &Wait, progress: Option<&Progress>) -> ReplicaConditions {
    match wait {
        Wait::BackOff { .. } => {
            let failures = progress.map_or(1, |progress| progress.failures.max(1));
            let end = progress.and_then(|progress| progress.last_termination.as_ref());
            let message = format!(
                "back-off {} s restarting failed worker after {failures} consecutive failure(s); last failure: {}",
                backoff::delay_after(failures).as_secs(),
                end.map_or("unknown", |end| end.message.as_str())
            );
            ReplicaConditions {
                phase: ReplicaPhase::Pending,
                admitted: condition(
                    Truth::True,
                    FITS,
                    "admitted before; the next start repeats admission",
                ),
                artifacts: condition(Truth::True, "Found", "model files are on disk"),
                loaded: condition(Truth::False, "CrashLoopBackOff", "worker is not running"),
                ready: condition(Truth::False, "CrashLoopBackOff", message),
            }
        }
        Wait::Artifacts(problem) => ReplicaConditions {
            phase: ReplicaPhase::Pulling,
            artifacts: condition(Truth::False, problem.reason, problem.message.as_str()),
            ..pending(problem.reason, &problem.message)
        },
        Wait::Probing => pending(
            "NodeProbing",
            "the agent is measuring the node's memory bandwidth; the worker starts afterwards",
        ),
        Wait::Stale => pending("Stale", "waiting for the newest generation of the object"),
        Wait::AgentStopping => pending("AgentStopped", "the node's agent and its workers are stopped"),
    }
}

fn pending(reason: &str, message: &str) -> ReplicaConditions {
    let unknown = condition(Truth::Unknown, reason, message);
    let no = condition(Truth::False, reason, message);
    ReplicaConditions {
        phase: ReplicaPhase::Pending,
        admitted: unknown.clone(),
        artifacts: unknown,
        loaded: no.clone(),
        ready: no,
    }
}

/// Returns the conditions of an admitted replica whose model is being downloaded.
fn pulling(facts: &Facts<'_>, start: &Start, download: Option<&DownloadStatus>) -> ReplicaConditions {
    let artifacts = match facts.pull.and_then(|pull| pull.problem.as_ref()) {
        Some(problem) => condition(Truth::False, problem.reason, problem.message.as_str()),
        None => condition(
            Truth::False,
            PULLING,
            facts.pull.map_or_else(String::new, |pull| {
                let done = download.map_or(0, |download| download.bytes);
                let percent = (done * 100).checked_div(pull.bytes.0).unwrap_or(0);
                format!("downloaded {percent} % of {} of {}", pull.bytes, pull.model)
            }),
        ),
    };
    ReplicaConditions {
        phase: ReplicaPhase::Pulling,
        admitted: admitted(
            Some(&start.admission),
            facts.overridden,
            &start.reservation.to_string(),
        ),
        artifacts: artifacts.clone(),
        loaded: condition(
            Truth::False,
            &artifacts.reason,
            "worker starts after the download",
        ),
        ready: artifacts,
    }
}

/// Returns the reported progress of a download, which is updated only in steps.
fn download(pull: &PendingPull, before: Option<&DownloadStatus>, now: Timestamp) -> DownloadStatus {
    let (done, total) = (pull.done.0, pull.bytes.0);
    let before = before.filter(|before| before.total_bytes == total);
    let grown = before.map_or(done, |before| done.saturating_sub(before.bytes));
    match before {
        // The digest did not match, and the files are downloaded again.
        Some(before) if done < before.bytes => DownloadStatus::new(done, total, before.updated_at.clone()),
        Some(before)
            if grown == 0
                || (grown < total / DOWNLOAD_STEPS && since(now, before.updated_at.0) < DOWNLOAD_PERIOD) =>
        {
            before.clone()
        }
        Some(_) | None => DownloadStatus::new(done, total, Time(whole_seconds(now))),
    }
}

fn refused(refusal: &Refusal, pull: Option<&PendingPull>) -> ReplicaConditions {
    let reason = camel_case_reason(&refusal.reason);
    let no = condition(Truth::False, reason, refusal.message.as_str());
    let not_loaded = condition(Truth::False, reason, "worker is not running");
    match refusal.kind {
        RefusalKind::Model => ReplicaConditions {
            phase: ReplicaPhase::Failed,
            admitted: condition(Truth::Unknown, reason, "failed to read the model"),
            artifacts: no.clone(),
            loaded: not_loaded,
            ready: no,
        },
        RefusalKind::Permanent | RefusalKind::Temporary => ReplicaConditions {
            phase: if refusal.kind == RefusalKind::Permanent {
                ReplicaPhase::Failed
            } else {
                ReplicaPhase::Pending
            },
            admitted: no.clone(),
            artifacts: match pull {
                Some(_) => condition(Truth::False, reason, "models that do not fit are not downloaded"),
                None => condition(Truth::True, "Found", "model files are on disk"),
            },
            loaded: not_loaded,
            ready: no,
        },
    }
}

fn released() -> ReplicaConditions {
    ReplicaConditions {
        phase: ReplicaPhase::Succeeded,
        ..pending("Stopped", "worker exited and released its memory")
    }
}

/// Returns a worker's reason if it is a CamelCase word, otherwise `WorkerFailed`.
fn camel_case_reason(reason: &str) -> &str {
    let fits = reason.len() <= 64
        && reason.starts_with(|c: char| c.is_ascii_uppercase())
        && reason.chars().all(|c| c.is_ascii_alphanumeric());
    if fits { reason } else { "WorkerFailed" }
}

/// Keeps the previous message of a `MemoryInUse` condition while status and reason are unchanged.
/// The available memory in the message changes constantly.
fn keep_volatile_message(next: &mut ConditionValue, previous: &[Condition], kind: &str) {
    let before = previous.iter().find(|condition| condition.type_ == kind);
    let is_same =
        |before: &&Condition| before.reason == MEMORY_IN_USE && before.status == next.truth.as_str();
    if let Some(before) = before
        .filter(is_same)
        .filter(|before| before.reason == next.reason)
    {
        next.message.clone_from(&before.message);
    }
}

/// Returns whether the previous status already reports `MemoryInUse`, so that its figures are kept;
/// see [`keep_volatile_message`].
fn is_still_in_use(refusal: &Refusal, previous: &ModelReplicaStatus) -> bool {
    refusal.reason == MEMORY_IN_USE
        && previous.admission.is_some()
        && previous.conditions.iter().any(|before| {
            before.type_ == condition_type::ADMITTED
                && before.status == Truth::False.as_str()
                && before.reason == MEMORY_IN_USE
        })
}

fn whole_mebibytes(Bytes(bytes): Bytes) -> Bytes {
    Bytes::mib(bytes.div_ceil(1 << 20))
}

fn loaded_model(status: &WorkerStatus) -> Option<LoadedModel> {
    status.model.as_ref().map(|model| LoadedModel {
        architecture: model.architecture.clone(),
        parameters: model.parameters,
        weights_bytes: model.weights_bytes,
        kv_bytes_per_token: model.kv_bytes_per_token,
        context_tokens: u32::try_from(model.context_tokens).unwrap_or(u32::MAX),
    })
}

fn requests(status: &WorkerStatus, previous: Option<&RequestsStatus>, now: Timestamp) -> RequestsStatus {
    let counts = status.requests;
    let mut next = RequestsStatus {
        running: counts.running,
        waiting: counts.queued,
        completed: counts.completed,
        failed: counts.failed,
        idle_since: None,
    };
    if counts.running + counts.queued == 0 {
        // A request that started and finished between two passes resets the idle time.
        let ended = |counts: &RequestsStatus| (counts.completed, counts.failed);
        next.idle_since = previous
            .filter(|previous| ended(previous) == ended(&next))
            .and_then(|previous| previous.idle_since.clone())
            .or_else(|| Some(Time(whole_seconds(now))));
    }
    next
}

fn measured(status: &WorkerStatus, facts: &Facts<'_>) -> Option<MeasuredSpeed> {
    let speed = status.measured;
    let predicted = facts.prediction.and_then(|(hardware, model)| {
        let load = Load {
            streams: speed.streams?,
            prompt_tokens: speed.prompt_tokens?,
            context_tokens: speed.context_tokens?,
        };
        let speed = speed_under_load(load, hardware, model).calibrated(&model.cost, facts.calibrations);
        Some(predicted_speed(load, &speed))
    });
    let prefill = speed.prefill.map(|prefill| MeasuredPrefill {
        seconds: format!("{:.3}", prefill.seconds),
        requests: prefill.samples,
        predicted: facts.prediction.map(|(hardware, model)| {
            let load = Load::of_prompt(prefill.prompt_tokens);
            let speed = speed_under_load(load, hardware, model).calibrated(&model.cost, facts.calibrations);
            predicted_prefill(prefill.prompt_tokens, &speed)
        }),
    });
    (speed.samples > 0).then(|| MeasuredSpeed {
        tokens_per_second: speed
            .decode_tokens_per_second
            .map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
        time_to_first_token_seconds: speed
            .time_to_first_token_seconds
            .map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3}")),
        requests: speed.samples,
        tokens_per_second_sample: speed.decode_tokens_per_second_sample,
        time_to_first_token_sample: speed.time_to_first_token_seconds_sample,
        predicted,
        prefill,
    })
}

/// Event of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplicaEvent {
    pub kind: EventType,
    pub reason: String,
    pub message: String,
}

/// Returns the events of a status change.
pub(super) fn status_events(previous: &ModelReplicaStatus, next: &ModelReplicaStatus) -> Vec<ReplicaEvent> {
    let mut events = Vec::new();
    let mut push = |kind, reason: &str, message: &str| {
        events.push(ReplicaEvent {
            kind,
            reason: reason.to_owned(),
            message: message.to_owned(),
        });
    };
    if let Some(end) = next
        .last_termination
        .as_ref()
        .filter(|_| next.last_termination != previous.last_termination)
    {
        push(
            EventType::Warning,
            "WorkerExited",
            &format!("{}: {}", end.reason, end.message),
        );
    }
    let changed = |kind: &str| {
        let find = |status: &ModelReplicaStatus| {
            status
                .conditions
                .iter()
                .find(|condition| condition.type_ == kind)
                .cloned()
        };
        let (before, after) = (find(previous), find(next)?);
        let same =
            before.is_some_and(|before| before.status == after.status && before.reason == after.reason);
        (!same).then_some(after)
    };
    for (kind, event) in [
        (condition_type::ADMITTED, Some("Admitted")),
        (condition_type::ARTIFACTS_READY, None),
    ] {
        if let Some(condition) = changed(kind) {
            match (condition.status.as_str(), event) {
                ("True", _) if [ADMISSION_OVERRIDDEN, OVERCOMMITTED].contains(&condition.reason.as_str()) => {
                    push(EventType::Warning, &condition.reason, &condition.message);
                }
                ("True", Some(event)) if !is_true(&previous.conditions, kind) => {
                    push(EventType::Normal, event, &condition.message);
                }
                ("False", _) if condition.reason == ASKING_HUB => {}
                ("False", _) if condition.reason == PULLING => {
                    push(EventType::Normal, PULLING, &condition.message);
                }
                ("False", _) => push(EventType::Warning, &condition.reason, &condition.message),
                _ => {}
            }
        }
    }
    if let Some(download) = previous.download.as_ref().filter(|_| next.download.is_none())
        && is_true(&next.conditions, condition_type::ARTIFACTS_READY)
    {
        let message = format!("downloaded model, {}", Bytes(download.total_bytes));
        push(EventType::Normal, "Pulled", &message);
    }
    if next.phase == ReplicaPhase::Loading && previous.phase != ReplicaPhase::Loading {
        if next.restarts > previous.restarts {
            push(
                EventType::Normal,
                "Restarted",
                &format!("restarted worker (restart {})", next.restarts),
            );
        } else {
            push(EventType::Normal, "Started", "started worker");
        }
    }
    if let Some(condition) = changed(condition_type::LOADED).filter(|condition| condition.status == "True") {
        push(EventType::Normal, "Loaded", &condition.message);
    }
    if let Some(condition) = changed(condition_type::READY) {
        match (condition.status.as_str(), condition.reason.as_str()) {
            ("True", _) => push(EventType::Normal, "Ready", &condition.message),
            (_, GOLDEN_PROMPT_FAILED) => {
                push(EventType::Warning, GOLDEN_PROMPT_FAILED, &condition.message);
            }
            (_, WORKER_STALLED) => push(EventType::Warning, WORKER_STALLED, &condition.message),
            (_, "CrashLoopBackOff") => push(EventType::Warning, "BackOff", &condition.message),
            (_, "Draining") => push(EventType::Normal, "Draining", &condition.message),
            _ => {}
        }
    }
    events
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
