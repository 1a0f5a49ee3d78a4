//! Time source. Only this module reads the time; all other code receives a [`Clock`] or a value.
#![expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;

use crate::mutex::lock;

/// Source of wall-clock and monotonic time.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// Clock of the machine.
    #[default]
    System,
    /// Clock for tests, which changes only on request.
    Manual(ManualClock),
}

impl Clock {
    /// Returns the wall-clock time, for users and stored objects.
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Manual(manual) => manual.now(),
        }
    }

    /// Returns the local time of day.
    pub fn time_of_day(&self) -> Time {
        self.now().to_zoned(TimeZone::system()).time()
    }

    /// Returns the monotonic time, for durations.
    pub fn instant(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            Self::Manual(manual) => manual.start + manual.elapsed(),
        }
    }
}

/// Returns the time this many seconds after 1970.
pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

/// Time of [`Clock::Manual`]. Clones share the time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    epoch: Timestamp,
    start: Instant,
    elapsed: Arc<Mutex<Duration>>,
    /// Time during which the machine slept: only the wall clock advanced.
    slept: Arc<Mutex<Duration>>,
}

impl ManualClock {
    pub fn new(epoch: Timestamp) -> Self {
        Self {
            epoch,
            start: Instant::now(),
            elapsed: Arc::default(),
            slept: Arc::default(),
        }
    }

    pub fn advance(&self, by: Duration) {
        *lock(&self.elapsed) += by;
    }

    /// Simulates sleep of the machine: the monotonic clock stops, as on a Mac.
    pub fn sleep(&self, by: Duration) {
        *lock(&self.slept) += by;
    }

    fn elapsed(&self) -> Duration {
        *lock(&self.elapsed)
    }

    fn now(&self) -> Timestamp {
        let slept = *lock(&self.slept);
        self.epoch + self.elapsed() + slept
    }
}

/// Returns the time since `then`. Returns zero if `then` is in the future, because clocks of two
/// machines differ.
pub fn since(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_changes_only_on_request() {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let (wall, mono) = (clock.now(), clock.instant());
        manual.advance(Duration::from_secs(90));
        assert_eq!(since(clock.now(), wall), Duration::from_secs(90));
        assert_eq!(clock.instant() - mono, Duration::from_secs(90));
        assert_eq!(since(wall, clock.now()), Duration::ZERO);
    }
}
