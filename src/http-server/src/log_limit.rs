//! Limit of log lines about rejected clients: an attacker must not fill the disk.

use std::time::{Duration, Instant};

/// Maximum lines in a [`PERIOD`].
const MAX_LINES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);

/// See the module documentation.
#[derive(Debug)]
pub struct LogLimit {
    period_started: Instant,
    lines: u32,
    suppressed: u64,
}

impl LogLimit {
    pub fn new(now: Instant) -> Self {
        Self {
            period_started: now,
            lines: 0,
            suppressed: 0,
        }
    }

    /// Returns whether a line may be written: the number of lines suppressed since the last one, or
    /// `None`.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.period_started) >= PERIOD {
            self.period_started = now;
            self.lines = 0;
        }
        if self.lines == MAX_LINES {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Returns whether the limit has no state that matters.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.suppressed == 0 && now.saturating_duration_since(self.period_started) >= PERIOD
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::Clock;

    #[test]
    fn counts_suppressed_lines() {
        let start = Clock::System.instant();
        let mut log = LogLimit::new(start);
        let written = (0..10_000).filter(|_| log.admit(start).is_some()).count();
        assert_eq!(written, 20);
        assert_eq!(log.admit(start + PERIOD), Some(9980));
        assert_eq!(log.admit(start + PERIOD), Some(0));
    }
}
