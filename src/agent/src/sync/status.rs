//! A replica's status, and the events of its changes: pure functions of what was decided and what is there.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::step::{Ground, Refusal, Start, Step, StopCause, Wait};
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
use rooflet_roofline::published::{Load, predicted_prefill, predicted_speed, speed_under};

/// The reason of [`rooflet_roofline::memory::MemoryRefusal::NotFreeNow`].
const MEMORY_IN_USE: &str = "MemoryInUse";
const FITS: &str = "Fits";
/// The model's files are on their way.
const PULLING: &str = "Pulling";

/// How often it is told how far a download is, and after which part of it.
const DOWNLOAD_PERIOD: Duration = Duration::from_secs(10);
const DOWNLOAD_STEPS: u64 = 20;

/// What a status is made from.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    pub node: &'a str,
    pub serving_name: &'a str,
    pub generation: Option<i64>,
    pub step: &'a Step,
    /// What is still to be downloaded of its model.
    pub pull: Option<&'a PendingPull>,
    /// What it reserves, or will when it starts.
    pub reservation: Option<Bytes>,
    /// `None` if the replica never had a worker here.
    pub progress: Option<Progress>,
    /// The judgement on it as things are now, if it runs.
    pub standing: Option<&'a AdmissionStatus>,
    /// What speaks against it is told and not enforced.
    pub overridden: bool,
    /// What the speed of this replica's requests is predicted from; `None` too where they shared the chip with others.
    pub prediction: Option<(Hardware, &'a ServedModel)>,
    pub calibrations: &'a [Calibration],
}

/// One condition: truth, reason and message.
#[derive(Debug, Clone)]
struct Said {
    truth: Truth,
    reason: String,
    message: String,
}

fn say(truth: Truth, reason: &str, message: impl Into<String>) -> Said {
    Said {
        truth,
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// What the conditions say, but for Scheduled.
struct Verdict {
    phase: ReplicaPhase,
    admitted: Said,
    artifacts: Said,
    loaded: Said,
    ready: Said,
}

/// The next status. Conditions of other writers stay.
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
        Step::Keep => next.admission = facts.standing.cloned().or(next.admission),
        Step::Stop(_) | Step::AwaitStop | Step::Wait(_) | Step::Release => {}
    }
    let mut verdict = match facts.step {
        Step::Keep | Step::Start(_) | Step::Stop(_) | Step::AwaitStop => {
            running(facts, next.admission.as_ref())
        }
        Step::Pull(start) => pulling(facts, start, next.download.as_ref()),
        Step::Wait(wait) => waiting(wait, facts.progress.as_ref()),
        Step::Refuse(refusal) => refused(refusal, facts.pull),
        Step::Release => released(),
    };
    keep_volatile_message(
        &mut verdict.admitted,
        &previous.conditions,
        condition_type::ADMITTED,
    );
    keep_volatile_message(&mut verdict.ready, &previous.conditions, condition_type::READY);
    next.phase = verdict.phase;
    let mut set = |kind, said: Said| {
        let Said {
            truth,
            reason,
            message,
        } = said;
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
        set(condition_type::SCHEDULED, say(Truth::True, "Scheduled", message));
    }
    set(condition_type::ADMITTED, verdict.admitted);
    set(condition_type::ARTIFACTS_READY, verdict.artifacts);
    set(condition_type::LOADED, verdict.loaded);
    set(condition_type::READY, verdict.ready);
    next
}

