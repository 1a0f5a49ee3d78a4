//! Whether the machine's owner needs its memory back. Pure.
//!
//! Admission leaves [`LOW`] of the memory free, so that it is other programs that take the rest. Pressure begins late
//! and ends later: a compiler that runs for a moment is no reason to stop a model, and one that was stopped starts again
//! only when it has been calm for a while.

use std::time::{Duration, Instant};

use rooflet_base::units::Bytes;
use rooflet_host::{Memory, MemoryLevel};

/// Less available memory than this share of all, in percent, is pressure.
const LOW: u64 = 5;
/// Less than this is about to hurt everybody on the machine.
const CRITICAL: u64 = 2;
/// With this much it is over.
const CALM: u64 = 8;

/// Low memory counts when it has lasted so long.
const LOW_FOR: Duration = Duration::from_secs(20);
/// It is over when it has been so for so long; kubelet's `--eviction-pressure-transition-period`.
pub(crate) const CALM_FOR: Duration = Duration::from_secs(5 * 60);

/// How things stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    #[default]
    None,
    /// There is enough again, and not yet for long.
    Easing,
    Low,
    Critical,
}

impl Pressure {
    /// Memory has to be given back.
    pub(crate) fn presses(self) -> bool {
        self >= Self::Low
    }
}

/// What is left free whatever is asked for.
pub fn margin(total: Bytes) -> Bytes {
    percent(total, LOW)
}

/// What is to stay free beside a replica that gave way and comes back, besides the margin.
pub fn relapse(total: Bytes) -> Bytes {
    percent(total, CALM - LOW)
}

/// What has to become available for pressure to end.
pub fn shortfall(memory: &Memory) -> Bytes {
    percent(memory.total, CALM) - memory.available
}

/// Remembers what was seen.
#[derive(Debug, Clone, Default)]
pub struct MemoryWatch {
    level: Pressure,
    low_since: Option<Instant>,
    calm_since: Option<Instant>,
}

impl MemoryWatch {
    /// Goes on where an agent has ended: if somebody gave way, nobody knows how long ago.
    pub fn resume(gave_way: bool) -> Self {
        Self {
            level: if gave_way {
                Pressure::Easing
            } else {
                Pressure::None
            },
            ..Self::default()
        }
    }

    /// Looks at the memory as it is.
    pub fn observe(&mut self, memory: &Memory, now: Instant) -> Pressure {
        let has = |share| memory.available >= percent(memory.total, share);
        let is_critical = !has(CRITICAL) || memory.level == Some(MemoryLevel::Critical);
        let is_low = is_critical || !has(LOW) || memory.level == Some(MemoryLevel::Low);
        let is_calm = !is_low && has(CALM);
        let lasts = |since: &mut Option<Instant>, is: bool| {
            if !is {
                *since = None;
                return Duration::ZERO;
            }
            now - *since.get_or_insert(now)
        };
        let low_for = lasts(&mut self.low_since, is_low);
        let calm_for = lasts(&mut self.calm_since, is_calm);
        self.level = if is_critical {
            Pressure::Critical
        } else if is_low && (self.level != Pressure::None || low_for >= LOW_FOR) {
            Pressure::Low
        } else if self.level == Pressure::None || calm_for >= CALM_FOR {
            Pressure::None
        } else {
            Pressure::Easing
        };
        self.level
    }

    /// When time alone may change the level.
    pub fn look_again_after(&self, now: Instant) -> Option<Duration> {
        let low = self.low_since.filter(|_| !self.level.presses());
        let calm = self.calm_since.filter(|_| self.level != Pressure::None);
        let ends = [(low, LOW_FOR), (calm, CALM_FOR)];
        ends.into_iter()
            .filter_map(|(since, lasts)| Some(lasts.saturating_sub(now - since?)))
            .min()
    }
}

