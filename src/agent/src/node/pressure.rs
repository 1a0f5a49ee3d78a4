//! Memory pressure of the node. Pure.
//!
//! Admission leaves [`LOW`] percent of the memory free, so only other programs can use up the rest.
//! Pressure starts and ends with a delay. A short peak, such as a compiler run, stops no replica. A
//! stopped replica restarts only after memory has been sufficient for a recovery time, which grows
//! while replicas are stopped again and again.
//!
//! macOS reports the level `warn` when much of its unwired memory is compressed. A Mac that computes
//! with a large model is often in this state: wired pages do not count. The warning alone therefore
//! prevents starts and stops nothing; it stops replicas if the system also swaps.

use std::time::{Duration, Instant};

use rooflet_base::units::Bytes;
use rooflet_host::{Memory, MemoryLevel};

/// Pressure is low-memory below this share of obtainable memory, in percent.
const LOW: u64 = 5;
/// Pressure is critical below this share of obtainable memory, in percent.
const CRITICAL: u64 = 2;
/// Pressure can end at this share of obtainable memory, in percent.
const RECOVERED: u64 = 8;

/// Low memory or a warning counts as pressure after this time.
const LOW_FOR: Duration = Duration::from_secs(20);
/// Swapping during a warning counts as low memory after this time.
const SWAPPING_FOR: Duration = Duration::from_secs(60);
/// The system swaps if it has written pages within this time: longer than the time between two
/// passes of the sync loop.
const SWAPPED_WITHIN: Duration = Duration::from_secs(25);
/// Pressure ends after sufficient memory for this time; equals the kubelet's
/// `--eviction-pressure-transition-period`.
pub(crate) const RECOVERY_TIME: Duration = Duration::from_secs(5 * 60);
/// The recovery time doubles with every stop up to this factor.
const MAX_RECOVERY_FACTOR: u32 = 8;
/// After this time without pressure, the recovery time is [`RECOVERY_TIME`] again.
const FORGET_STOPS_AFTER: Duration = Duration::from_secs(3600);

/// Level of memory pressure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    #[default]
    None,
    /// The system reports low memory. No replica starts; none is stopped.
    Warning,
    /// Memory is sufficient again, but not yet for the recovery time.
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

/// Returns the memory that admission never assigns.
pub fn margin(total: Bytes) -> Bytes {
    percent(total, LOW)
}

/// Returns the memory beyond [`margin`] that must stay free when a replica restarts that was
/// stopped for memory pressure, or when a new replica starts soon after such a stop.
pub fn restart_headroom(total: Bytes) -> Bytes {
    percent(total, RECOVERED - LOW)
}

/// Returns the memory that must become available for pressure to end.
pub fn shortfall(memory: &Memory) -> Bytes {
    percent(memory.total, RECOVERED) - memory.obtainable()
}

/// Recent writes of pages to swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Swapping {
    /// Since the previous observation.
    Now,
    /// Before it, within [`SWAPPED_WITHIN`].
    Before,
}

