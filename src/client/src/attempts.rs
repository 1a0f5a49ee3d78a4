//! Retries of one operation, with rate-limited failure logs.

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
    /// Reason of the last logged failure, if no attempt has succeeded since.
    logged: Option<&'static str>,
}

impl Attempts {
    /// Creates the state of an operation. `what` is its name for logs.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            backoff: Backoff::default(),
            logged: None,
        }
    }

    /// Records a success and resets the backoff.
    pub fn succeeded(&mut self) {
        self.backoff.reset();
        if self.logged.take().is_some() {
            info!("{} succeeded again", self.what);
        }
    }

    /// Returns the delay before the next attempt. A failure with the same reason as the previous
    /// one is logged at debug level only.
    pub fn failed(&mut self, err: &ApiError) -> Duration {
        if self.is_new_reason(err) {
            warn!(error = %Chain(err), "{} failed; retrying", self.what);
        } else {
            debug!(error = %Chain(err), "{} failed again", self.what);
        }
        self.backoff.next_wait()
    }

    fn is_new_reason(&mut self, err: &ApiError) -> bool {
        // Conflicts are the expected result of a concurrent write.
        if matches!(err, ApiError::Conflict(_) | ApiError::AlreadyExists(_)) {
            return false;
        }
        self.logged.replace(err.reason()) != Some(err.reason())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_a_failure_once_until_its_reason_changes() {
        let mut attempts = Attempts::new("trying");
        let unreachable = ApiError::Unreachable("no route".to_owned());
        let forbidden = ApiError::Forbidden("denied".to_owned());
        let conflict = ApiError::Conflict("newer".to_owned());
        let logged = [
            &conflict,
            &unreachable,
            &unreachable,
            &conflict,
            &unreachable,
            &forbidden,
            &forbidden,
            &unreachable,
        ]
        .map(|err| attempts.is_new_reason(err));
        assert_eq!(logged, [false, true, false, false, false, true, false, true]);
        attempts.succeeded();
        assert!(attempts.is_new_reason(&unreachable));
    }
}
