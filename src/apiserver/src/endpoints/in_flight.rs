//! Limit of in-flight requests. Requests beyond the limit receive 429 with Retry-After immediately,
//! which keeps latency low; Kubernetes clients retry by themselves.

use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::endpoints::routes::Route;
use crate::status::ApiError;
use rooflet_apimachinery::verb::Verb;

/// Limits of in-flight requests, with the names and defaults of kube-apiserver.
#[derive(Debug, Clone, Copy)]
pub struct InFlightLimits {
    /// Maximum read requests.
    pub requests: NonZeroU32,
    /// Maximum write requests.
    pub mutating_requests: NonZeroU32,
}

impl Default for InFlightLimits {
    fn default() -> Self {
        Self {
            requests: NonZeroU32::new(400).expect("400 is not 0"),
            mutating_requests: NonZeroU32::new(200).expect("200 is not 0"),
        }
    }
}

/// Permits of in-flight requests, separate for reads and writes.
#[derive(Debug)]
pub(crate) struct InFlight {
    requests: Arc<Semaphore>,
    mutating_requests: Arc<Semaphore>,
}

/// Permit of a request. `None` for requests without limit.
pub(crate) type Permit = Option<OwnedSemaphorePermit>;

impl InFlight {
    pub(crate) fn new(limits: InFlightLimits) -> Self {
        let semaphore = |limit: NonZeroU32| Arc::new(Semaphore::new(limit.get() as usize));
        Self {
            requests: semaphore(limits.requests),
            mutating_requests: semaphore(limits.mutating_requests),
        }
    }

    /// Acquires the permit of a request. Watches are exempt, because they are long and mostly idle.
    /// Health and version are exempt, because health must respond under load, and anonymous
    /// requests, which may read only these paths, must not use up the permits.
    pub(crate) fn acquire(&self, route: &Route, verb: Verb) -> Result<Permit, ApiError> {
        let semaphore = match (route, verb) {
            (Route::Health { .. } | Route::Version, _) | (_, Verb::Watch) => return Ok(None),
            (_, Verb::Get | Verb::List) => &self.requests,
            _ => &self.mutating_requests,
        };
        match Arc::clone(semaphore).try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            Err(_) => Err(ApiError::too_many_requests()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::routes;

    #[test]
    fn reads_and_writes_have_separate_limits_and_watches_none() {
        let one = NonZeroU32::new(1).expect("1 is not 0");
        let in_flight = InFlight::new(InFlightLimits {
            requests: one,
            mutating_requests: one,
        });
        let acquire = |verb: Verb, path: &str| in_flight.acquire(&routes::parse(path), verb);
        let path = "/api/v1/configmaps";
        let read = acquire(Verb::List, path).expect("the first read is permitted");
        assert!(read.is_some());
        assert_eq!(acquire(Verb::Get, "/apis").expect_err("the second").code(), 429);
        let write = acquire(Verb::Create, path).expect("writes have a separate limit");
        assert_eq!(acquire(Verb::Delete, path).expect_err("the second").code(), 429);
        assert!(
            acquire(Verb::Watch, path)
                .expect("watches have no limit")
                .is_none()
        );
        assert!(
            acquire(Verb::Get, "/livez")
                .expect("health has no limit")
                .is_none()
        );
        assert!(
            acquire(Verb::Get, "/version")
                .expect("version has no limit")
                .is_none()
        );
        drop((read, write));
        assert!(acquire(Verb::Get, path).is_ok() && acquire(Verb::Patch, path).is_ok());
    }
}
