//! How long a worker that ended by itself has to wait before it is started again. Pure.

use std::time::Duration;

/// The wait after the first failure; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);
/// A worker that served for so long starts with a clean sheet.
const HEALTHY_AFTER: Duration = Duration::from_secs(10 * 60);

/// The wait before the next start, after `failures` in a row.
pub(crate) fn wait_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(31);
    FIRST_WAIT.saturating_mul(1 << doublings).min(LONGEST_WAIT)
}

/// Failures in a row, after one more by a worker that was ready for `ready_for`.
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
    fn waits_double_to_five_minutes() {
        let seconds: Vec<u64> = (1..=11).map(|failures| wait_after(failures).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(wait_after(u32::MAX), LONGEST_WAIT);
    }

    #[test]
    fn ten_minutes_of_service_clear_the_sheet() {
        assert_eq!(count_failure(7, None), 8);
        assert_eq!(count_failure(7, Some(Duration::from_secs(599))), 8);
        assert_eq!(count_failure(7, Some(Duration::from_secs(600))), 1);
    }
}
