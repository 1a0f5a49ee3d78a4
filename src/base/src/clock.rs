//! The only place that reads time. Everything else is handed a [`Clock`] or a value.
#![expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;

use crate::mutex::lock;

/// A source of wall-clock and monotonic time.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The machine's own clock.
    #[default]
    System,
    /// A clock that stands still until it is told otherwise.
    Manual(ManualClock),
}

impl Clock {
    /// Wall-clock time, for what is shown to people or written into objects.
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Manual(manual) => manual.now(),
        }
    }

    /// The time of day where the machine is.
    pub fn time_of_day(&self) -> Time {
        self.now().to_zoned(TimeZone::system()).time()
    }

    /// Monotonic time, for measuring how long something took.
    pub fn instant(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            Self::Manual(manual) => manual.start + manual.elapsed(),
        }
    }
}

/// So many seconds after 1970.
pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

/// See `Clock::Manual`. Clones share the same time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    epoch: Timestamp,
    start: Instant,
    elapsed: Arc<Mutex<Duration>>,
    /// Time that only the wall clock has seen.
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

    /// The machine sleeps: its monotonic clock stands still, as a Mac's does.
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

/// How long ago `then` was; zero if it lies in the future (clocks of two machines never agree
/// exactly).
pub fn since(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let (wall, mono) = (clock.now(), clock.instant());
        manual.advance(Duration::from_secs(90));
        assert_eq!(since(clock.now(), wall), Duration::from_secs(90));
        assert_eq!(clock.instant() - mono, Duration::from_secs(90));
        assert_eq!(since(wall, clock.now()), Duration::ZERO);
    }
}
