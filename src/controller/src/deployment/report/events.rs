//! What of a deployment's conditions is worth an event.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::deployment::reasons::{
    ANALYSIS_INCONCLUSIVE, CANARY_PAUSED, DEADLINE_EXCEEDED, DESPITE_THE_NUMBERS, NO_REPLICAS,
    NOT_YET_SCHEDULED, OUTSIDE_MAINTENANCE_WINDOW, PAUSED, PREPARING, ROLLED_BACK, ROLLOUT_COMPLETE,
    SLOWER_THAN_PREDICTED, THROUGHPUT_FLOOR, WAITING_FOR_IDLE,
};
use rooflet_api::conditions::condition_type;
use rooflet_client::EventType;

/// Reasons of the condition Progressing at which nothing is wrong, and that a user may wait for.
const TOLD_PROGRESS: [&str; 7] = [
    ROLLOUT_COMPLETE,
    PAUSED,
    CANARY_PAUSED,
    ANALYSIS_INCONCLUSIVE,
    OUTSIDE_MAINTENANCE_WINDOW,
    WAITING_FOR_IDLE,
    PREPARING,
];

/// Those at which a person must look.
const STOPPED: [&str; 4] = [
    DEADLINE_EXCEEDED,
    ROLLED_BACK,
    THROUGHPUT_FLOOR,
    SLOWER_THAN_PREDICTED,
];

/// What changed between two lists of conditions, as far as it is worth an event.
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
                (condition_type::ADMITTED, "True") if DESPITE_THE_NUMBERS.contains(&now.reason.as_str()) => {
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
                (condition_type::PROGRESSING, _) if TOLD_PROGRESS.contains(&now.reason.as_str()) => {
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
    // One cause may turn several conditions.
    let mut told = BTreeSet::new();
    events.retain(|(_, reason, _)| told.insert(reason.clone()));
    events
}
