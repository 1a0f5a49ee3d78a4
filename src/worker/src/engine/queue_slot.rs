//! Queue slots, which limit the number of requests of a worker.

use std::sync::{Arc, Mutex};

use tokio::sync::OwnedSemaphorePermit;

/// Queue slot that the engine and the client of a request share. The first drop of a half releases
/// the slot. The engine drops its half at the end of the request, even if the client reads the
/// answer slowly. The client drops its half when it disconnects, even if the current step takes
/// long.
#[derive(Debug)]
pub(crate) struct QueueSlot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl QueueSlot {
    /// Creates both halves of a slot. `None`: the request is larger than the queue and needs no
    /// further permit.
    pub(crate) fn shared(permit: Option<OwnedSemaphorePermit>) -> (Self, Self) {
        let slot = Arc::new(Mutex::new(permit));
        (Self(Arc::clone(&slot)), Self(slot))
    }
}

impl Drop for QueueSlot {
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
    fn first_dropped_half_releases_the_slot() {
        let slots = Arc::new(Semaphore::new(1));
        for engine_first in [true, false] {
            let permit = Arc::clone(&slots).try_acquire_owned().ok();
            let (engine, client) = QueueSlot::shared(permit);
            assert_eq!(slots.available_permits(), 0);
            let (first, second) = if engine_first {
                (engine, client)
            } else {
                (client, engine)
            };
            drop(first);
            assert_eq!(slots.available_permits(), 1);
            drop(second);
            assert_eq!(slots.available_permits(), 1);
        }
    }
}
