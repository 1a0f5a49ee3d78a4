//! Measured read rate of block files, and the decision whether reading is worth it. The module is
//! pure.
//!
//! The rate covers the complete path: reading, verification, copies into MLX's memory, and the
//! steps of other requests in between. A prefix is read unless computing it is known to be faster.
//! As long as one of the two rates is unknown, the prefix is read, which measures the rate.

use std::time::{Duration, Instant};

/// Validity of a measurement. The disk may have been busy at the time, or the files were not in the
/// page cache.
const VALIDITY: Duration = Duration::from_mins(10);

/// Minimum number of bytes of a measurement; smaller ones are noise.
const MIN_BYTES: u64 = 1 << 20;

/// Measured read rate.
#[derive(Debug, Default)]
pub(super) struct ReadPace {
    /// Start of the current reads, and the bytes read since.
    running: Option<(Instant, u64)>,
    /// Bytes per second, and the time of the measurement.
    rate: Option<(f64, Instant)>,
}

impl ReadPace {
    /// Records that reads are in progress from now on.
    pub(super) fn begin(&mut self, now: Instant) {
        self.running.get_or_insert((now, 0));
    }

    /// Records a block that was read.
    pub(super) fn add(&mut self, bytes: u64) {
        if let Some((_, sum)) = &mut self.running {
            *sum += bytes;
        }
    }

    /// Records that all reads have ended.
    pub(super) fn end(&mut self, now: Instant) {
        let Some((since, bytes)) = self.running.take() else {
            return;
        };
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        if bytes >= MIN_BYTES && seconds > 0.0 {
            self.rate = Some((bytes as f64 / seconds, now));
        }
    }

    /// Returns true if reading these bytes is not known to be slower than computing their content,
    /// which takes `computing` seconds.
    pub(super) fn should_read(&self, bytes: u64, computing: Option<f64>, now: Instant) -> bool {
        let valid = |(_, at): &(f64, Instant)| now.saturating_duration_since(*at) < VALIDITY;
        match (self.rate.filter(valid), computing) {
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
        pace.begin(begin);
        pace.add(60_000_000);
        pace.begin(begin + seconds(1));
        pace.add(40_000_000);
        pace.end(begin + seconds(2));
        pace
    }

    #[test]
    fn reads_if_reading_is_faster_than_computing() {
        let begin = rooflet_base::clock::Clock::System.instant();
        let pace = measured(begin);
        let worth = |bytes, computing| pace.should_read(bytes, computing, begin + seconds(3));
        assert!(worth(500_000_000, Some(10.1)));
        assert!(!worth(500_000_000, Some(9.9)));
    }

    #[test]
    fn reads_if_a_rate_is_unknown() {
        let begin = rooflet_base::clock::Clock::System.instant();
        let unknown = ReadPace::default();
        assert!(unknown.should_read(u64::MAX, Some(0.001), begin));
        let pace = measured(begin);
        assert!(pace.should_read(u64::MAX, None, begin + seconds(3)));
        // A slow measurement expires.
        assert!(!pace.should_read(u64::MAX, Some(0.001), begin + VALIDITY));
        assert!(pace.should_read(u64::MAX, Some(0.001), begin + seconds(2) + VALIDITY));
    }

    #[test]
    fn ignores_small_reads() {
        let begin = rooflet_base::clock::Clock::System.instant();
        let mut pace = ReadPace::default();
        pace.begin(begin);
        pace.add(MIN_BYTES - 1);
        pace.end(begin + seconds(100));
        assert!(pace.should_read(1 << 40, Some(0.001), begin + seconds(100)));
    }
}
