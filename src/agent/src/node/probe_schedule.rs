//! Time of the next probe. The module is pure.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;

use super::probe::ProbeResult;
use rooflet_base::clock::since;

/// Delay of the repetition of a disturbed measurement. It doubles with each disturbed one.
const FIRST_REPETITION: Duration = Duration::from_secs(600);
const LAST_REPETITION: Duration = Duration::from_secs(24 * 3600);

/// Runs of this agent, and requests of administrators.
#[derive(Debug, Default)]
pub(super) struct ProbeSchedule {
    /// Number of consecutive disturbed measurements.
    disturbed: u32,
    last_run: Option<Instant>,
    /// Last request that a measurement has fulfilled.
    fulfilled: Option<String>,
}

impl ProbeSchedule {
    /// Creates the schedule of an agent that starts. `fulfilled` is the last fulfilled request of
    /// its predecessor.
    pub(super) fn new(fulfilled: Option<String>) -> Self {
        Self {
            fulfilled,
            ..Self::default()
        }
    }

    pub(super) fn fulfilled(&self) -> Option<&str> {
        self.fulfilled.as_deref()
    }

    /// Returns the time until the next measurement is due. `request` is the current request of an
    /// administrator.
    pub(super) fn due_in(
        &self,
        last: Option<&ProbeResult>,
        request: Option<&str>,
        now: Timestamp,
        instant: Instant,
    ) -> Duration {
        let Some(last) = last else { return Duration::ZERO };
        if request.is_some() && request != self.fulfilled() {
            return Duration::ZERO;
        }
        let validity = last.remaining_validity(now);
        if !last.is_doubtful() {
            return validity;
        }
        let doubled = FIRST_REPETITION.saturating_mul(1 << self.disturbed.saturating_sub(1).min(10));
        let elapsed = self
            .last_run
            .map_or_else(|| since(now, last.measured_at()), |run| instant - run);
        validity.min(doubled.min(LAST_REPETITION).saturating_sub(elapsed))
    }

    /// Records a completed measurement. `request` is the request at its start.
    pub(super) fn completed(&mut self, measured: &ProbeResult, request: Option<String>, instant: Instant) {
        self.last_run = Some(instant);
        self.disturbed = match measured.is_doubtful() {
            true => self.disturbed.saturating_add(1),
            false => 0,
        };
        self.fulfilled = request.or(self.fulfilled.take());
    }
}

