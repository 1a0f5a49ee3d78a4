//! The only place that reads time. Everything else is handed a [`Clock`] or a value.
#![expect(clippy::disallowed_methods, reason = "this is the module the ban points to")]

#[cfg(test)]
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;

#[cfg(test)]
use crate::mutex::lock;

/// A source of wall-clock and monotonic time.
#[derive(Debug, Clone, Default)]
pub(crate) enum Clock {
    /// The machine's own clock.
    #[default]
    System,
    /// A clock that stands still until it is told otherwise.
    #[cfg(test)]
    Manual(ManualClock),
}

impl Clock {
    /// Wall-clock time, for what is shown to people or written into objects.
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            #[cfg(test)]
            Self::Manual(manual) => manual.now(),
        }
    }

    /// The time of day where the machine is.
    pub(crate) fn time_of_day(&self) -> Time {
        self.now().to_zoned(TimeZone::system()).time()
    }

    /// Monotonic time, for measuring how long something took.
    pub(crate) fn instant(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            #[cfg(test)]
            Self::Manual(manual) => manual.start + manual.elapsed(),
        }
    }
}

/// So many seconds after 1970.
#[cfg(test)]
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

/// See `Clock::Manual`. Clones share the same time.
#[cfg(test)]
#[derive(Debug, Clone)]
pub(crate) struct ManualClock {
    epoch: Timestamp,
    start: Instant,
    elapsed: Arc<Mutex<Duration>>,
    /// Time that only the wall clock has seen.
    slept: Arc<Mutex<Duration>>,
}

#[cfg(test)]
impl ManualClock {
    pub(crate) fn new(epoch: Timestamp) -> Self {
        Self {
            epoch,
            start: Instant::now(),
            elapsed: Arc::default(),
            slept: Arc::default(),
        }
    }

    pub(crate) fn advance(&self, by: Duration) {
        *lock(&self.elapsed) += by;
    }

    /// The machine sleeps: its monotonic clock stands still, as a Mac's does.
    pub(crate) fn sleep(&self, by: Duration) {
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

/// How long ago `then` was; zero if it lies in the future (clocks of two machines never agree exactly).
pub(crate) fn since(now: Timestamp, then: Timestamp) -> Duration {
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
