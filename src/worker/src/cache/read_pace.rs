//! How fast prefixes have come back from files, and whether that is worth it. Pure.
//!
//! What is measured is all of it: reading, verifying, the copies into the engine's memory, and the
//! steps of other requests in between. A prefix is read unless computing it is known to be faster:
//! where nothing was measured yet, on either side, it is read, which measures it.

use std::time::{Duration, Instant};

/// What was measured so long ago is not believed any more: the disk may have been busy, or the
/// files not in the system's memory.
const BELIEVED: Duration = Duration::from_mins(10);

/// Shorter readings are noise, in bytes.
const MIN_BYTES: u64 = 1 << 20;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct ReadPace {
    /// Since when blocks are being read, and what has come of them.
    running: Option<(Instant, u64)>,
    /// Bytes per second, and when that was.
    seen: Option<(f64, Instant)>,
}

impl ReadPace {
    /// Blocks are being read from now on, if they were not already.
    pub(super) fn begins(&mut self, now: Instant) {
        self.running.get_or_insert((now, 0));
    }

    /// A block has come.
    pub(super) fn took(&mut self, bytes: u64) {
        if let Some((_, sum)) = &mut self.running {
            *sum += bytes;
        }
    }

    /// No block is being read any more.
    pub(super) fn ends(&mut self, now: Instant) {
        let Some((since, bytes)) = self.running.take() else {
            return;
        };
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        if bytes >= MIN_BYTES && seconds > 0.0 {
            self.seen = Some((bytes as f64 / seconds, now));
        }
    }

    /// Whether to read so many bytes, where computing what they hold takes so many seconds, if that
    /// is known.
    pub(super) fn is_worth(&self, bytes: u64, computing: Option<f64>, now: Instant) -> bool {
        let believed = |(_, at): &(f64, Instant)| now.saturating_duration_since(*at) < BELIEVED;
        match (self.seen.filter(believed), computing) {
            (Some((rate, _)), Some(computing)) => bytes as f64 / rate <= computing,
            (None, _) | (_, None) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// 100 MB in two seconds.
    fn measured(begin: Instant) -> ReadPace {
        let mut pace = ReadPace::default();
        pace.begins(begin);
        pace.took(60_000_000);
        pace.begins(begin + seconds(1));
        pace.took(40_000_000);
        pace.ends(begin + seconds(2));
        pace
    }

    #[test]
    fn what_is_read_faster_than_computed_is_read() {
        let begin = rooflet_base::clock::Clock::System.instant();
        let pace = measured(begin);
        let worth = |bytes, computing| pace.is_worth(bytes, computing, begin + seconds(3));
        assert!(worth(500_000_000, Some(10.1)));
        assert!(!worth(500_000_000, Some(9.9)));
    }

    #[test]
    fn what_is_not_known_is_read() {
        let begin = rooflet_base::clock::Clock::System.instant();
        let unknown = ReadPace::default();
        assert!(unknown.is_worth(u64::MAX, Some(0.001), begin));
        let pace = measured(begin);
        assert!(pace.is_worth(u64::MAX, None, begin + seconds(3)));
        // Once it was slow; that may be over.
        assert!(!pace.is_worth(u64::MAX, Some(0.001), begin + BELIEVED));
        assert!(pace.is_worth(u64::MAX, Some(0.001), begin + seconds(2) + BELIEVED));
    }

    #[test]
    fn little_says_nothing() {
        let begin = rooflet_base::clock::Clock::System.instant();
        let mut pace = ReadPace::default();
        pace.begins(begin);
        pace.took(MIN_BYTES - 1);
        pace.ends(begin + seconds(100));
        assert!(pace.is_worth(1 << 40, Some(0.001), begin + seconds(100)));
    }
}
