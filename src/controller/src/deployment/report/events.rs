//! Events for changed conditions of a deployment.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::deployment::reasons::{
    ADMITTED_DESPITE_PREDICTION, ANALYSIS_INCONCLUSIVE, CANARY_PAUSED, DEADLINE_EXCEEDED, NO_REPLICAS,
    NOT_YET_SCHEDULED, OUTSIDE_MAINTENANCE_WINDOW, PAUSED, PREPARING, ROLLED_BACK, ROLLOUT_COMPLETE,
    SLOWER_THAN_PREDICTED, THROUGHPUT_FLOOR, WAITING_FOR_IDLE,
};
use rooflet_api::conditions::condition_type;
use rooflet_client::EventType;

/// Reasons of the condition Progressing that emit a normal event.
const REPORTED_PROGRESS: [&str; 7] = [
    ROLLOUT_COMPLETE,
    PAUSED,
    CANARY_PAUSED,
    ANALYSIS_INCONCLUSIVE,
    OUTSIDE_MAINTENANCE_WINDOW,
    WAITING_FOR_IDLE,
    PREPARING,
];

/// Reasons of the condition Progressing that emit a warning, because a user must act.
const STOPPED: [&str; 4] = [
    DEADLINE_EXCEEDED,
    ROLLED_BACK,
    THROUGHPUT_FLOOR,
    SLOWER_THAN_PREDICTED,
];

/// Returns the events for the changes between two lists of conditions.
pub(super) fn events(before: &[Condition], after: &[Condition]) -> Vec<(EventType, String, String)> {
    let find = |kind: &str| before.iter().find(|condition| condition.type_ == kind);
    let mut events: Vec<(EventType, String, String)> = after
        .iter()
        .filter_map(|now| {
            let before = find(&now.type_);
            let same =
                before.is_some_and(|before| before.status == now.status && before.reason == now.reason);
            let was = |status: &str| before.is_some_and(|before| before.status == status);
            let kind = match (now.type_.as_str(), now.status.as_str()) {
                _ if same => return None,
                (
                    condition_type::ADMITTED
                    | condition_type::OBJECTIVES_MET
                    | condition_type::PREDICTION_ACCURATE,
                    "False",
                ) => EventType::Warning,
                (condition_type::ADMITTED, "True")
                    if ADMITTED_DESPITE_PREDICTION.contains(&now.reason.as_str()) =>
                {
                    EventType::Warning
                }
                (
                    condition_type::ADMITTED
                    | condition_type::OBJECTIVES_MET
                    | condition_type::PREDICTION_ACCURATE,
                    "True",
                ) if was("False") => EventType::Normal,
                (condition_type::SCHEDULED, "False")
                    if ![NOT_YET_SCHEDULED, NO_REPLICAS].contains(&now.reason.as_str()) =>
                {
                    EventType::Warning
                }
                (condition_type::PROGRESSING, _) if STOPPED.contains(&now.reason.as_str()) => {
                    EventType::Warning
                }
                (condition_type::PROGRESSING, _) if REPORTED_PROGRESS.contains(&now.reason.as_str()) => {
                    EventType::Normal
                }
                (condition_type::AVAILABLE, "True") => EventType::Normal,
                (condition_type::AVAILABLE, "False") if was("True") => EventType::Warning,
                (condition_type::DEGRADED | condition_type::NAME_SHARED, "True") => EventType::Warning,
                (condition_type::DEGRADED, "False") if was("True") => {
                    return Some((EventType::Normal, "Recovered".to_owned(), now.message.clone()));
                }
                _ => return None,
            };
            Some((kind, now.reason.clone(), now.message.clone()))
        })
        .collect();
    // The completed rollout of an unavailable deployment makes it available.
    let is_complete = events.iter().any(|(_, reason, _)| reason == ROLLOUT_COMPLETE);
    let of_availability = after.iter().find(|now| now.type_ == condition_type::AVAILABLE);
    if let Some(available) = of_availability.filter(|now| is_complete && now.status == "True") {
        events.retain(|(_, reason, _)| *reason != available.reason);
    }
    // One cause may change several conditions. Each reason is reported once.
    let mut reported = BTreeSet::new();
    events.retain(|(_, reason, _)| reported.insert(reason.clone()));
    events
}
