//! What a replica's status means to its deployment.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::reasons::{NODE_NOT_READY, NOT_YET_SCHEDULED};
use rooflet_api::conditions::{GOLDEN_PROMPT_FAILED, NODE_MEMORY_PRESSURE, condition_type, is_true};
use rooflet_api::meta::REVISION_LABEL;
use rooflet_api::v1alpha1::{ModelReplica, ReplicaPhase};
use rooflet_base::clock::since;

/// A node that refused a replica is asked again after this time.
pub(super) const REFUSAL_STANDS: Duration = Duration::from_secs(60);
/// Why an agent does not start a replica that another node, or the same one later, may take.
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

/// What a person should look at, although it is tried again.
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

pub(super) fn is_ending(replica: &ModelReplica) -> bool {
    replica.metadata.deletion_timestamp.is_some()
}

pub(super) fn is_of(replica: &ModelReplica, revision: &str) -> bool {
    replica.labels().get(REVISION_LABEL).map(String::as_str) == Some(revision)
}

/// Since when it is to leave its node after its replacement has come; the node lifecycle says so.
pub(crate) fn leaving_since(replica: &ModelReplica) -> Option<Timestamp> {
    condition(replica, condition_type::DISRUPTION_TARGET)
        .filter(|leaving| leaving.status == "True")
        .map(|leaving| leaving.last_transition_time.0)
}

/// It is to leave its node after its replacement has come.
pub(crate) fn is_leaving(replica: &ModelReplica) -> bool {
    leaving_since(replica).is_some()
}

/// The scheduler has looked and found no node for it.
pub(crate) fn is_unplaceable(replica: &ModelReplica) -> bool {
    replica.spec.node_name.is_none()
        && condition(replica, condition_type::SCHEDULED).is_some_and(|scheduled| scheduled.status == "False")
}

/// Its agent's word that the node has no room for it.
pub(crate) fn refusal(replica: &ModelReplica) -> Option<&Condition> {
    condition(replica, condition_type::ADMITTED)
        .filter(|admitted| admitted.status == "False")
        .filter(|admitted| ADMISSION_REFUSALS.contains(&admitted.reason.as_str()))
}

/// [`refusal`], while the node need not be asked again.
pub(crate) fn refused_recently(replica: &ModelReplica, now: Timestamp) -> Option<&Condition> {
    refusal(replica).filter(|refusal| since(now, refusal.last_transition_time.0) < REFUSAL_STANDS)
}

/// Why a replica does not answer requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) reason: String,
    pub(super) message: String,
    /// Not a step on the way but something that went wrong.
    pub(super) is_fault: bool,
}

/// `None` for a replica that is ready.
pub(super) fn trouble(replica: &ModelReplica) -> Option<Trouble> {
    if is_ready(replica) {
        return None;
    }
    if replica.spec.node_name.is_none() {
        let scheduled = condition(replica, condition_type::SCHEDULED);
        return Some(match scheduled.filter(|scheduled| scheduled.status == "False") {
            Some(scheduled) => Trouble {
                reason: scheduled.reason.clone(),
                message: scheduled.message.clone(),
                is_fault: true,
            },
            None => Trouble {
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
    let termination = status.last_termination.filter(|_| failed || status.restarts > 0);
    let unreachable =
        condition(replica, condition_type::READY).is_some_and(|ready| ready.reason == NODE_NOT_READY);
    let mut trouble = Trouble {
        reason: status.phase.as_str().to_owned(),
        message: String::new(),
        is_fault: failed || termination.is_some() || unreachable,
    };
    if let Some(failing) = failing {
        trouble.is_fault |= FAULTS.contains(&failing.reason.as_str());
        trouble.reason.clone_from(&failing.reason);
        trouble.message.clone_from(&failing.message);
    }
    if let Some(termination) = termination
        && !trouble.message.contains(&termination.message)
    {
        let last = format!(
            "its worker ended with {}: {}",
            termination.reason, termination.message
        );
        if !trouble.message.is_empty() {
            trouble.message.push_str("; ");
        }
        trouble.message.push_str(&last);
    }
    Some(trouble)
}