/// Level of memory pressure with the times of its transitions.
#[derive(Debug, Clone, Default)]
pub struct MemoryWatch {
    level: Pressure,
    low_since: Option<Instant>,
    warned_since: Option<Instant>,
    swapping_since: Option<Instant>,
    recovered_since: Option<Instant>,
    /// Last count of pages written to swap, and the time of its last change.
    swapouts: Option<(u64, Option<Instant>)>,
    /// Number of stops, and the end of the last pressure that required one.
    stops: u32,
    stop_ended: Option<Instant>,
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
            stops: u32::from(stopped_for_memory),
            ..Self::default()
        }
    }

    /// Updates the level with the current memory.
    pub fn observe(&mut self, memory: &Memory, now: Instant) -> Pressure {
        let has = |share| memory.obtainable() >= percent(memory.total, share);
        let is_critical = !has(CRITICAL) || memory.level == Some(MemoryLevel::Critical);
        let is_low = is_critical || !has(LOW);
        let is_warned = memory.level == Some(MemoryLevel::Low);
        let swapping = self.swapping(memory, now).filter(|_| is_warned);
        let is_recovered = !is_low && !is_warned && has(RECOVERED);
        let low_for = lasts(&mut self.low_since, is_low, now);
        let warned_for = lasts(&mut self.warned_since, is_warned, now);
        let swapping_for = lasts(&mut self.swapping_since, swapping.is_some(), now);
        let recovered_for = lasts(&mut self.recovered_since, is_recovered, now);
        // After a stop, low memory counts immediately, and swapping only if it continues.
        let has_stopped = self.level >= Pressure::Recovering;
        let swaps_on = swapping == Some(Swapping::Now);
        let must_stop = low_for >= LOW_FOR
            || (swapping_for >= SWAPPING_FOR && (swaps_on || !has_stopped))
            || (has_stopped && is_low)
            || (self.level.requires_stop() && swaps_on);
        let next = if is_critical {
            Pressure::Critical
        } else if must_stop {
            Pressure::Low
        } else if has_stopped && recovered_for < self.recovery_time() {
            Pressure::Recovering
        } else if warned_for >= LOW_FOR {
            Pressure::Warning
        } else {
            Pressure::None
        };
        self.count_stops(next, now);
        self.level = next;
        next
    }

    /// Returns whether the system has recently written pages to swap.
    fn swapping(&mut self, memory: &Memory, now: Instant) -> Option<Swapping> {
        let count = memory.swapouts?;
        let changed = match self.swapouts {
            Some((before, _)) if count > before => Some(now),
            Some((_, changed)) => changed,
            None => None,
        };
        self.swapouts = Some((count, changed));
        match now - changed? {
            Duration::ZERO => Some(Swapping::Now),
            age => (age < SWAPPED_WITHIN).then_some(Swapping::Before),
        }
    }

    fn count_stops(&mut self, next: Pressure, now: Instant) {
        match (self.level.requires_stop(), next.requires_stop()) {
            (false, true) => {
                let is_forgotten = self
                    .stop_ended
                    .is_some_and(|ended| now - ended >= FORGET_STOPS_AFTER);
                self.stops = if is_forgotten { 1 } else { self.stops + 1 };
            }
            (true, false) => self.stop_ended = Some(now),
            // The time of a stop by an earlier agent process is unknown.
            (false, false) if self.stops > 0 => {
                self.stop_ended.get_or_insert(now);
            }
            (true, true) | (false, false) => {}
        }
    }

    /// Returns the time for which memory must be sufficient until pressure ends.
    fn recovery_time(&self) -> Duration {
        let doublings = self.stops.saturating_sub(1).min(MAX_RECOVERY_FACTOR.ilog2());
        RECOVERY_TIME * (1 << doublings)
    }

    /// Returns the time for which new replicas need [`restart_headroom`]. `None` if no replica was stopped recently.
    pub fn headroom_for(&self, now: Instant) -> Option<Duration> {
        let left = FORGET_STOPS_AFTER.checked_sub(now - self.stop_ended?)?;
        (!left.is_zero()).then_some(left)
    }

    /// Returns the time after which the level can change although the memory does not.
    pub fn requeue_after(&self, now: Instant) -> Option<Duration> {
        let low = self.low_since.filter(|_| !self.level.requires_stop());
        let warned = self.warned_since.filter(|_| self.level == Pressure::None);
        let recovered = self
            .recovered_since
            .filter(|_| self.level >= Pressure::Recovering);
        let ends = [
            (low, LOW_FOR),
            (warned, LOW_FOR),
            (recovered, self.recovery_time()),
        ];
        ends.into_iter()
            .filter_map(|(since, lasts)| Some(lasts.saturating_sub(now - since?)))
            .min()
    }
}