fn running(facts: &Facts<'_>, admission: Option<&AdmissionStatus>) -> Verdict {
    let progress = facts.progress.as_ref();
    let reservation = progress.and_then(|progress| progress.reservation.as_ref());
    let path = progress.and_then(|progress| progress.model_path.as_ref());
    let status = progress.and_then(|progress| progress.status.as_ref());
    let (phase, starting) = match status.map(|status| status.phase) {
        None => (
            ReplicaPhase::Loading,
            say(Truth::False, "Starting", "the worker has been started"),
        ),
        Some(WorkerPhase::Loading) => (
            ReplicaPhase::Loading,
            say(Truth::False, "Loading", "the worker reads the weights"),
        ),
        Some(WorkerPhase::Warming) => (
            ReplicaPhase::Warming,
            match progress.and_then(|progress| progress.golden_failure.as_deref()) {
                Some(why) => say(Truth::False, GOLDEN_PROMPT_FAILED, why),
                None => say(Truth::False, "Warming", "the worker does its first forward pass"),
            },
        ),
        Some(WorkerPhase::Ready) => {
            let message = format!("answers requests for model `{}`", facts.serving_name);
            (ReplicaPhase::Ready, say(Truth::True, "Serving", message))
        }
    };
    let has_weights = matches!(phase, ReplicaPhase::Warming | ReplicaPhase::Ready);
    let loaded = match status.and_then(|status| status.model.as_ref()) {
        Some(model) if has_weights => {
            let weights = Bytes(model.weights_bytes);
            let message = format!("{} with {weights} of weights is in memory", model.architecture);
            say(Truth::True, "WeightsLoaded", message)
        }
        None if has_weights => say(Truth::True, "WeightsLoaded", "the weights are in memory"),
        Some(_) | None => starting.clone(),
    };
    let (phase, ready) = match progress.and_then(|progress| progress.stopping) {
        Some(cause) => (
            ReplicaPhase::Draining,
            say(Truth::False, "Draining", draining(cause)),
        ),
        None => (phase, starting),
    };
    Verdict {
        phase,
        admitted: admitted(
            admission,
            facts.overridden,
            reservation.map_or("", |(_, text)| text.as_str()),
        ),
        artifacts: say(
            Truth::True,
            "Found",
            path.map_or_else(String::new, |path| format!("the model is in {path}")),
        ),
        loaded,
        ready,
    }
}

/// What runs was admitted; whether by the numbers is said too.
fn admitted(admission: Option<&AdmissionStatus>, overridden: bool, reserves: &str) -> Said {
    let against = admission.map_or_else(String::new, |admission| admission.refusals.join("; "));
    let (reason, message) = match (against.as_str(), overridden) {
        ("", _) => (FITS, format!("reserves {reserves}")),
        (_, true) => (
            ADMISSION_OVERRIDDEN,
            format!("{ADMISSION_ANNOTATION}: {ADMISSION_WARN} overrides: {against}"),
        ),
        (_, false) => (
            OVERCOMMITTED,
            format!("it runs, and its node can no longer hold what is promised: {against}"),
        ),
    };
    say(Truth::True, reason, message)
}

fn draining(cause: StopCause) -> &'static str {
    match cause {
        StopCause::Deleted => "it is being deleted: running requests finish, then the worker stops",
        StopCause::Replaced => {
            "its specification has changed: running requests finish, then the worker is replaced"
        }
        StopCause::Unresponsive => "the worker has stopped answering and is replaced",
        StopCause::MemoryPressure => {
            "other programs on the machine need its memory: running requests finish, then the worker stops"
        }
        StopCause::AgentStopping => {
            "the node's agent is stopping: running requests finish, then the worker stops"
        }
    }
}

fn waiting(wait: &Wait, progress: Option<&Progress>) -> Verdict {
    match wait {
        Wait::BackOff { .. } => {
            let failures = progress.map_or(1, |progress| progress.failures.max(1));
            let end = progress.and_then(|progress| progress.last_termination.as_ref());
            let message = format!(
                "waiting {} s before the worker is started again, after {failures} failure(s) in a row; the last: {}",
                backoff::wait_after(failures).as_secs(),
                end.map_or("unknown", |end| end.message.as_str())
            );
            Verdict {
                phase: ReplicaPhase::Pending,
                admitted: say(
                    Truth::True,
                    FITS,
                    "it was admitted before and is looked at again when it starts",
                ),
                artifacts: say(Truth::True, "Found", "the model's files are there"),
                loaded: say(Truth::False, "CrashLoopBackOff", "the worker does not run"),
                ready: say(Truth::False, "CrashLoopBackOff", message),
            }
        }
        Wait::Artifacts(problem) => Verdict {
            phase: ReplicaPhase::Pulling,
            artifacts: say(Truth::False, problem.reason, problem.message.as_str()),
            ..pending(problem.reason, &problem.message)
        },
        Wait::Probing => pending(
            "NodeProbing",
            "the node's memory bandwidth is being measured; the worker starts afterwards",
        ),
        Wait::Stale => pending("Stale", "waiting for the newest version of the object"),
        Wait::AgentStopping => pending(
            "AgentStopped",
            "the node's agent was stopped, and its workers with it",
        ),
    }
}

