//! Retries of one operation, with logs that repeated failures do not fill.

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
    told: Option<&'static str>,
}

impl Attempts {
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            backoff: Backoff::default(),
            told: None,
        }
    }

    pub fn succeeded(&mut self) {
        self.backoff.reset();
        if self.told.take().is_some() {
            info!("{} succeeds again", self.what);
        }
    }

    /// Returns the delay before the next attempt. A failure with the same reason as the previous
    /// one is logged at debug level only.
    pub fn failed(&mut self, err: &ApiError) -> Duration {
        if self.is_news(err) {
            warn!(error = %Chain(err), "{} failed; trying again", self.what);
        } else {
            debug!(error = %Chain(err), "{} failed again", self.what);
        }
        self.backoff.next_wait()
    }

    fn is_news(&mut self, err: &ApiError) -> bool {
        // Conflicts are the normal way to learn about a concurrent write.
        if matches!(err, ApiError::Conflict(_) | ApiError::AlreadyExists(_)) {
            return false;
        }
        self.told.replace(err.reason()) != Some(err.reason())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_until_another_or_a_success() {
        let mut attempts = Attempts::new("trying");
        let away = ApiError::Unreachable("nobody there".to_owned());
        let refused = ApiError::Forbidden("not you".to_owned());
        let outrun = ApiError::Conflict("newer".to_owned());
        let told = [&outrun, &away, &away, &outrun, &away, &refused, &refused, &away]
            .map(|err| attempts.is_news(err));
        assert_eq!(told, [false, true, false, false, false, true, false, true]);
        attempts.succeeded();
        assert!(attempts.is_news(&away));
    }
}
