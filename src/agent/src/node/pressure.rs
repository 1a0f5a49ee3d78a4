//! Memory pressure of the node. Pure.
//!
//! Admission leaves [`LOW`] percent of the memory free, so only other programs can use up the rest.
//! Pressure starts and ends with a delay. A short peak, such as a compiler run, stops no replica. A
//! stopped replica restarts only after memory has been sufficient for [`RECOVERY_TIME`].

use std::time::{Duration, Instant};

use rooflet_base::units::Bytes;
use rooflet_host::{Memory, MemoryLevel};

/// Pressure is low-memory below this share of available memory, in percent.
const LOW: u64 = 5;
/// Pressure is critical below this share of available memory, in percent.
const CRITICAL: u64 = 2;
/// Pressure can end at this share of available memory, in percent.
const RECOVERED: u64 = 8;

/// Low memory counts as pressure after this time.
const LOW_FOR: Duration = Duration::from_secs(20);
/// Pressure ends after sufficient memory for this time; equals the kubelet's
/// `--eviction-pressure-transition-period`.
pub(crate) const RECOVERY_TIME: Duration = Duration::from_secs(5 * 60);

/// Level of memory pressure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    #[default]
    None,
    /// Memory is sufficient again, but not yet for [`RECOVERY_TIME`].
    Recovering,
    Low,
    Critical,
}

impl Pressure {
    /// Returns true if the agent must stop replicas to free memory.
    pub(crate) fn requires_stop(self) -> bool {
        self >= Self::Low
    }
}

/// Memory that admission never assigns.
pub fn margin(total: Bytes) -> Bytes {
    percent(total, LOW)
}

/// Memory beyond [`margin`] that must stay free when a replica restarts that was stopped for memory
/// pressure.
pub fn restart_headroom(total: Bytes) -> Bytes {
    percent(total, RECOVERED - LOW)
}

/// Memory that must become available for pressure to end.
pub fn shortfall(memory: &Memory) -> Bytes {
    percent(memory.total, RECOVERED) - memory.available
}

/// Level of memory pressure with the times of its transitions.
#[derive(Debug, Clone, Default)]
pub struct MemoryWatch {
    level: Pressure,
    low_since: Option<Instant>,
    recovered_since: Option<Instant>,
}

impl MemoryWatch {
    /// Starts in [`Pressure::Recovering`] if a replica is still stopped for memory, because the
    /// time of the stop is unknown.
    pub fn resume(stopped_for_memory: bool) -> Self {
        Self {
            level: if stopped_for_memory {
                Pressure::Recovering
            } else {
                Pressure::None
            },
            ..Self::default()
        }
    }

    /// Updates the level with the current memory.
    pub fn observe(&mut self, memory: &Memory, now: Instant) -> Pressure {
        let has = |share| memory.available >= percent(memory.total, share);
        let is_critical = !has(CRITICAL) || memory.level == Some(MemoryLevel::Critical);
        let is_low = is_critical || !has(LOW) || memory.level == Some(MemoryLevel::Low);
        let is_recovered = !is_low && has(RECOVERED);
        let lasts = |since: &mut Option<Instant>, is: bool| {
            if !is {
                *since = None;
                return Duration::ZERO;
            }
            now - *since.get_or_insert(now)
        };
        let low_for = lasts(&mut self.low_since, is_low);
        let recovered_for = lasts(&mut self.recovered_since, is_recovered);
        self.level = if is_critical {
            Pressure::Critical
        } else if is_low && (self.level != Pressure::None || low_for >= LOW_FOR) {
            Pressure::Low
        } else if self.level == Pressure::None || recovered_for >= RECOVERY_TIME {
            Pressure::None
        } else {
            Pressure::Recovering
        };
        self.level
    }

    /// Time after which the level can change although the memory does not.
    pub fn requeue_after(&self, now: Instant) -> Option<Duration> {
        let low = self.low_since.filter(|_| !self.level.requires_stop());
        let recovered = self.recovered_since.filter(|_| self.level != Pressure::None);
        let ends = [(low, LOW_FOR), (recovered, RECOVERY_TIME)];
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
    fn short_peak_causes_no_pressure() {
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
    fn pressure_ends_after_recovery_time() {
        use Pressure::{Critical, Low, None, Recovering};
        check(&[
            (0, 1, Critical),
            (10, 30, Recovering),
            (309, 30, Recovering),
            (310, 30, None),
            (311, 6, None),
        ]);
        // Between the low and the recovered threshold, pressure continues; below the low threshold
        // it returns immediately.
        check(&[
            (0, 1, Critical),
            (10, 6, Recovering),
            (400, 6, Recovering),
            (500, 9, Recovering),
            (600, 7, Recovering),
            (700, 9, Recovering),
            (800, 4, Low),
            (900, 9, Recovering),
            (1199, 9, Recovering),
            (1200, 9, None),
        ]);
    }

    #[test]
    fn memory_level_of_the_system_counts() {
        let start = Clock::System.instant();
        let mut watch = MemoryWatch::default();
        let mut look = |second, level| watch.observe(&memory(40, level), start + Duration::from_secs(second));
        assert_eq!(look(0, Some(MemoryLevel::Normal)), Pressure::None);
        assert_eq!(look(1, Some(MemoryLevel::Low)), Pressure::None);
        assert_eq!(look(21, Some(MemoryLevel::Low)), Pressure::Low);
        assert_eq!(look(22, Some(MemoryLevel::Critical)), Pressure::Critical);
        assert_eq!(look(23, Some(MemoryLevel::Normal)), Pressure::Recovering);
    }

    proptest! {
        /// With enough memory, pressure ends exactly after the recovery time.
        #[test]
        fn pressure_ends_after_recovery_time_and_never_before(steps in prop::collection::vec((1u64..400, 0u64..20), 1..40)) {
            let start = Clock::System.instant();
            let mut watch = MemoryWatch::default();
            let (mut second, mut recovered_since) = (0, None);
            let mut before = Pressure::None;
            for (wait, percent) in steps {
                second += wait;
                let now = start + Duration::from_secs(second);
                let level = watch.observe(&memory(percent, None), now);
                recovered_since = (percent >= RECOVERED).then(|| recovered_since.unwrap_or(second));
                let calm_for = recovered_since.map_or(0, |since| second - since);
                prop_assert!(before == Pressure::None || level != Pressure::None || calm_for >= RECOVERY_TIME.as_secs());
                prop_assert!(calm_for < RECOVERY_TIME.as_secs() || level == Pressure::None);
                prop_assert!(percent >= CRITICAL || level == Pressure::Critical);
                prop_assert!(percent < LOW || !level.requires_stop());
                if let Some(after) = watch.requeue_after(now) {
                    // With constant memory, the level changes exactly after `requeue_after`.
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
