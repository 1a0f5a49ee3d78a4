//! Health of a replica, derived from its responses.
//!
//! Outlier ejection as in Envoy: consecutive failures eject a replica for a time that doubles.
//! After that, one request probes it (half-open). If all replicas are ejected, the best one still
//! gets requests.

use std::time::{Duration, Instant};

/// Consecutive failures that eject a reachable replica.
const CONSECUTIVE_FAILURES: u32 = 3;
/// Duration of the first ejection; each further one is twice as long, up to [`MAX_EJECTION`].
const FIRST_EJECTION: Duration = Duration::from_secs(2);
const MAX_EJECTION: Duration = Duration::from_secs(60);

/// Kind of a replica's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection failed, or closed before the response ended. Ejects the replica immediately.
    Unreachable,
    /// The replica responded with a server error.
    Unable,
}

/// Circuit breaker state of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthState {
    Healthy,
    /// The ejection has ended; one request probes the replica.
    HalfOpen,
    Ejected,
}

/// Failure history of a replica; see the module documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    failures: u32,
    ejections: u32,
    ejected_until: Option<Instant>,
    probe_in_flight: bool,
}

impl Health {
    pub(crate) fn state(&self, now: Instant) -> HealthState {
        match self.ejected_until {
            None => HealthState::Healthy,
            Some(ejected_until) if now < ejected_until || self.probe_in_flight => HealthState::Ejected,
            Some(_) => HealthState::HalfOpen,
        }
    }

    /// Returns the remaining time of the ejection.
    pub(crate) fn ejected_for(&self, now: Instant) -> Option<Duration> {
        let left = self.ejected_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Records that a request was sent to the replica.
    pub(crate) fn request_sent(&mut self, now: Instant) {
        self.probe_in_flight |= self.state(now) == HealthState::HalfOpen;
    }

    /// Records a success; resets the failure history.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records the end of a request that shows nothing about the replica, such as a cancelled one.
    pub(crate) fn abandoned(&mut self) {
        self.probe_in_flight = false;
    }

    /// Records a failure, and ejects the replica if necessary.
    pub(crate) fn failed(&mut self, fault: Fault, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let probe_in_flight = std::mem::take(&mut self.probe_in_flight);
        // Failures of requests sent before the ejection do not extend it.
        if self
            .ejected_until
            .is_some_and(|ejected_until| now < ejected_until)
        {
            return;
        }
        if probe_in_flight || fault == Fault::Unreachable || self.failures >= CONSECUTIVE_FAILURES {
            let duration = FIRST_EJECTION.saturating_mul(1 << self.ejections.min(10));
            self.ejections = self.ejections.saturating_add(1);
            self.ejected_until = Some(now + duration.min(MAX_EJECTION));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::{Clock, ManualClock};

    fn clock() -> (ManualClock, Clock) {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        (manual.clone(), Clock::Manual(manual))
    }

    #[test]
    fn probes_unreachable_replica_with_one_request_after_growing_ejections() {
        let (manual, clock) = clock();
        let mut health = Health::default();
        for duration in [2, 4, 8, 16, 32, 60, 60] {
            health.failed(Fault::Unreachable, clock.instant());
            assert_eq!(health.state(clock.instant()), HealthState::Ejected);
            manual.advance(Duration::from_secs(duration) - Duration::from_millis(1));
            assert_eq!(health.state(clock.instant()), HealthState::Ejected, "{duration}");
            manual.advance(Duration::from_millis(1));
            assert_eq!(health.state(clock.instant()), HealthState::HalfOpen, "{duration}");
            health.request_sent(clock.instant());
            assert_eq!(
                health.state(clock.instant()),
                HealthState::Ejected,
                "the probe is in flight"
            );
        }
        health.abandoned();
        assert_eq!(health.state(clock.instant()), HealthState::HalfOpen);
        health.succeeded();
        assert_eq!(health.state(clock.instant()), HealthState::Healthy);
        health.failed(Fault::Unreachable, clock.instant());
        manual.advance(FIRST_EJECTION);
        assert_eq!(
            health.state(clock.instant()),
            HealthState::HalfOpen,
            "ejections start from the shortest"
        );
    }

    #[test]
    fn server_errors_eject_only_if_consecutive() {
        let (_, clock) = clock();
        let mut health = Health::default();
        for _ in 0..5 {
            health.failed(Fault::Unable, clock.instant());
            health.failed(Fault::Unable, clock.instant());
            assert_eq!(health.state(clock.instant()), HealthState::Healthy);
            health.succeeded();
        }
        for _ in 0..3 {
            health.failed(Fault::Unable, clock.instant());
        }
        assert_eq!(health.state(clock.instant()), HealthState::Ejected);
    }

    #[test]
    fn simultaneous_failures_count_once() {
        let (manual, clock) = clock();
        let mut health = Health::default();
        for _ in 0..100 {
            health.failed(Fault::Unreachable, clock.instant());
        }
        manual.advance(FIRST_EJECTION);
        assert_eq!(health.state(clock.instant()), HealthState::HalfOpen);
    }
}
