//! Retries of one operation, with rate-limited failure logs.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{debug, info, warn};

use super::{ApiError, Backoff};
use rooflet_base::error::Chain;

/// Consecutive attempts of one operation.
#[derive(Debug)]
pub struct Attempts {
    /// Name of the operation for logs, such as "writing statuses".
    what: String,
    backoff: Backoff,
    /// Failures by reason since the last success. Reasons may alternate, for example while an API
    /// server restarts.
    failures: BTreeMap<&'static str, Repeats>,
}

/// Failures of the same kind.
#[derive(Debug, Default)]
pub(crate) struct Repeats(u32);

impl Repeats {
    /// Number of the first logged repetition. With the longest delay between attempts, it occurs
    /// after about a minute. The interval until each following logged repetition doubles.
    const FIRST_LOGGED: u32 = 16;

    /// Counts a failure. Returns whether it is logged: at first, and then at growing intervals.
    pub(crate) fn is_logged(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 == 1 || (self.0 >= Self::FIRST_LOGGED && self.0.is_power_of_two())
    }
}

impl Attempts {
    /// Creates the state of an operation. `what` is its name for logs.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            backoff: Backoff::default(),
            failures: BTreeMap::new(),
        }
    }

    /// Records a success and resets the backoff.
    pub fn succeeded(&mut self) {
        self.backoff.reset();
        if !std::mem::take(&mut self.failures).is_empty() {
            info!("{} succeeded again", self.what);
        }
    }

    /// Returns the delay before the next attempt. Failures with the same reason are logged at growing
    /// intervals, also if other reasons occur in between.
    pub fn failed(&mut self, err: &ApiError) -> Duration {
        self.failed_with(err, None)
    }

    /// Like [`Self::failed`], but also logs the remedy.
    pub(crate) fn failed_with(&mut self, err: &ApiError, remedy: Option<String>) -> Duration {
        match (self.is_to_log(err), remedy) {
            (false, _) => debug!(error = %Chain(err), "{} failed again", self.what),
            (true, None) => warn!(error = %Chain(err), "{} failed; retrying", self.what),
            (true, Some(remedy)) => warn!(error = %Chain(err), remedy, "{} failed; retrying", self.what),
        }
        self.backoff.next_wait()
    }

    fn is_to_log(&mut self, err: &ApiError) -> bool {
        // Conflicts are the expected result of a concurrent write. After a compaction or a restart of the
        // API server, a watch cannot continue (410), and lists all objects again.
        if matches!(
            err,
            ApiError::Conflict(_) | ApiError::AlreadyExists(_) | ApiError::Server { code: 410, .. }
        ) {
            return false;
        }
        self.failures.entry(err.reason()).or_default().is_logged()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_alternating_failures_once_per_reason() {
        let mut attempts = Attempts::new("trying");
        let unreachable = ApiError::Unreachable("no route".to_owned());
        let forbidden = ApiError::Forbidden("denied".to_owned());
        let conflict = ApiError::Conflict("newer".to_owned());
        let expired = ApiError::Server {
            code: 410,
            message: "too old resource version".to_owned(),
        };
        let logged = [
            &conflict,
            &expired,
            &unreachable,
            &unreachable,
            &conflict,
            &unreachable,
            &forbidden,
            &forbidden,
            &unreachable,
        ]
        .map(|err| attempts.is_to_log(err));
        assert_eq!(
            logged,
            [false, false, true, false, false, false, true, false, false]
        );
        attempts.succeeded();
        assert!(attempts.is_to_log(&unreachable));
    }

    #[test]
    fn repeats_a_lasting_failure_at_growing_intervals() {
        let mut repeats = Repeats::default();
        let logged: Vec<u32> = (1..=100).filter(|_| repeats.is_logged()).collect();
        assert_eq!(logged, [1, 16, 32, 64]);
    }
}
