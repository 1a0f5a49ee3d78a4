//! Places in the queue: how many requests a worker takes at a time.

use std::sync::{Arc, Mutex};

use tokio::sync::OwnedSemaphorePermit;

/// A place that the engine and a request's client hold together. It is free as soon as one of them
/// lets go: the engine at the end of the request, however slowly its answer is read, and the client
/// when it leaves, however long a step takes.
#[derive(Debug)]
pub(crate) struct Place(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Place {
    /// One half for each. `None`: of a request that is larger than the whole queue, what is beyond
    /// that.
    pub(crate) fn shared(permit: Option<OwnedSemaphorePermit>) -> (Self, Self) {
        let place = Arc::new(Mutex::new(permit));
        (Self(Arc::clone(&place)), Self(place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(mut permit) = self.0.lock() {
            drop(permit.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn a_place_is_free_when_the_first_of_both_lets_go() {
        let places = Arc::new(Semaphore::new(1));
        for engine_first in [true, false] {
            let permit = Arc::clone(&places).try_acquire_owned().ok();
            let (engine, client) = Place::shared(permit);
            assert_eq!(places.available_permits(), 0);
            let (first, second) = if engine_first {
                (engine, client)
            } else {
                (client, engine)
            };
            drop(first);
            assert_eq!(places.available_permits(), 1);
            drop(second);
            assert_eq!(places.available_permits(), 1);
        }
    }
}
