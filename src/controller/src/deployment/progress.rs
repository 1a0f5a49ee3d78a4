//! Progress of the replicas of a rollout. The progress deadline counts from the last progress.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::replica::condition;
use rooflet_api::conditions::{condition_type, whole_seconds};
use rooflet_api::v1alpha1::{ModelReplica, RolloutProgress};

/// Conditions that become true during the start of a replica.
const CONDITIONS: [&str; 4] = [
    condition_type::ADMITTED,
    condition_type::ARTIFACTS_READY,
    condition_type::LOADED,
    condition_type::READY,
];

/// Number of [`start_steps`] of a Ready replica.
const START_STEPS: usize = CONDITIONS.len() + 2;

/// Returns the number of steps of its start that the replica has completed: creation, placement and
/// conditions.
pub(super) fn start_steps(replica: &ModelReplica) -> usize {
    let is_met = |kind: &str| condition(replica, kind).is_some_and(|condition| condition.status == "True");
    let met = CONDITIONS.into_iter().filter(|kind| is_met(kind)).count();
    1 + usize::from(replica.spec.node_name.is_some()) + met
}

/// Returns the progress with the sum of the [`start_steps`] of all replicas of the rollout. Only a sum that is
/// larger than ever before is progress. Otherwise a worker that crashes in its warm-up, or a node that
/// refuses every replica, would never exceed the deadline.
pub(super) fn advanced(
    before: Option<RolloutProgress>,
    start_steps: usize,
    replicas: i32,
    now: Timestamp,
) -> RolloutProgress {
    let most = usize::try_from(replicas).unwrap_or(0).saturating_mul(START_STEPS);
    let limited = |steps: usize| i32::try_from(steps.min(most)).unwrap_or(i32::MAX);
    let start_steps = limited(start_steps);
    match before {
        Some(before) if start_steps <= before.start_steps => RolloutProgress {
            // After scaling down and up, the steps of the additional replicas are progress again.
            start_steps: before.start_steps.min(limited(most)),
            ..before
        },
        Some(_) | None => RolloutProgress {
            start_steps,
            at: Time(whole_seconds(now)),
        },
    }
}
