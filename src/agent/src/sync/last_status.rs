//! Last status computed for a replica, and the rate limit for measured values in it. Pure.

use std::time::{Duration, Instant};

use rooflet_api::v1alpha1::ModelReplicaStatus;

/// Minimum interval between status updates that change only measured values. They change with every
/// request.
const MEASURED_PERIOD: Duration = Duration::from_secs(10);

/// Last status computed for a replica.
#[derive(Debug, Clone)]
pub(crate) struct LastStatus {
    pub(super) status: ModelReplicaStatus,
    /// Time of the last update of measured values.
    pub(super) measured_at: Instant,
}

/// Keeps the previous measured values in `next` if their last update was less than
/// [`MEASURED_PERIOD`] ago. Values that appear for the first time are never delayed. Returns the
/// time of the values in `next`.
pub(super) fn throttle(previous: &LastStatus, next: &mut ModelReplicaStatus, now: Instant) -> Instant {
    let seen = &previous.status;
    if (&next.measured, &next.requests) == (&seen.measured, &seen.requests) {
        return previous.measured_at;
    }
    let is_first = seen.requests.is_none() || (seen.measured.is_none() && next.measured.is_some());
    if is_first || now - previous.measured_at >= MEASURED_PERIOD {
        return now;
    }
    if next.requests.is_some() {
        next.requests.clone_from(&seen.requests);
        if next.measured.is_some() {
            next.measured.clone_from(&seen.measured);
        }
    }
    previous.measured_at
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::{MeasuredSpeed, RequestsStatus};
    use rooflet_base::clock::Clock;

    fn status(completed: Option<u64>, measured: bool) -> ModelReplicaStatus {
        let speed = || MeasuredSpeed {
            requests: completed.unwrap_or_default(),
            ..MeasuredSpeed::default()
        };
        let requests = completed.map(|completed| RequestsStatus {
            completed,
            ..RequestsStatus::default()
        });
        ModelReplicaStatus {
            requests,
            measured: measured.then(speed),
            ..ModelReplicaStatus::default()
        }
    }

    #[test]
    fn measured_values_are_updated_first_and_then_periodically() {
        let began = Clock::System.instant();
        let (soon, late) = (began + MEASURED_PERIOD / 2, began + MEASURED_PERIOD);
        let check = |before, mut next: ModelReplicaStatus, now, expect: ModelReplicaStatus, at| {
            let last = LastStatus {
                status: before,
                measured_at: began,
            };
            assert_eq!(throttle(&last, &mut next, now), at);
            assert_eq!(next, expect);
        };
        let (few, many) = (|| status(Some(3), true), || status(Some(4), true));
        check(few(), few(), late, few(), began);
        check(few(), many(), soon, few(), began);
        check(few(), many(), late, many(), late);
        check(status(None, false), many(), soon, many(), soon);
        check(status(Some(3), false), many(), soon, many(), soon);
        // Without a worker, measured values disappear immediately.
        let none = || status(None, false);
        check(few(), none(), soon, none(), began);
    }
}