fn percent(Bytes(total): Bytes, share: u64) -> Bytes {
    Bytes(total / 100 * share)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use rooflet_base::clock::Clock;

    fn memory(percent: u64, level: Option<MemoryLevel>) -> Memory {
        Memory {
            total: Bytes(10_000),
            available: Bytes(100 * percent),
            working_set: None,
            level,
        }
    }

    /// Steps of `second percent -> level`.
    #[track_caller]
    fn check(steps: &[(u64, u64, Pressure)]) {
        let start = Clock::System.instant();
        let mut watch = MemoryWatch::default();
        for (second, percent, expect) in steps {
            let now = start + Duration::from_secs(*second);
            assert_eq!(
                watch.observe(&memory(*percent, None), now),
                *expect,
                "second {second}"
            );
        }
    }

    #[test]
    fn a_moment_is_no_pressure() {
        use Pressure::{Critical, Low, None};
        check(&[(0, 50, None), (10, 4, None), (29, 4, None), (30, 4, Low)]);
        check(&[
            (0, 4, None),
            (10, 6, None),
            (20, 4, None),
            (39, 4, None),
            (40, 4, Low),
        ]);
        check(&[(0, 1, Critical), (1, 3, Low)]);
    }

    #[test]
    fn it_is_over_when_it_has_been_calm_for_a_while() {
        use Pressure::{Critical, Easing, Low, None};
        check(&[
            (0, 1, Critical),
            (10, 30, Easing),
            (309, 30, Easing),
            (310, 30, None),
            (311, 6, None),
        ]);
        // Enough not to be low is not calm, and low again is low at once.
        check(&[
            (0, 1, Critical),
            (10, 6, Easing),
            (400, 6, Easing),
            (500, 9, Easing),
            (600, 7, Easing),
            (700, 9, Easing),
            (800, 4, Low),
            (900, 9, Easing),
            (1199, 9, Easing),
            (1200, 9, None),
        ]);
    }

    #[test]
    fn the_systems_own_word_counts() {
        let start = Clock::System.instant();
        let mut watch = MemoryWatch::default();
        let mut look = |second, level| watch.observe(&memory(40, level), start + Duration::from_secs(second));
        assert_eq!(look(0, Some(MemoryLevel::Normal)), Pressure::None);
        assert_eq!(look(1, Some(MemoryLevel::Low)), Pressure::None);
        assert_eq!(look(21, Some(MemoryLevel::Low)), Pressure::Low);
        assert_eq!(look(22, Some(MemoryLevel::Critical)), Pressure::Critical);
        assert_eq!(look(23, Some(MemoryLevel::Normal)), Pressure::Easing);
    }

    proptest! {
        /// Whatever happens: after so long with enough it is over, and never before.
        #[test]
        fn pressure_ends_after_calm_and_never_before(steps in prop::collection::vec((1u64..400, 0u64..20), 1..40)) {
            let start = Clock::System.instant();
            let mut watch = MemoryWatch::default();
            let (mut second, mut calm_since) = (0, None);
            let mut before = Pressure::None;
            for (wait, percent) in steps {
                second += wait;
                let now = start + Duration::from_secs(second);
                let level = watch.observe(&memory(percent, None), now);
                calm_since = (percent >= CALM).then(|| calm_since.unwrap_or(second));
                let calm_for = calm_since.map_or(0, |since| second - since);
                prop_assert!(before == Pressure::None || level != Pressure::None || calm_for >= CALM_FOR.as_secs());
                prop_assert!(calm_for < CALM_FOR.as_secs() || level == Pressure::None);
                prop_assert!(percent >= CRITICAL || level == Pressure::Critical);
                prop_assert!(percent < LOW || !level.presses());
                if let Some(after) = watch.look_again_after(now) {
                    // The memory stays as it is: then it changes at that time and not before.
                    let at = |after: Duration| watch.clone().observe(&memory(percent, None), now + after);
                    prop_assert_ne!(at(after), level);
                    if after > Duration::from_secs(1) {
                        prop_assert_eq!(at(after - Duration::from_secs(1)), level);
                    }
                }
                before = level;
            }
        }
    }
}