/// Returns the better one of two measurements under the same conditions. A disturbed measurement
/// does not replace a valid undisturbed one, nor a faster one: other load only reduces the speed.
pub(super) fn better(previous: Option<ProbeResult>, new: ProbeResult, now: Timestamp) -> ProbeResult {
    let speed = |result: &ProbeResult| result.report.measurements.qmv.median_bytes_per_second;
    let is_valid = |previous: &ProbeResult| !previous.remaining_validity(now).is_zero();
    match previous.filter(is_valid) {
        Some(previous)
            if new.is_doubtful() && (!previous.is_doubtful() || speed(&previous) > speed(&new)) =>
        {
            previous
        }
        Some(_) | None => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::probe::tests::report;
    use rooflet_api::v1alpha1::Figure;
    use rooflet_api::wire::ProbeReport;
    use rooflet_base::clock::{Clock, ManualClock};

    const HOUR: u64 = 3600;

    /// Returns a measurement of this speed, disturbed by other load or not.
    fn measured(at: Timestamp, speed: f64, disturbed: bool) -> ProbeResult {
        let mut report = ProbeReport {
            measured_at: at.to_string(),
            ..report()
        };
        report.measurements.qmv = Figure {
            median_bytes_per_second: speed,
            p10_bytes_per_second: if disturbed { speed / 2.0 } else { speed },
            p90_bytes_per_second: speed,
            samples: 10,
            ..Figure::default()
        };
        ProbeResult {
            report: Box::new(report),
            duration: Duration::ZERO,
        }
    }

    fn manual() -> (ManualClock, Clock) {
        let manual = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        (manual.clone(), Clock::Manual(manual))
    }

    #[test]
    fn disturbed_measurement_is_repeated_with_growing_delays() {
        let (manual, clock) = manual();
        let mut schedule = ProbeSchedule::default();
        let due = |schedule: &ProbeSchedule, last: Option<&ProbeResult>| {
            schedule
                .due_in(last, None, clock.now(), clock.instant())
                .as_secs()
        };
        assert_eq!(due(&schedule, None), 0, "no measurement exists");
        let steady = measured(clock.now(), 100.0, false);
        schedule.completed(&steady, None, clock.instant());
        assert_eq!(due(&schedule, Some(&steady)), 7 * 24 * HOUR);
        let disturbed = measured(clock.now(), 10.0, true);
        for seconds in [600, 1200, 2400] {
            schedule.completed(&disturbed, None, clock.instant());
            assert_eq!(due(&schedule, Some(&disturbed)), seconds);
            manual.advance(Duration::from_secs(seconds));
            assert_eq!(due(&schedule, Some(&disturbed)), 0);
        }
        (0..9).for_each(|_| schedule.completed(&disturbed, None, clock.instant()));
        assert_eq!(due(&schedule, Some(&disturbed)), 24 * HOUR);
        schedule.completed(&steady, None, clock.instant());
        schedule.completed(&disturbed, None, clock.instant());
        assert_eq!(
            due(&schedule, Some(&disturbed)),
            600,
            "delays start from the shortest"
        );
    }

    #[test]
    fn agent_repeats_the_disturbed_measurement_of_its_predecessor() {
        let (manual, clock) = manual();
        let disturbed = measured(clock.now(), 10.0, true);
        let schedule = ProbeSchedule::default();
        manual.advance(Duration::from_secs(500));
        let due = || schedule.due_in(Some(&disturbed), None, clock.now(), clock.instant());
        assert_eq!(due(), Duration::from_secs(100));
        manual.advance(Duration::from_secs(500));
        assert_eq!(due(), Duration::ZERO);
    }

    #[test]
    fn each_request_causes_one_measurement() {
        let (_, clock) = manual();
        let steady = measured(clock.now(), 100.0, false);
        let mut schedule = ProbeSchedule::new(Some("first".to_owned()));
        let is_due = |schedule: &ProbeSchedule, request| {
            let due = schedule.due_in(Some(&steady), request, clock.now(), clock.instant());
            due.is_zero()
        };
        assert!(!is_due(&schedule, None) && !is_due(&schedule, Some("first")));
        assert!(is_due(&schedule, Some("second")));
        schedule.completed(&steady, Some("second".to_owned()), clock.instant());
        assert!(!is_due(&schedule, Some("second")));
        schedule.completed(&steady, None, clock.instant());
        assert!(!is_due(&schedule, Some("second")));
    }

    #[test]
    fn disturbed_measurement_replaces_only_worse_ones() {
        let (manual, clock) = manual();
        let speed = |previous: Option<&ProbeResult>, new: &ProbeResult| {
            let kept = better(previous.cloned(), new.clone(), clock.now());
            kept.report.measurements.qmv.median_bytes_per_second
        };
        let (slow, fast) = (
            measured(clock.now(), 10.0, true),
            measured(clock.now(), 20.0, true),
        );
        let steady = measured(clock.now(), 15.0, false);
        assert_eq!(speed(None, &slow), 10.0);
        assert_eq!(speed(Some(&slow), &fast), 20.0);
        assert_eq!(speed(Some(&fast), &slow), 20.0);
        assert_eq!(speed(Some(&steady), &fast), 15.0);
        assert_eq!(speed(Some(&fast), &steady), 15.0);
        manual.advance(Duration::from_secs(8 * 24 * HOUR));
        let later = measured(clock.now(), 10.0, true);
        assert_eq!(speed(Some(&steady), &later), 10.0, "the previous one has expired");
    }
}
