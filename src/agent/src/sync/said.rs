//! What was said of a replica last, and how often what is measured of it is said again. Pure.

use std::time::{Duration, Instant};

use rooflet_api::v1alpha1::ModelReplicaStatus;

/// Speeds change with every request; a status that differs in nothing else is written again after this time.
const MEASURED_PERIOD: Duration = Duration::from_secs(10);

/// The status that was last made for a replica.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(super) status: ModelReplicaStatus,
    /// When what is measured was last made anew.
    pub(super) measured_at: Instant,
}

/// Leaves what is measured as it was said, unless that is long ago or there was nothing. When the next status' figures are
/// from.
pub(super) fn throttle(previous: &Said, next: &mut ModelReplicaStatus, now: Instant) -> Instant {
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
    fn figures_are_said_anew_at_first_and_after_a_while() {
        let began = Clock::System.instant();
        let (soon, late) = (began + MEASURED_PERIOD / 2, began + MEASURED_PERIOD);
        let check = |before, mut next: ModelReplicaStatus, now, expect: ModelReplicaStatus, at| {
            let said = Said {
                status: before,
                measured_at: began,
            };
            assert_eq!(throttle(&said, &mut next, now), at);
            assert_eq!(next, expect);
        };
        let (few, many) = (|| status(Some(3), true), || status(Some(4), true));
        check(few(), few(), late, few(), began);
        check(few(), many(), soon, few(), began);
        check(few(), many(), late, many(), late);
        check(status(None, false), many(), soon, many(), soon);
        check(status(Some(3), false), many(), soon, many(), soon);
        // A worker that is gone has no figures, at once.
        let none = || status(None, false);
        check(few(), none(), soon, none(), began);
    }
}
