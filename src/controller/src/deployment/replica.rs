//! State of a replica, as derived from its status.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::reasons::{NODE_NOT_READY, NOT_YET_SCHEDULED};
use rooflet_api::conditions::{GOLDEN_PROMPT_FAILED, NODE_MEMORY_PRESSURE, condition_type, is_true};
use rooflet_api::meta::{RESTORED_ANNOTATION, REVISION_LABEL};
use rooflet_api::v1alpha1::{ModelReplica, ReplicaPhase};
use rooflet_base::clock::since;

/// Time for which a refused replica excludes its node.
pub(super) const REFUSAL_PERIOD: Duration = Duration::from_secs(60);
/// Reasons of the condition Admitted with which another node, or the same node later, may admit the
/// replica.
const ADMISSION_REFUSALS: [&str; 10] = [
    NODE_MEMORY_PRESSURE,
    "ExceedsNodeMemory",
    "InsufficientMemory",
    "InsufficientDisk",
    "MemoryInUse",
    "InsufficientBandwidth",
    "ObjectiveOutOfReach",
    "NotProbed",
    "Quarantined",
    "MemoryStaysWired",
];

/// Reasons that require the attention of a user, although the agent retries.
const FAULTS: [&str; 4] = [GOLDEN_PROMPT_FAILED, "DigestMismatch", "DiskFull", "WriteFailed"];

pub(super) fn condition<'a>(replica: &'a ModelReplica, kind: &str) -> Option<&'a Condition> {
    let conditions = &replica.status.as_ref()?.conditions;
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub(super) fn is_ready(replica: &ModelReplica) -> bool {
    replica
        .status
        .as_ref()
        .is_some_and(|status| is_true(&status.conditions, condition_type::READY))
}

/// Returns whether an agent has created the replica again for a running worker, and has not reported
/// its state yet. Until then, it looks like a replica that never ran.
pub(super) fn awaits_first_report(replica: &ModelReplica) -> bool {
    replica.annotations().contains_key(RESTORED_ANNOTATION)
        && condition(replica, condition_type::READY).is_none()
}

pub(super) fn is_terminating(replica: &ModelReplica) -> bool {
    replica.metadata.deletion_timestamp.is_some()
}

pub(crate) fn is_of(replica: &ModelReplica, revision: &str) -> bool {
    replica.labels().get(REVISION_LABEL).map(String::as_str) == Some(revision)
}

/// Returns the time since which the replica has to leave its node after a replacement is Ready,
/// according to the condition DisruptionTarget of the node lifecycle.
pub(crate) fn leaving_since(replica: &ModelReplica) -> Option<Timestamp> {
    condition(replica, condition_type::DISRUPTION_TARGET)
        .filter(|leaving| leaving.status == "True")
        .map(|leaving| leaving.last_transition_time.0)
}

/// Returns whether the replica has to leave its node after a replacement is Ready.
pub(crate) fn is_leaving(replica: &ModelReplica) -> bool {
    leaving_since(replica).is_some()
}

/// Returns whether the scheduler found no node for the replica.
pub(crate) fn is_unschedulable(replica: &ModelReplica) -> bool {
    replica.spec.node_name.is_none()
        && condition(replica, condition_type::SCHEDULED).is_some_and(|scheduled| scheduled.status == "False")
}

/// Returns the condition with which the replica's agent refused the admission.
pub(crate) fn refusal(replica: &ModelReplica) -> Option<&Condition> {
    condition(replica, condition_type::ADMITTED)
        .filter(|admitted| admitted.status == "False")
        .filter(|admitted| ADMISSION_REFUSALS.contains(&admitted.reason.as_str()))
}

/// Returns the [`refusal`] if it has not expired.
pub(crate) fn refused_recently(replica: &ModelReplica, now: Timestamp) -> Option<&Condition> {
    refusal(replica).filter(|refusal| since(now, refusal.last_transition_time.0) < REFUSAL_PERIOD)
}

/// Returns the time at which a [`refusal`] expires.
pub(crate) fn refusal_expiry(refusal: &Condition) -> Timestamp {
    let period = SignedDuration::try_from(REFUSAL_PERIOD).unwrap_or(SignedDuration::MAX);
    let expiry = refusal.last_transition_time.0.checked_add(period);
    expiry.unwrap_or(Timestamp::MAX)
}

/// Reason why a replica is not Ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) reason: String,
    pub(super) message: String,
    /// True for an error, false for a step of a normal start.
    pub(super) is_fault: bool,
}

/// Maximum time from a worker's exit to the condition that reports it.
const EXIT_REPORT_DELAY: Duration = Duration::from_secs(60);

/// Returns whether a worker's exit belongs to the current time without Ready. An earlier exit is
/// not the reason: the replica was Ready since.
fn is_of_this_outage(replica: &ModelReplica, finished_at: &str) -> bool {
    let not_ready_since = condition(replica, condition_type::READY).map(|ready| ready.last_transition_time.0);
    match (not_ready_since, finished_at.parse::<Timestamp>()) {
        (Some(since), Ok(finished_at)) => finished_at + EXIT_REPORT_DELAY >= since,
        (None, _) | (_, Err(_)) => true,
    }
}

/// Returns the reason why the replica is not Ready, or `None` for a Ready replica.
pub(super) fn problem(replica: &ModelReplica) -> Option<Problem> {
    if is_ready(replica) {
        return None;
    }
    if replica.spec.node_name.is_none() {
        let scheduled = condition(replica, condition_type::SCHEDULED);
        return Some(match scheduled.filter(|scheduled| scheduled.status == "False") {
            Some(scheduled) => Problem {
                reason: scheduled.reason.clone(),
                message: scheduled.message.clone(),
                is_fault: true,
            },
            None => Problem {
                reason: NOT_YET_SCHEDULED.to_owned(),
                message: String::new(),
                is_fault: false,
            },
        });
    }
    let status = replica.status.clone().unwrap_or_default();
    let failed = status.phase == ReplicaPhase::Failed;
    let steps = [
        condition_type::ADMITTED,
        condition_type::ARTIFACTS_READY,
        condition_type::LOADED,
        condition_type::READY,
    ];
    let failing = steps
        .iter()
        .filter_map(|kind| condition(replica, kind))
        .find(|condition| condition.status != "True" && !condition.message.is_empty());
    let termination = status
        .last_termination
        .filter(|_| failed || status.restarts > 0)
        .filter(|termination| failed || is_of_this_outage(replica, &termination.finished_at));
    let unreachable =
        condition(replica, condition_type::READY).is_some_and(|ready| ready.reason == NODE_NOT_READY);
    let mut problem = Problem {
        reason: status.phase.as_str().to_owned(),
        message: String::new(),
        is_fault: failed || termination.is_some() || unreachable,
    };
    if let Some(failing) = failing {
        problem.is_fault |= FAULTS.contains(&failing.reason.as_str());
        problem.reason.clone_from(&failing.reason);
        problem.message.clone_from(&failing.message);
    }
    if let Some(termination) = termination
        && !problem.message.contains(&termination.message)
    {
        let last = format!(
            "its worker ended with {}: {}",
            termination.reason, termination.message
        );
        if !problem.message.is_empty() {
            problem.message.push_str("; ");
        }
        problem.message.push_str(&last);
    }
    Some(problem)
}
