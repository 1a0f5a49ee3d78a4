//! Backoff of worker restarts. Pure.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use rooflet_base::clock::since;

/// Delay after the first failure. It doubles with each consecutive failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(5 * 60);
/// A worker that was ready for this time resets the failure count.
const HEALTHY_AFTER: Duration = Duration::from_secs(10 * 60);

/// Returns the delay before the next start after `failures` consecutive failures.
pub(crate) fn delay_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(31);
    FIRST_DELAY.saturating_mul(1 << doublings).min(LONGEST_DELAY)
}

/// Returns true if the next start waits until `until`. A wait beyond the longest delay does not apply: the clock
/// has been set back since `until` was recorded.
pub(crate) fn is_waiting(until: Timestamp, now: Timestamp) -> bool {
    until > now && since(until, now) <= LONGEST_DELAY
}

/// Returns the number of consecutive failures after a failure of a worker that was ready for
/// `ready_for`.
pub(crate) fn count_failure(failures: u32, ready_for: Option<Duration>) -> u32 {
    if ready_for.is_some_and(|time| time >= HEALTHY_AFTER) {
        1
    } else {
        failures.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_five_minutes() {
        let seconds: Vec<u64> = (1..=11).map(|failures| delay_after(failures).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(delay_after(u32::MAX), LONGEST_DELAY);
    }

    #[test]
    fn ten_minutes_of_service_reset_the_failure_count() {
        assert_eq!(count_failure(7, None), 8);
        assert_eq!(count_failure(7, Some(Duration::from_secs(599))), 8);
        assert_eq!(count_failure(7, Some(Duration::from_secs(600))), 1);
    }
}