fn pending(reason: &str, message: &str) -> Verdict {
    let unknown = say(Truth::Unknown, reason, message);
    let no = say(Truth::False, reason, message);
    Verdict {
        phase: ReplicaPhase::Pending,
        admitted: unknown.clone(),
        artifacts: unknown,
        loaded: no.clone(),
        ready: no,
    }
}

/// Judged, and waiting for its model's files.
fn pulling(facts: &Facts<'_>, start: &Start, download: Option<&DownloadStatus>) -> Verdict {
    let said = match facts.pull.and_then(|pull| pull.trouble.as_ref()) {
        Some(trouble) => say(Truth::False, trouble.reason, trouble.message.as_str()),
        None => say(
            Truth::False,
            PULLING,
            facts.pull.map_or_else(String::new, |pull| {
                let done = download.map_or(0, |download| download.bytes);
                let percent = (done * 100).checked_div(pull.bytes.0).unwrap_or(0);
                format!("{percent} % of the {} of {} have come", pull.bytes, pull.model)
            }),
        ),
    };
    Verdict {
        phase: ReplicaPhase::Pulling,
        admitted: admitted(
            Some(&start.admission),
            facts.overridden,
            &start.reservation.to_string(),
        ),
        artifacts: said.clone(),
        loaded: say(
            Truth::False,
            &said.reason,
            "the worker starts when its model is there",
        ),
        ready: said,
    }
}

/// What is told of a download: not every byte of it.
fn download(pull: &PendingPull, before: Option<&DownloadStatus>, now: Timestamp) -> DownloadStatus {
    let (done, total) = (pull.done.0, pull.bytes.0);
    let before = before.filter(|before| before.total_bytes == total);
    let grown = before.map_or(done, |before| done.saturating_sub(before.bytes));
    match before {
        // What came was wrong, and is fetched again.
        Some(before) if done < before.bytes => DownloadStatus {
            bytes: done,
            ..before.clone()
        },
        Some(before)
            if grown == 0
                || (grown < total / DOWNLOAD_STEPS && since(now, before.updated_at.0) < DOWNLOAD_PERIOD) =>
        {
            before.clone()
        }
        Some(_) | None => DownloadStatus {
            bytes: done,
            total_bytes: total,
            updated_at: Time(whole_seconds(now)),
        },
    }
}

fn refused(refusal: &Refusal, pull: Option<&PendingPull>) -> Verdict {
    let reason = word(&refusal.reason);
    let no = say(Truth::False, reason, refusal.message.as_str());
    let not_loaded = say(Truth::False, reason, "the worker does not run");
    match refusal.ground {
        Ground::Artifacts => Verdict {
            phase: ReplicaPhase::Failed,
            admitted: say(Truth::Unknown, reason, "the model cannot be read"),
            artifacts: no.clone(),
            loaded: not_loaded,
            ready: no,
        },
        Ground::Never | Ground::NotNow => Verdict {
            phase: if refusal.ground == Ground::Never {
                ReplicaPhase::Failed
            } else {
                ReplicaPhase::Pending
            },
            admitted: no.clone(),
            artifacts: match pull {
                Some(_) => say(
                    Truth::False,
                    reason,
                    "nothing is downloaded for what does not fit",
                ),
                None => say(Truth::True, "Found", "the model's files are there"),
            },
            loaded: not_loaded,
            ready: no,
        },
    }
}

fn released() -> Verdict {
    Verdict {
        phase: ReplicaPhase::Succeeded,
        ..pending("Stopped", "the worker has ended and its memory is free")
    }
}

