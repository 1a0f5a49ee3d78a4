//! Exponential backoff.

use std::time::Duration;

use rand::Rng;

const FIRST: Duration = Duration::from_millis(200);
/// Longest delay: clients reconnect to a restarted API server within this time.
const LONGEST: Duration = Duration::from_secs(5);

/// Endless delays of [`wait_after`], each reduced by a random part of up to a quarter, so that the
/// nodes of a fleet do not retry simultaneously.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Resets the backoff after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the delay after one more failure.
    pub(crate) fn next_wait(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        wait_after(self.failures).mul_f64(rand::rng().random_range(0.75..=1.0))
    }
}

/// Returns the maximum delay after this number of consecutive failures (at least one): doubled for
/// each failure, from [`FIRST`] to [`LONGEST`].
pub fn wait_after(failures: u32) -> Duration {
    FIRST
        .saturating_mul(1 << failures.saturating_sub(1).min(16))
        .min(LONGEST)
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.next_wait())
    }
}

impl kube::runtime::utils::Backoff for Backoff {
    fn reset(&mut self) {
        Self::reset(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_maximum_and_reset_after_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = backoff.by_ref().take(64).collect();
        assert!(waits[0] <= FIRST && waits[63] <= LONGEST, "{waits:?}");
        assert!(waits[63] >= LONGEST.mul_f64(0.75), "{waits:?}");
        backoff.reset();
        assert!(backoff.next_wait() <= FIRST);
        assert_eq!([1, 2, u32::MAX].map(wait_after), [FIRST, FIRST * 2, LONGEST]);
    }
}
