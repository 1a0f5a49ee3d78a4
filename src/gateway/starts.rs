//! How long a model's replicas take to start, as this gateway saw it, and so when the next one will answer.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Of one model.
#[derive(Debug, Clone, Default)]
pub(super) struct Starts {
    /// Since when each is on its way.
    since: HashMap<u64, Instant>,
    /// What the last start took.
    took: Option<Duration>,
}

impl Starts {
    /// These are on their way, and these answer, as of now.
    pub(super) fn saw(&mut self, starting: &[u64], ready: impl Iterator<Item = u64>, now: Instant) {
        for id in ready {
            if let Some(began) = self.since.remove(&id) {
                self.took = Some(now.saturating_duration_since(began));
            }
        }
        self.since.retain(|id, _| starting.contains(id));
        for id in starting {
            self.since.entry(*id).or_insert(now);
        }
    }

    /// When the next one should answer; `None` where no start has been seen from beginning to end.
    pub(super) fn next(&self, now: Instant) -> Option<Duration> {
        let took = self.took?;
        let earliest = self.since.values().min().copied().unwrap_or(now);
        Some(took.saturating_sub(now.saturating_duration_since(earliest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock};

    #[test]
    fn the_last_start_tells_how_long_the_next_will_take() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock = Clock::Manual(manual.clone());
        let mut starts = Starts::default();
        let none = std::iter::empty::<u64>;
        // Whoever answered from the beginning tells nothing.
        starts.saw(&[], [1].into_iter(), clock.instant());
        assert_eq!(starts.next(clock.instant()), None);
        starts.saw(&[2], none(), clock.instant());
        manual.advance(Duration::from_secs(30));
        starts.saw(&[], [2].into_iter(), clock.instant());
        assert_eq!(starts.next(clock.instant()), Some(Duration::from_secs(30)));
        starts.saw(&[3, 4], none(), clock.instant());
        manual.advance(Duration::from_secs(10));
        starts.saw(&[3], none(), clock.instant());
        assert_eq!(starts.next(clock.instant()), Some(Duration::from_secs(20)));
        manual.advance(Duration::from_secs(60));
        assert_eq!(starts.next(clock.instant()), Some(Duration::ZERO));
    }
}
