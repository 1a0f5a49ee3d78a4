//! What a replica's answers say about it: one that fails is left out for a while, then tried with one request.
//!
//! Outlier ejection as proxies have it (Envoy): consecutive failures, a pause that doubles, half-open after it. Nobody
//! is ever left out for good, and where all are left out the best of them is asked all the same.

use std::time::{Duration, Instant};

/// Failures in a row after which a replica that can be reached is left out.
const FAILURES_IN_A_ROW: u32 = 3;
/// The first pause; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// How a replica failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No connection, or it broke before an answer: nothing to wait for.
    Unreachable,
    /// It answered that it cannot.
    Unable,
}

/// How far a replica may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Good,
    /// Its pause is over; one request finds out.
    HalfOpen,
    LeftOut,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    failures: u32,
    pauses: u32,
    until: Option<Instant>,
    trial: bool,
}

impl Health {
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        match self.until {
            None => Standing::Good,
            Some(until) if now < until || self.trial => Standing::LeftOut,
            Some(_) => Standing::HalfOpen,
        }
    }

    /// How long its pause still lasts.
    pub(crate) fn pause_left(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// A request was sent.
    pub(crate) fn began(&mut self, now: Instant) {
        self.trial |= self.standing(now) == Standing::HalfOpen;
    }

    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The request ended and told nothing of the replica: its client went away.
    pub(crate) fn abandoned(&mut self) {
        self.trial = false;
    }

    pub(crate) fn failed(&mut self, fault: Fault, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let trial = std::mem::take(&mut self.trial);
        // Requests that were under way when the pause began say nothing new.
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        if trial || fault == Fault::Unreachable || self.failures >= FAILURES_IN_A_ROW {
            let pause = FIRST_PAUSE.saturating_mul(1 << self.pauses.min(10));
            self.pauses = self.pauses.saturating_add(1);
            self.until = Some(now + pause.min(MAX_PAUSE));
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
    fn a_silent_replica_is_tried_again_with_one_request_after_longer_and_longer_pauses() {
        let (manual, clock) = clock();
        let mut health = Health::default();
        for pause in [2, 4, 8, 16, 32, 60, 60] {
            health.failed(Fault::Unreachable, clock.instant());
            assert_eq!(health.standing(clock.instant()), Standing::LeftOut);
            manual.advance(Duration::from_secs(pause) - Duration::from_millis(1));
            assert_eq!(health.standing(clock.instant()), Standing::LeftOut, "{pause}");
            manual.advance(Duration::from_millis(1));
            assert_eq!(health.standing(clock.instant()), Standing::HalfOpen, "{pause}");
            health.began(clock.instant());
            assert_eq!(
                health.standing(clock.instant()),
                Standing::LeftOut,
                "one is under way"
            );
        }
        health.abandoned();
        assert_eq!(health.standing(clock.instant()), Standing::HalfOpen);
        health.succeeded();
        assert_eq!(health.standing(clock.instant()), Standing::Good);
        health.failed(Fault::Unreachable, clock.instant());
        manual.advance(FIRST_PAUSE);
        assert_eq!(
            health.standing(clock.instant()),
            Standing::HalfOpen,
            "from the beginning"
        );
    }

    #[test]
    fn an_answer_that_it_cannot_counts_in_a_row_only() {
        let (_, clock) = clock();
        let mut health = Health::default();
        for _ in 0..5 {
            health.failed(Fault::Unable, clock.instant());
            health.failed(Fault::Unable, clock.instant());
            assert_eq!(health.standing(clock.instant()), Standing::Good);
            health.succeeded();
        }
        for _ in 0..3 {
            health.failed(Fault::Unable, clock.instant());
        }
        assert_eq!(health.standing(clock.instant()), Standing::LeftOut);
    }

    #[test]
    fn many_that_fail_at_once_are_one_failure() {
        let (manual, clock) = clock();
        let mut health = Health::default();
        for _ in 0..100 {
            health.failed(Fault::Unreachable, clock.instant());
        }
        manual.advance(FIRST_PAUSE);
        assert_eq!(health.standing(clock.instant()), Standing::HalfOpen);
    }
}
