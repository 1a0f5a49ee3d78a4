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

/// Point in time by both clocks. While a machine sleeps, only the wall clock advances, and only the
/// wall clock can be set.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    instant: Instant,
    wall: Timestamp,
}

impl Moment {
    pub fn now(clock: &Clock) -> Self {
        Self {
            instant: clock.instant(),
            wall: clock.now(),
        }
    }

    /// Returns the larger of both elapsed times.
    pub fn age(self, clock: &Clock) -> Duration {
        let now = Self::now(clock);
        now.awake_since(self).max(since(now.wall, self.wall))
    }

    /// Returns how long the machine slept since `earlier`: the advance of the wall clock beyond the
    /// monotonic clock. A wall clock that was set forward counts as sleep.
    pub fn slept_since(self, earlier: Self) -> Duration {
        since(self.wall, earlier.wall).saturating_sub(self.awake_since(earlier))
    }

    fn awake_since(self, earlier: Self) -> Duration {
        self.instant.saturating_duration_since(earlier.instant)
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
    set_back: Arc<Mutex<Duration>>,
}

impl ManualClock {
    pub fn new(epoch: Timestamp) -> Self {
        Self {
            epoch,
            start: Instant::now(),
            elapsed: Arc::default(),
            slept: Arc::default(),
            set_back: Arc::default(),
        }
    }

    pub fn advance(&self, by: Duration) {
        *lock(&self.elapsed) += by;
    }

    /// Simulates sleep of the machine: the monotonic clock stops, as on a Mac.
    pub fn sleep(&self, by: Duration) {
        *lock(&self.slept) += by;
    }

    /// Sets the time of day back, as a correction by NTP does. The monotonic clock is unchanged.
    pub fn set_back(&self, by: Duration) {
        *lock(&self.set_back) += by;
    }

    fn elapsed(&self) -> Duration {
        *lock(&self.elapsed)
    }

    fn now(&self) -> Timestamp {
        let slept = *lock(&self.slept);
        self.epoch + self.elapsed() + slept - *lock(&self.set_back)
    }
}

/// Returns the time since `then`. Returns zero if `then` is in the future, because clocks of two
/// machines differ.
pub fn since(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or(Duration::ZERO)
}

/// Returns true if `then` is less than `limit` ago. Returns false if `then` is further ahead than `limit`, because
/// the clock has been set back since `then` was recorded.
pub fn is_recent(now: Timestamp, then: Timestamp, limit: Duration) -> bool {
    since(now, then) < limit && since(then, now) < limit
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

    #[test]
    fn recorded_time_far_ahead_is_not_recent() {
        let limit = Duration::from_secs(60);
        let recent: Vec<i64> = [-3600, -60, -59, 0, 59, 60, 3600]
            .into_iter()
            .filter(|second| is_recent(at(10_000), at(10_000 + second), limit))
            .collect();
        assert_eq!(recent, [-59, 0, 59]);
    }

    #[test]
    fn age_grows_after_the_clock_was_set_back() {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let start = Moment::now(&clock);
        manual.set_back(Duration::from_secs(3600));
        assert_eq!(start.age(&clock), Duration::ZERO);
        manual.advance(Duration::from_secs(90));
        assert_eq!(start.age(&clock), Duration::from_secs(90));
    }

    #[test]
    fn sleep_is_the_advance_of_the_wall_clock_beyond_the_monotonic_clock() {
        let manual = ManualClock::new(Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let start = Moment::now(&clock);
        manual.advance(Duration::from_secs(90));
        assert_eq!(Moment::now(&clock).slept_since(start), Duration::ZERO);
        manual.sleep(Duration::from_secs(3600));
        assert_eq!(Moment::now(&clock).slept_since(start), Duration::from_secs(3600));
        assert_eq!(start.age(&clock), Duration::from_secs(3690));
        assert_eq!(start.slept_since(Moment::now(&clock)), Duration::ZERO);
    }
}
