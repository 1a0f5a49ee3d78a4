//! How many requests are worked on at once. More are turned away at once with 429 and told when to
//! come again: clients of Kubernetes do so by themselves, and a server that is late for everybody
//! helps nobody.

use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::endpoints::routes::Route;
use crate::status::ApiError;
use rooflet_apimachinery::verb::Verb;

/// The limits of a real kube-apiserver, which go by the same names.
#[derive(Debug, Clone, Copy)]
pub struct InFlightLimits {
    /// Requests that change nothing.
    pub requests: NonZeroU32,
    /// Requests that write.
    pub mutating_requests: NonZeroU32,
}

impl Default for InFlightLimits {
    fn default() -> Self {
        Self {
            requests: NonZeroU32::new(400).expect("is not 0"),
            mutating_requests: NonZeroU32::new(200).expect("is not 0"),
        }
    }
}

/// The places for requests under way, those that write apart from the others.
#[derive(Debug)]
pub(crate) struct InFlight {
    requests: Arc<Semaphore>,
    mutating_requests: Arc<Semaphore>,
}

/// A request's place; `None` for requests that need none.
pub(crate) type Place = Option<OwnedSemaphorePermit>;

impl InFlight {
    pub(crate) fn new(limits: InFlightLimits) -> Self {
        let places = |limit: NonZeroU32| Arc::new(Semaphore::new(limit.get() as usize));
        Self {
            requests: places(limits.requests),
            mutating_requests: places(limits.mutating_requests),
        }
    }

    /// Watches are many and long and cost next to nothing while they wait; health must be told
    /// above all when there is much to do; and what strangers may ask must not take the places of
    /// others. None of these needs a place.
    pub(crate) fn place(&self, route: &Route, verb: Verb) -> Result<Place, ApiError> {
        let places = match (route, verb) {
            (Route::Health { .. } | Route::Version, _) | (_, Verb::Watch) => return Ok(None),
            (_, Verb::Get | Verb::List) => &self.requests,
            _ => &self.mutating_requests,
        };
        match Arc::clone(places).try_acquire_owned() {
            Ok(place) => Ok(Some(place)),
            Err(_) => Err(ApiError::too_many_requests()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::routes;

    #[test]
    fn reads_and_writes_have_places_of_their_own_and_watches_need_none() {
        let one = NonZeroU32::new(1).expect("is not 0");
        let in_flight = InFlight::new(InFlightLimits {
            requests: one,
            mutating_requests: one,
        });
        let place = |verb: Verb, path: &str| in_flight.place(&routes::parse(path), verb);
        let path = "/api/v1/configmaps";
        let read = place(Verb::List, path).expect("the first");
        assert!(read.is_some());
        assert_eq!(place(Verb::Get, "/apis").expect_err("the second").code(), 429);
        let write = place(Verb::Create, path).expect("writes are counted apart");
        assert_eq!(place(Verb::Delete, path).expect_err("the second").code(), 429);
        assert!(place(Verb::Watch, path).expect("never refused").is_none());
        assert!(place(Verb::Get, "/livez").expect("never refused").is_none());
        assert!(place(Verb::Get, "/version").expect("never refused").is_none());
        drop((read, write));
        assert!(place(Verb::Get, path).is_ok() && place(Verb::Patch, path).is_ok());
    }
}