/// A reason that a worker gave is a CamelCase word, or it is not repeated.
fn word(reason: &str) -> &str {
    let fits = reason.len() <= 64
        && reason.starts_with(|c: char| c.is_ascii_uppercase())
        && reason.chars().all(|c| c.is_ascii_alphanumeric());
    if fits { reason } else { "WorkerFailed" }
}

/// How much other programs leave free changes all the time; the first figure stands until the verdict changes.
fn keep_volatile_message(said: &mut Said, previous: &[Condition], kind: &str) {
    let before = previous.iter().find(|condition| condition.type_ == kind);
    let is_same =
        |before: &&Condition| before.reason == MEMORY_IN_USE && before.status == said.truth.as_str();
    if let Some(before) = before
        .filter(is_same)
        .filter(|before| before.reason == said.reason)
    {
        said.message.clone_from(&before.message);
    }
}

/// See [`keep_volatile_message`].
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
        // One that came and went between two looks has been counted.
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
        let speed = speed_under(load, hardware, model).calibrated(&model.cost, facts.calibrations);
        Some(predicted_speed(load, &speed))
    });
    let prefill = speed.prefill.map(|prefill| MeasuredPrefill {
        seconds: format!("{:.3}", prefill.seconds),
        requests: prefill.samples,
        predicted: facts.prediction.map(|(hardware, model)| {
            let load = Load::of_prompt(prefill.prompt_tokens);
            let speed = speed_under(load, hardware, model).calibrated(&model.cost, facts.calibrations);
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

/// Something to tell of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Happening {
    pub kind: EventType,
    pub reason: String,
    pub message: String,
}

/// The events of a change of status.
pub(super) fn happenings(previous: &ModelReplicaStatus, next: &ModelReplicaStatus) -> Vec<Happening> {
    let mut told = Vec::new();
    let mut tell = |kind, reason: &str, message: &str| {
        told.push(Happening {
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
        tell(
            EventType::Warning,
            "WorkerExited",
            &format!("{}: {}", end.reason, end.message),
        );
    }
    let changed = |kind: &str| {
        let find =
            |status: &ModelReplicaStatus| status.conditions.iter().find(|one| one.type_ == kind).cloned();
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
                    tell(EventType::Warning, &condition.reason, &condition.message);
                }
                ("True", Some(event)) if !is_true(&previous.conditions, kind) => {
                    tell(EventType::Normal, event, &condition.message);
                }
                ("False", _) if condition.reason == ASKING_HUB => {}
                ("False", _) if condition.reason == PULLING => {
                    tell(EventType::Normal, PULLING, &condition.message);
                }
                ("False", _) => tell(EventType::Warning, &condition.reason, &condition.message),
                _ => {}
            }
        }
    }
    if let Some(download) = previous.download.as_ref().filter(|_| next.download.is_none())
        && is_true(&next.conditions, condition_type::ARTIFACTS_READY)
    {
        let message = format!("downloaded the model, {}", Bytes(download.total_bytes));
        tell(EventType::Normal, "Pulled", &message);
    }
    if next.phase == ReplicaPhase::Loading && previous.phase != ReplicaPhase::Loading {
        if next.restarts > previous.restarts {
            tell(
                EventType::Normal,
                "Restarted",
                &format!("started the worker again (restart {})", next.restarts),
            );
        } else {
            tell(EventType::Normal, "Started", "started the worker");
        }
    }
    if let Some(condition) = changed(condition_type::LOADED).filter(|condition| condition.status == "True") {
        tell(EventType::Normal, "Loaded", &condition.message);
    }
    if let Some(condition) = changed(condition_type::READY) {
        match (condition.status.as_str(), condition.reason.as_str()) {
            ("True", _) => tell(EventType::Normal, "Ready", &condition.message),
            (_, GOLDEN_PROMPT_FAILED) => {
                tell(EventType::Warning, GOLDEN_PROMPT_FAILED, &condition.message);
            }
            (_, "CrashLoopBackOff") => tell(EventType::Warning, "BackOff", &condition.message),
            (_, "Draining") => tell(EventType::Normal, "Draining", &condition.message),
            _ => {}
        }
    }
    told
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