/// Updates the time since which a state holds. Returns the duration of the state.
fn lasts(since: &mut Option<Instant>, holds: bool, now: Instant) -> Duration {
    if !holds {
        *since = None;
        return Duration::ZERO;
    }
    now - *since.get_or_insert(now)
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
            compressible: Bytes::ZERO,
            swapouts: None,
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
            // After the second stop, the recovery time is twice as long.
            (1499, 9, Recovering),
            (1500, 9, None),
        ]);
    }

    #[test]
    fn new_replicas_need_headroom_for_an_hour_after_a_stop() {
        let start = Clock::System.instant();
        let at = |second| start + Duration::from_secs(second);
        let mut watch = MemoryWatch::default();
        watch.observe(&memory(30, None), at(0));
        assert_eq!(watch.headroom_for(at(0)), None);
        watch.observe(&memory(1, None), at(10));
        watch.observe(&memory(30, None), at(20));
        assert_eq!(watch.headroom_for(at(20)), Some(FORGET_STOPS_AFTER));
        assert_eq!(watch.headroom_for(at(3619)), Some(Duration::from_secs(1)));
        assert_eq!(watch.headroom_for(at(3620)), None);
        // The stop was before the start of the agent.
        let mut resumed = MemoryWatch::resume(true);
        resumed.observe(&memory(30, None), at(0));
        resumed.observe(&memory(30, None), at(10));
        assert_eq!(resumed.headroom_for(at(3599)), Some(Duration::from_secs(1)));
        assert_eq!(resumed.headroom_for(at(3600)), None);
    }

    #[test]
    fn warning_prevents_starts_and_stops_nothing() {
        let start = Clock::System.instant();
        let mut watch = MemoryWatch::default();
        let mut look = |second, level| watch.observe(&memory(40, level), start + Duration::from_secs(second));
        assert_eq!(look(0, Some(MemoryLevel::Normal)), Pressure::None);
        assert_eq!(look(1, Some(MemoryLevel::Low)), Pressure::None);
        assert_eq!(look(21, Some(MemoryLevel::Low)), Pressure::Warning);
        // The warning ends without a recovery time, because it stopped nothing.
        assert_eq!(look(22, Some(MemoryLevel::Normal)), Pressure::None);
        assert_eq!(look(23, Some(MemoryLevel::Critical)), Pressure::Critical);
        assert_eq!(look(24, Some(MemoryLevel::Normal)), Pressure::Recovering);
    }

    /// The Mac has 16 GB, of which models wire 10 GB. Half of the rest is compressed, which causes
    /// the warning, and the system occasionally swaps a few pages.
    #[test]
    fn an_hour_of_warning_with_short_swapping_stops_nothing() {
        let start = Clock::System.instant();
        let mut watch = MemoryWatch::default();
        let levels = (0..360).map(|pass| {
            let memory = Memory {
                total: Bytes::gib(16),
                available: Bytes::gib(2),
                swapouts: Some(1000 * (pass / 30)),
                ..memory(0, Some(MemoryLevel::Low))
            };
            watch.observe(&memory, start + Duration::from_secs(10 * pass))
        });
        assert!(levels.max().unwrap() == Pressure::Warning);
    }

    #[test]
    fn swapping_during_a_warning_stops_replicas() {
        let start = Clock::System.instant();
        let levels = |level, swapouts: &dyn Fn(u64) -> u64| {
            let mut watch = MemoryWatch::default();
            let looks = (0..=12).map(|pass| 10 * pass).map(|second| {
                let memory = Memory {
                    swapouts: Some(swapouts(second)),
                    ..memory(40, Some(level))
                };
                watch.observe(&memory, start + Duration::from_secs(second))
            });
            looks.max().unwrap()
        };
        assert_eq!(levels(MemoryLevel::Low, &|second| second), Pressure::Low);
        assert_eq!(levels(MemoryLevel::Normal, &|second| second), Pressure::None);
        // Pages that were swapped before the warning do not count.
        assert_eq!(levels(MemoryLevel::Low, &|_| 100_000), Pressure::Warning);
        assert_eq!(
            levels(MemoryLevel::Low, &|second| second.min(20)),
            Pressure::Warning
        );
    }

    #[test]
    fn swapping_that_ends_with_a_stop_causes_no_other_stop() {
        let start = Clock::System.instant();
        let mut watch = MemoryWatch::default();
        let levels = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100].map(|second: u64| {
            let memory = Memory {
                // The replica stops after 70 s.
                swapouts: Some(second.min(70)),
                ..memory(40, Some(MemoryLevel::Low))
            };
            watch.observe(&memory, start + Duration::from_secs(second))
        });
        assert_eq!(
            levels[7..],
            [
                Pressure::Low,
                Pressure::Recovering,
                Pressure::Recovering,
                Pressure::Recovering
            ]
        );
    }

    #[test]
    fn compressible_memory_is_obtainable() {
        let start = Clock::System.instant();
        let mut watch = MemoryWatch::default();
        let compressible = Memory {
            compressible: Bytes(1_000),
            ..memory(1, Some(MemoryLevel::Normal))
        };
        assert_eq!(watch.observe(&compressible, start), Pressure::None);
        assert_eq!(shortfall(&compressible), Bytes::ZERO);
    }

    /// Memory is low for one minute whenever the replicas have restarted.
    #[test]
    fn repeated_stops_have_growing_recovery_times() {
        let start = Clock::System.instant();
        let mut watch = MemoryWatch::default();
        let (mut second, mut stops) = (0, Vec::new());
        while second < 3 * 3600 {
            let runs = watch.level == Pressure::None;
            let mut percent = 40;
            if runs {
                second += 60;
                stops.push(second);
                percent = 1;
            }
            watch.observe(&memory(percent, None), start + Duration::from_secs(second));
            second += 10;
        }
        let gaps: Vec<_> = stops.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (gap, minutes) in gaps.iter().zip([6, 11, 21, 41, 41]) {
            let seconds = minutes * 60;
            assert!((seconds..seconds + 60).contains(gap), "{gaps:?}");
        }
        assert!(gaps.len() >= 5, "{gaps:?}");
    }

    proptest! {
        /// With enough memory, pressure ends after the recovery time, which grows eightfold at most.
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
                prop_assert!(calm_for < 8 * RECOVERY_TIME.as_secs() || level == Pressure::None);
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
